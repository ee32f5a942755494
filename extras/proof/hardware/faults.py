"""Properties of error handling: stops of runs, the watchdog, and the burst that failed."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import flag, was
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import axi_channel, count, transfer
from weft.hdl.bus.axi import FaultLog
from weft.hdl.control.control import RunState
from weft.hdl.control.counters import SETTLING_CYCLES
from weft.hdl.control.semaphores import Dispatcher
from weft.hdl.isa import Queue, kinds_of
from weft.hdl.isa.memmap import WATCHDOG_BITS, WATCHDOG_CYCLES, FaultUnit, Status
from weft.hdl.sequential.mover import Mover

_LOGGED, _OUTSTANDING = 4, 8
"""Small values of `LOGGED_ADDRESSES` and `MAX_OUTSTANDING` of `weft.hdl.bus.axi`, to shorten the proof."""


_ROUND = 2 * SETTLING_CYCLES + 8
"""Cycles within which a run has ended and settled."""
_SOURCES = ("load", "store")
_ENDS = "A run lasts from its start until counters have settled after its end; its status has what stopped it"
_STOPS = ", and nothing may begin from the cycle of a bus error on, and after any other reason to stop"
_WATCHDOG = (
    "The watchdog stops a run of units of {} cycles at the earliest when nothing has moved for as many units as its "
    "limit, at the latest a unit and three cycles later, and never with a limit of 0."
)


class _StateBench(Bench, unit=RunState):
    """The state of a run. Assumed: no run starts while another runs."""

    def __init__(self, unit: int, stops: bool = True) -> None:
        super().__init__(unit=unit, stops=stops)
        self.unit = unit

    def watch(self, m: Module) -> None:
        self.assume(~(self.dut.start & self.dut.busy))


@proves(
    "control/run_state",
    "states",
    Invariant(),
    4,
    True,
    claim=f"{_ENDS}{_STOPS}.",
    cover=2 * SETTLING_CYCLES + 8,
)
@proves(
    "control/run_state",
    "states, without stops",
    Invariant(),
    4,
    False,
    claim=f"{_ENDS}.",
    cover=2 * SETTLING_CYCLES + 8,
)
class RunBench(_StateBench):
    """The state of a run, without its watchdog. Assumed: there is progress in every cycle."""

    def watch(self, m: Module) -> None:
        super().watch(m)
        dut, stops = self.dut, self.dut.stops
        self.assume(dut.moves)
        running = flag(m, dut.start, dut.finished)
        on = Signal()
        done = Signal()
        settling = Signal(range(SETTLING_CYCLES + 2))
        asked = dut.asked & running & stops
        causes = Signal(4)  # since the start: what came with it counts
        new = Cat(dut.bus_error, dut.opcode_error, asked, dut.parity_error)
        m.d.sync += causes.eq(Mux(dut.start, 0, causes) | new)
        m.d.sync += settling.eq(Mux(running, 0, settling + 1))
        ends = on & ~running & (settling == SETTLING_CYCLES)
        with m.If(dut.start):
            m.d.sync += [on.eq(1), done.eq(0)]
        with m.Elif(ends):
            m.d.sync += [on.eq(0), done.eq(1)]
        self.claim("running", dut.running == running)
        self.claim("busy", dut.busy == on)
        self.claim("done", dut.irq == done)
        self.claim("status", dut.status == Cat(on, done, causes[:2], 0, causes[2:]))
        stop = running & (causes.any() | dut.bus_error | dut.parity_error)
        self.claim("stop", dut.stop == (stop if stops else 0))
        self.cover("stopped and done", done & (causes if stops else causes[:2]).all())


# With units of a run's length, nothing expires within the cycles of a search for covers.
@proves(
    "control/run_state", "watchdog", Induction(4), WATCHDOG_CYCLES, claim=_WATCHDOG.format(WATCHDOG_CYCLES)
)
@proves("control/run_state", "watchdog of 4 cycles", Induction(4), 4, claim=_WATCHDOG.format(4), cover=80)
class WatchdogBench(_StateBench, drives=("limit",)):
    """The watchdog with a constant limit. Assumed: there are no other reasons to stop."""

    def watch(self, m: Module) -> None:
        super().watch(m)
        dut, unit = self.dut, self.unit
        m.d.comb += dut.limit.eq(self.constant(m, WATCHDOG_BITS, "limit"))
        self.assume(~(dut.bus_error | dut.opcode_error | dut.parity_error | dut.asked))
        expired = dut.status[Status.WATCHDOG.bit_length() - 1]
        # Cycles since the last progress, or the start.
        quiet = Signal((unit << WATCHDOG_BITS).bit_length() + 1)
        full = quiet.all()
        m.d.sync += quiet.eq(Mux(dut.start | dut.moves, 0, quiet + ~full))
        before = was(m, quiet)  # what moves in the cycle in which it expires comes too late
        new = expired & ~was(m, expired, "expired_before")
        least = dut.limit * unit
        self.claim("not too early", ~new | (dut.limit.any() & (before >= least)))
        running = dut.running & dut.limit.any()
        self.claim("not too late", ~running | expired | (quiet <= least + unit + 2))
        self.claim("stops", ~(expired & dut.running) | dut.stop)
        self.claim("interrupts", ~expired | dut.irq)
        self.claim("busy", ~dut.running | dut.busy)
        self._claim_count(m, quiet)
        if unit <= 4:
            self.cover("expired", new & (dut.limit == 2))
            self.cover("done", expired & dut.status[Status.DONE.bit_length() - 1])
        self.cover("runs", dut.running & (quiet == 3))

    def _claim_count(self, m: Module, quiet: Signal) -> None:
        """Claim the rest of the limit in terms of the cycles without progress: induction needs it."""
        dut, unit = self.dut, self.unit
        left, cycle, moved = (self.peek(name) for name in ("left", "cycle", "moved"))
        limit = Mux(dut.limit.any(), dut.limit + 1, 0)
        expired = dut.status[Status.WATCHDOG.bit_length() - 1]
        # Units that have passed end at fixed times, so that the first one may have been short.
        passed = (limit - left)[: WATCHDOG_BITS + 1] * unit + cycle + 1
        known = dut.running & ~moved & (left != 0)
        self.claim("left", left <= limit)
        self.claim("passed", ~known | ((quiet <= passed) & (quiet + unit >= passed)))
        self.claim("some left", ~(dut.running & dut.limit.any()) | expired | (left != 0))


@proves(
    "bus/faults",
    {f"first error, {source}": (source, (2, 31)) for source in _SOURCES},
    Invariant(),
    cover=_LOGGED + 8,
)
class LogBench(Bench):
    """The log keeps the first error since the clear: its unit, its response, and the address of its burst if fewer than
    4 are on their way; some bits of it are watched.

    Addresses of bursts of two sources. One burst, which may be any, is watched, with some bits of its address. Assumed:
    a burst ends only after its request, and fewer than `_OUTSTANDING` bursts of a source are under way; an answer comes
    while its burst is under way.
    """

    def __init__(self, source: str, bits: tuple[int, ...]) -> None:
        super().__init__(FaultLog(SMALLEST, _SOURCES, kept=_LOGGED, outstanding=_OUTSTANDING))
        self.source, self.bits = source, bits

    def watch(self, m: Module) -> None:
        dut = self.dut
        failed, under_way = {}, {}
        for name in _SOURCES:
            port = getattr(dut, name)
            under_way[name] = count(m, f"under_way_{name}", _OUTSTANDING, port.asked, port.ended)
            self.assume(~(port.ended | port.failed) | under_way[name].any())
            self.assume(~port.asked | (under_way[name] != _OUTSTANDING - 1))
            failed[name] = was(m, port.failed, f"failed_{name}")
        self.claim("error", dut.error == Cat(failed.values()).any())
        self._claim_first(m, failed)
        self._claim_address(m, under_way[self.source])

    def _claim_first(self, m: Module, failed: dict[str, Signal]) -> None:
        """Claim that the log keeps the first error since the clear."""
        dut = self.dut
        unit = Signal(3)
        response = Signal(2)
        logged_unit = Signal(3)
        responses = Signal(2)
        for name in reversed(_SOURCES):
            before = was(m, getattr(dut, name).response, f"response_{name}")
            with m.If(failed[name]):
                m.d.comb += [unit.eq(FaultUnit[name.upper()]), response.eq(before)]
        with m.If(dut.clear):
            m.d.sync += [logged_unit.eq(0), responses.eq(0)]
        with m.Elif((unit != 0) & (logged_unit == 0)):
            m.d.sync += [logged_unit.eq(unit), responses.eq(response)]
        self.claim("unit", dut.fault.unit == logged_unit)
        self.claim("response", dut.fault.response == responses)
        self.cover("store fails", logged_unit == FaultUnit.STORE)

    def _claim_address(self, m: Module, under_way: Signal) -> None:
        """Follow one burst from its request: its address, and the number of bursts that end before it."""
        dut, port = self.dut, getattr(self.dut, self.source)
        bits = [port.address[bit] for bit in self.bits]
        watched = Signal()
        ahead = Signal(range(_OUTSTANDING))
        address = Signal(len(bits))
        picks = self.free(1, "picks")
        with m.If(port.asked & picks & ~watched):
            m.d.sync += [watched.eq(1), ahead.eq(under_way - port.ended), address.eq(Cat(bits))]
        with m.Elif(watched & port.ended):
            m.d.sync += [ahead.eq(ahead - 1), watched.eq(ahead != 0)]
        # A cycle later the log has it.
        failed = was(m, port.failed & watched & (ahead == 0))
        first = failed & (dut.fault.unit == 0) & ~dut.clear
        if self.source != _SOURCES[0]:
            first = first & ~was(m, getattr(dut, _SOURCES[0]).failed, "other_failed")
        few = under_way + failed < _LOGGED - 1  # since the burst was requested no more than are kept
        reported, was_few = was(m, first, "reported"), was(m, few, "was_few")
        expected = was(m, was(m, address, "address_before"), "expected")
        shown = Cat(dut.fault.address[bit] for bit in self.bits)
        right = (shown == expected) & (dut.fault.unit == FaultUnit[self.source.upper()])
        self.claim("address", ~(reported & dut.fault.known) | right)
        self.claim("known", ~(reported & was_few) | dut.fault.known)
        self.claim("aligned", ~dut.fault.address[: (SMALLEST.bus_bytes - 1).bit_length()].any())
        self.cover("third", reported & dut.fault.known & (expected != 0))
        self.cover("unknown", reported & ~dut.fault.known)


_STOPPED = {
    f"stop of {queue.name} with {depth}": (
        config := SMALLEST.replace(queue_depth=depth),
        kinds_of(queue, config),
    )
    for queue in (Queue.LOAD, Queue.VEC)
    for depth in (1, 4)
}


@proves("control/semaphores", _STOPPED, Invariant(), part=True)
class StopBench(Bench, unit=Dispatcher):
    """Once a queue is stopped, no instruction becomes valid, one that is valid stays until it is taken, and the others
    are dropped.

    Assumed: a semaphore stays available until it is taken, because no other queue takes it.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        valid = dut.instruction.valid
        available = was(m, dut.available & ~dut.take)
        self.assume(~(available & ~dut.available).any())
        stopped, still = was(m, dut.stop, "stopped"), was(m, dut.stop & ~valid, "still")
        was_valid, waited = was(m, valid, "was_valid"), was(m, valid & ~dut.instruction.ready, "waited")
        self.claim("nothing new", ~(stopped & valid) | was_valid)
        self.claim("what is valid stays", ~waited | valid)
        self.claim("what was taken is gone", ~(stopped & valid) | waited)
        self.claim("the rest is dropped", ~still | dut.empty)
        self.claim("nothing is taken by itself", ~dut.take.any() | (valid & dut.instruction.ready))
        self.cover("one goes on", waited & stopped & dut.instruction.ready)
        self.cover("others are dropped", stopped & still & dut.fetched.valid)


@proves(
    "sequential/mover",
    {f"hold, {size} bytes": SMALLEST.replace(bus_bytes=size) for size in (4, 8)},
    Invariant(),
    part=True,
)
class MoverBench(Bench, unit=Mover):
    """From an error on, the sequential core requests nothing more from memory. Earlier requests stay until they are
    taken, and it is quiet only when nothing is owed.

    Assumed: memory answers only requests; `hold` comes with an error, and stays.
    """

    def watch(self, m: Module) -> None:
        dut, axi = self.dut, self.dut.axi
        read, write, word = (transfer(axi_channel(axi, name)) for name in ("ar", "aw", "w"))
        owes_read = flag(m, read, axi.rvalid)
        owes_write, owes_word = (
            flag(m, write, axi.bvalid, "owes_write"),
            flag(m, word, axi.bvalid, "owes_word"),
        )
        self.assume(~axi.rvalid | owes_read)
        self.assume(~axi.bvalid | owes_write & owes_word)
        failed = flag(m, axi.rvalid & (axi.rresp != 0) | axi.bvalid & (axi.bresp != 0), 0)
        hold = was(m, dut.hold)
        self.assume(~dut.error | dut.hold)
        self.assume(~hold | dut.hold)
        for name in ("ar", "aw", "w"):
            valid, ready = getattr(axi, f"{name}valid"), getattr(axi, f"{name}ready")
            waited = was(m, valid & ~ready, f"{name}_waited")
            self.claim(f"{name} stays", ~waited | valid)
            self.claim(f"no {name} once held", ~(hold & valid) | waited)
            self.cover(f"{name} is asked for", valid & ~waited)
        owes: Value = owes_read | owes_write | owes_word
        self.claim("quiet", ~dut.quiet | ~(owes | axi.arvalid | axi.awvalid | axi.wvalid))
        self.claim("an error is reported", ~(failed & ~hold) | dut.error)
        self.cover("error", failed & dut.quiet)
