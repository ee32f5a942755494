"""Event counters of 64 bits, kept in one small memory."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.memmap import Counter

SLOTS = 1 << (len(Counter) - 1).bit_length()
"""Words of the memory; each is updated once in as many cycles."""


class Counters(wiring.Component):
    """The counters of `Counter`.

    Events gather in a few bits per counter, which one adder moves to the memory in turn. A counter is
    therefore exact only `SLOTS` cycles after its last event, and at any earlier time short by less than
    `SLOTS`.

    Members
    -------
    clear : In(1)
        Sets all counters to 0, not counting the events of the same cycle. A read in the following `SLOTS`
        cycles may still return the old value.
    enable : In(1)
        Events count only while this is 1.
    event : In(len(Counter))
        Bit i adds 1 to counter i.
    row, write : In(1)
        A row of A enters the array, a row of C is written. ARRAY_WINDOW, whose event bit is ignored, is made from
        these; two writes further apart than 2**32 cycles upset it.
    index : In(range(SLOTS))
        The counter to read.
    value : Out(64)
        The counter selected by `index` one cycle ago.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "clear": In(1),
                "enable": In(1),
                "event": In(len(Counter)),
                "row": In(1),
                "write": In(1),
                "index": In(range(SLOTS)),
                "value": Out(64),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(shape=64, depth=SLOTS, init=[])
        update, write, read = memory.read_port(), memory.write_port(), memory.read_port()
        slot = Signal(range(SLOTS))
        stale = Signal(SLOTS, init=-1)
        recent = [Signal(range(SLOTS + 1), name=f"recent_{counter.name.lower()}") for counter in Counter]

        window = self._window(m)
        recent[Counter.ARRAY_WINDOW] = Signal(32, name="recent_array_window")
        m.d.sync += [slot.eq(slot + 1), stale.bit_select(slot, 1).eq(0)]
        for counter, gathered in zip(Counter, recent, strict=True):
            added = window if counter is Counter.ARRAY_WINDOW else self.event[counter] & self.enable
            m.d.sync += gathered.eq(Mux(slot == counter.value, 0, gathered) + added)
        with m.If(self.clear):
            m.d.sync += [stale.eq(-1), *(gathered.eq(0) for gathered in recent)]

        moved = Signal(32)
        m.d.comb += [
            moved.eq(Array(recent)[slot]),
            update.addr.eq(slot + 1),
            write.addr.eq(slot),
            write.data.eq(Mux(stale.bit_select(slot, 1), 0, update.data) + moved),
            write.en.eq(1),
            read.addr.eq(self.index),
            self.value.eq(read.data),
        ]
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
