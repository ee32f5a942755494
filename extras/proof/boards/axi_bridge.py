"""Properties of `weft.boards.bus.axi`: bursts of a core on a memory port."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal

from weft.boards.bus.axi import PIECE_BYTES, AxiBridge
from weft.extras.proof.hardware.pipelines import implies
from weft.extras.proof.hardware.property import Bench, Bounded, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import (
    Channel,
    Order,
    WatchedItem,
    assume_answers,
    axi_channel,
    count,
    stable,
    transfer,
)

_PIECES = 4
"""Pieces on their way to memory."""
_PIECE_WORDS = 2
"""Maximum number of words in a piece."""
_LIMIT = 64
"""More words and bursts than occur in `_DEPTH` cycles."""
_DEPTH = 10


@proves(
    "boards/axi_bridge",
    "bursts",
    Bounded(_DEPTH),
    SMALLEST.replace(bus_bytes=PIECE_BYTES // _PIECE_WORDS),
    pieces=_PIECES,
)
class BridgeBench(Bench, unit=AxiBridge):
    """Bursts go to memory in pieces that end at blocks. Words of reads come in order, with the ID of their burst and a
    mark on its last one, and there is room for all that are asked for. A write goes to memory when its words are here,
    and a burst is answered when memory has reported all of it.

    A bridge for pieces of two words, between a core and a memory that are unconstrained.

    Assumed: bursts consist of 1 to 4 whole words and lie in a page. Memory gives only words that were read, and reports
    a write only when it has all its words. One bit of each word is compared.
    """

    def watch(self, m: Module) -> None:
        dut, axi = self.dut, self.dut.axi
        align = (self.config.bus_bytes - 1).bit_length()
        for name in ("ar", "aw"):
            address, length = getattr(axi, f"{name}addr"), getattr(axi, f"{name}len")
            self.assume((length < 4) & (address[:align] == 0))
            self.assume((address[align:12] + length)[: 13 - align] < 1 << (12 - align))
        command = dut.memory.command
        payload = command.payload
        stable(m, self, command, "command")
        place = payload.address[align : align + (_PIECE_WORDS - 1).bit_length()]
        self.claim("pieces end at blocks", implies(command.valid, payload.beats <= _PIECE_WORDS - place))
        self.claim("pieces of some words", implies(command.valid, payload.beats != 0))
        self._reads(m)
        self._writes(m)

    def _reads(self, m: Module) -> None:
        """Claim that words come in order, each with its burst's ID, the last one marked, and that all have room."""
        axi, memory = self.dut.axi, self.dut.memory
        command = memory.command.payload
        beats = Mux(transfer(memory.command) & ~command.write, command.beats, 0)
        comes, leaves = transfer(memory.read), axi.rvalid & axi.rready
        assume_answers(m, self, "read_owed", asked=beats, answer=memory.read.valid, taken=comes, limit=_LIMIT)
        self.claim("memory never waits for room", memory.read.ready)
        inside = count(m, "read_inside", _LIMIT, beats, leaves)
        self.claim("room for all that is read", inside <= 2 * _PIECE_WORDS)
        self.claim("R okay", axi.rresp == 0)
        stable(m, self, Channel(axi.rvalid, axi.rready, Cat(axi.rid, axi.rlast, axi.rdata[0])), "R")
        word = memory.read.payload[0]
        Order(m, self, i=(comes, word), o=(leaves, axi.rdata[0]), most=2 * _PIECE_WORDS, name="read")
        ends = leaves & axi.rlast
        asked = transfer(axi_channel(axi, "ar"))
        burst = WatchedItem(m, self, "read bursts", push=asked, pop=ends, most=_LIMIT - 2, shown=axi.rvalid)
        more = Signal(8, name="read_more")
        identity = Signal.like(axi.arid, name="read_identity")
        with m.If(burst.oldest & leaves):
            m.d.sync += more.eq(more - 1)
        with m.If(burst.starts):
            m.d.sync += [more.eq(axi.arlen), identity.eq(axi.arid)]
        current = burst.oldest & axi.rvalid
        self.claim("R of its burst", implies(current, axi.rid == identity))
        self.claim("the last word", implies(current, axi.rlast == (more == 0)))
        self.cover("a burst of two pieces ends", burst.oldest & ends & (axi.rid != 0))

    def _writes(self, m: Module) -> None:
        """Claim that a piece goes to memory with its words, and a burst is answered when memory has all of it."""
        axi, memory = self.dut.axi, self.dut.memory
        command = memory.command.payload
        comes, goes = transfer(axi_channel(axi, "w")), transfer(memory.write)
        takes = transfer(memory.command) & command.write
        beats = Mux(takes, command.beats, 0)
        here = count(m, "write_here", _LIMIT, comes, beats)
        offered = memory.command.valid & command.write
        self.claim("a write has its words", implies(offered, here >= command.beats))
        # Words may go before their piece: the count is negative then.
        gone = count(m, "write_gone", _LIMIT, goes, beats).as_signed()
        self.claim("memory never waits for a word", implies(gone < 0, memory.write.valid))
        word = memory.write.payload.data[0]
        # A block FIFO holds one word more than its depth.
        most = 2 * _PIECE_WORDS + 1
        Order(m, self, i=(comes, axi.wdata[0]), o=(goes, word), most=most)
        # Sizes of the pieces that memory has taken and not reported, from the oldest.
        sizes = [Signal(range(_PIECE_WORDS + 1), name=f"size{index}") for index in range(_PIECES + 2)]
        pieces = count(m, "pieces_owed", _PIECES + 3, takes, memory.written)
        for index, size in enumerate(sizes):
            following = sizes[index + 1] if index + 1 < len(sizes) else 0
            kept = Mux(memory.written, following, size)
            m.d.sync += size.eq(Mux(takes & (pieces - memory.written == index), command.beats, kept))
        reported = Mux(memory.written, sizes[0], 0)
        sent = count(m, "words_sent", _LIMIT, goes, reported)
        self.assume(~memory.written | (pieces != 0) & (sent >= sizes[0]))
        asked, answered = transfer(axi_channel(axi, "aw")), transfer(axi_channel(axi, "b"))
        words = Mux(asked, axi.awlen + 1, 0)
        unreported = count(m, "unreported", _LIMIT, words, reported)
        burst = WatchedItem(
            m, self, "write bursts", push=asked, pop=answered, most=_LIMIT - 2, shown=axi.bvalid
        )
        need = Signal(range(_LIMIT), name="need")
        identity = Signal.like(axi.awid, name="write_identity")
        m.d.sync += need.eq(need - Mux(need < reported, need, reported))
        with m.If(burst.starts):
            m.d.sync += [identity.eq(axi.awid), need.eq(unreported + words - reported)]
        current = burst.oldest & axi.bvalid
        self.claim("B okay", axi.bresp == 0)
        self.claim("B of its burst", implies(current, axi.bid == identity))
        self.claim("B when memory has all of the burst", implies(current, need == 0))
        self.cover("a burst is answered", current & axi.bready)
