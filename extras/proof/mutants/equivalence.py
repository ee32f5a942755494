"""Whether a mutant of a core is the same hardware: proven by SAT for all inputs and all states, reachable or not.

Registers and memories are cut out of the flat core, so that what they hold is an input, and what goes into them is
an output. A mutant whose outputs are then those of the core for all inputs does in every cycle what the core does. One
that differs only in states that cannot be reached is not found to be equal.
"""

from __future__ import annotations

import collections
import itertools
import re
import tempfile
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from weft.extras.proof.engine import engines
from weft.extras.proof.mutants.mutated import Mutant, MutationError
from weft.sim.rtl.coverage import Connections, bits_of, is_memory, is_register
from weft.sim.rtl.device import TOP
from weft.sim.yosys_process import error_message, run_task

SECONDS = 60
"""Of the solver, for each mutant."""
_SAID: dict[str, bool | None] = {
    "no model found: SUCCESS!": True,
    "model found: FAIL!": False,
    "TIMEOUT!": None,
}
"""What Yosys says of a proof, the first text that is there."""


def equal(plain: Path, mutants: Iterable[Mutant], seconds: int = SECONDS) -> dict[int, bool | None]:
    """By number, whether a mutant is proven equal to the flat core in the file `plain`; None if time was up.

    Raises `MutationError` if Yosys fails.
    """
    found: dict[int, bool | None] = {}
    for mutant in mutants:
        with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
            job = {"plain": str(plain.resolve()), "command": mutant.command, "seconds": seconds}
            _, said = run_task(_compare, Path(temporary), job)
        verdicts = [value for text, value in _SAID.items() if text in said]
        if not verdicts:
            raise MutationError(error_message(said))
        found[mutant.number] = verdicts[0]
    return found


def cut(module: Any, yosys: Any, kept: Collection[str] = ()) -> None:
    """Take memories out of a module, and registers but those whose cells are `kept`. What goes to a port of a
    memory counts while that is enabled."""
    for cell in list(module.cells_.values()):
        if not (is_memory(cell) or is_register(cell)) or str(cell.name) in kept:
            continue
        asked = _asked(module, yosys, cell) if is_memory(cell) else {}
        for port, signal in list(cell.connections().items()):
            name = f"\\cut {cell.name!s} {port!s}".replace(" ", "/")
            wire = module.addWire(yosys.IdString(name), signal.size())
            if cell.output(port):
                wire.port_input = True
                module.connect(signal, yosys.SigSpec(wire))
            else:
                wire.port_output = True
                module.connect(yosys.SigSpec(wire), asked.get(str(port), signal))
        module.remove(cell)
    module.fixup_ports()


def _asked(module: Any, yosys: Any, memory: Any) -> dict[str, Any]:
    """By port of a memory's cell its addresses and data, 0 where that port of the memory is not enabled."""
    ports = {str(port): signal for port, signal in memory.connections().items()}
    found = {}
    for kind, number in (("RD", ports["\\RD_CLK"].size()), ("WR", ports["\\WR_CLK"].size())):
        enable, address = ports[f"\\{kind}_EN"], ports[f"\\{kind}_ADDR"]
        if not number:
            continue
        own, width = enable.size() // number, address.size() // number
        masks = yosys.SigSpec()
        for index in range(number):
            some = module.addWire(
                yosys.IdString(f"\\asked {memory.name!s} {kind} {index}".replace(" ", "/")), 1
            )
            module.addReduceOr(
                yosys.IdString(f"{some.name!s}/or"), enable.extract(index * own, own), yosys.SigSpec(some)
            )
            for _ in range(width):
                masks.append(yosys.SigSpec(some))
        found[f"\\{kind}_ADDR"] = _masked(module, yosys, f"{memory.name!s} {kind}_ADDR", address, masks)
        if kind == "WR":
            data = ports["\\WR_DATA"]
            found["\\WR_DATA"] = _masked(module, yosys, f"{memory.name!s} WR_DATA", data, enable)
    return found


def _masked(module: Any, yosys: Any, name: str, signal: Any, mask: Any) -> Any:
    wire = module.addWire(yosys.IdString(f"\\asked {name}".replace(" ", "/")), signal.size())
    module.addAnd(yosys.IdString(f"{wire.name!s}/and"), signal, mask, yosys.SigSpec(wire))
    return yosys.SigSpec(wire)


def output_of(register: Any) -> Any:
    """What a register drives."""
    return next(signal for port, signal in register.connections().items() if register.output(port))


def _compare(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    design = libyosys.Design()

    def run(*commands: str) -> None:
        for command in commands:
            libyosys.run_pass(command, design)

    run(f"read_rtlil {job['plain']}", f"copy {TOP} gold", f"rename {TOP} gate")
    run(job["command"].replace(f"-module {TOP} ", "-module gate "))
    for module in list(design.modules_.values()):
        cut(module, libyosys)
    run("setattr -unset init w:*")
    run("miter -equiv -flatten gold gate miter", "hierarchy -top miter", "opt_expr", "opt_merge -nomux", "opt -full",
        f"sat -timeout {job['seconds']} -prove trigger 0 miter")  # fmt: skip


INDUCTION_SECONDS = 120
"""For each mutant: no round begins behind that, and no prover takes much longer than what is left."""
_AIG, _MAP, _SIMPLE = "miter.aig", "miter.map", "simple.aig"
_DIFFERS = "trigger"
"""Yosys' name of the output that says whether any other differs."""
_ROUNDS = 3
_FLAG = 3
"""Registers of so many bits and fewer hold flags."""
_STEPS = 2
"""Registers that a mutation reaches in so many cycles may differ while nobody asks."""
_MOST = 200_000
"""Signals that say when registers differ; those of fewer registers if there would be more."""


def same_from_reset(
    plain: Path, mutants: Iterable[Mutant], seconds: int = INDUCTION_SECONDS
) -> dict[int, bool]:
    """By number, whether a mutant is proven equal from a reset on to the flat core in the file `plain`.

    False says nothing: the other units may never do what tells it from the core, or the time was up.

    Raises `MutationError` if Yosys fails, and `weft.extras.proof.engine.engines.EngineError`.
    """
    return {mutant.number: _same(plain, mutant, seconds) for mutant in mutants}


def _same(plain: Path, mutant: Mutant, seconds: int) -> bool:
    """In rounds: where it cannot be excluded that other registers get something else, their units stay as well."""
    more: set[str] = set()
    end = time.monotonic() + seconds
    for turn in range(_ROUNDS):
        with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
            folder = Path(temporary)
            job = {
                "plain": str(plain.resolve()),
                "command": mutant.command,
                "pin": mutant.pin,
                "more": sorted(more),
            }
            well, said = run_task(_induce, folder, job)
            if not well:
                raise MutationError(error_message(said))
            names = re.findall(r"^output (\d+) 0 (.*)$", (folder / _MAP).read_text(), re.MULTILINE)
            outputs = {name: int(index) for index, name in names}
            literals = engines.simplified(folder, _AIG, _SIMPLE, max(1.0, (end - time.monotonic()) / 2))
            if literals[outputs[_DIFFERS]] == 0:
                return True
            open_ = {
                _cell(name)
                for name, index in outputs.items()
                if name.startswith("cmp") and literals[index] != 1
            }
            left = end - time.monotonic()
            if open_ <= more or turn == _ROUNDS - 1 or left < 0:
                return left > 0 and engines.never(folder, _SIMPLE, outputs[_DIFFERS], left)
        more |= open_
    raise AssertionError("the last round ends it")


def _cell(output: str) -> str:
    """Of which cell the miter compares an input."""
    return output.removeprefix("cmp_cut/").rpartition("/")[0]


class _Reach:
    """What of a flat module depends on what, by the names of cells."""

    def __init__(self, module: Any) -> None:
        self.registers = {
            str(cell.name): _names(cell) for cell in module.cells_.values() if is_register(cell)
        }
        self._memories = {str(cell.name) for cell in module.cells_.values() if is_memory(cell)}
        readers = collections.defaultdict(set)
        drives: dict[str, list[Any]] = {}
        connections = Connections(module)
        for cell in module.cells_.values():
            name = str(cell.name)
            drives[name] = []
            for port, signal in cell.connections().items():
                bits = connections.sources(signal)
                if cell.output(port):
                    drives[name] += bits
                else:
                    for bit in bits:
                        readers[bit].add(name)
        self._behind = {
            name: set().union(*(readers[bit] for bit in bits if bit)) for name, bits in drives.items()
        }

    def next(self, cells: Iterable[str]) -> set[str]:
        """Registers that the outputs of `cells` reach within the cycle."""
        reached: set[str] = set()
        seen: set[str] = set()
        waiting = list(cells)
        while waiting:
            for reader in self._behind[waiting.pop()] - seen:
                seen.add(reader)
                if reader in self.registers:
                    reached.add(reader)
                elif reader not in self._memories:
                    waiting.append(reader)
        return reached


def _names(cell: Any) -> set[str]:
    """Of the wires that a register drives."""
    return {bit[0] for bit in bits_of(output_of(cell)) if bit}


def _unit(name: str) -> tuple[str, ...]:
    """The first two names of the path of the unit that a wire belongs to, or the only one."""
    path = name.removeprefix("$flatten").replace("\\", "").split(".")
    return tuple(path[:-1][:2])


def _scope(reach: _Reach, cell: str, more: Iterable[str]) -> tuple[set[str], list[str]]:
    """Registers to keep, and in which order those that may differ: those that the mutation of `cell` reaches in a few
    cycles, and `more`. Kept are all of the units that it reaches in one, and of those of `more`."""
    own = [cell] if cell in reach.registers else []
    first = [*own, *sorted(reach.next([cell]) - set(own))]
    differ = list(first)
    for _ in range(_STEPS - 1):
        differ += sorted(reach.next(differ) - set(differ))
    added = [register for register in more if register in reach.registers]
    units = {_unit(name) for register in (*first, *added) for name in reach.registers[register]}
    kept = {register for register, names in reach.registers.items() if _within(names, {(), *units})}
    return kept, [register for register in dict.fromkeys([*own, *added, *differ]) if register in kept]


def _within(names: Iterable[str], units: set[tuple[str, ...]]) -> bool:
    """Whether a wire belongs to one of the units, or to a part of one."""
    return any(_unit(name) in units or _unit(name)[:1] in units for name in names)


class _Miter:
    """The flat core and the mutant beside each other, and signals that say when they differ."""

    def __init__(self, module: Any, yosys: Any) -> None:
        self.module, self._yosys = module, yosys
        self._numbers = itertools.count()
        self._cells = {str(cell.name): cell for cell in module.cells_.values()}

    def register(self, side: str, name: str) -> Any:
        """What a register holds in ``gold`` or in ``gate``."""
        plain = name.removeprefix("\\")
        spellings = (
            f"\\{side}.{plain}",
            f"$flatten\\{side}.{name}",
            name.replace("$flatten", f"$flatten\\{side}.", 1),
        )
        return output_of(next(self._cells[item] for item in spellings if item in self._cells))

    def new(self, operation: str, *operands: Any, port: bool = False) -> Any:
        """The result of a bitwise operation."""
        number = next(self._numbers)
        wire = self.module.addWire(self._yosys.IdString(f"\\when${number}"), operands[0].size())
        wire.port_output = port
        result = self._yosys.SigSpec(wire)
        getattr(self.module, operation)(self._yosys.IdString(f"$when${number}"), *operands, result)
        return result

    def repeated(self, bit: Any, count: int) -> Any:
        found = self._yosys.SigSpec()
        for _ in range(count):
            found.append(bit)
        return found

    def flags(self, names: Iterable[str], *, short: bool) -> list[tuple[Any, Any]]:
        """Of registers of the core itself each bit of `short` ones, or whether longer ones are 0; and the opposite."""
        found: list[Any] = []
        for signal in (self.register("gold", name) for name in names):
            if short and signal.size() <= _FLAG:
                found += [self._yosys.SigSpec(bit, 1) for bit in signal.to_sigbit_vector()]
            elif not short and signal.size() > _FLAG:
                wire = self.module.addWire(self._yosys.IdString(f"\\some${next(self._numbers)}"), 1)
                some = self._yosys.SigSpec(wire)
                self.module.addReduceOr(self._yosys.IdString(f"$some${next(self._numbers)}"), signal, some)
                found.append(some)
        return [(flag, self.new("addNot", flag)) for flag in found]

    def observe(self, kept: list[str], near: Iterable[str]) -> None:
        """Add the signals: of the registers that are near with each bit, and of pairs of flags."""
        bits, zeros = (self.flags(kept, short=short) for short in (True, False))
        left = _MOST
        for name in near:
            gold, gate = (self.register(side, name) for side in ("gold", "gate"))
            left -= 2 * len(bits) * gold.size()
            if left < 0:
                break
            differs = self.new("addXor", gold, gate)
            for flag in itertools.chain(*bits):
                self.new("addAnd", differs, self.repeated(flag, gold.size()), port=True)
        pairs = itertools.chain(itertools.combinations(bits, 2), itertools.product(bits, zeros))
        for one, other in itertools.islice(pairs, max(left, 0) // 4):
            for first, second in itertools.product(one, other):
                self.new("addAnd", first, second, port=True)
        self.module.fixup_ports()


def _without_inits(module: Any, yosys: Any) -> None:
    """Bits have no value to begin with that no register drives any more, or not without a mutation in between."""
    driven = {
        name for cell in module.cells_.values() if is_register(cell) for name in bits_of(output_of(cell))
    }
    for wire in module.wires_.values():
        begins = {str(name): value for name, value in wire.attributes.items()}.get("\\init")
        if begins is None or all((str(wire.name), index) in driven for index in range(wire.width)):
            continue
        bits = reversed(begins.as_string())  # the highest bit is the first one in text
        known = [bit if (str(wire.name), index) in driven else "x" for index, bit in enumerate(bits)]
        others = {name: value for name, value in wire.attributes.items() if str(name) != "\\init"}
        init = yosys.Const.from_string("".join(reversed(known)))
        wire.attributes = others | ({} if init.is_fully_undef() else {yosys.IdString("\\init"): init})


def _induce(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    design = libyosys.Design()

    def run(*commands: str) -> None:
        for command in commands:
            libyosys.run_pass(command, design)

    run(f"read_rtlil {job['plain']}", "setundef -zero")
    kept, near = _scope(_Reach(design.top_module()), job["pin"][0], job["more"])
    run(f"copy {TOP} gold", f"rename {TOP} gate", job["command"].replace(f"-module {TOP} ", "-module gate "))
    for module in list(design.modules_.values()):
        cut(module, libyosys, kept)
        _without_inits(module, libyosys)
    run("miter -equiv -flatten -make_outcmp gold gate miter", "hierarchy -top miter")
    _Miter(design.top_module(), libyosys).observe(sorted(kept), near)
    run("opt_expr", "opt_merge -nomux", "opt -full", "dffunmap", "async2sync", "techmap", "opt_clean", "aigmap",
        "opt_clean", f"write_aiger -zinit -map {_MAP} {_AIG}")  # fmt: skip
