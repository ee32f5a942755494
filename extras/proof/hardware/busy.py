"""Properties of the output `busy` of units, see `weft.hdl.lib.ports.unit`."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux

from weft.extras.proof.hardware.pipelines import implies
from weft.extras.proof.hardware.property import Bench, Bounded, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import assume_answers, count, transfer
from weft.hdl.load.load import LoadUnit
from weft.hdl.matrix.mm import MmUnit
from weft.hdl.store import StoreUnit
from weft.hdl.vector.vec import VecUnit

_CONFIG = SMALLEST.replace(queue_depth=1)
_COUNTS = ("rows", "line", "pixels", "length", "run", "nt", "ob", "oy", "ox", "ky", "kx", "kc", "ry", "rx")
"""Fields of instructions that are at least 1."""


@proves("load/load", "busy", Bounded(16), LoadUnit, cover=20, part=True)
@proves("store/store", "busy", Bounded(14), StoreUnit, cover=18, part=True)
@proves("matrix/mm", "busy", Bounded(20), MmUnit, cover=24, part=True)
@proves("vector/vec", "busy", Bounded(26), VecUnit, cover=30, part=True)
class BusyBench(Bench):
    """The unit is busy from the cycle after it takes an instruction to the signal of the last one, and signals no
    other.

    A whole unit with free inputs.

    Assumed: every instruction signals something, so that its end is visible; counts are at least 1; memory only answers
    requests.
    """

    def __init__(self, kind: Any) -> None:
        super().__init__(kind(_CONFIG))

    def watch(self, m: Module) -> None:
        dut, instruction = self.dut, self.dut.instruction
        op = instruction.payload
        self.assume(~instruction.valid | op.signal.any())
        for name in _COUNTS:
            if name in dict(op.shape()):
                self.assume(~instruction.valid | (op[name] != 0))
        if hasattr(dut, "bus"):
            self._memory(m, dut.bus)
        inside = count(m, "inside", 16, transfer(instruction), dut.signal.any())
        self.claim("busy from an instruction to its signal", implies(inside != 0, dut.busy))
        self.claim("a signal of an instruction", implies(dut.signal.any(), inside != 0))
        self.cover("signalled", dut.signal.any())

    def _memory(self, m: Module, bus: Any) -> None:
        """Assume that memory only answers requests: words of reads, or confirmations of bursts."""
        asked = transfer(bus.request)
        if hasattr(bus, "confirmed"):
            assume_answers(m, self, "owed", asked=asked, answer=bus.confirmed, limit=1 << 12)
            return
        beats = Mux(asked, bus.request.payload.beats, 0)
        assume_answers(m, self, "owed", asked=beats, answer=bus.beat, limit=1 << 12)
