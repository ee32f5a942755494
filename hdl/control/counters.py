"""64-bit event counters in a small memory, and detection of programs that hang."""

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
"""32-bit words of all counters, low word first."""
SETTLING_CYCLES = WORDS + 5
"""Cycles from a counter's last event until its value is exact: two registers before its event bits, two before the
adder, and a round of the adder."""
MUX_INPUTS = 4
"""Counters that one multiplexer selects from in a cycle. With more counters, the selection takes two cycles."""


class Counters(wiring.Component):
    """Event counters of `Counter`.

    Each counter collects events in a few bits, and one shared adder moves these to the memory, counter by counter. So a
    counter is exact only `SETTLING_CYCLES` after its last event, and before it is too small by at most that. A round of
    the adder takes a cycle per word of the memory.

    Parameters
    ----------
    counted : sequence of Counter
        Implemented counters in ascending order; events of others are ignored.
    bits : int
        Width of the memory, 32 or 16. 16 bits need half the block RAM and twice the time.

    Members
    -------
    clear : In(1)
        Reset all counters to 0; events in this cycle are not counted.
    enable : In(1)
        Events count only while this is 1.
    event : In(len(Counter))
        Bit i adds 1 to counter i.
    row, write : In(1)
        A row of A enters the array, a row of C is written. ARRAY_WINDOW is computed from these, and its event bit is
        ignored. Two writes more than 2**32 cycles apart make it wrong.
    index : Out(range(WORDS))
        Number of the word in `value`. All implemented words pass in order, within ``2 * WORDS`` cycles.
    value : Out(32)
        Word `index`; with a memory of 16 bits, valid only while `complete` is 1.
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
        update = memory.read_port()
        write = memory.write_port()
        # The memory has old contents, which count as 0 until the end of the first round.
        stale = Signal(init=1)
        # Number of the word at the adder, in the next cycle, and in the cycle after that.
        word = Signal(range(words))
        next_word = Signal(range(words), init=int(len(counted) > MUX_INPUTS))
        coming = Signal(range(words), init=2 * int(len(counted) > MUX_INPUTS))
        high, slot = word[:chunks].any(), word[chunks:]
        # A round takes `words` cycles, with at most one event in each.
        recent = [Signal(range(words + 1), name=f"recent_{counter.name.lower()}") for counter in counted]
        m.d.comb += self.index.eq(Cat(word[chunks - 1], Array(counter.value for counter in counted)[slot]))

        # Registered because units may generate events late in the cycle.
        events = Signal(len(Counter))
        m.d.sync += events.eq(Mux(self.enable, self.event, 0))
        if Counter.ARRAY_WINDOW in counted:
            # A write adds all cycles since the previous write, so they are collected in 32 bits.
            window = self._window(m)
            recent[counted.index(Counter.ARRAY_WINDOW)] = Signal(32, name="recent_array_window")
        coming_high, coming_slot = coming[:chunks].any(), coming[chunks:]
        for place, (counter, gathered) in enumerate(zip(counted, recent, strict=True)):
            added = window if counter is Counter.ARRAY_WINDOW else events[counter]
            # Events move to the adder with the counter's lowest word; later words only add its carry.
            moves = ~coming_high & (coming_slot == place)
            m.d.sync += gathered.eq(Mux(moves, 0, gathered) + added)
        last = word == words - 1
        m.d.sync += [word.eq(next_word), stale.eq(stale & ~last)]
        moved = Signal(32)  # collected events of the counter at the adder
        carry = Signal()
        total = Signal(self.bits + 1)
        if len(counted) <= MUX_INPUTS:
            m.d.comb += [next_word.eq(Mux(last, 0, word + 1)), coming.eq(next_word)]
            m.d.sync += moved.eq(Array(recent)[coming_slot])
        else:
            self._choose(m, moved, recent, coming, next_word)
        with m.If(self.clear):
            m.d.sync += [word.eq(0), stale.eq(1), *(signal.eq(0) for signal in (events, moved, *recent))]

        m.d.comb += [
            total.eq(Mux(stale, 0, update.data) + Mux(high, carry, moved)[: self.bits]),
            update.addr.eq(next_word),
            # Always 1. The explicit condition spares synthesis the logic for reading a word while it is written.
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
        """Select `moved` in two cycles, because selection from all counters and the addition are too slow for one."""
        words = len(recent) * 64 // self.bits
        chunks = (64 // self.bits - 1).bit_length()
        low = (MUX_INPUTS - 1).bit_length()
        groups = [recent[first : first + MUX_INPUTS] for first in range(0, len(recent), MUX_INPUTS)]
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
        """Return the cycles to add to ARRAY_WINDOW: at each write, the cycles since the last write or the first row."""
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
PROGRESS_COUNTERS = (Counter.READ_BEATS, Counter.WRITE_BEATS, Counter.ARRAY_ACTIVE)
"""Counters that prove progress."""
READING_SLACK = 1000
"""Maximum error in cycles of counters that are read while they run."""
VECTOR_CYCLES = 64
"""Upper bound of the sequential core's cycles per vector of fill bytes, in addition to `BYTE_CYCLES` per byte."""
BYTE_CYCLES = 8
ELEMENT_CYCLES = 1024
"""Upper bound of either core's cycles per element of a VEC instruction and position of its window."""
MAX_FILL_BEFORE = places(Opcode.LOAD)["before"].high + 1
"""Exclusive upper limit of the fill bytes before a row of LOAD."""
WINDOW = 64
"""Positions of the largest window that the limits allow for."""


class HangDetector:
    """Detector of programs that hang, from readings of the counters of either core.

    A bus beat or a row entering the array is progress. Without progress, LOAD may generate fill bytes and MM may load
    weights for up to `quiet` cycles, and a VEC instruction may take up to `longest` cycles. Stall counters are not used
    because a core need not have them.

    Parameters
    ----------
    config : Config
    patience : int
        Minimum of cycles without progress to allow, for slow memory.
    sequential : bool
        True if the core may be the sequential one.

    Attributes
    ----------
    quiet, longest : int
        Limits in cycles.
    """

    def __init__(self, config: Config, patience: int, *, sequential: bool = True) -> None:
        vector = VECTOR_CYCLES + BYTE_CYCLES * config.n if sequential else 4
        # Fill bytes between pixels: the pipelined core generates them at bus speed, the sequential core skips them.
        row = (MAX_FILL_BEFORE + FILL_MAX) // config.bus_bytes
        self.quiet = max(patience, vector * config.scratchpad_size + row)
        self.longest = max(patience, config.scratchpad_size * config.n * ELEMENT_CYCLES * WINDOW)
        self._moved: dict[Counter, int] = {}
        self._worked: dict[Counter, int] = {}

    def hangs(self, now: dict[Counter, int]) -> bool:
        """Take another reading of the counters, and return whether the program hangs."""
        if not self._moved or any(now[counter] != self._moved[counter] for counter in PROGRESS_COUNTERS):
            self._moved = self._worked = now
        elif now[Counter.VEC_BUSY] > self._worked[Counter.VEC_BUSY] + READING_SLACK:
            self._worked = now
        cycles = now[Counter.CYCLES]
        return (
            cycles - self._worked[Counter.CYCLES] >= self.quiet
            or cycles - self._moved[Counter.CYCLES] >= self.longest
        )


def _stall_counters(unit: str) -> list[Counter]:
    return [
        counter
        for counter in Counter
        if counter.name.startswith(f"{unit}_") and counter.name != f"{unit}_BUSY"
    ]


def describe_stalls(before: dict[Counter, int], after: dict[Counter, int], *, hangs: bool = False) -> str:
    """Describe what each unit did between two readings of the counters.

    The counters miss some waits for memory, such as a read of a page table. In a program that `hangs`, LOAD and STORE
    can only be busy because they wait for memory.
    """
    moved = {counter: after[counter] - before[counter] for counter in Counter}
    states = []
    for unit in UNITS:
        stalls = [counter for counter in _stall_counters(unit) if moved[counter] > 0]
        causes = [counter.name.removeprefix(f"{unit}_").lower() for counter in stalls]
        busy = moved[Counter[f"{unit}_BUSY"]] > 0
        if hangs and busy and not causes and f"{unit}_MEMORY" in Counter.__members__:
            causes = ["memory"]
        state = "is busy" if busy else "is idle"
        states.append(f"{unit} {'waits for ' + ' and '.join(causes) if causes else state}")
    if all(state.endswith("is idle") for state in states) and not any(
        moved[counter] for counter in PROGRESS_COUNTERS
    ):
        states.append("the next instruction waits for memory")
    return ", ".join(states)
