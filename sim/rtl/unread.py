"""Which bits of the flat core nothing reads: no path leads from them to an output of the core.

Such are the upper bits of a stride in a memory that is smaller than its address. Yosys keeps them where the cell that
they go into is needed for its lower bits. A mutant that changes such a bit is the same hardware, in every state.

Paths are followed backward from the outputs, bit by bit: a sum, a product and a shift to the left depend on the bits up
to their own, logic, multiplexers, registers and the words of memories on the bit itself, all else on all inputs.

Run as a module it does the work in a process of its own: ``python -m weft.sim.rtl.unread JOB.json`` in the folder of
the files.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from weft.sim.rtl.connections import Bit, Connections
from weft.sim.rtl.mutated import Mutant, MutationError
from weft.sim.yosys_process import failure, work

_FOUND = "unread.json"
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
        well, said = work(__name__, Path(temporary), job)
        if not well:
            raise MutationError(failure(said))
        return set(json.loads((Path(temporary) / _FOUND).read_text()))


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


def _work(job: dict[str, Any]) -> None:
    from pyosys import libyosys

    design = libyosys.Design()
    libyosys.run_pass(f"read_rtlil {job['plain']}", design)
    live = _live(_Netlist(design.top_module()))
    found = [int(number) for number, pin in job["pins"].items() if tuple(pin) not in live]
    Path(_FOUND).write_text(json.dumps(found))


if __name__ == "__main__":
    _work(json.loads(Path(sys.argv[1]).read_text()))
