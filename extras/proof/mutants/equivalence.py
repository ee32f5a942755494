"""Proofs that a mutant equals its core: by SAT for all states, and by induction for states after a reset.

Registers and memories are cut out of the flat core: their contents become inputs, and the data written to them become
outputs. A mutant with equal outputs for all inputs equals the core in every cycle. SAT does not prove a mutant that
differs in unreachable states only.
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
from weft.extras.proof.mutants.mutated import Mutant, MutationError, run_passes, run_yosys
from weft.hdl.verilog import run_yosys_task, yosys_message
from weft.sim.rtl.coverage import Connections, bits_of, is_memory, is_register
from weft.sim.rtl.library import TOP

SECONDS = 60
"""Time limit of the solver, for each mutant."""
_VERDICTS: dict[str, bool | None] = {
    "no model found: SUCCESS!": True,
    "model found: FAIL!": False,
    "TIMEOUT!": None,
}
"""Verdicts by text in Yosys' output; the first text counts, because the second is part of it."""


def prove_equal(plain: Path, mutants: Iterable[Mutant], seconds: int = SECONDS) -> dict[int, bool | None]:
    """Compare mutants with the flat core in the file `plain` by SAT.

    Returns
    -------
    dict of int to bool or None
        By number, True for a mutant that is proven equal, False for a counterexample, None if time was up.

    Raises
    ------
    MutationError
        If Yosys fails.
    """
    verdicts: dict[int, bool | None] = {}
    for mutant in mutants:
        with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
            job = {"plain": str(plain.resolve()), "command": mutant.command, "seconds": seconds}
            _, output = run_yosys_task(_compare, Path(temporary), job)
        verdict = [value for text, value in _VERDICTS.items() if text in output]
        if not verdict:
            raise MutationError(yosys_message(output))
        verdicts[mutant.number] = verdict[0]
    return verdicts


def cut_state(module: Any, yosys: Any, kept: Collection[str] = ()) -> None:
    """Cut memories out of a module, and registers except for the cells in `kept`.

    Inputs of a memory's port are compared only while the port is enabled.
    """
    for cell in list(module.cells_.values()):
        if not (is_memory(cell) or is_register(cell)) or str(cell.name) in kept:
            continue
        masked = _mask_ports(module, yosys, cell) if is_memory(cell) else {}
        for port, signal in list(cell.connections().items()):
            name = f"\\cut {cell.name!s} {port!s}".replace(" ", "/")
            wire = module.addWire(yosys.IdString(name), signal.size())
            if cell.output(port):
                wire.port_input = True
                module.connect(signal, yosys.SigSpec(wire))
            else:
                wire.port_output = True
                module.connect(yosys.SigSpec(wire), masked.get(str(port), signal))
        module.remove(cell)
    module.fixup_ports()


def _mask_ports(module: Any, yosys: Any, memory: Any) -> dict[str, Any]:
    """Return a memory's addresses and data, by port of its cell, with 0 where the memory's port is not enabled."""
    ports = {str(port): signal for port, signal in memory.connections().items()}
    masked = {}
    for kind, number in (("RD", ports["\\RD_CLK"].size()), ("WR", ports["\\WR_CLK"].size())):
        enable, address = ports[f"\\{kind}_EN"], ports[f"\\{kind}_ADDR"]
        if not number:
            continue
        own, width = enable.size() // number, address.size() // number
        masks = yosys.SigSpec()
        for index in range(number):
            enabled = module.addWire(
                yosys.IdString(f"\\asked {memory.name!s} {kind} {index}".replace(" ", "/")), 1
            )
            module.addReduceOr(
                yosys.IdString(f"{enabled.name!s}/or"),
                enable.extract(index * own, own),
                yosys.SigSpec(enabled),
            )
            for _ in range(width):
                masks.append(yosys.SigSpec(enabled))
        masked[f"\\{kind}_ADDR"] = _mask(module, yosys, f"{memory.name!s} {kind}_ADDR", address, masks)
        if kind == "WR":
            data = ports["\\WR_DATA"]
            masked["\\WR_DATA"] = _mask(module, yosys, f"{memory.name!s} WR_DATA", data, enable)
    return masked


def _mask(module: Any, yosys: Any, name: str, signal: Any, mask: Any) -> Any:
    wire = module.addWire(yosys.IdString(f"\\asked {name}".replace(" ", "/")), signal.size())
    module.addAnd(yosys.IdString(f"{wire.name!s}/and"), signal, mask, yosys.SigSpec(wire))
    return yosys.SigSpec(wire)


def output_of(register: Any) -> Any:
    """Return the output signal of a register's cell."""
    return next(signal for port, signal in register.connections().items() if register.output(port))


def _compare(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    design = libyosys.Design()
    run_passes(design, [f"read_rtlil {job['plain']}"])
    _make_pair(design, job["command"])
    for module in list(design.modules_.values()):
        cut_state(module, libyosys)
    run_passes(
        design,
        (
            "setattr -unset init w:*", "miter -equiv -flatten gold gate miter", "hierarchy -top miter", "opt_expr",
            "opt_merge -nomux", "opt -full", f"sat -timeout {job['seconds']} -prove trigger 0 miter",
        ),
    )  # fmt: skip


def _make_pair(design: Any, command: str) -> None:
    """Copy the flat core to module ``gold``, and mutate the original, which becomes ``gate``."""
    mutation = command.replace(f"-module {TOP} ", "-module gate ")
    run_passes(design, (f"copy {TOP} gold", f"rename {TOP} gate", mutation))


INDUCTION_SECONDS = 120
"""Time limit for each mutant: no round starts after it, and a prover gets the rest of it."""
_AIG, _MAP, _SIMPLE = "miter.aig", "miter.map", "simple.aig"
_DIFFERS = "trigger"
"""Yosys' name of the miter's output that is 1 if any other output differs."""
_ROUNDS = 3
_FLAG_BITS = 3
"""Width up to which a register counts as flags."""
_STEPS = 2
"""Cycles in which a mutation reaches the registers that may differ while they are not used."""
_MAX_SIGNALS = 200_000
"""Largest number of added signals that show when registers differ."""


def prove_equal_from_reset(
    plain: Path, mutants: Iterable[Mutant], seconds: int = INDUCTION_SECONDS
) -> dict[int, bool]:
    """Compare mutants, after a reset, with the flat core in the file `plain` by induction.

    Returns
    -------
    dict of int to bool
        By number, True for a mutant that is proven equal. False does not mean that it differs: other units may never
        cause the difference, or time was up.

    Raises
    ------
    MutationError
        If Yosys fails.
    EngineError
        If ABC fails, see `weft.extras.proof.engine.engines`.
    """
    return {mutant.number: _is_equal_from_reset(plain, mutant, seconds) for mutant in mutants}


def _is_equal_from_reset(plain: Path, mutant: Mutant, seconds: int) -> bool:
    # Where the inputs of other registers may differ, the next round keeps the units of these registers too.
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
            run_yosys(_write_miter, folder, job)
            names = re.findall(r"^output (\d+) 0 (.*)$", (folder / _MAP).read_text(), re.MULTILINE)
            outputs = {name: int(index) for index, name in names}
            literals = engines.simplify(folder, _AIG, _SIMPLE, max(1.0, (end - time.monotonic()) / 2))
            if literals[outputs[_DIFFERS]] == 0:  # the constant 0: no output ever differs
                return True
            # An output `cmp...` is 1 while an input of a cut cell is equal; literal 1 is the constant 1.
            unproven = {
                _cell(name)
                for name, index in outputs.items()
                if name.startswith("cmp") and literals[index] != 1
            }
            left = end - time.monotonic()
            if unproven <= more or turn == _ROUNDS - 1 or left < 0:
                return left > 0 and engines.is_never_1(folder, _SIMPLE, outputs[_DIFFERS], left)
        more |= unproven
    raise AssertionError("the last round returns")


def _cell(output: str) -> str:
    """Return the cell of an input that the miter compares, by the name of the miter's output."""
    return output.removeprefix("cmp_cut/").rpartition("/")[0]


class _Reach:
    """Dependencies between the cells of a flat module, by name."""

    def __init__(self, module: Any) -> None:
        self.registers = {
            str(cell.name): {bit[0] for bit in bits_of(output_of(cell)) if bit}
            for cell in module.cells_.values()
            if is_register(cell)
        }
        """Names of the wires that each register drives."""
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
        self._readers = {
            name: set().union(*(readers[bit] for bit in bits if bit)) for name, bits in drives.items()
        }

    def next(self, cells: Iterable[str]) -> set[str]:
        """Return the registers that depend on the outputs of `cells` within one cycle."""
        reached: set[str] = set()
        visited: set[str] = set()
        pending = list(cells)
        while pending:
            for reader in self._readers[pending.pop()] - visited:
                visited.add(reader)
                if reader in self.registers:
                    reached.add(reader)
                elif reader not in self._memories:
                    pending.append(reader)
        return reached


def _unit(name: str) -> tuple[str, ...]:
    """Return the first two names of the path of a wire's unit, or fewer."""
    path = name.removeprefix("$flatten").replace("\\", "").split(".")
    return tuple(path[:-1][:2])


def _scope(reach: _Reach, cell: str, more: Iterable[str]) -> tuple[set[str], list[str]]:
    """Return the registers to keep, and in order those of them that may differ.

    Kept are the registers of all units that the mutation of `cell` reaches in one cycle, and of the units of `more`.
    The registers that may differ are those that the mutation reaches in `_STEPS` cycles, and `more`.
    """
    own = [cell] if cell in reach.registers else []
    first = [*own, *sorted(reach.next([cell]) - set(own))]
    differ = list(first)
    for _ in range(_STEPS - 1):
        differ += sorted(reach.next(differ) - set(differ))
    added = [register for register in more if register in reach.registers]
    units = {_unit(name) for register in (*first, *added) for name in reach.registers[register]}
    units.add(())  # the core itself
    kept = {
        register
        for register, names in reach.registers.items()
        if any(_unit(name) in units or _unit(name)[:1] in units for name in names)  # a unit or a part of it
    }
    return kept, [register for register in dict.fromkeys([*own, *added, *differ]) if register in kept]


class _Miter:
    """Miter of the flat core and the mutant, with signals that show when registers differ.

    These signals are candidates for the invariants that ABC's `scorr` finds, for example: two registers differ only
    while a flag is 0.
    """

    def __init__(self, module: Any, yosys: Any) -> None:
        self.module, self._yosys = module, yosys
        self._numbers = itertools.count()
        self._cells = {str(cell.name): cell for cell in module.cells_.values()}

    def register(self, side: str, name: str) -> Any:
        """Return the output of a register in ``gold`` or ``gate``."""
        plain = name.removeprefix("\\")
        # `miter -flatten` prefixes names in different ways.
        spellings = (
            f"\\{side}.{plain}",
            f"$flatten\\{side}.{name}",
            name.replace("$flatten", f"$flatten\\{side}.", 1),
        )
        return output_of(next(self._cells[item] for item in spellings if item in self._cells))

    def add_bitwise(self, operation: str, *operands: Any, port: bool = False) -> Any:
        """Add a bitwise operation, and return its result; `port` makes it an output."""
        number = next(self._numbers)
        wire = self.module.addWire(self._yosys.IdString(f"\\when${number}"), operands[0].size())
        wire.port_output = port
        result = self._yosys.SigSpec(wire)
        getattr(self.module, operation)(self._yosys.IdString(f"$when${number}"), *operands, result)
        return result

    def repeat(self, bit: Any, count: int) -> Any:
        signal = self._yosys.SigSpec()
        for _ in range(count):
            signal.append(bit)
        return signal

    def flags(self, names: Iterable[str], *, short: bool) -> list[tuple[Any, Any]]:
        """Return flags of the core's registers, each with its inverse.

        With `short`, these are the bits of registers of up to `_FLAG_BITS` bits, otherwise ``register != 0`` of wider
        registers.
        """
        flags: list[Any] = []
        for signal in (self.register("gold", name) for name in names):
            if short and signal.size() <= _FLAG_BITS:
                flags += [self._yosys.SigSpec(bit, 1) for bit in signal.to_sigbit_vector()]
            elif not short and signal.size() > _FLAG_BITS:
                wire = self.module.addWire(self._yosys.IdString(f"\\some${next(self._numbers)}"), 1)
                nonzero = self._yosys.SigSpec(wire)
                self.module.addReduceOr(self._yosys.IdString(f"$some${next(self._numbers)}"), signal, nonzero)
                flags.append(nonzero)
        return [(flag, self.add_bitwise("addNot", flag)) for flag in flags]

    def observe(self, kept: list[str], differing: Iterable[str]) -> None:
        """Add signals for the registers that may differ, each with each flag, and for pairs of flags.

        With too many signals, later registers and pairs have none.
        """
        bits, zeros = (self.flags(kept, short=short) for short in (True, False))
        left = _MAX_SIGNALS
        for name in differing:
            gold, gate = (self.register(side, name) for side in ("gold", "gate"))
            left -= 2 * len(bits) * gold.size()
            if left < 0:
                break
            differs = self.add_bitwise("addXor", gold, gate)
            for flag in itertools.chain(*bits):
                self.add_bitwise("addAnd", differs, self.repeat(flag, gold.size()), port=True)
        pairs = itertools.chain(itertools.combinations(bits, 2), itertools.product(bits, zeros))
        for one, other in itertools.islice(pairs, max(left, 0) // 4):
            for first, second in itertools.product(one, other):
                self.add_bitwise("addAnd", first, second, port=True)
        self.module.fixup_ports()


def _remove_inits(module: Any, yosys: Any) -> None:
    """Remove the initial values of bits that no register drives, or only through a mutation."""
    driven = {
        name for cell in module.cells_.values() if is_register(cell) for name in bits_of(output_of(cell))
    }
    for wire in module.wires_.values():
        old = {str(name): value for name, value in wire.attributes.items()}.get("\\init")
        if old is None or all((str(wire.name), index) in driven for index in range(wire.width)):
            continue
        bits = reversed(old.as_string())  # the text starts with the highest bit
        new = [bit if (str(wire.name), index) in driven else "x" for index, bit in enumerate(bits)]
        others = {name: value for name, value in wire.attributes.items() if str(name) != "\\init"}
        init = yosys.Const.from_string("".join(reversed(new)))
        wire.attributes = others | ({} if init.is_fully_undef() else {yosys.IdString("\\init"): init})


def _write_miter(job: dict[str, Any]) -> None:
    """Write the miter of a core and its mutant as `_AIG` and `_MAP`."""
    from pyosys import libyosys

    design = libyosys.Design()
    run_passes(design, (f"read_rtlil {job['plain']}", "setundef -zero"))
    kept, differing = _scope(_Reach(design.top_module()), job["pin"][0], job["more"])
    _make_pair(design, job["command"])
    for module in list(design.modules_.values()):
        cut_state(module, libyosys, kept)
        _remove_inits(module, libyosys)
    run_passes(design, ("miter -equiv -flatten -make_outcmp gold gate miter", "hierarchy -top miter"))
    _Miter(design.top_module(), libyosys).observe(sorted(kept), differing)
    run_passes(
        design,
        (
            "opt_expr", "opt_merge -nomux", "opt -full", "dffunmap", "async2sync", "techmap", "opt_clean", "aigmap",
            "opt_clean", f"write_aiger -zinit -map {_MAP} {_AIG}",
        ),
    )  # fmt: skip
