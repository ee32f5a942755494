"""Bits of a core's signals that cannot change, or that nothing reads, as Yosys finds when it makes the core flat and
optimises it: no cell of the flat core drives them any more.
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

from weft.extras.proof.mutants.mutated import Mutant, MutationError
from weft.hdl.cache import entry
from weft.hdl.errors import WeftError
from weft.hdl.verilog import convert_named
from weft.sim.rtl.coverage import Bit, Connections
from weft.sim.rtl.device import TOP
from weft.sim.yosys_process import error_message, run_task

_SOURCE, _FOUND = "core.il", "constant.json"
_COMMANDS = (
    f"read_rtlil {_SOURCE}", f"hierarchy -top {TOP}", "proc -norom", "pmuxtree", "memory_collect", "flatten",
    "opt -full", r"simplemap t:\$*dff*", "opt_clean",
)  # fmt: skip


class ConstantsError(WeftError, RuntimeError):
    """Yosys refuses the core."""


def constants(core: wiring.Component) -> set[tuple[str, str]]:
    """Path of the unit, ``core`` for the core itself, and ``signal[bit]`` of what cannot change or is not read; a
    signal of one bit is there as ``signal`` as well.

    Raises `ConstantsError`.
    """
    source, _ = convert_named(core, name=TOP)
    found = hashlib.sha256(f"{version('pyosys')} {_COMMANDS} {source}".encode())
    found.update(Path(__file__).read_bytes())

    def fill(folder: Path) -> None:
        (folder / _SOURCE).write_text(source)
        well, said = run_task(_find_constants, folder, {})
        if not well:
            raise ConstantsError(error_message(said))
        (folder / _SOURCE).unlink()

    folder = entry(f"constants-{found.hexdigest()[:24]}", fill)
    return {(unit, name) for unit, name in json.loads((folder / _FOUND).read_text())}


def _find_constants(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    design = libyosys.Design()
    units: set[str] = set()
    widths: dict[str, int] = {}
    for command in _COMMANDS:
        if command == "flatten":
            units = {str(name).removeprefix(f"\\{TOP}.") for name in design.modules_}
        libyosys.run_pass(command, design)
        if command == "flatten":
            widths = {str(name): wire.width for name, wire in design.top_module().wires_.items()}
    module = design.top_module()
    behind: dict[tuple[str, int], Any] = {}
    for left, right in module.connections_:
        for one, other in zip(left.to_sigbit_vector(), right.to_sigbit_vector(), strict=True):
            if one.is_wire():
                behind[str(one.wire.name), one.offset] = other
    driven = _driven(module)
    found = []
    for name, width in widths.items():
        if not name.startswith("\\"):
            continue
        for index in range(width):
            at = name, index
            bit = behind.get(at)
            while bit is not None and bit.is_wire():
                at = str(bit.wire.name), bit.offset
                bit = behind.get(at)
            if bit is not None or at not in driven:
                found += [_named(name[1:], index, units)] + (
                    [_named(name[1:], None, units)] if width == 1 else []
                )
    Path(_FOUND).write_text(json.dumps(found))


def _driven(module: Any) -> set[tuple[str, int]]:
    """Bits that are inputs, or that a cell drives."""
    found = set()
    for name, wire in module.wires_.items():
        if wire.port_input:
            found |= {(str(name), index) for index in range(wire.width)}
    for cell in module.cells_.values():
        for port, signal in cell.connections().items():
            if cell.output(port):
                found |= {
                    (str(bit.wire.name), bit.offset) for bit in signal.to_sigbit_vector() if bit.is_wire()
                }
    return found


def _named(path: str, bit: int | None, units: set[str]) -> tuple[str, str]:
    """Unit and name of a bit of the flat core."""
    unit = path
    while unit and unit not in units:
        unit = unit.rpartition(".")[0]
    name = path[len(unit) + 1 :] if unit else path
    return unit or "core", name if bit is None else f"{name}[{bit}]"


_UNREAD = "unread.json"
_BITWISE = {"$and", "$or", "$xor", "$xnor", "$not", "$pos", "$mux", "$pmux"}
_UPWARD = {"$add", "$sub", "$neg", "$mul", "$shl", "$sshl"}
_Pin = tuple[str, str, int]


def unread(plain: Path, mutants: Iterable[Mutant]) -> set[int]:
    """The numbers of those mutants of the flat core in the file `plain` whose bit no output depends on.

    Raises `MutationError` if Yosys fails.
    """
    pins = {mutant.number: mutant.pin for mutant in mutants}
    with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
        job = {"plain": str(plain.resolve()), "pins": pins}
        well, said = run_task(_find_unread, Path(temporary), job)
        if not well:
            raise MutationError(error_message(said))
        return set(json.loads((Path(temporary) / _UNREAD).read_text()))


class _Netlist:
    """The flat core, bit by bit. Names of ports have no backslash."""

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
        """The inputs that an output of a cell depends on."""
        cell, _, index = pin
        kind, inputs = self.kinds[cell], self.inputs[cell]
        wide = max(len(bits) for bits in self.outputs[cell].values())
        for port, bits in inputs.items():
            yield from ((cell, port, at) for at in self._read(kind, cell, port, len(bits), index, wide))

    def _read(self, kind: str, cell: str, port: str, width: int, index: int, wide: int) -> Iterable[int]:
        whole = range(width)
        if kind.startswith("$mem"):
            word = self.words[cell]
            return whole[index % word :: word] if port in ("WR_DATA", "WR_EN") else whole
        if kind in _UPWARD:
            return whole if port == "B" and kind in ("$shl", "$sshl") else whole[: index + 1]
        if kind in _BITWISE and port in ("A", "B"):
            return whole[index::wide] if kind == "$pmux" else (min(index, width - 1),)
        if "dff" in kind and port == "D":
            return (index,)
        return whole


def _live(netlist: _Netlist) -> set[_Pin]:
    """Pins of cells, outputs and inputs, that an output of the core depends on."""
    found: set[_Pin] = set()
    waiting = [netlist.drivers[bit] for bit in netlist.ends if bit in netlist.drivers]
    while waiting:
        pin = waiting.pop()
        if pin in found:
            continue
        found.add(pin)
        for cell, port, index in netlist.read_by(pin):
            found.add((cell, port, index))
            bit = netlist.inputs[cell][port][index]
            if bit in netlist.drivers:
                waiting.append(netlist.drivers[bit])
    return found


def _find_unread(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    design = libyosys.Design()
    libyosys.run_pass(f"read_rtlil {job['plain']}", design)
    live = _live(_Netlist(design.top_module()))
    found = [int(number) for number, pin in job["pins"].items() if tuple(pin) not in live]
    Path(_UNREAD).write_text(json.dumps(found))
