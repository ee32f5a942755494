"""Bytes between memory and vectors, and words of the program: the AXI4 manager."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.axi import OKAY, axi4_signature
from weft.hdl.isa.config import Config


class Mover(wiring.Component):
    """One word of the bus at a time: every burst has one beat, and its answer is always taken at once.

    Reading, `remain` bytes from `address` on are there to be taken, by `gather` or as words of 32 bits; the next bus
    word is asked for as soon as the one before is used up. Setting `remain` to 0 stops that; `address` must be set
    only when that is done and `idle` is 1. Writing, bytes gather until a bus word is full, or `flush`.

    Parameters
    ----------
    config : Config

    Members
    -------
    axi : Out(axi4_signature(config))
    value : In(32)
        What the strobes below take.
    set_address, set_remain, set_skip, set_length, set_fill : In(1)
        `address` and `remain` as above; ahead of those bytes, `skip` fill bytes. A pixel has `length` bytes.
    set_narrow : In(1)
        With values of 4 bits only: bytes of memory hold two of them, each of which is gathered as a byte. Behind it
        `address` must be set.
    gather : In(1)
        Send N bytes to a vector: a pixel's next bytes, and fill bytes once it has no more.
    scatter : In(1)
        Write the pixel's next bytes to memory, N at most: those of the columns from 0 on.
    flush : In(1)
        Write what has gathered; `address` must be set again behind it.
    push, byte : Out(1), Out(8)
        A byte of a vector, its first one first.
    column : Out(range(N)), column_byte : In(8)
        The byte to write to memory.
    word, word_valid, word_taken : Out(32), Out(1), In(1)
        The next 32 bits of memory. Not while gathering.
    idle : Out(1)
        Memory has done all it was asked for, and nothing gathered is left to write.
    moved : Out(1)
        `gather` or `scatter` is done.
    length_zero : Out(1)
        No bytes of the pixel are left.
    waits : Out(1)
        A bus word is on its way, and no byte moves in this cycle.
    hold : In(1)
        Ask memory for nothing more.
    quiet : Out(1)
        Memory owes no answer.
    address : Out(32)
        Of the bus word that memory was asked for, or will be. After an error it stays that one's if `hold` comes with
        `error`.
    response : Out(2)
        That of the last error; no reset changes it.
    error, read_beat, write_beat : Out(1)
        As in `weft.hdl.bus.axi.AxiManager`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        strobes = (
            "set_address",
            "set_remain",
            "set_skip",
            "set_length",
            "set_fill",
            "gather",
            "scatter",
            "flush",
            *(("set_narrow",) if config.int4 else ()),
        )
        super().__init__(
            {
                "axi": Out(axi4_signature(config)),
                "value": In(32),
                **{name: In(1) for name in strobes},
                "push": Out(1),
                "byte": Out(8),
                "column": Out(range(config.n)),
                "column_byte": In(8),
                "word": Out(32),
                "word_valid": Out(1),
                "word_taken": In(1),
                "idle": Out(1),
                "moved": Out(1),
                "length_zero": Out(1),
                "waits": Out(1),
                "hold": In(1),
                "quiet": Out(1),
                "error": Out(1),
                "address": Out(32),
                "response": Out(2),
                "read_beat": Out(1),
                "write_beat": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        axi, n = self.axi, self.config.n
        align = (self.config.bus_bytes - 1).bit_length()
        for channel in ("aw", "ar"):
            constants = {"size": align, "burst": 1, "cache": 0b0011}  # INCR, normal memory, bufferable
            m.d.comb += [getattr(axi, channel + name).eq(value) for name, value in constants.items()]
        page, lane = Signal(32 - align, reset_less=True), Signal(align)
        word = Signal(data.ArrayLayout(8, self.config.bus_bytes), reset_less=True)
        strobe = Signal(self.config.bus_bytes)
        remain, skip, length = Signal(24), Signal(16), Signal(16)
        # Whether they are zero, from registers: comparing them comes first in long paths.
        remains, skips, no_length = Signal(), Signal(), Signal(init=1)
        fill, kept = Signal(8, reset_less=True), Signal(2, reset_less=True)
        here, reading, writing, step = Signal(), Signal(), Signal(), Signal()
        address = Cat(Const(0, align), page)
        m.d.comb += [
            axi.araddr.eq(address),
            axi.awaddr.eq(address),
            axi.wdata.eq(word),
            axi.wstrb.eq(strobe),
            axi.wlast.eq(1),
            axi.rready.eq(1),
            axi.bready.eq(1),
            self.word.eq(Cat(word).bit_select(Cat(Const(0, 5), lane[2:]), 32) if align > 2 else word),
            self.word_valid.eq(here),
            self.length_zero.eq(no_length),
            self.idle.eq(~reading & ~writing & ~strobe.any()),
            self.waits.eq((reading | writing) & ~step),
            self.quiet.eq(~reading & ~writing),
            self.address.eq(address),
            self.response.eq(kept),
        ]

        # A vector's bytes.
        left, out = Signal(range(n + 1)), Signal()
        takes, gives, full = Signal(), Signal(), Signal()
        inside, from_memory, ends = Signal(), Signal(), Signal()
        byte, whole = self._narrow(m, word[lane], takes) if self.config.int4 else (word[lane], takes)
        wide = align > 2
        last_word = lane[2:].all() if wide else Const(1)
        m.d.comb += [
            self.moved.eq(left == 0),
            inside.eq((left != 0) & ~self.length_zero),
            from_memory.eq(inside & ~out & ~skips & remains),
            step.eq((left != 0) & Mux(out & inside, ~writing & ~full, ~from_memory | here)),
            takes.eq(step & from_memory),
            gives.eq(step & out & inside),
            self.push.eq(step & ~out),
            self.byte.eq(Mux(from_memory, byte, fill)),
            self.column.eq(n - left),
            ends.eq(whole & lane.all() | self.word_taken & last_word),
        ]
        with m.If(step):
            m.d.sync += left.eq(left - 1)
            with m.If(inside):
                m.d.sync += [length.eq(length - 1), no_length.eq(length == 1)]
                with m.If(skips):
                    m.d.sync += [skip.eq(skip - 1), skips.eq(skip != 1)]
        with m.If(whole | self.word_taken):
            taken = Mux(self.word_taken, 4, 1)
            m.d.sync += [remain.eq(remain - taken), remains.eq(remain != taken)]
        with m.If(whole | gives):
            m.d.sync += lane.eq(lane + 1)
        if wide:
            with m.If(self.word_taken):
                m.d.sync += lane[2:].eq(lane[2:] + 1)
        self._read(m, word, here, reading, ends, remains)
        self._write(m, word, strobe, writing, full, lane, gives)
        failed = Signal()
        m.d.comb += failed.eq(axi.rvalid & (axi.rresp != OKAY) | axi.bvalid & (axi.bresp != OKAY))
        with m.If(ends | writing & axi.bvalid & ~failed):
            m.d.sync += page.eq(page + 1)
        with m.If(failed):
            m.d.sync += kept.eq(Mux(axi.rvalid, axi.rresp, axi.bresp))

        some, many = Signal(), Signal()
        m.d.comb += [
            some.eq(self.value[: len(length)].any()),
            many.eq(some | self.value[len(length) : len(remain)].any()),
        ]
        with m.If(self.set_remain):
            m.d.sync += [remain.eq(self.value), remains.eq(many)]
        with m.If(self.set_skip):
            m.d.sync += [skip.eq(self.value), skips.eq(some)]
        with m.If(self.set_length):
            m.d.sync += [length.eq(self.value), no_length.eq(~some)]
        with m.If(self.set_fill):
            m.d.sync += fill.eq(self.value)
        with m.If(self.set_address):
            m.d.sync += [page.eq(self.value[align:]), lane.eq(self.value[:align])]
        with m.If(self.gather | self.scatter):
            m.d.sync += [left.eq(n), out.eq(self.scatter)]
        m.d.sync += [
            self.read_beat.eq(axi.rvalid),
            self.write_beat.eq(axi.wvalid & axi.wready),
            self.error.eq(failed),
        ]
        return m

    def _narrow(self, m: Module, byte: Value, takes: Signal) -> tuple[Value, Value]:
        """The next byte for the vector, which may be but half of the `byte` of memory, and whether that is used up."""
        narrow, upper = Signal(), Signal()
        half = Mux(upper, byte[4:], byte[:4])
        with m.If(self.set_narrow):
            m.d.sync += narrow.eq(self.value)
        with m.If(self.set_address):
            m.d.sync += upper.eq(0)
        with m.Elif(takes):
            m.d.sync += upper.eq(narrow & ~upper)
        return Mux(narrow, Cat(half, half[3].replicate(4)), byte), takes & (upper | ~narrow)

    def _read(
        self, m: Module, word: data.View, here: Signal, reading: Signal, ends: Signal, remains: Signal
    ) -> None:
        """Ask for the next word when there is none."""
        axi = self.axi
        with m.If(axi.arready):
            m.d.sync += axi.arvalid.eq(0)
        with m.If(~here & ~reading & remains & ~self.set_remain & ~self.hold):
            m.d.sync += [axi.arvalid.eq(1), reading.eq(1)]
        with m.If(ends | self.set_remain):
            m.d.sync += here.eq(0)
        with m.If(axi.rvalid):
            m.d.sync += [reading.eq(0), word.eq(axi.rdata)]
            m.d.sync += here.eq(remains & ~self.set_remain & (axi.rresp == OKAY))

    def _write(
        self,
        m: Module,
        word: data.View,
        strobe: Signal,
        writing: Signal,
        full: Signal,
        lane: Signal,
        gives: Signal,
    ) -> None:
        """Write a word when it is full, or to be flushed."""
        axi, flushing = self.axi, Signal()
        m.d.comb += full.eq(strobe[-1] | flushing)
        with m.If(gives):
            m.d.sync += [word[lane].eq(self.column_byte), strobe.bit_select(lane, 1).eq(1)]
        with m.If(self.flush):
            m.d.sync += flushing.eq(1)
        with m.Elif(~strobe.any()):
            m.d.sync += flushing.eq(0)
        with m.If(axi.awready):
            m.d.sync += axi.awvalid.eq(0)
        with m.If(axi.wready):
            m.d.sync += axi.wvalid.eq(0)
        with m.If(~writing & full & strobe.any() & ~self.hold):
            m.d.sync += [axi.awvalid.eq(1), axi.wvalid.eq(1), writing.eq(1)]
        with m.If(writing & axi.bvalid):
            m.d.sync += [writing.eq(0), strobe.eq(0)]
