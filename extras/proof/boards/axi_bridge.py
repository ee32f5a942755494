"""Properties of `weft.boards.bus.axi_bridge`: bursts of a core on a memory port."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.boards.bus.axi_bridge import PIECE_BYTES, AxiBridge
from weft.extras.proof.hardware.pipelines import implies
from weft.extras.proof.hardware.property import Bench, Bounded, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import Order, stable

_PIECES = 4
"""Pieces on their way to memory."""
_LONGEST = 2
"""Words of a piece here."""
_WORDS = 64
"""More words than there are in the cycles that are looked at."""
_DEPTH = 10


class BridgeBench(Bench):
    """A bridge for pieces of two words, between a core and a memory that do as they like.

    Assumed: bursts are of whole words, 4 at most, and lie in a page; memory gives words of reads that it was asked for,
    and reports writes of which it has all words. Of each word one bit is compared.
    """

    def __init__(self) -> None:
        self.config = SMALLEST.replace(bus_bytes=PIECE_BYTES // _LONGEST)
        super().__init__(AxiBridge(self.config, pieces=_PIECES))

    def watch(self, m: Module) -> None:
        dut, axi = self.dut, self.dut.axi
        self.free_inputs(m)
        align = (self.config.bus_bytes - 1).bit_length()
        for name in ("ar", "aw"):
            address, length = getattr(axi, f"{name}addr"), getattr(axi, f"{name}len")
            self.assume((length < 4) & (address[:align] == 0))
            self.assume((address[align:12] + length)[: 13 - align] < 1 << (12 - align))
        self.command = dut.memory.command
        payload = self.command.payload
        stable(m, self, self.command, "command")
        self.taken = self.command.valid & self.command.ready
        place = payload.address[align : align + (_LONGEST - 1).bit_length()]
        self.claim("pieces end at blocks", implies(self.command.valid, payload.beats <= _LONGEST - place))
        self.claim("pieces of some words", implies(self.command.valid, payload.beats != 0))
        self._reads(m)
        self._writes(m)

    def _count(self, m: Module, name: str, up: Value, down: Value) -> Signal:
        """Words, or bursts, that came and did not go."""
        count = Signal(range(_WORDS), name=name)
        m.d.sync += count.eq(count + up - down)
        return count

    def _reads(self, m: Module) -> None:
        """Words of reads come in order, each with the ID of its burst, the last one marked; there is room for all."""
        axi, memory = self.dut.axi, self.dut.memory
        beats = Mux(self.taken & ~self.command.payload.write, self.command.payload.beats, 0)
        comes, leaves = memory.read.valid & memory.read.ready, axi.rvalid & axi.rready
        owed = self._count(m, "read_owed", beats, comes)
        self.assume(~memory.read.valid | (owed != 0))
        self.claim("memory never waits for room", memory.read.ready)
        inside = self._count(m, "read_inside", beats, leaves)
        self.claim("room for all that is read", inside <= 2 * _LONGEST)
        self.claim("R okay", axi.rresp == 0)
        shown = {"valid": axi.rvalid, "ready": axi.rready}
        stable(m, self, SimpleNamespace(**shown, payload=Cat(axi.rid, axi.rlast, axi.rdata[0])), "R")
        word = memory.read.payload[0]
        Order(m, self, push=comes, i=word, pop=leaves, o=axi.rdata[0], most=2 * _LONGEST, name="read")
        asked = axi.arvalid & axi.arready
        ends = leaves & axi.rlast
        mark = self.free(1, "burst_mark")
        bursts = self._count(m, "read_bursts", asked, ends)
        watched, ahead = Signal(name="read_burst"), Signal(range(_WORDS), name="read_bursts_ahead")
        more, identity = Signal(8, name="read_more"), Signal.like(axi.arid, name="read_identity")
        current = watched & (ahead == 0)
        with m.If(watched & ends):
            m.d.sync += [ahead.eq(ahead - 1), watched.eq(ahead != 0)]
        with m.If(current & leaves):
            m.d.sync += more.eq(more - 1)
        with m.If(mark & asked & ~watched):
            m.d.sync += [watched.eq(1), ahead.eq(bursts - ends), more.eq(axi.arlen), identity.eq(axi.arid)]
        self.claim("R of a burst", implies(axi.rvalid, bursts != 0))
        self.claim("R of its burst", implies(current & axi.rvalid, axi.rid == identity))
        self.claim("the last word", implies(current & axi.rvalid, axi.rlast == (more == 0)))
        self.cover("a burst of two pieces ends", current & ends & (axi.rid != 0))

    def _writes(self, m: Module) -> None:
        """A piece goes to memory when its words are here; a burst is answered when memory has all of it."""
        axi, memory, payload = self.dut.axi, self.dut.memory, self.command.payload
        comes, goes = axi.wvalid & axi.wready, memory.write.valid & memory.write.ready
        takes = self.taken & payload.write
        beats = Mux(takes, payload.beats, 0)
        here = self._count(m, "write_here", comes, beats)
        offered = self.command.valid & payload.write
        self.claim("a write has its words", implies(offered, here >= payload.beats))
        gone = self._count(m, "write_gone", goes, beats).as_signed()  # words may go before their piece
        self.claim("memory never waits for a word", implies(gone < 0, memory.write.valid))
        Order(
            m, self, push=comes, i=axi.wdata[0], pop=goes, o=memory.write.payload.data[0], most=2 * _LONGEST
        )
        # The sizes of pieces that memory was given and did not report, the oldest one first.
        sizes = [Signal(range(_LONGEST + 1), name=f"size{index}") for index in range(_PIECES + 2)]
        count = Signal(range(_PIECES + 3), name="pieces_owed")
        m.d.sync += count.eq(count + takes - memory.written)
        for index, size in enumerate(sizes):
            following = sizes[index + 1] if index + 1 < len(sizes) else 0
            kept = Mux(memory.written, following, size)
            m.d.sync += size.eq(Mux(takes & (count - memory.written == index), payload.beats, kept))
        sent = self._count(m, "words_sent", goes, Mux(memory.written, sizes[0], 0))
        self.assume(~memory.written | (count != 0) & (sent >= sizes[0]))
        asked, answered = axi.awvalid & axi.awready, axi.bvalid & axi.bready
        words = Mux(asked, axi.awlen + 1, 0)
        reported = Mux(memory.written, sizes[0], 0)
        unreported = self._count(m, "unreported", words, reported)
        bursts = self._count(m, "write_bursts", asked, answered)
        watched, ahead = Signal(name="write_burst"), Signal(range(_WORDS), name="write_bursts_ahead")
        need, identity = Signal(range(_WORDS), name="need"), Signal.like(axi.awid, name="write_identity")
        mark = self.free(1, "write_mark")
        current = watched & (ahead == 0) & axi.bvalid
        with m.If(watched & answered):
            m.d.sync += [ahead.eq(ahead - 1), watched.eq(ahead != 0)]
        m.d.sync += need.eq(need - Mux(need < reported, need, reported))
        with m.If(mark & asked & ~watched):
            m.d.sync += [watched.eq(1), ahead.eq(bursts - answered), identity.eq(axi.awid)]
            m.d.sync += need.eq(unreported + words - reported)
        self.claim("B okay", axi.bresp == 0)
        self.claim("B of a burst", implies(axi.bvalid, bursts != 0))
        self.claim("B of its burst", implies(current, axi.bid == identity))
        self.claim("B when memory has all of the burst", implies(current, need == 0))
        self.cover("a burst is answered", current & axi.bready)


def properties() -> Iterator[Property]:
    yield Property(
        "boards/axi_bridge",
        "bursts",
        "Bursts go to memory in pieces that end at blocks. Words of reads come in order, with the ID of their burst "
        "and a mark on its last one, and there is room for all that are asked for. A write goes to memory when its "
        "words are here, and a burst is answered when memory has reported all of it.",
        BridgeBench,
        Bounded(_DEPTH),
    )
