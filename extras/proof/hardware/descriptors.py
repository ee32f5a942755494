"""Properties of the unit that runs lists of programs."""

from __future__ import annotations

import enum

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, implies, latch, was
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import assume_stable, stable, within
from weft.hdl.control.descriptors import Descriptors
from weft.hdl.isa.program_lists import MARK, RECORD_BYTES, RECORD_READ_BYTES, pitch

_MAX_PAUSE = 3
"""Maximum number of consecutive cycles without a request or a wait."""
_MAX_OWED = 15
"""More words or bursts than memory owes at a time, to the list or to programs."""


class _State(enum.IntEnum):
    """States of the unit, in the order of its source."""

    REST = 0
    ASK = 1
    TAKE = 2
    LOOK = 3
    LAUNCH = 4
    RUN = 5
    SETTLE = 6
    RECORD = 7
    SEND = 8
    CONFIRM = 9
    ADVANCE = 10


@proves(
    "control/descriptors",
    {f"lists, words of {bus} bytes": SMALLEST.replace(descriptors=1, bus_bytes=bus) for bus in (4, 64)},
    Induction(4),
    cover=48,
)
class ListBench(Bench, unit=Descriptors):
    """One program of a list runs at a time. It starts when its descriptor has come, carries the mark, and nothing stops
    the run. After it, its record is written with the cycles that it took, and then the next descriptor is read.
    Requests of fetch and STORE are passed on, and answers go back to them.

    The bench counts the words that memory owes. Assumed: nothing starts while anything runs; a program does not end in
    the cycle after its start, nor while memory owes it something; users request nothing without a program, keep their
    requests, and are owed no more than can be counted; memory answers only requests.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.runs, self.own, self.at = Signal(name="runs"), Signal(name="own"), Signal(32, name="at")
        self.state = self.peek("fsm_state")
        m.d.comb += self.own.eq(dut.busy & ~self.runs)  # what is asked of memory is for the list
        self._claim_programs(m)
        self._assume_users(m)
        confirms = Signal()
        reads, writes = self._claim_reads(m), self._claim_writes(m, confirms)
        owed = reads.any() | writes.any()
        self._claim_state(reads, writes)
        self._claim_place(m, confirms)
        for name, port in (
            ("read", dut.read.request),
            ("write", dut.write.request),
            ("beat", dut.write.beat),
        ):
            stable(m, self, port, name)
        for name, port in (("read", dut.read), ("written", dut.write)):
            asked = self.own & port.request.valid
            begins = asked & ~ago(m, asked, 1, f"{name}_before", reset=True)
            stopped = ago(m, dut.stop & dut.busy, 1, f"{name}_stopped", reset=True)
            self.claim(f"nothing is {name} that is to end", implies(begins, ~stopped))
        asks = Cat(dut.read.request.valid, dut.write.request.valid, dut.write.beat.valid).any()
        within(m, self, self.own & ~owed & ~asks, _MAX_PAUSE, "lingers")

    def _claim_programs(self, m: Module) -> None:
        """Claim when programs run, including the cycle in which a program ends."""
        dut = self.dut
        fresh = was(m, dut.launch)
        m.d.sync += [self.runs.eq(dut.launch | (self.runs & ~dut.idle))]
        listed = latch(m, dut.start, dut.listed, 1, "listed")
        self.assume(~(dut.start & (dut.busy | self.runs)))
        self.assume(~(dut.idle & fresh))
        self.claim("one program at a time", ~(dut.launch & self.runs))
        self.claim("nothing starts that is to end", ~(dut.launch & dut.busy & dut.stop))
        self.claim("a program by itself", ~dut.start | (dut.launch == ~dut.listed))
        self.claim("nothing starts by itself", implies(dut.launch, dut.busy | dut.start))
        self.claim("busy with lists only", implies(dut.busy, listed))
        self.cover("a second program", dut.launch & dut.busy & (dut.done == 1))
        self.cover("stopped", ago(m, dut.busy & dut.stop, 1, "stopping", reset=True) & ~dut.busy)

    def _assume_users(self, m: Module) -> None:
        fetch, store = self.dut.fetch, self.dut.store
        for name, port in (("fetch", fetch.request), ("store", store.request), ("beat", store.beat)):
            assume_stable(m, self, port, f"of_{name}")
            self.assume(~port.valid | (self.runs & ~self.dut.idle))
        self.assume(fetch.beat.ready)

    def _count_owed(self, m: Module, name: str, more: Value, less: Value) -> Signal:
        """Count the words or bursts that memory owes the list, and those that it owes a program."""
        own, theirs = (Signal(range(_MAX_OWED + 1), name=f"{name}_{who}") for who in ("own", "theirs"))
        for count, mine in ((own, self.own), (theirs, ~self.own)):
            m.d.sync += count.eq(count + Mux(mine, more, 0) - (less & (own.any() == (count is own))))
        self.assume(theirs + Mux(self.own, 0, more) <= _MAX_OWED)
        self.assume(~less | own.any() | theirs.any())
        self.assume(~self.dut.idle | ~theirs.any())
        self.claim(f"{name} of one at a time", implies(~self.runs, theirs == 0))
        return own

    def _claim_reads(self, m: Module) -> Signal:
        """Claim the reads of descriptors, and that fetch gets all other words.

        Returns the number of words that the list is owed.
        """
        dut, bus = self.dut, self.config.bus_bytes
        beats = -(-RECORD_READ_BYTES // bus)
        request, beat = dut.read.request, dut.read.beat
        asked = request.valid & request.ready
        self.assume(~(asked & ~self.own) | (dut.fetch.request.payload.beats <= 4))
        owed = self._count_owed(m, "beats", Mux(asked, request.payload.beats[:4], 0), beat.valid)
        mine = beat.valid & owed.any()
        self.claim("takes what comes", ~beat.valid | beat.ready)
        self.claim(
            "fetch asks",
            implies(~self.own, request.payload.as_value() == dut.fetch.request.payload.as_value()),
        )
        self.claim("whether fetch asks", implies(~self.own, request.valid == dut.fetch.request.valid))
        self.claim("beats for fetch", dut.fetch.beat.valid == (beat.valid & ~owed.any()))
        self.claim("fetch may ask", dut.fetch.request.ready == (request.ready & ~(self.own & request.valid)))
        address = request.payload.address == self.at
        self.claim(
            "where it reads", implies(self.own & request.valid, address & (request.payload.beats == beats))
        )
        place = Array(1 << beats - 1 - left if left < beats else 0 for left in range(_MAX_OWED + 1))
        self.claim("which word", dut.taken == Mux(mine, place[(owed - 1)[:4]], 0))
        self.claim("no more than one descriptor", owed <= beats)
        self.claim("word", dut.words == beat.payload)
        marked = Signal()
        complete = Signal()  # of the descriptor that was read last
        with m.If(mine & (owed == beats)):
            m.d.sync += [marked.eq(beat.payload[1:32] == MARK >> 1), self._last(m).eq(beat.payload[0])]
        m.d.sync += complete.eq(Mux(mine, owed == 1, complete & ~dut.launch & dut.busy))
        self.claim("only what is a descriptor", implies(dut.launch & dut.busy, complete & marked))
        self.claim("an error tells that it is none", implies(dut.error, complete & ~marked))
        self.cover("error", dut.error)
        self.marked, self.complete = marked, complete
        return owed

    def _last(self, m: Module) -> Signal:
        """Return whether the last descriptor that was read is the last one of its list."""
        self.last = Signal(name="last_one")
        return self.last

    def _claim_writes(self, m: Module, confirms: Signal) -> Signal:
        """Claim the writes of records, and that STORE gets its own confirmations.

        Returns the number of bursts that the list is owed.
        """
        dut, bus = self.dut, self.config.bus_bytes
        beats, at = max(RECORD_BYTES // bus, 1), RECORD_READ_BYTES % bus
        request, beat = dut.write.request, dut.write.beat
        sent = beat.valid & beat.ready & beat.payload.last
        owed = self._count_owed(m, "bursts", sent, dut.write.confirmed)
        m.d.comb += confirms.eq(dut.write.confirmed & owed.any())
        self.claim("confirmations for STORE", dut.store.confirmed == (dut.write.confirmed & ~owed.any()))
        for port, user in ((request, dut.store.request), (beat, dut.store.beat)):
            name = "asks" if port is request else "sends"
            payload = Value.cast(port.payload) == Value.cast(user.payload)
            self.claim(f"STORE {name}", implies(~self.own, (port.valid == user.valid) & payload))
            self.claim(f"STORE {name} as it may", user.ready == (port.ready & ~(self.own & port.valid)))
        first = self.at + RECORD_READ_BYTES // bus * bus
        complete = (request.payload.address == first) & (request.payload.beats == beats)
        self.claim("where it writes", implies(self.own & request.valid, complete))
        index = Signal(range(beats + 1))
        with m.If(self.own & request.valid):
            m.d.sync += index.eq(0)
        with m.Elif(self.own & beat.valid & beat.ready):
            m.d.sync += index.eq(index + 1)
        record = self._define_record(m)
        parts = [record[8 * bus * part :][: 8 * bus] for part in range(beats)]
        data = Array(parts)[index] << 8 * at if beats > 1 else parts[0] << 8 * at
        complete = (beat.payload.data == data[: 8 * bus]) & (beat.payload.last == (index == beats - 1))
        strobe = beat.payload.strobe == ((1 << min(RECORD_BYTES, bus)) - 1) << at
        self.claim("what it writes", implies(self.own & beat.valid, complete & strobe & (index < beats)))
        self.cover("a record", self.own & beat.valid & beat.payload.last)
        self.index = index
        return owed

    def _define_record(self, m: Module) -> Value:
        dut = self.dut
        cycles = Signal(32)
        waited = Signal(32)
        for name, count in (("cycles", cycles), ("waited", waited)):
            self.claim(f"counts {name}", self.peek(name) == count)
        with m.If(dut.launch):
            m.d.sync += [cycles.eq(0), waited.eq(0)]
        with m.Elif(dut.busy & self.runs & ~cycles.all()):
            m.d.sync += [cycles.eq(cycles + 1), waited.eq(waited + dut.waits)]
        return Cat(Const(1, 32), cycles, waited, Const(0, 32))

    def _claim_place(self, m: Module, confirms: Signal) -> None:
        """Claim the current descriptor, the number of programs that are done, and the end of the list."""
        dut, step = self.dut, pitch(self.config)
        done = Signal.like(dut.done)
        ends = Signal()
        self.claim("at its end", ends == (self.state == _State.ADVANCE))
        m.d.sync += ends.eq(confirms)
        with m.If(dut.start & dut.listed):
            m.d.sync += [self.at.eq(dut.address & -step), done.eq(0)]
        with m.Elif(ends & ~dut.stop):
            m.d.sync += [self.at.eq(self.at + step), done.eq(done + 1)]
        self.claim("done", dut.done == done)
        goes_on = ago(m, ends & ~dut.stop & ~self.last, 1, "goes_on", reset=True)
        ended = ago(m, ends, 1, "ended", reset=True)
        self.claim("goes on", implies(ended, dut.busy == goes_on))
        self.claim("between programs", implies(dut.busy & self.runs, ~dut.reads))

    def _claim_state(self, reads: Signal, writes: Signal) -> None:
        """Claim how the state follows from earlier events: induction needs these invariants."""
        dut, state = self.dut, self.state
        beats, records = (
            -(-RECORD_READ_BYTES // self.config.bus_bytes),
            max(RECORD_BYTES // self.config.bus_bytes, 1),
        )
        self.claim("states", state <= max(_State))
        self.claim("at rest", dut.busy == (state != _State.REST))
        self.claim("running", implies(dut.busy, self.runs == (state == _State.RUN)))
        taking = state == _State.TAKE
        self.claim("taking", (reads != 0) == taking)
        due = self.peek("due")
        self.claim("the beat that is due", due == Mux(taking, 1 << (beats - reads)[:4], 1)[:beats])
        begun = dut.busy & (state != _State.ASK) & (~taking | (reads < beats))  # word 0 has come
        self.claim("marked", implies(begun, self.peek("marked") == self.marked))
        self.claim("last", implies(begun, self.peek("last") == self.last))
        looks = (state == _State.LOOK) | (state == _State.LAUNCH)
        self.claim("known", implies(looks, self.complete))
        self.claim("confirming", writes == (state == _State.CONFIRM))
        align = (pitch(self.config) - 1).bit_length()
        self.claim("place", implies(dut.busy, Cat(Const(0, align), self.peek("place")) == self.at))
        index = self.peek("index")
        self.claim(
            "beat of a record", implies(state == _State.SEND, (index == self.index) & (index < records))
        )
