"""Event counters of 64 bits, kept in one small memory."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import FILL_MAX, Opcode, Queue, places
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter

WORDS = 2 * len(Counter)
"""Words of 32 bits that all counters take, low word first."""
SETTLING = WORDS + 5
"""Cycles after its last event until a counter is exact: two registers before its own, two before the adder, and a round
of the adder."""
CHOICES = 4
"""Counters of which one is chosen in a cycle on the way to the adder; of more, a group is chosen in the cycle after."""


class Counters(wiring.Component):
    """The counters of `Counter`.

    Events gather in a few bits per counter, which one adder moves to the memory in turn. A counter is
    therefore exact only `SETTLING` cycles after its last event, and at any earlier time short by no more than
    that; with fewer counters or a narrower memory, a round takes as many cycles as there are words in that.

    Parameters
    ----------
    counted : sequence of Counter
        The counters there are, in ascending order; events of others are ignored.
    bits : int
        Width of the memory, 32 or 16: half of that needs half the block RAM and twice the time.

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
        Word i of all counters passes: each that there is once in twice `WORDS` cycles or less, in order.
    value : Out(32)
        The word that passes; of 16 bits, when `complete` is 1.
    complete : Out(1)
    """

    def __init__(self, counted: Sequence[Counter] = tuple(Counter), *, bits: int = 32) -> None:
        self.counted, self.bits = counted, bits
        super().__init__(
            {
                "clear": In(1),
                "enable": In(1),
                "event": In(len(Counter)),
                "row": In(1),
                "write": In(1),
                "index": Out(range(WORDS)),
                "value": Out(32),
                "complete": Out(1, init=1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        counted = self.counted
        chunks = (64 // self.bits - 1).bit_length()  # bits of a chunk's number in its counter
        words = len(counted) << chunks
        m.submodules.memory = memory = Memory(shape=self.bits, depth=words, init=[])
        update, write = memory.read_port(), memory.write_port()
        stale = Signal(init=1)  # what the memory holds, until the first round is over
        # The word at the adder, and the words that follow in the next cycle and in the one after.
        word = Signal(range(words))
        next_word = Signal(range(words), init=int(len(counted) > CHOICES))
        coming = Signal(range(words), init=2 * int(len(counted) > CHOICES))
        high, slot = word[:chunks].any(), word[chunks:]
        recent = [Signal(range(words + 1), name=f"recent_{counter.name.lower()}") for counter in counted]
        m.d.comb += self.index.eq(Cat(word[chunks - 1], Array(counter.value for counter in counted)[slot]))

        # A register, as what happens in a unit may be known late in the cycle.
        events = Signal(len(Counter))
        m.d.sync += events.eq(Mux(self.enable, self.event, 0))
        if Counter.ARRAY_WINDOW in counted:
            window = self._window(m)
            recent[counted.index(Counter.ARRAY_WINDOW)] = Signal(32, name="recent_array_window")
        coming_high, coming_slot = coming[:chunks].any(), coming[chunks:]
        for place, (counter, gathered) in enumerate(zip(counted, recent, strict=True)):
            added = window if counter is Counter.ARRAY_WINDOW else events[counter]
            moves = ~coming_high & (coming_slot == place)
            m.d.sync += gathered.eq(Mux(moves, 0, gathered) + added)
        last = word == words - 1
        m.d.sync += [word.eq(next_word), stale.eq(stale & ~last)]
        moved, carry, total = Signal(32), Signal(), Signal(self.bits + 1)
        if len(counted) <= CHOICES:
            m.d.comb += [next_word.eq(Mux(last, 0, word + 1)), coming.eq(next_word)]
            m.d.sync += moved.eq(Array(recent)[coming_slot])
        else:
            self._choose(m, moved, recent, coming, next_word)
        with m.If(self.clear):
            m.d.sync += [word.eq(0), stale.eq(1), *(signal.eq(0) for signal in (events, moved, *recent))]

        m.d.comb += [
            total.eq(Mux(stale, 0, update.data) + Mux(high, carry, moved)[: self.bits]),
            update.addr.eq(next_word),
            # Always; saying so spares synthesis the logic for reading a word while it is written.
            update.en.eq(next_word != word),
            write.addr.eq(word),
            write.data.eq(total),
            write.en.eq(1),
            self.value.eq(total),
        ]
        if self.bits == 16:
            before = Signal(16)
            m.d.sync += before.eq(total)
            m.d.comb += [self.value.eq(Cat(before, total[:16])), self.complete.eq(word[0])]
        m.d.sync += carry.eq(total[-1])
        return m

    def _choose(
        self, m: Module, moved: Signal, recent: list[Signal], coming: Signal, next_word: Signal
    ) -> None:
        """Choose `moved` in two cycles, as a choice among all counters and the sum are too much logic for one."""
        words = len(recent) * 64 // self.bits
        chunks = (64 // self.bits - 1).bit_length()
        low = (CHOICES - 1).bit_length()
        groups = [recent[first : first + CHOICES] for first in range(0, len(recent), CHOICES)]
        chosen = [Signal(max(map(len, group)), name=f"chosen{index}") for index, group in enumerate(groups)]
        m.d.sync += [
            coming.eq(Mux(coming == words - 1, 0, coming + 1)),
            next_word.eq(coming),
            *(
                signal.eq(Array(group)[coming[chunks:][:low]])
                for signal, group in zip(chosen, groups, strict=True)
            ),
            moved.eq(Array(chosen)[next_word[chunks:][low:]]),
        ]
        with m.If(self.clear):
            m.d.sync += [next_word.eq(1), coming.eq(2), *(signal.eq(0) for signal in chosen)]

    def _window(self, m: Module) -> Signal:
        """Cycles to add to ARRAY_WINDOW: at every write, those since the last one or the first row."""
        enabled = Signal()
        row_before = Signal()
        write_before = Signal()
        opened = Signal()
        counting = Signal()
        since = Signal(32)
        added = Signal(32)
        m.d.comb += counting.eq(enabled & (opened | row_before))
        m.d.sync += [
            Cat(enabled, row_before, write_before).eq(Cat(self.enable, self.row, self.write)),
            opened.eq(counting | opened),
            since.eq(Mux(counting & write_before, 0, since + counting)),
            added.eq(Mux(counting & write_before, since + 1, 0)),
        ]
        with m.If(self.clear):
            m.d.sync += [signal.eq(0) for signal in (enabled, opened, since, added)]
        return added


UNITS = tuple(queue.name for queue in Queue)
MOVES = (Counter.READ_BEATS, Counter.WRITE_BEATS, Counter.ARRAY_ACTIVE)
"""Counters of what only a program that goes on does."""
SLACK = 1000
"""Cycles by which counters that are read while they run may be off."""
VECTOR_CYCLES = 64
"""Cycles for a vector of fill bytes, beside `BYTE_CYCLES` for each of its bytes, that the sequential core does not
exceed."""
BYTE_CYCLES = 8
ELEMENT_CYCLES = 1024
"""Cycles for an element of a VEC instruction, from each place of its window, that neither core exceeds."""
FILL_AHEAD = places(Opcode.LOAD)["before"].high + 1
"""More than the fill bytes ahead of a row of LOAD."""
WINDOW = 64
"""Places of the largest window that is reckoned with."""


class Watch:
    """Notices that a program hangs, from counters that are read now and then, of either core.

    A beat on the bus or a row that enters the array is progress. In between, LOAD may pass fill bytes, and MM load
    weights, for no more than `quiet` cycles; and an instruction of VEC may take up to `longest`. What units are stalled
    by does not matter here: counters of stalls say why, but a core need not have them.

    Parameters
    ----------
    config : Config
    patience : int
        Cycles without progress to allow at least, as memory may be slow.
    sequential : bool
        Whether the core may be a sequential one.

    Attributes
    ----------
    quiet, longest : int
        Cycles.
    """

    def __init__(self, config: Config, patience: int, *, sequential: bool = True) -> None:
        vector = VECTOR_CYCLES + BYTE_CYCLES * config.n if sequential else 4
        # Between pixels the pipelined core passes fill bytes as it passes others, the sequential core in no time.
        row = (FILL_AHEAD + FILL_MAX) // config.bus_bytes
        self.quiet = max(patience, vector * config.scratchpad_size + row)
        self.longest = max(patience, config.scratchpad_size * config.n * ELEMENT_CYCLES * WINDOW)
        self._moved: dict[Counter, int] = {}
        self._worked: dict[Counter, int] = {}

    def hangs(self, now: dict[Counter, int]) -> bool:
        """Whether the program hangs, after another reading of its counters."""
        if not self._moved or any(now[counter] != self._moved[counter] for counter in MOVES):
            self._moved = self._worked = now
        elif now[Counter.VEC_BUSY] > self._worked[Counter.VEC_BUSY] + SLACK:
            self._worked = now
        cycles = now[Counter.CYCLES]
        return (
            cycles - self._worked[Counter.CYCLES] >= self.quiet
            or cycles - self._moved[Counter.CYCLES] >= self.longest
        )


def _stalls(unit: str) -> list[Counter]:
    """The counters of a unit that say why it waits."""
    return [
        counter
        for counter in Counter
        if counter.name.startswith(f"{unit}_") and counter.name != f"{unit}_BUSY"
    ]


def waits(before: dict[Counter, int], after: dict[Counter, int], *, hangs: bool = False) -> str:
    """What each unit did between two readings; if none did anything, what the instructions wait for.

    Not all that waits for memory is counted as that: an entry of a page table is not. In a program that `hangs`, LOAD
    and STORE have nothing else to be busy with.
    """
    moved = {counter: after[counter] - before[counter] for counter in Counter}
    states = []
    for unit in UNITS:
        stalled = [counter for counter in _stalls(unit) if moved[counter] > 0]
        causes = [counter.name.removeprefix(f"{unit}_").lower() for counter in stalled]
        busy = moved[Counter[f"{unit}_BUSY"]] > 0
        if hangs and busy and not causes and f"{unit}_MEMORY" in Counter.__members__:
            causes = ["memory"]
        state = "is busy" if busy else "is idle"
        states.append(f"{unit} {'waits for ' + ' and '.join(causes) if causes else state}")
    if all(state.endswith("is idle") for state in states) and not any(moved[counter] for counter in MOVES):
        states.append("the next instruction waits for memory")
    return ", ".join(states)
