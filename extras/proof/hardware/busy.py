"""What every unit promises of `busy`: see `weft.hdl.lib.ports.unit`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from amaranth.hdl import Module, Mux, Signal

from weft.extras.proof.hardware.pipelines import implies
from weft.extras.proof.hardware.property import Bench, Bounded, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.load.load import LoadUnit
from weft.hdl.matrix.mm import MmUnit
from weft.hdl.store import StoreUnit
from weft.hdl.vector.vec import VecUnit

_CONFIG = SMALLEST.replace(queue_depth=1)
_COUNTS = ("rows", "line", "pixels", "length", "run", "nt", "ob", "oy", "ox", "ky", "kx", "kc", "ry", "rx")
"""Fields of instructions that are 1 at least."""


class BusyBench(Bench):
    """A whole unit in free inputs.

    Assumed: every instruction signals something, so that its end shows; counts are 1 at least; memory answers what it
    was asked for.
    """

    def __init__(self, kind: Any) -> None:
        super().__init__(kind(_CONFIG))

    def watch(self, m: Module) -> None:
        dut, instruction = self.dut, self.dut.instruction
        self.free_inputs(m)
        op = instruction.payload
        self.assume(~instruction.valid | op.signal.any())
        for name in _COUNTS:
            if name in dict(op.shape()):
                self.assume(~instruction.valid | (op[name] != 0))
        if hasattr(dut, "bus"):
            self._memory(m, dut.bus)
        inside = Signal(range(16), name="inside")
        m.d.sync += inside.eq(inside + (instruction.valid & instruction.ready) - dut.signal.any())
        self.claim("busy from an instruction to its signal", implies(inside != 0, dut.busy))
        self.claim("a signal of an instruction", implies(dut.signal.any(), inside != 0))
        self.cover("signalled", dut.signal.any())

    def _memory(self, m: Module, bus: Any) -> None:
        """Assume that memory answers what it was asked for: words of reads, or confirmations of bursts."""
        asked = bus.request.valid & bus.request.ready
        owed = Signal(range(1 << 12), name="owed")
        if hasattr(bus, "confirmed"):
            beats, answered = asked, bus.confirmed
        else:
            beats, answered = Mux(asked, bus.request.payload.beats, 0), bus.beat.valid
        self.assume(~answered | (owed != 0))
        taken = answered if hasattr(bus, "confirmed") else answered & bus.beat.ready
        m.d.sync += owed.eq(owed + beats - taken)


def properties() -> Iterator[Property]:
    units = (
        ("load/load", LoadUnit, 16),
        ("store/store", StoreUnit, 14),
        ("matrix/mm", MmUnit, 20),
        ("vector/vec", VecUnit, 26),
    )
    for unit, kind, depth in units:
        yield Property(
            unit,
            "busy",
            "The unit is busy from the cycle after it takes an instruction to the signal of the last one, and signals "
            "no other.",
            partial(BusyBench, kind),
            Bounded(depth),
            cover=depth + 4,
            part=True,
        )
