"""Properties of error handling: stops of runs, the watchdog, and the burst that failed."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.property import Bench, Induction, Invariant, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.bus.axi import FaultLog
from weft.hdl.control.control import RunState
from weft.hdl.control.counters import SETTLING_CYCLES
from weft.hdl.control.semaphores import Dispatcher
from weft.hdl.isa import Queue, kinds_of
from weft.hdl.isa.memmap import WATCHDOG_BITS, WATCHDOG_CYCLES, FaultUnit, Status
from weft.hdl.sequential.mover import Mover

_LOGGED, _OUTSTANDING = 4, 8
"""Small values of `LOGGED_ADDRESSES` and `MAX_OUTSTANDING` of `weft.hdl.bus.axi`, to shorten the proof."""


class RunBench(Bench):
    """The state of a run, without its watchdog.

    Assumed: no run starts while another runs; there is progress in every cycle.
    """

    UNIT = RunState

    def watch(self, m: Module) -> None:
        dut, stops = self.dut, self.dut.stops
        self.free_inputs(m)
        self.assume(~(dut.start & dut.busy))
        self.assume(dut.moves)
        running = Signal()
        on = Signal()
        done = Signal()
        settling = Signal(range(SETTLING_CYCLES + 2))
        asked = dut.asked & running & stops
        causes = Signal(4)  # since the start: what came with it counts
        new = Cat(dut.bus_error, dut.opcode_error, asked, dut.parity_error)
        m.d.sync += causes.eq(Mux(dut.start, 0, causes) | new)
        m.d.sync += [
            running.eq(dut.start | running & ~dut.finished),
            settling.eq(Mux(running, 0, settling + 1)),
        ]
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


class WatchdogBench(Bench):
    """The watchdog with a constant limit.

    Assumed: no run starts while another runs, and there are no other reasons to stop.
    """

    UNIT = RunState

    def __init__(self, unit: int) -> None:
        super().__init__(unit=unit)
        self.unit = unit

    def watch(self, m: Module) -> None:
        dut, unit = self.dut, self.unit
        self.free_inputs(m, "limit")
        m.d.comb += dut.limit.eq(self.constant(m, WATCHDOG_BITS, "limit"))
        self.assume(~(dut.start & dut.busy))
        self.assume(~(dut.bus_error | dut.opcode_error | dut.parity_error | dut.asked))
        expired = dut.status[Status.WATCHDOG.bit_length() - 1]
        # Cycles since the last progress, or the start.
        quiet = Signal((unit << WATCHDOG_BITS).bit_length() + 1)
        full = quiet.all()
        m.d.sync += quiet.eq(Mux(dut.start | dut.moves, 0, quiet + ~full))
        was = Signal()
        before = Signal.like(quiet)  # what moves in the cycle in which it expires comes too late
        m.d.sync += [was.eq(expired), before.eq(quiet)]
        new = expired & ~was
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
        left = self.peek("left")
        cycle, moved = self.peek("cycle"), self.peek("moved")
        limit = Mux(dut.limit.any(), dut.limit + 1, 0)
        expired = dut.status[Status.WATCHDOG.bit_length() - 1]
        # Units that have passed end at fixed times, so that the first one may have been short.
        passed = (limit - left)[: WATCHDOG_BITS + 1] * unit + cycle + 1
        known = dut.running & ~moved & (left != 0)
        self.claim("left", left <= limit)
        self.claim("passed", ~known | ((quiet <= passed) & (quiet + unit >= passed)))
        self.claim("some left", ~(dut.running & dut.limit.any()) | expired | (left != 0))


class LogBench(Bench):
    """Addresses of bursts of two sources. One burst, which may be any, is watched, with some bits of its address.

    Assumed: a burst ends only after its request, and fewer than `_OUTSTANDING` bursts of a source are under way; an
    answer comes while its burst is under way.
    """

    SOURCES = ("load", "store")

    def __init__(self, source: str, bits: tuple[int, ...]) -> None:
        super().__init__(FaultLog(SMALLEST, self.SOURCES, kept=_LOGGED, outstanding=_OUTSTANDING))
        self.source, self.bits = source, bits

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        failed, under_way = {}, {}
        for name in self.SOURCES:
            port = getattr(dut, name)
            count = under_way[name] = Signal(range(_OUTSTANDING), name=f"under_way_{name}")
            m.d.sync += count.eq(count + port.asked - port.ended)
            self.assume(~(port.ended | port.failed) | count.any())
            self.assume(~port.asked | (count != _OUTSTANDING - 1))
            failed[name] = Signal(name=f"failed_{name}")
            m.d.sync += failed[name].eq(port.failed)
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
        for name in reversed(self.SOURCES):
            before = Signal(2, name=f"response_{name}")
            m.d.sync += before.eq(getattr(dut, name).response)
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
        its = Signal()
        at = Signal(len(bits))
        m.d.sync += [its.eq(port.failed & watched & (ahead == 0)), at.eq(address)]
        unit = FaultUnit[self.source.upper()]
        first = its & (dut.fault.unit == 0) & ~dut.clear
        if self.source != self.SOURCES[0]:
            other = Signal()
            m.d.sync += other.eq(getattr(dut, self.SOURCES[0]).failed)
            first = first & ~other
        few = Signal()  # since the burst was asked for no more than are kept
        m.d.comb += few.eq(under_way + its < _LOGGED - 1)
        reported = Signal()
        expected = Signal(len(bits))
        was_few = Signal()
        m.d.sync += [reported.eq(first), expected.eq(at), was_few.eq(few)]
        shown = Cat(dut.fault.address[bit] for bit in self.bits)
        self.claim(
            "address", ~(reported & dut.fault.known) | ((shown == expected) & (dut.fault.unit == unit))
        )
        self.claim("known", ~(reported & was_few) | dut.fault.known)
        self.claim("aligned", ~dut.fault.address[: (SMALLEST.bus_bytes - 1).bit_length()].any())
        self.cover("third", reported & dut.fault.known & (expected != 0))
        self.cover("unknown", reported & ~dut.fault.known)


class StopBench(Bench):
    """Once a queue is stopped, no instruction becomes valid, one that is valid stays until it is taken, and the others
    are dropped.

    Assumed: a semaphore stays available until it is taken, because no other queue takes it.
    """

    UNIT = Dispatcher

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        valid = dut.instruction.valid
        available = Signal.like(dut.available, name="available_before")
        m.d.sync += available.eq(dut.available & ~dut.take)
        self.assume(~(available & ~dut.available).any())
        stopped = Signal()
        was_valid = Signal()
        waited = Signal()
        still = Signal()
        m.d.sync += [
            stopped.eq(dut.stop),
            was_valid.eq(valid),
            waited.eq(valid & ~dut.instruction.ready),
            still.eq(dut.stop & ~valid),
        ]
        self.claim("nothing new", ~(stopped & valid) | was_valid)
        self.claim("what is valid stays", ~waited | valid)
        self.claim("what was taken is gone", ~(stopped & valid) | waited)
        self.claim("the rest is dropped", ~still | dut.empty)
        self.claim("nothing is taken by itself", ~dut.take.any() | (valid & dut.instruction.ready))
        self.cover("one goes on", waited & stopped & dut.instruction.ready)
        self.cover("others are dropped", stopped & still & dut.fetched.valid)


class MoverBench(Bench):
    """From an error on, the sequential core requests nothing more from memory. Earlier requests stay until they are
    taken, and it is quiet only when nothing is owed.

    Assumed: memory answers only requests; `hold` comes with an error, and stays.
    """

    UNIT = Mover

    def watch(self, m: Module) -> None:
        dut, axi = self.dut, self.dut.axi
        self.free_inputs(m)
        owes_read = Signal()
        owes_write = Signal()
        owes_word = Signal()
        read, write, word = axi.arvalid & axi.arready, axi.awvalid & axi.awready, axi.wvalid & axi.wready
        m.d.sync += [
            owes_read.eq(read | owes_read & ~axi.rvalid),
            owes_write.eq(write | owes_write & ~axi.bvalid),
            owes_word.eq(word | owes_word & ~axi.bvalid),
        ]
        self.assume(~axi.rvalid | owes_read)
        self.assume(~axi.bvalid | owes_write & owes_word)
        failed = Signal()
        held = Signal()
        m.d.sync += [
            failed.eq(failed | axi.rvalid & (axi.rresp != 0) | axi.bvalid & (axi.bresp != 0)),
            held.eq(dut.hold),
        ]
        self.assume(~dut.error | dut.hold)
        self.assume(~held | dut.hold)
        waits = {name: Signal(name=f"{name}_waits") for name in ("ar", "aw", "w")}
        for name, signal in waits.items():
            valid, ready = getattr(axi, f"{name}valid"), getattr(axi, f"{name}ready")
            m.d.sync += signal.eq(valid & ~ready)
            self.claim(f"{name} stays", ~signal | valid)
            self.claim(f"no {name} once held", ~(held & valid) | signal)
            self.cover(f"{name} is asked for", valid & ~signal)
        owes: Value = owes_read | owes_write | owes_word
        self.claim("quiet", ~dut.quiet | ~(owes | axi.arvalid | axi.awvalid | axi.wvalid))
        self.claim("an error is reported", ~(failed & ~held) | dut.error)
        self.cover("error", failed & dut.quiet)


def properties() -> Iterator[Property]:
    for stops in (True, False):
        yield RunBench.proves(
            "control/run_state",
            "states" if stops else "states, without stops",
            Invariant(),
            claim="A run lasts from its start until counters have settled after its end; its status has what stopped it"
            + (
                ", and nothing may begin from the cycle of a bus error on, and after any other reason to stop."
                if stops
                else "."
            ),
            cover=2 * SETTLING_CYCLES + 8,
            stops=stops,
            unit=4,
        )
    claim = (
        "The watchdog stops a run of {} at the earliest when nothing has moved for as many units as its limit, at the "
        "latest a unit and three cycles later, and never with a limit of 0."
    )
    yield WatchdogBench.proves(
        "control/run_state",
        "watchdog",
        Induction(4),
        WATCHDOG_CYCLES,
        claim=claim.format(f"units of {WATCHDOG_CYCLES} cycles"),
    )
    yield WatchdogBench.proves(
        "control/run_state",
        "watchdog of 4 cycles",
        Induction(4),
        4,
        claim=claim.format("units of 4 cycles"),
        cover=80,
    )
    for source in LogBench.SOURCES:
        yield LogBench.proves(
            "bus/faults",
            f"first error, {source}",
            Invariant(),
            source,
            (2, 31),
            claim="The log keeps the first error since the clear: its unit, its response, and the address of "
            f"its burst if fewer than {_LOGGED} are on their way; some bits of it are watched.",
            cover=_LOGGED + 8,
        )
    for queue in (Queue.LOAD, Queue.VEC):
        for depth in (1, 4):
            config = SMALLEST.replace(queue_depth=depth)
            yield StopBench.proves(
                "control/semaphores",
                f"stop of {queue.name} with {depth}",
                Invariant(),
                config,
                kinds_of(queue, config),
                part=True,
            )
    for bus_bytes in (4, 8):
        config = SMALLEST.replace(bus_bytes=bus_bytes)
        yield MoverBench.proves(
            "sequential/mover", f"hold, {bus_bytes} bytes", Invariant(), config, part=True
        )
