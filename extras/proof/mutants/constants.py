"""Constant and unused bits of a core's signals, and mutants of unread bits.

Yosys flattens the core and optimises it. Bits that no cell drives after that are constant or unused.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.lib import wiring

from weft.extras.proof.mutants.mutated import Mutant, run_passes, run_yosys
from weft.hdl.cache import entry
from weft.hdl.verilog import convert_named
from weft.sim.rtl.coverage import Bit, Connections
from weft.sim.rtl.library import TOP

_SOURCE, _RESULT = "core.il", "constant.json"
_COMMANDS = (
    f"read_rtlil {_SOURCE}", f"hierarchy -top {TOP}", "proc -norom", "pmuxtree", "memory_collect", "flatten",
    "opt -full", r"simplemap t:\$*dff*", "opt_clean",
)  # fmt: skip


def constant_bits(core: wiring.Component) -> set[tuple[str, str]]:
    """Return the constant and unused bits: the path of the unit, ``core`` for the core itself, and ``signal[bit]``.

    A signal of one bit is also listed as ``signal``. The result is cached. Raises `MutationError`.
    """
    source, _ = convert_named(core, name=TOP)
    state = hashlib.sha256(f"{version('pyosys')} {_COMMANDS} {source}".encode())
    state.update(Path(__file__).read_bytes())

    def fill(folder: Path) -> None:
        (folder / _SOURCE).write_text(source)
        run_yosys(_find_constants, folder, {})
        (folder / _SOURCE).unlink()

    folder = entry(f"constants-{state.hexdigest()[:24]}", fill)
    return {(unit, name) for unit, name in json.loads((folder / _RESULT).read_text())}


def _find_constants(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    design = libyosys.Design()
    flatten = _COMMANDS.index("flatten")
    run_passes(design, _COMMANDS[:flatten])
    units = {str(name).removeprefix(f"\\{TOP}.") for name in design.modules_}
    run_passes(design, ["flatten"])
    widths = {str(name): wire.width for name, wire in design.top_module().wires_.items()}
    run_passes(design, _COMMANDS[flatten + 1 :])
    module = design.top_module()
    source_of: dict[tuple[str, int], Any] = {}
    for left, right in module.connections_:
        for target, source in zip(left.to_sigbit_vector(), right.to_sigbit_vector(), strict=True):
            if target.is_wire():
                source_of[str(target.wire.name), target.offset] = source
    driven = _driven_bits(module)
    constant = []
    for name, width in widths.items():
        if not name.startswith("\\"):
            continue
        for index in range(width):
            # Follow connections to the bit's source: a constant, a driven bit, or an undriven bit.
            at = name, index
            bit = source_of.get(at)
            while bit is not None and bit.is_wire():
                at = str(bit.wire.name), bit.offset
                bit = source_of.get(at)
            if bit is not None or at not in driven:
                constant.append(_unit_and_name(name[1:], index, units))
                if width == 1:
                    constant.append(_unit_and_name(name[1:], None, units))
    Path(_RESULT).write_text(json.dumps(constant))


def _driven_bits(module: Any) -> set[tuple[str, int]]:
    """Return the bits, wire and index, that are inputs or outputs of cells."""
    bits = set()
    for name, wire in module.wires_.items():
        if wire.port_input:
            bits |= {(str(name), index) for index in range(wire.width)}
    for cell in module.cells_.values():
        for port, signal in cell.connections().items():
            if cell.output(port):
                bits |= {
                    (str(bit.wire.name), bit.offset) for bit in signal.to_sigbit_vector() if bit.is_wire()
                }
    return bits


def _unit_and_name(path: str, bit: int | None, units: set[str]) -> tuple[str, str]:
    unit = path
    while unit and unit not in units:
        unit = unit.rpartition(".")[0]
    name = path[len(unit) + 1 :] if unit else path
    return unit or "core", name if bit is None else f"{name}[{bit}]"


_UNREAD = "unread.json"
_BITWISE = {"$and", "$or", "$xor", "$xnor", "$not", "$pos", "$mux", "$pmux"}
"""Kinds of cells whose output bits depend on the operand bits of equal index only."""
_UPWARD = {"$add", "$sub", "$neg", "$mul", "$shl", "$sshl"}
"""Kinds of cells in which a bit of the output depends only on lower bits, and this bit, of the operands."""
_Pin = tuple[str, str, int]
"""Cell, port and bit."""


def unread_mutants(plain: Path, mutants: Iterable[Mutant]) -> set[int]:
    """Return the numbers of mutants whose bit no output depends on, in the flat core in the file `plain`.

    Raises `MutationError` if Yosys fails.
    """
    pins = {mutant.number: mutant.pin for mutant in mutants}
    with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
        run_yosys(_find_unread, Path(temporary), {"plain": str(plain.resolve()), "pins": pins})
        return set(json.loads((Path(temporary) / _UNREAD).read_text()))


class _Netlist:
    """Bits of the flat core. Names of ports have no backslash."""

    def __init__(self, module: Any) -> None:
        self.kinds: dict[str, str] = {}
        self.inputs: dict[str, dict[str, list[Bit | None]]] = {}
        self.outputs: dict[str, dict[str, list[Bit | None]]] = {}
        self.words: dict[str, int] = {}
        self.drivers: dict[Bit, _Pin] = {}
        self._connections = Connections(module)
        for cell in module.cells_.values():
            self._add(cell)
        self.ends = [
            self._connections.source((str(name), index))
            for name, wire in module.wires_.items()
            if wire.port_output
            for index in range(wire.width)
        ]

    def _add(self, cell: Any) -> None:
        name = str(cell.name)
        self.kinds[name] = str(cell.type)
        self.inputs[name], self.outputs[name] = {}, {}
        for port, signal in cell.connections().items():
            bits = self._connections.sources(signal)
            key = str(port).removeprefix("\\")
            if cell.output(port):
                self.outputs[name][key] = bits
                self.drivers |= {bit: (name, key, index) for index, bit in enumerate(bits) if bit}
            else:
                self.inputs[name][key] = bits
        if self.kinds[name].startswith("$mem"):
            ports = len(self.inputs[name]["RD_CLK"])
            self.words[name] = len(self.outputs[name]["RD_DATA"]) // ports

    def read_by(self, pin: _Pin) -> Iterator[_Pin]:
        """Yield the inputs that an output of a cell depends on."""
        cell, _, index = pin
        kind, inputs = self.kinds[cell], self.inputs[cell]
        output_width = max(len(bits) for bits in self.outputs[cell].values())
        for port, bits in inputs.items():
            for at in self._read_bits(kind, cell, port, len(bits), index, output_width):
                yield cell, port, at

    def _read_bits(
        self, kind: str, cell: str, port: str, width: int, index: int, output_width: int
    ) -> Iterable[int]:
        """Return the bits of an input port, of `width` bits, that bit `index` of the output depends on."""
        bits = range(width)
        if kind.startswith("$mem"):
            # A bit of a word that is read depends on bits of equal index that are written.
            word = self.words[cell]
            return bits[index % word :: word] if port in ("WR_DATA", "WR_EN") else bits
        if kind in _UPWARD:
            return bits if port == "B" and kind in ("$shl", "$sshl") else bits[: index + 1]
        if kind in _BITWISE and port in ("A", "B"):
            return bits[index::output_width] if kind == "$pmux" else (min(index, width - 1),)
        if "dff" in kind and port == "D":
            return (index,)
        return bits


def _live_pins(netlist: _Netlist) -> set[_Pin]:
    """Return the outputs and inputs of cells that an output of the core depends on."""
    live: set[_Pin] = set()
    pending = [netlist.drivers[bit] for bit in netlist.ends if bit in netlist.drivers]
    while pending:
        pin = pending.pop()
        if pin in live:
            continue
        live.add(pin)
        for cell, port, index in netlist.read_by(pin):
            live.add((cell, port, index))
            bit = netlist.inputs[cell][port][index]
            if bit in netlist.drivers:
                pending.append(netlist.drivers[bit])
    return live


def _find_unread(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    design = libyosys.Design()
    run_passes(design, [f"read_rtlil {job['plain']}"])
    live = _live_pins(_Netlist(design.top_module()))
    unread = [int(number) for number, pin in job["pins"].items() if tuple(pin) not in live]
    Path(_UNREAD).write_text(json.dumps(unread))
