"""Properties of `weft.hdl.load.load`: page tables."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import Channel, Order, assume_answers, assume_stable, stable, within
from weft.hdl.isa import Load, register_fields
from weft.hdl.isa.config import Config
from weft.hdl.load.load import PageReader


class PageBench(Bench, unit=PageReader, drives=("bases",)):
    """The reader of page tables between an unconstrained queue, bus and unit.

    Assumed: an instruction stays at the input until it is taken, with the contents of its registers; the bus returns a
    beat for each request, in order and at any later time; page tables begin at multiples of 4; without loops there are
    8 base registers, which are constant. With `entries`, the bench claims the output instead of the addresses of
    requests.
    """

    def __init__(self, config: Config, *, entries: bool) -> None:
        super().__init__(config)
        self.entries = entries

    def watch(self, m: Module) -> None:
        instruction, located = self.dut.instruction, self.dut.located
        self.table = self._table(m)
        self.address = Signal(32)
        m.d.comb += self.address.eq(self.table + (instruction.payload.page << 2))
        stable(m, self, located, "located")
        self.waits = waits = Signal()
        self.arrives = Signal()
        self.asks = Signal()
        m.d.sync += waits.eq(instruction.valid & ~instruction.ready)
        m.d.comb += [
            self.arrives.eq(instruction.valid & ~waits),
            self.asks.eq(self.arrives & instruction.payload.paged),
        ]
        self._claim_requests(m)
        self._claim_register(m)

    def _table(self, m: Module) -> Value:
        """Return the address of the page table of the instruction at the input."""
        dut, instruction = self.dut, self.dut.instruction
        if dut.config.loops:
            table: Value = dut.values[register_fields(Load.OPCODE).index("table")]
            word = Cat(instruction.payload.as_value(), dut.values.as_value())
        else:
            m.d.comb += dut.bases.as_value().eq(self.constant(m, len(dut.bases.as_value()), "bases"))
            table, word = dut.bases[instruction.payload.table[:3]], instruction.payload.as_value()
            self.assume(instruction.payload.table < 8)
        assume_stable(m, self, Channel(instruction.valid, instruction.ready, word), "instruction")
        self.assume(~instruction.payload.paged | (table % 4 == 0))
        return table

    def _claim_requests(self, m: Module) -> None:
        """Claim the requests, and assume that beats come only after them."""
        request, beat = self.dut.bus.request, self.dut.bus.beat
        pop, bus = request.valid & request.ready, self.dut.config.bus_bytes
        stable(m, self, request, "request")
        first, out = self.address // bus * bus, request.payload.address
        if self.entries:
            first, out = Const(1), Const(1)
        order = Order(m, self, i=(self.asks, first), o=(pop, out), most=2, name="requests")
        self.claim("a request is for a word", ~request.valid | (request.payload.beats == 1))
        within(m, self, (order.inside != 0) & ~request.valid, 1, "a request comes")
        under_way = assume_answers(m, self, "under_way", asked=pop, answer=beat.valid, limit=4)
        self.claim("entries are taken as they come", beat.ready)
        self.claim("two entries are under way at most", under_way <= 2)
        self.cover("two entries under way", under_way == 2)
        # Places of requests: without them, induction starts from unreachable states.
        asked, lacks, level = self.peek("asked"), self.peek("lacks"), self.peek("entries.level")
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

    def _claim_register(self, m: Module) -> None:
        """Claim that the unit holds at most one instruction, and takes one without an entry when it can."""
        dut, instruction, located = self.dut, self.dut.instruction, self.dut.located
        inside = Signal(2)
        leaves = located.valid & located.ready
        m.d.sync += inside.eq(inside + (instruction.valid & instruction.ready) - leaves)
        self.claim("an instruction at most", inside <= 1)
        self.claim("busy with an instruction", dut.busy == (inside != 0))
        plain = instruction.valid & ~instruction.payload.paged & ((inside == 0) | leaves)
        self.claim("an instruction without an entry is taken at once", ~plain | instruction.ready)
        if self.entries:
            self._claim_entries(m)

    def _claim_entries(self, m: Module) -> None:
        """Claim that each instruction leaves unchanged except for its offset, to which its entry is added.

        Beats belong to paged instructions in order: first to the instruction in the register, if it still needs one,
        then to the instruction at the input.
        """
        dut, instruction, located = self.dut, self.dut.instruction, self.dut.located
        beat, bus = dut.bus.beat, dut.config.bus_bytes
        layout = located.payload.shape()
        op = Signal(layout)
        entry = Signal(32)
        entry_next = Signal(32)
        has = Signal()
        has_next = Signal()
        place = Signal(range(bus))
        here = (self.address % bus)[: len(place)]
        first = dut.busy & op.paged & ~has
        accept = instruction.valid & instruction.ready
        words = [beat.payload.word_select(at >> 2, 32) for at in (place, here)]
        now_has = Signal()
        now = Signal(32)
        m.d.comb += [now_has.eq(has_next | beat.valid & ~first), now.eq(Mux(has_next, entry_next, words[1]))]
        with m.If(beat.valid & first):
            m.d.sync += [has.eq(1), entry.eq(words[0])]
        m.d.sync += [has_next.eq(now_has), entry_next.eq(now)]
        with m.If(accept):
            m.d.sync += [op.eq(instruction.payload), place.eq(here)]
            m.d.sync += [has.eq(now_has), entry.eq(now), has_next.eq(0)]
        lacks, asked = self.peeks["lacks"], self.peeks["asked"]
        level, head = self.peeks["entries.level"], self.peek("entries.r_data")
        waits = dut.busy & lacks & has
        self.claim("entries that wait", level == waits + has_next)
        self.claim("the entry of the one in the register waits", ~waits | (head == entry))
        self.claim("the entry of the one at the input waits", ~has_next | waits | (head == entry_next))
        self.claim("one entry waits at most", level <= 1)
        ends = self.peek("entries.produce") ^ self.peek("entries.consume")
        self.claim("the queue of entries", ends == level[0])
        self.claim("an entry for one that has asked", ~has_next | asked)
        self.claim("an entry for one that is paged", ~(dut.busy & lacks) | op.paged)
        self.claim("it has its entry", ~dut.busy | lacks | ~op.paged | has)
        if bus > 4:
            self._claim_places(first, asked & ~has_next, place, here)
        expected = Signal(layout)
        m.d.comb += [expected.eq(op), expected.offset.eq(op.offset + Mux(op.paged & ~lacks, entry, 0))]
        self.claim(
            "as it came, with its entry", ~dut.busy | (located.payload.as_value() == expected.as_value())
        )
        self.claim("it leaves when it is whole", located.valid == (dut.busy & (~op.paged | (has & ~lacks))))
        self.cover(
            "a second entry", located.valid & op.paged & has_next & (entry > 77) & (entry_next > entry)
        )

    def _claim_places(self, first: Value, second: Value, place: Value, here: Value) -> None:
        """Claim the places, in their words, of entries that have not come: of the `first` instruction, then of the
        `second`.
        """
        level, front = self.peek("places.level"), self.peek("places.consume")
        words = [self.peek(f"places.storage[{at}]") for at in range(2)]
        head, second_word = Mux(front, words[1], words[0]), Mux(front, words[0], words[1])
        self.claim("places of those that have not come", level == first + second)
        self.claim("the queue of places", (self.peek("places.produce") ^ front) == level[0])
        self.claim("the place of the first", ~first | (head == place >> 2))
        self.claim("the place of the second", ~second | (Mux(first, second_word, head) == here >> 2))


def properties() -> Iterator[Property]:
    claim = (
        "The entry of each paged instruction is requested once, in order, at its address and at once; two are under "
        "way at most; an instruction at most is held, and stands until it is taken; one without an entry is taken "
        "as soon as there is room."
    )
    for bus, loops in ((4, 0), (8, 1)):
        name = f"words of {bus} bytes, {'values' if loops else 'base registers'}"
        config = SMALLEST.replace(bus_bytes=bus, loops=loops, probability_bits=7)
        yield PageBench.proves("load/pages", name, Induction(6), config, claim=claim, entries=False)
        yield PageBench.proves(
            "load/pages",
            f"entries in {name}",
            Induction(6),
            config,
            claim="Each instruction comes out as it was, once and in order, with its entry added to its "
            "offset if it is paged: the first beat is for the first one that asked, and so on; the entry is "
            "where its address says.",
            entries=True,
        )
