"""Properties of `weft.boards`' bridge from AXI4 to a memory port."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.boards.axi_bridge import AxiBridge, Pieces
from weft.boards.port import PAGE
from weft.hdl.formal.property import Bench, Induction, Property
from weft.hdl.formal.streams import Order, assume_stable, stable, within
from weft.hdl.isa.config import Config

BLOCK = 256
"""Bytes of a block of memory; a piece lies in one."""


class PiecesBench(Bench):
    """The cutter of bursts, behind bursts that stay until they are taken, begin at a multiple of the bus width, and lie
    within a page. One burst, any one, is watched."""

    def __init__(self, bus_bytes: int) -> None:
        self.bus_bytes = bus_bytes
        super().__init__(Pieces(Config(bus_bytes=bus_bytes)))

    def watch(self, m: Module) -> None:
        self.free_inputs(m)
        burst, piece = self.dut.burst, self.dut.piece
        assume_stable(m, self, burst, "burst")
        self.assume(within_page(burst.payload.address, burst.payload.len, self.bus_bytes))
        stable(m, self, piece, "piece")
        push, pop = burst.valid & burst.ready, piece.valid & piece.ready
        mark, ends = self.free(1, "mark"), pop & piece.payload.last
        inside, ahead, watched = Signal(3), Signal(3), Signal()
        item, word, more = Signal.like(burst.payload.id), Signal(32), Signal(9)
        current = watched & (ahead == 0)
        m.d.sync += inside.eq(inside + push - ends)
        beats = piece.payload.more + 1
        with m.If(watched & ends):
            m.d.sync += [ahead.eq(ahead - 1), watched.eq(ahead != 0)]
        with m.If(current & pop):
            m.d.sync += [word.eq(word + beats), more.eq(more - beats)]
        with m.If(mark & push & ~watched):
            m.d.sync += [watched.eq(1), ahead.eq(inside - ends), item.eq(burst.payload.id)]
            m.d.sync += [word.eq(burst.payload.address // self.bus_bytes), more.eq(burst.payload.len)]
        self.claim("pieces of bursts only", ~piece.valid | (inside != 0))
        self.claim("two bursts", inside <= 2)
        shown = current & piece.valid
        self.claim("id", ~shown | (piece.payload.id == item))
        self.claim("address", ~shown | (piece.payload.address == word * self.bus_bytes))
        self.claim("no more than the burst", ~shown | (piece.payload.more <= more))
        self.claim("the last piece ends the burst", ~shown | (piece.payload.last == (piece.payload.more == more)))
        place = word[: (BLOCK // self.bus_bytes - 1).bit_length()]
        rest = BLOCK // self.bus_bytes - 1 - place
        self.claim("a piece ends with its block or its burst",
                   ~shown | (piece.payload.more == Mux(more <= rest, more, rest)))  # fmt: skip
        within(m, self, (inside != 0) & ~piece.valid, 1, "a piece")
        self._help(current, watched & ~shown, ahead, inside, item, word, more)
        self.cover("three pieces", current & ends & (word[4:] == 2) & piece.payload.last)

    def _help(
        self, shown: Value, hidden: Value, ahead: Value, inside: Value, item: Value, word: Value, more: Value
    ) -> None:
        """Help for the proof: where the watched burst is, and what the unit has left of it."""
        piece, align = self.dut.piece, (self.bus_bytes - 1).bit_length()
        active, identity = self.peek("active", 1), self.peek("identity", len(item))
        words, rest = self.peek("word", 32 - align), self.peek("more", 8)
        beats = piece.payload.more + 1
        over = piece.valid & piece.payload.last
        self.claim("bursts inside", inside == active + over)
        self.claim("a piece of the current burst", ~piece.valid | over | active)
        page = PAGE // self.bus_bytes
        self.claim("in its page", ~(shown | hidden) | (word % page + more < page))
        behind = (words == word + beats) & (rest == more - beats) & (identity == item)
        self.claim("pieces to come", ~(shown & piece.valid) | over | behind)
        ahead_of = active & (ahead == over) & (words == word) & (rest == more) & (identity == item)
        self.claim("all pieces to come", ~hidden | ahead_of)


def within_page(address: Value, length: Value, bus_bytes: int) -> Value:
    """Whether a burst begins at a multiple of the bus width and lies within a page."""
    words = PAGE // bus_bytes
    align, page = (bus_bytes - 1).bit_length(), (words - 1).bit_length()
    return (address[:align] == 0) & (address[align : align + page] + length < words)


class BridgeBench(Bench):
    """A bridge with the widest bus, whose pieces have two words.

    The core keeps what it offers until it is taken, and asks for bursts within a page; words to write may come before
    or after their address. Memory gives no more words than it was asked for, and reports no write before it has all
    its words. Of a word, the lowest bits and the first strobe are looked at: the bridge treats all alike.
    """

    BUS = 128
    WORDS = 2 * BLOCK // BUS
    """That the bridge has room for, each way."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        super().__init__(AxiBridge(Config(bus_bytes=self.BUS), pieces=pieces))

    def watch(self, m: Module) -> None:
        self.free_inputs(m)
        self.axi, self.memory = self.dut.axi, self.dut.memory
        for name, fields in {"aw": ("id", "len", "addr"), "ar": ("id", "len", "addr"), "w": ("data", "strb")}.items():
            assume_stable(m, self, Channel(self.axi, name, fields), name)
        for name in ("aw", "ar"):
            address, length = getattr(self.axi, f"{name}addr"), getattr(self.axi, f"{name}len")
            self.assume(within_page(address, length, self.BUS))
        stable(m, self, Channel(self.axi, "r", ("id", "last")), "r")
        stable(m, self, Channel(self.axi, "b", ("id",)), "b")
        stable(m, self, self.memory.command, "command")
        command = self.memory.command
        taken = command.valid & command.ready
        self._reads(m, taken & ~command.payload.write)
        self._writes(m, taken & command.payload.write)

    def _reads(self, m: Module, command: Value) -> None:
        axi, read, beats = self.axi, self.memory.read, self.memory.command.payload.beats
        owed = Signal(range(2 * self.WORDS), name="owed_words")
        come = read.valid & read.ready
        m.d.sync += owed.eq(owed + Mux(command, beats, 0) - come)
        self.assume(~read.valid | (owed != 0))
        self.claim("memory never waits to give a word", read.ready)
        words = Order(
            m, self, push=come, i=read.payload[:2], pop=axi.rvalid & axi.rready, o=axi.rdata[:2], most=self.WORDS,
            name="read",
        )  # fmt: skip
        self.claim("room for what memory is asked for", owed + words.inside <= self.WORDS)
        within(m, self, (words.inside != 0) & ~axi.rvalid, 1, "a word")
        # Help for the proof: the room is what nobody has, nor is to get by a command that waits.
        self.claim("room", self.peek("room", 3) + owed + words.inside + self._waiting(0) == self.WORDS)

    def _writes(self, m: Module, command: Value) -> None:
        axi, write, beats = self.axi, self.memory.write, self.memory.command.payload.beats
        come, gone = axi.wvalid & axi.wready, write.valid & write.ready
        words = Order(
            m, self, push=come, i=Cat(axi.wdata[:2], axi.wstrb[0]), pop=gone,
            o=Cat(write.payload.data[:2], write.payload.strobe[0]), most=self.WORDS, name="write",
        )  # fmt: skip
        stable(m, self, Channel.of(write), "write")
        within(m, self, (words.inside != 0) & ~write.valid, 1, "a word to write")
        # Words without a command are free; negative while memory took words before their command.
        free = Signal(5, name="words_without_command")
        m.d.sync += free.eq(free + come - Mux(command, beats, 0))
        offered = self.memory.command.valid & self.memory.command.payload.write
        self.claim("the words of a command are here", ~offered | (free >= beats))


class Channel:
    """A channel of AXI4 as a stream of some of its fields."""

    def __init__(self, axi: Any, name: str, fields: tuple[str, ...]) -> None:
        self.valid, self.ready = getattr(axi, f"{name}valid"), getattr(axi, f"{name}ready")
        self.payload = Cat(*(getattr(axi, f"{name}{field}") for field in fields))


def properties() -> Iterator[Property]:
    for bus_bytes in (16, 128):
        yield Property(
            "boards/axi_bridge",
            f"pieces for a bus of {bus_bytes} bytes",
            "A burst becomes pieces that cover it, in order, and are cut where blocks of memory end and nowhere else.",
            partial(PiecesBench, bus_bytes),
            Induction(2),
        )
