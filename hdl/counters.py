"""Event counters of 64 bits, kept in one small memory."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.memmap import Counter

WORDS = 2 * len(Counter)
"""Words of 32 bits in the memory, low word first; each is updated once in as many cycles."""


class Counters(wiring.Component):
    """The counters of `Counter`.

    Events gather in a few bits per counter, which one adder moves to the memory in turn. A counter is
    therefore exact only `WORDS` cycles after its last event, and at any earlier time short by no more than
    that.

    Members
    -------
    clear : In(1)
        Sets all counters to 0, not counting the events of the same cycle.
    enable : In(1)
        Events count only while this is 1.
    event : In(len(Counter))
        Bit i adds 1 to counter i.
    row, write : In(1)
        A row of A enters the array, a row of C is written. ARRAY_WINDOW, whose event bit is ignored, is made from
        these; two writes further apart than 2**32 cycles upset it.
    index : Out(range(WORDS))
        Word i of the memory passes: each once in `WORDS` cycles, in order.
    value : Out(32)
        The word that passes.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "clear": In(1),
                "enable": In(1),
                "event": In(len(Counter)),
                "row": In(1),
                "write": In(1),
                "index": Out(range(WORDS)),
                "value": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(shape=32, depth=WORDS, init=[])
        update, write = memory.read_port(), memory.write_port()
        stale = Signal(init=1)  # what the memory holds, until the first round is over
        following = Signal(range(WORDS))
        high, slot = self.index[0], self.index[1:]
        recent = [Signal(range(WORDS + 1), name=f"recent_{counter.name.lower()}") for counter in Counter]

        window = self._window(m)
        # A register, as what happens in a unit may be known late in the cycle.
        events = Signal(len(Counter))
        m.d.sync += events.eq(Mux(self.enable, self.event, 0))
        recent[Counter.ARRAY_WINDOW] = Signal(32, name="recent_array_window")
        for counter, gathered in zip(Counter, recent, strict=True):
            added = window if counter is Counter.ARRAY_WINDOW else events[counter]
            moves = ~high & (slot == counter.value)
            m.d.sync += gathered.eq(Mux(moves, 0, gathered) + added)
        last = self.index == WORDS - 1
        m.d.comb += following.eq(Mux(last, 0, self.index + 1))
        m.d.sync += [self.index.eq(following), stale.eq(stale & ~last)]
        with m.If(self.clear):
            m.d.sync += [self.index.eq(0), stale.eq(1), *(gathered.eq(0) for gathered in recent)]

        moved, carry, total = Signal(32), Signal(), Signal(33)
        m.d.comb += [
            moved.eq(Mux(high, carry, Array(recent)[slot])),
            total.eq(Mux(stale, 0, update.data) + moved),
            update.addr.eq(following),
            # Always; saying so spares synthesis the logic for reading a word while it is written.
            update.en.eq(following != self.index),
            write.addr.eq(self.index),
            write.data.eq(total),
            write.en.eq(1),
            self.value.eq(total),
        ]
        m.d.sync += carry.eq(total[32])
        return m

    def _window(self, m: Module) -> Signal:
        """Cycles to add to ARRAY_WINDOW: at every write, those since the last one or the first row."""
        opened, since, added = Signal(), Signal(32), Signal(32)
        counting = self.enable & (opened | self.row)
        m.d.sync += [opened.eq(counting | opened), since.eq(since + counting)]
        with m.If(counting & self.write):
            m.d.comb += added.eq(since + 1)
            m.d.sync += since.eq(0)
        with m.If(self.clear):
            m.d.sync += [opened.eq(0), since.eq(0)]
        return added
