"""Properties of what stands between memory and the scratchpad: page tables and the packer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from weft.hdl.bus.burst import PAGE, block_beats
from weft.hdl.formal.property import Bench, Bounded, Induction, Property
from weft.hdl.formal.smallest import SMALLEST
from weft.hdl.formal.streams import Order, assume_stable, stable, within
from weft.hdl.isa import Load, registers
from weft.hdl.load.pages import PageReader
from weft.hdl.store.pack import Packer

_PACKER_CYCLES = 8
"""So far the packer is looked at: no invariant was found in reasonable time. It holds three vectors at most, and starts
at any place in memory."""

_PAGE_CYCLES = 12
"""So far the reader of page tables is looked at where a word of the bus has several entries: that two of them wait for
their beats, with their places, is not told to induction. Both are there in 5 cycles."""


class PageBench(Bench):
    """The reader of page tables between a queue, a bus and a unit that do as they like.

    Assumed is that an instruction stands at the input until it is taken, with what its registers hold; that the bus
    brings a beat for each request, in order and at any time later; that page tables begin at multiples of 4; and
    without loops that base registers do not change, and that there are 8 of them.

    What is requested is claimed, and when instructions are taken; with `entries` what comes out instead of the
    addresses of requests.
    """

    def __init__(self, dut: PageReader, *, entries: bool) -> None:
        super().__init__(dut)
        self.entries = entries

    def watch(self, m: Module) -> None:
        instruction, located = self.dut.instruction, self.dut.located
        self.free_inputs(m, "bases")
        self.table = self._table(m)
        self.address = Signal(32)
        m.d.comb += self.address.eq(self.table + (instruction.payload.page << 2))
        stable(m, self, located, "located")
        self.waits = waits = Signal()
        self.arrives, self.asks = Signal(), Signal()
        m.d.sync += waits.eq(instruction.valid & ~instruction.ready)
        m.d.comb += [
            self.arrives.eq(instruction.valid & ~waits),
            self.asks.eq(self.arrives & instruction.payload.paged),
        ]
        self._bus(m)
        self._register(m)

    def _table(self, m: Module) -> Value:
        """Where the page table of the instruction at the input begins."""
        dut, instruction = self.dut, self.dut.instruction
        if dut.config.loops:
            table: Value = dut.values[registers(Load.OPCODE).index("table")]
            kept = Cat(instruction.payload.as_value(), dut.values.as_value())
        else:
            m.d.comb += dut.bases.as_value().eq(self.constant(m, len(dut.bases.as_value()), "bases"))
            table, kept = dut.bases[instruction.payload.table[:3]], instruction.payload.as_value()
            self.assume(instruction.payload.table < 8)
        stands = SimpleNamespace(valid=instruction.valid, ready=instruction.ready, payload=kept)
        assume_stable(m, self, stands, "instruction")
        self.assume(~instruction.payload.paged | (table % 4 == 0))
        return table

    def _bus(self, m: Module) -> None:
        """Claim what is requested, and assume when beats come."""
        request, beat = self.dut.bus.request, self.dut.bus.beat
        pop, bus = request.valid & request.ready, self.dut.config.bus_bytes
        stable(m, self, request, "request")
        first, out = self.address // bus * bus, request.payload.address
        if self.entries:
            first, out = Const(1), Const(1)
        order = Order(m, self, push=self.asks, i=first, pop=pop, o=out, most=2, name="requests")
        self.claim("a request is for a word", ~request.valid | (request.payload.beats == 1))
        within(m, self, (order.inside != 0) & ~request.valid, 1, "a request comes")
        under_way = Signal(range(4))
        m.d.sync += under_way.eq(under_way + pop - beat.valid)
        self.assume(~beat.valid | (under_way != 0))
        self.claim("entries are taken as they come", beat.ready)
        self.claim("two entries are under way at most", under_way <= 2)
        self.cover("two entries under way", under_way == 2)
        # Where requests are: without that, induction would start from states that the unit never has.
        asked, lacks, level = self.peek("asked", 1), self.peek("lacks", 1), self.peek("entries.level", 2)
        pending = self.waits & self.dut.instruction.payload.paged & ~asked
        self.claim("requests are where they are counted", order.inside == request.valid + pending)
        self.claim("entries are where they are counted", level + under_way + request.valid == asked + lacks)
        paged = self.waits & (~self.dut.instruction.valid | self.dut.instruction.payload.paged)
        self.claim("a paged instruction has asked", ~asked | paged)
        self.claim("an instruction that lacks its entry is held", ~lacks | self.dut.busy)
        self.claim("the watched request is there", ~order.watched | (order.ahead < order.inside))
        watched = order.watched & request.valid & (order.ahead == 0)
        self.claim("the watched request is out", ~watched | (order.word == out))
        stands = order.watched & pending & (order.ahead == request.valid)
        self.claim("the watched request is to come", ~stands | (order.word == first))

    def _register(self, m: Module) -> None:
        """Claim that the unit holds an instruction at most, and takes one without an entry when it can."""
        dut, instruction, located = self.dut, self.dut.instruction, self.dut.located
        held, leaves = Signal(2), located.valid & located.ready
        m.d.sync += held.eq(held + (instruction.valid & instruction.ready) - leaves)
        self.claim("an instruction at most", held <= 1)
        self.claim("busy with an instruction", dut.busy == (held != 0))
        plain = instruction.valid & ~instruction.payload.paged & ((held == 0) | leaves)
        self.claim("an instruction without an entry is taken at once", ~plain | instruction.ready)
        if self.entries:
            self._entries(m)

    def _entries(self, m: Module) -> None:
        """Claim what comes out: the instruction as it was, with its entry as part of its offset. The first beat is that
        of the first paged instruction, and so on: of that in the register, or if that has its own of that at the
        input."""
        dut, instruction, located = self.dut, self.dut.instruction, self.dut.located
        beat, bus = dut.bus.beat, dut.config.bus_bytes
        layout = located.payload.shape()
        op, entry, entry_next = Signal(layout), Signal(32), Signal(32)
        has, has_next, place = Signal(), Signal(), Signal(range(bus))
        here = (self.address % bus)[: len(place)]
        first = dut.busy & op.paged & ~has
        accept = instruction.valid & instruction.ready
        words = [beat.payload.word_select(at >> 2, 32) for at in (place, here)]
        now_has, now = Signal(), Signal(32)
        m.d.comb += [
            now_has.eq(has_next | beat.valid & ~first),
            now.eq(Mux(has_next, entry_next, words[1])),
        ]
        with m.If(beat.valid & first):
            m.d.sync += [has.eq(1), entry.eq(words[0])]
        m.d.sync += [has_next.eq(now_has), entry_next.eq(now)]
        with m.If(accept):
            m.d.sync += [op.eq(instruction.payload), place.eq(here)]
            m.d.sync += [has.eq(now_has), entry.eq(now), has_next.eq(0)]
        lacks, asked = self.peeks["lacks"], self.peeks["asked"]
        level, head = self.peeks["entries.level"], self.peek("entries.r_data", 32)
        waits = dut.busy & lacks & has
        self.claim("entries that wait", level == waits + has_next)
        self.claim("the entry of the one in the register waits", ~waits | (head == entry))
        self.claim("the entry of the one at the input waits", ~has_next | waits | (head == entry_next))
        self.claim("one entry waits at most", level <= 1)
        ends = self.peek("entries.produce", 1) ^ self.peek("entries.consume", 1)
        self.claim("the queue of entries", ends == level[0])
        self.claim("an entry for one that has asked", ~has_next | asked)
        self.claim("an entry for one that is paged", ~(dut.busy & lacks) | op.paged)
        self.claim("it has its entry", ~dut.busy | lacks | ~op.paged | has)
        expected = Signal(layout)
        m.d.comb += [expected.eq(op), expected.offset.eq(op.offset + Mux(op.paged & ~lacks, entry, 0))]
        self.claim(
            "as it came, with its entry", ~dut.busy | (located.payload.as_value() == expected.as_value())
        )
        self.claim("it leaves when it is whole", located.valid == (dut.busy & (~op.paged | (has & ~lacks))))
        self.cover(
            "a second entry", located.valid & op.paged & has_next & (entry > 77) & (entry_next > entry)
        )


class PackerBench(Bench):
    """The packer between a reader and a bus that do as they like.

    Assumed of the vectors is what `Packer` says: from 1 to ``n`` bytes each, and those of a run follow each other in
    memory.

    One byte, any one, is watched on its way into its beat, with the beat's place in memory and what else is in it.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        self.bus, vector = dut.config.bus_bytes, dut.vector.payload
        self.offset = Signal(range(self.bus))
        m.d.comb += self.offset.eq(vector.pointer % self.bus)
        self.end = Signal(range(self.bus + dut.config.n + 1))
        m.d.comb += self.end.eq(self.offset + vector.count)
        stable(m, self, dut.beat, "beat")
        self.push, self.pop = dut.vector.valid & dut.vector.ready, dut.beat.valid & dut.beat.ready
        self._vectors(m)
        self._beats(m)
        self._byte(m)
        within(m, self, dut.vector.valid & ~dut.vector.ready & dut.beat.ready, 2, "a vector is refused")

    def _vectors(self, m: Module) -> None:
        """Assume what vectors have to be like."""
        vector = self.dut.vector.payload
        self.first, self.following = Signal(init=1), Signal.like(vector.pointer)
        with m.If(self.push):
            m.d.sync += [self.first.eq(vector.last), self.following.eq(vector.pointer + vector.count)]
        self.assume((vector.count != 0) & (vector.count <= self.dut.config.n))
        self.assume(self.first | (vector.pointer == self.following))

    def _beats(self, m: Module) -> None:
        """Count the beats that have to come for the vectors that went in: those that these fill, and the last one of
        a run."""
        beat, last = self.dut.beat, self.dut.vector.payload.last
        self.due, more = Signal(range(8)), Signal(2)
        over = (self.end % self.bus != 0) & last
        m.d.comb += more.eq((self.end // self.bus) + over)
        m.d.sync += self.due.eq(self.due + Mux(self.push, more, 0) - self.pop)
        self.claim("no beat out of nothing", ~beat.valid | (self.due != 0))
        self.claim("no more beats than there is room for", self.due <= 5)
        within(m, self, (self.due != 0) & ~beat.valid, 1, "a beat comes")
        self.cover("two beats of a vector", self.push & (more == 2))

    def _byte(self, m: Module) -> None:
        dut, vector, beat, bus = self.dut, self.dut.vector.payload, self.dut.beat.payload, self.bus
        mark, lane = self.free(1, "mark"), self.free(range(dut.config.n), "lane")
        self.assume(lane < vector.count)
        place = Signal(range(2 * bus))
        watched, ahead, at, byte = Signal(), Signal.like(self.due), Signal(range(bus)), Signal(8)
        word, begins, start = Signal(range(PAGE // bus)), Signal(), Signal(range(bus))
        ends, end, run_on = Signal(), Signal(range(bus + 1)), Signal()
        m.d.comb += place.eq(self.offset + lane)
        block = block_beats(dut.config)
        out = watched & self.pop & (ahead == 0)
        with m.If(watched & self.pop):
            m.d.sync += [ahead.eq(ahead - 1), watched.eq(ahead != 0)]
        with m.If(watched & self.push):
            # Of the watched byte's run this vector goes on in the same beat, or in one behind.
            with m.If(run_on & vector.last & (self.end <= bus)):
                m.d.sync += [ends.eq(1), end.eq(self.end)]
            m.d.sync += run_on.eq(run_on & ~vector.last & (self.end < bus))
        with m.If(mark & self.push & ~watched):
            second = place // bus != 0
            stop = self.end - Mux(second, bus, 0)
            m.d.sync += [
                Cat(watched, at).eq(Cat(1, place[: len(at)])),
                ahead.eq(self.due - self.pop + second),
                byte.eq(vector.data.word_select(lane, 8)),
                word.eq((vector.pointer + lane) % PAGE // bus),
                Cat(begins, start).eq(Cat(self.first & ~second, self.offset)),
                ends.eq(vector.last & (stop <= bus)),
                end.eq(stop),
                run_on.eq(~vector.last & (stop < bus)),
            ]
        block_end = Signal()
        m.d.comb += block_end.eq((word + 1) % block == 0)
        lanes = Cat(*(~(begins & (j < start)) & ~(ends & (j >= end)) for j in range(bus)))
        self.claim("the byte comes out", ~out | (beat.data.word_select(at, 8) == byte))
        self.claim("a strobe for it", ~out | beat.strobe.bit_select(at, 1))
        self.claim("no strobe beside the run", ~out | ((beat.strobe & ~lanes) == 0))
        self.claim("the burst ends with its block and its run", ~out | (beat.last == (block_end | ends)))
        self.cover("a byte in the middle of a run", out & ~begins & ~ends & (byte != 0))
        self.cover("a run of less than a beat", out & begins & ends & (start != 0) & (end != bus))
        self.cover("the end of a block", out & block_end & ~ends)


def _packer(n: int, bus: int) -> Bench:
    return PackerBench(Packer(SMALLEST.replace(n=n, bus_bytes=bus)))


def _pages(bus: int, loops: int, entries: bool) -> Bench:
    config = SMALLEST.replace(bus_bytes=bus, loops=loops, probability_bits=7)
    return PageBench(PageReader(config), entries=entries)


def properties() -> Iterator[Property]:
    claim = (
        "Every byte of a run comes out once, in order, in its lane of its beat and with its strobe; no other "
        "strobes are set; beats end bursts where blocks and runs end."
    )
    for n, bus in ((2, 4), (4, 4)):
        yield Property(
            "store/pack",
            f"vectors of {n} bytes in words of {bus}",
            claim,
            partial(_packer, n, bus),
            Bounded(_PACKER_CYCLES),
        )
    claim = (
        "The entry of each paged instruction is requested once, in order, at its address and at once; two are under "
        "way at most; an instruction at most is held, and stands until it is taken; one without an entry is taken "
        "as soon as there is room."
    )
    for bus, loops in ((4, 0), (8, 1)):
        name = f"words of {bus} bytes, {'values' if loops else 'base registers'}"
        yield Property("load/pages", name, claim, partial(_pages, bus, loops, False), Induction(6))
        yield Property(
            "load/pages",
            f"entries in {name}",
            "Each instruction comes out as it was, once and in order, with its entry as part of its offset if it is "
            "paged: the first beat is for the first one that asked, and so on; the entry is where its address says.",
            partial(_pages, bus, loops, True),
            Induction(6) if bus == 4 else Bounded(_PAGE_CYCLES),
        )
