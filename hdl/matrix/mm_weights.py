"""The weight half of the matrix unit: streams tiles of B into the array, one tile ahead of A."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import Mm
from weft.hdl.isa.config import Config
from weft.hdl.isa.latencies import READ_LATENCY
from weft.hdl.lib import ports
from weft.hdl.lib.loopnest import LoopNest
from weft.hdl.lib.walk import Walk

WALK = Walk(Mm, ("nt", "ky", "kx", "kc", "row"), ("b",))


class WeightLoader(wiring.Component):
    """Reads the N words of each tile of B in consecutive cycles, and sends them to the array as they come.

    Word 0 of a tile is requested in the cycle after the swap of the tile before it was issued, or later; a swap may
    be issued from the cycle on in which the last word is requested. As a row of A enters the array one cycle later
    after its issue than a word of B, this is as tight as the array allows: N cycles a tile.

    Parameters
    ----------
    config : Config

    Members
    -------
    instruction : In(Mm.layout())
    load : In(1)
        Take `instruction`. Only while `free`.
    free : Out(1)
        No instruction, or the last word of it is requested in this cycle.
    ready : Out(1)
        A swap to the next tile may be issued in this cycle.
    swap : In(1)
        It is.
    read : Out(ports.scratchpad_read(config))
        The words of a tile must not be refused: `ready` is not looked at.
    b : Out(8 * N)
    latch : Out(1)
        For the array.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "instruction": In(Mm.layout()),
                "load": In(1),
                "free": Out(1),
                "ready": Out(1),
                "swap": In(1),
                "read": Out(ports.scratchpad_read(config)),
                "b": Out(8 * config.n),
                "latch": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        n = self.config.n
        m.submodules.nest = nest = LoopNest(WALK.counters(self.config), WALK.trackers(self.config))
        loaded = Signal()  # a whole tile waits for its swap
        latches = Signal(READ_LATENCY)
        last = Signal()
        m.d.comb += [
            *nest.take(self.instruction, row=n),
            nest.load.eq(self.load),
            # Registers only: the swap of this cycle depends on the grant of the row's read, which depends on this.
            self.read.valid.eq(nest.active & ~(nest.first.row & loaded)),
            self.read.address.eq(nest.values.b),
            nest.step.eq(self.read.valid),
            # A tile has two words at least, so its last one never waits.
            last.eq(nest.active & nest.last.row),
            self.free.eq(~nest.active | nest.last_all),
            self.ready.eq(loaded | last),
            self.b.eq(self.read.data),
            self.latch.eq(latches[-1]),
        ]
        m.d.sync += latches.eq((latches << 1) | (self.read.valid & nest.first.row))
        with m.If(self.swap):
            m.d.sync += loaded.eq(0)
        with m.Elif(last):
            m.d.sync += loaded.eq(1)
        return m
