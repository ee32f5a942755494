"""Bits of a core's signals that cannot change, or that nothing reads, as Yosys finds when it makes the core flat and
optimises it: no cell of the flat core drives them any more.

Run as a module it does the work in a process of its own, as the library ends the process on an error:
``python -m weft.sim.rtl.constants`` in the folder of the files.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.lib import wiring

from weft.hdl.errors import WeftError
from weft.hdl.files.cache import entry
from weft.hdl.verilog import without_zeros
from weft.sim.rtl.device import TOP
from weft.sim.yosys_process import failure, work

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
    source = without_zeros(rtlil.convert(core, name=TOP, emit_src=False))
    found = hashlib.sha256(f"{version('pyosys')} {_COMMANDS} {source}".encode())
    found.update(Path(__file__).read_bytes())

    def fill(folder: Path) -> None:
        (folder / _SOURCE).write_text(source)
        well, said = work(__name__, folder, {})
        if not well:
            raise ConstantsError(failure(said))
        (folder / _SOURCE).unlink()

    folder = entry(f"constants-{found.hexdigest()[:24]}", fill)
    return {(unit, name) for unit, name in json.loads((folder / _FOUND).read_text())}


def _work() -> None:
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


if __name__ == "__main__":
    _work()
