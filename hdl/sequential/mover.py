"""The AXI4 manager of the sequential core, which moves bytes between memory and vectors, and words of the program."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.axi import OKAY, axi4_signature
from weft.hdl.isa.config import Config


class Mover(wiring.Component):
    """AXI4 manager that moves bytes between memory and vectors, one bus word at a time.

    Every burst has one beat, and responses are accepted at once.

    Reads: `remain` bytes from `address` on can be taken, by `gather` or as words of 32 bits. The next bus word is
    requested as soon as the previous word is used up. Set `remain` to 0 to stop; set `address` only after that, when
    `idle` is 1. Writes: bytes accumulate until a bus word is full, or until `flush`.

    Parameters
    ----------
    config : Config

    Members
    -------
    axi : Out(axi4_signature(config))
    value : In(32)
        Operand of the strobes below.
    set_address, set_remain, set_skip, set_length, set_fill : In(1)
        Set `address` and `remain`, see above; `skip`, the number of fill bytes before these bytes; `length`, the bytes
        of a pixel; and the fill byte.
    set_narrow : In(1)
        Only with values of 4 bits: bytes of memory hold two values, each of which is gathered as a byte. `address` must
        be set afterwards.
    gather : In(1)
        Send N bytes to a vector: the pixel's next bytes, then fill bytes when the pixel has no more.
    scatter : In(1)
        Write the pixel's next bytes, at most N, to memory: the bytes of the columns from 0 on.
    flush : In(1)
        Write the accumulated bytes. `address` must be set afterwards.
    push, byte : Out(1), Out(8)
        A byte of a vector, in ascending order of columns.
    column : Out(range(N)), column_byte : In(8)
        The byte to write to memory.
    word, word_valid, word_taken : Out(32), Out(1), In(1)
        The next 32 bits of memory. Not during `gather`.
    idle : Out(1)
        All requests are complete, and no accumulated bytes are left to write.
    moved : Out(1)
        `gather` or `scatter` is done.
    length_zero : Out(1)
        No bytes of the pixel are left.
    waits : Out(1)
        A bus word is outstanding, and no byte moves in this cycle.
    hold : In(1)
        Make no more requests.
    quiet : Out(1)
        No response is outstanding.
    address : Out(32)
        Address of the current or next bus word. After an error it stays unchanged if `hold` is set with `error`.
    response : Out(2)
        Response of the last error; not reset.
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
        page = Signal(32 - align, reset_less=True)
        lane = Signal(align)
        word = Signal(data.ArrayLayout(8, self.config.bus_bytes), reset_less=True)
        strobe = Signal(self.config.bus_bytes)
        remain = Signal(24)
        skip = Signal(16)
        length = Signal(16)
        # Comparisons with zero, in registers because they are at the start of long paths.
        remains = Signal()
        skips = Signal()
        no_length = Signal(init=1)
        fill = Signal(8, reset_less=True)
        kept = Signal(2, reset_less=True)
        here = Signal()
        reading = Signal()
        writing = Signal()
        step = Signal()
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

        # Bytes of a vector.
        left = Signal(range(n + 1))
        out = Signal()
        takes = Signal()
        gives = Signal()
        full = Signal()
        inside = Signal()
        from_memory = Signal()
        ends = Signal()
        byte, used_up = self._narrow(m, word[lane], takes) if self.config.int4 else (word[lane], takes)
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
            ends.eq(used_up & lane.all() | self.word_taken & last_word),
        ]
        # A byte moves in each `step`: fill before and after the pixel, else a byte of memory.
        with m.If(step):
            m.d.sync += left.eq(left - 1)
            with m.If(inside):
                m.d.sync += [length.eq(length - 1), no_length.eq(length == 1)]
                with m.If(skips):
                    m.d.sync += [skip.eq(skip - 1), skips.eq(skip != 1)]
        with m.If(used_up | self.word_taken):
            used = Mux(self.word_taken, 4, 1)
            m.d.sync += [remain.eq(remain - used), remains.eq(remain != used)]
        with m.If(used_up | gives):
            m.d.sync += lane.eq(lane + 1)
        if wide:
            with m.If(self.word_taken):
                m.d.sync += lane[2:].eq(lane[2:] + 1)
        self._read(m, word, here, reading, ends, remains)
        self._write(m, word, strobe, writing, full, lane, gives)
        failed = Signal()
        m.d.comb += failed.eq(axi.rvalid & (axi.rresp != OKAY) | axi.bvalid & (axi.bresp != OKAY))
        # After a failed write the address stays, for FAULT_ADDRESS.
        with m.If(ends | writing & axi.bvalid & ~failed):
            m.d.sync += page.eq(page + 1)
        with m.If(failed):
            m.d.sync += kept.eq(Mux(axi.rvalid, axi.rresp, axi.bresp))

        # The registers share the comparison of their low bits with 0.
        some = Signal()
        many = Signal()
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
        """Return the vector's next byte, which may be half of `byte` of memory, and a flag: `byte` is used up."""
        narrow = Signal()
        upper = Signal()
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
        """Request the next word when there is none."""
        axi = self.axi
        with m.If(axi.arready):
            m.d.sync += axi.arvalid.eq(0)
        with m.If(~here & ~reading & remains & ~self.set_remain & ~self.hold):
            m.d.sync += [axi.arvalid.eq(1), reading.eq(1)]
        with m.If(ends | self.set_remain):
            m.d.sync += here.eq(0)
        with m.If(axi.rvalid):
            m.d.sync += [reading.eq(0), word.eq(axi.rdata)]
            # A word that arrives after the transfer was given up, or with an error, is dropped.
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
        """Write a word when it is full or flushed."""
        axi = self.axi
        flushing = Signal()
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
        # One word at a time, so that the response belongs to this word.
        with m.If(writing & axi.bvalid):
            m.d.sync += [writing.eq(0), strobe.eq(0)]
