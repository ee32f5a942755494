"""Whether a mutant of a core is the same hardware from a reset on: proven for all states that its unit can reach.

As in `weft.sim.rtl.equivalence`, registers and memories are cut out of the flat core, so that what they hold is any
input; but the registers of the units that the mutation reaches stay, in the core and in the mutant, and begin as after
a reset. What goes into the others, and what comes out of the core, then has to be the same in every cycle.

The proof is by induction over what ABC's `scorr` finds to be always so (van Eijk, IEEE TCAD 19(7), 2000): pairs of
signals that are equal. Registers of a mutant often hold something else only while nobody asks, which no pair of signals
says; so for each register that the mutation reaches there are signals that say *it differs while this flag is 0, or 1*,
and for pairs of flags what they never are at once. Most of these turn out to be always 0, by induction together. What
is left is for property directed reachability.

Run as a module it does the work in a process of its own: ``python -m weft.sim.rtl.reachable JOB.json`` in the folder of
the files.
"""

from __future__ import annotations

import collections
import itertools
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weft.sim.formal import engines
from weft.sim.rtl.connections import Connections, bits_of, is_memory, is_register
from weft.sim.rtl.device import TOP
from weft.sim.rtl.equivalence import cut, output_of
from weft.sim.rtl.mutated import Mutant, MutationError
from weft.sim.yosys_process import failure, work

SECONDS = 120
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


def same_from_reset(plain: Path, mutants: Iterable[Mutant], seconds: int = SECONDS) -> dict[int, bool]:
    """By number, whether a mutant is proven equal from a reset on to the flat core in the file `plain`.

    False says nothing: the other units may never do what tells it from the core, or the time was up.

    Raises `MutationError` if Yosys fails, and `weft.sim.formal.engines.EngineError`.
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
            well, said = work(__name__, folder, job)
            if not well:
                raise MutationError(failure(said))
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
        found, waiting, seen = set(), list(cells), set()
        while waiting:
            for reader in self._behind[waiting.pop()] - seen:
                seen.add(reader)
                if reader in self.registers:
                    found.add(reader)
                elif reader not in self._memories:
                    waiting.append(reader)
        return found


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


def _work(job: dict[str, Any]) -> None:
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


if __name__ == "__main__":
    _work(json.loads(Path(sys.argv[1]).read_text()))
