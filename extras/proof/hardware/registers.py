"""Properties of the registers that the host accesses, and of the counters among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import flag, implies, latch, was
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, proves
from weft.extras.proof.hardware.streams import axi_channel, count, stable, transfer, within
from weft.hdl.control.control import Control
from weft.hdl.control.counters import MUX_INPUTS, SETTLING_CYCLES, WORDS, Counters
from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import (
    MAGIC,
    VERSION,
    Counter,
    Reg,
    base_register,
    counter_register,
)

_LIMIT = 3
"""More requests of one kind than either core takes without an answer."""


class Answers:
    """Answers of one direction of AXI4-Lite.

    Claims that each request has one answer, none comes without a request, an answer stays until it is taken, and a
    request is taken at the latest when no answer is owed.
    """

    def __init__(self, m: Module, bench: Bench, name: str) -> None:
        self.bench, self.name, self.m = bench, name, m
        channel = axi_channel(bench.dut, f"s_axi_{name}")
        waited = stable(m, bench, channel, name)
        bench.claim(f"{name} okay", getattr(bench.dut, f"s_axi_{name}resp") == 0)
        self.new: Value = channel.valid & ~waited
        """An answer begins."""
        self._taken = transfer(channel)

    def to(self, name: str, *, most: int = 2, beside: Value | int = 1) -> Value:
        """Claim the answers to requests of one channel, and return whether a request has no answer yet.

        At most `most` requests are open: with 2, one waits for its answer, and another's answer waits to be taken. A
        request is taken only with `beside`.
        """
        bench, requests = self.bench, axi_channel(self.bench.dut, f"s_axi_{name}")
        owed = count(self.m, f"owed_{name}", _LIMIT + 1, transfer(requests), self._taken)
        begun = count(self.m, f"begun_{name}", _LIMIT + 1, transfer(requests), self.new)
        bench.claim(f"{self.name} answers {name}", ~self.new | (begun != 0))
        bench.claim(f"{name} takes no more than it answers", (owed <= most) & (begun <= 1))
        bench.claim(
            f"{name} takes when nothing is owed", implies(Value.cast(beside), requests.ready | (owed != 0))
        )
        bench.cover(f"{name} as many owed as may be", owed == most)
        waits: Value = begun != 0
        return waits


class RunsBench(Bench):
    """The registers of either core around runs."""

    def runs(self, m: Module) -> tuple[Value, Signal]:
        """Claim the course of a run; return whether there is one, and whether there was one in the cycle before."""
        dut = self.dut
        running, on = flag(m, dut.start, dut.finished, "running"), Signal(name="on")
        since = Signal(range(SETTLING_CYCLES + 4))  # cycles after the last cycle of a run
        busy = on & ~dut.irq
        self.assume(dut.moves)
        m.d.sync += on.eq(dut.start | busy)
        m.d.sync += since.eq(Mux(dut.running, 0, since + (since < SETTLING_CYCLES + 3)))
        was_busy, started = was(m, busy | dut.start, "was_busy"), was(m, dut.start, "started")
        ended = was(m, dut.irq & ~dut.start)
        self.claim("running from start to finished", dut.running == running)
        self.claim("start for a cycle", ~dut.start | ~started)
        self.claim("start while idle", ~dut.start | ~busy)
        self.claim("done until start", ~ended | dut.irq)
        self.claim("not done after a start", ~started | ~dut.irq)
        self.claim("done after a run", ~dut.irq | ended | on)
        settled = ~running & (since >= SETTLING_CYCLES)
        self.claim("done when counters have settled", ~(dut.irq & on) | settled)
        self.claim("done soon", ~busy | running | (since < SETTLING_CYCLES + 2))
        return busy, was_busy

    def register_at(self, m: Module, place: Value, more: Mapping[int, Value]) -> Signal:
        """Return the content of the register whose word address is `place`: one of both cores, or of `more`."""
        dut, value = self.dut, Signal(32, name="register_value")
        registers: dict[int, Any] = {
            **{Reg.MAGIC: MAGIC, Reg.VERSION: VERSION, Reg.CONFIG: self.config.digest},
            Reg.STATUS: self.peek("state.status"),
            Reg.FAULT_ADDRESS: dut.fault.address,
            Reg.FAULT: Cat(dut.fault.unit, Const(0, 1), dut.fault.response, Const(0, 2), dut.fault.known),
            Reg.WATCHDOG: self.peek("state.limit"),
        }
        with m.Switch(place):
            for address, content in {**registers, **more}.items():
                with m.Case(address >> 2):
                    m.d.comb += value.eq(content)
        return value


class ControlBench(RunsBench, unit=Control):
    """The registers of a default configuration.

    Hosts are unconstrained, and need not even keep a request until it is taken. There is progress in every cycle,
    because the watchdog has properties of its own.
    """


@proves("control/control", "runs", Invariant(), Config(), cover=2 * SETTLING_CYCLES, proven=("state",))
class RunBench(ControlBench):
    """A start is a pulse, comes with a write of 1 to CONTROL, and never during a run. A run is done when it is finished
    and counters have settled, and its end is reported until the next start. A stop is requested when it is written.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        _busy, was_busy = self.runs(m)
        write = Writes(m, self)
        here = write.comes & (write.place == Reg.CONTROL >> 2) & write.strobe[0]
        control = here & write.word[0]
        self.claim("start as written", dut.start == (control & ~was_busy))
        self.claim("stop as written", self.peek("state.asked") == (here & write.word[1]))
        self.cover("done", dut.irq & ~dut.running)
        self.cover("started again", dut.start & dut.irq)
        self.cover("start is ignored", control & ~dut.start)


@proves("control/control", "writes", Invariant(), Config(), proven=("state",))
class WriteBench(ControlBench):
    """Every write has one answer, in order, OKAY, that stays until it is taken. With it, the registers change in the
    bytes that are written.

    Of each byte one bit, which may be any, is watched.
    """

    def watch(self, m: Module) -> None:
        bit = self.constant(m, range(8), "bit")
        write = Writes(m, self)
        values = {Reg.PROGRAM.value: self.dut.program}
        values |= {base_register(index): self.dut.bases[index] for index in range(BASES)}
        values[Reg.WATCHDOG.value] = self.peek("state.limit")
        for address, value in values.items():
            lanes = len(value) // 8
            now, word = (
                Cat(whole.word_select(lane, 8).bit_select(bit, 1) for lane in range(lanes))
                for whole in (value, write.word)
            )
            before = Signal(len(now), name=f"before_{address}")
            m.d.sync += before.eq(now)
            here = Mux(write.comes & (write.place == address >> 2), write.strobe, 0)
            mask = Cat(here[lane] for lane in range(lanes))
            self.claim(f"register {address:#x}", now == ((mask & word) | (~mask & before)))
        byte_alone = write.comes & (write.place == Reg.PROGRAM >> 2) & (write.strobe == 4)
        self.cover("one byte is written", byte_alone)


class Writes:
    """The writes, and their contents at the time of their answers."""

    def __init__(self, m: Module, bench: ControlBench) -> None:
        dut = bench.dut
        answers = Answers(m, bench, "b")
        address, word = answers.to("aw"), answers.to("w")
        within(m, bench, address & word & ~dut.s_axi_bvalid, 1, "answer to a write")
        self.comes = answers.new
        takes = {name: transfer(axi_channel(dut, f"s_axi_{name}")) for name in ("aw", "w")}
        self.place = latch(m, takes["aw"], dut.s_axi_awaddr[2:], name="place")
        self.word = latch(m, takes["w"], dut.s_axi_wdata, name="written_word")
        self.strobe = latch(m, takes["w"], dut.s_axi_wstrb, name="written_strobe")


@proves("control/control", "reads", Invariant(), Config(), cover=2 * SETTLING_CYCLES, proven=("state",))
class ReadBench(ControlBench):
    """Every read has one answer, in order, OKAY, that stays until it is taken, with the content of the register or the
    counter that passes. It comes at once or with the counter.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.runs(m)
        answers = Answers(m, self, "r")
        waits = answers.to("ar")
        place = latch(m, transfer(axi_channel(dut, "s_axi_ar")), dut.s_axi_araddr[2:], name="place")
        first = counter_register(Counter(0)) >> 2
        counters = (place >= first) & (place < first + WORDS)
        passes = place == dut.counter + first
        owed = was(m, waits & ~dut.s_axi_rvalid & (~counters | passes))
        self.claim("r at once", ~owed | answers.new)
        own = {Reg.PROGRAM.value: dut.program}
        own |= {base_register(index): dut.bases[index] for index in range(BASES)}
        register = self.register_at(m, place, own)
        passed, before = (
            was(m, ~counters | passes, "passed"),
            was(m, Mux(counters, dut.counter_value, register), "before"),
        )
        self.claim("r of the cycle before", ~answers.new | (passed & (dut.s_axi_rdata == before)))
        self.cover("a counter is read", answers.new & counters & (before != 0))
        self.cover("status is read", answers.new & (dut.s_axi_rdata == 0b1101) & ~counters)


@proves(
    "control/counters", "order of all", Invariant(), tuple(Counter), 32, cover=2 * len(Counter) + 2, part=True
)
@proves("control/counters", "order of 3", Invariant(), tuple(Counter)[:3], 16, part=True)
class PassingBench(Bench):
    """Words of counters pass in order, one a cycle, or with a memory of 16 bits in two.

    Nothing is assumed.
    """

    def __init__(self, counted: Sequence[Counter], bits: int) -> None:
        super().__init__(Counters(counted, bits=bits))
        self.chunks = 32 // bits  # cycles of a word of 32 bits

    def watch(self, m: Module) -> None:
        self._claim_order(m)

    def _claim_order(self, m: Module) -> tuple[Signal, Signal]:
        """Claim the order; return the position of the word that passes, and its cycle."""
        dut = self.dut
        numbers = [2 * counter + half for counter in dut.counted for half in range(2)]
        at = Signal(range(len(numbers)))
        step = Signal(range(self.chunks + 1))
        ends = step == self.chunks - 1
        m.d.sync += step.eq(Mux(ends | dut.clear, 0, step + 1))
        with m.If(dut.clear):
            m.d.sync += at.eq(0)
        with m.Elif(ends):
            m.d.sync += at.eq(Mux(at == len(numbers) - 1, 0, at + 1))
        self.claim("in order", dut.index == Array(numbers)[at])
        self.claim("complete", dut.complete == ends)
        self.cover("last", (at == len(numbers) - 1) & dut.complete)
        return at, step


_COUNTS = (
    "A counter that passes has all events from the cycle after its clear to four cycles before, or three with few "
    "counters, with carries, and none twice."
)
_WINDOW = (
    "ARRAY_WINDOW counts the cycles from the first row to the last write that is five cycles before it passes, if "
    "writes are less than 2**32 - 8 cycles apart."
)


# Induction covers a round of the counters, and their way to the adder.
@proves("control/counters", "values of one", Induction(12), (Counter.CYCLES,), 32, claim=_COUNTS)
@proves(
    "control/counters", "values of two", Induction(14), (Counter.CYCLES, Counter.VEC_PORT), 32, claim=_COUNTS
)
@proves("control/counters", "values of five", Induction(20), tuple(Counter)[3:8], 32, claim=_COUNTS)
@proves("control/counters", "values of one, 16 bits", Induction(12), (Counter.READ_BEATS,), 16, claim=_COUNTS)
@proves("control/counters", "window", Induction(12), (Counter.ARRAY_WINDOW,), 32, claim=_WINDOW)
class CountersBench(PassingBench):
    """Some counters, with a model of each.

    A word has the events up to four cycles before the first part of its counter passes (three with few counters),
    ARRAY_WINDOW up to five (four).
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.chosen_twice = len(dut.counted) > MUX_INPUTS
        at, step = self._claim_order(m)
        counts = Array(self._count_events(m, counter) for counter in dut.counted)
        previous = Signal(64)
        frozen = Signal(64)
        begins = ~at[0] & (step == 0)
        m.d.comb += frozen.eq(Mux(begins, counts[at >> 1], previous))
        m.d.sync += previous.eq(frozen)
        self.claim("value", ~dut.complete | (dut.value == frozen.word_select(at[0], 32)))
        self.cover("counted", dut.complete & (at == 0) & (dut.value == 2))

    def _count_events(self, m: Module, counter: Counter) -> Signal:
        dut = self.dut
        count = Signal(64, name=f"count_{counter.name.lower()}")
        if counter is Counter.ARRAY_WINDOW:
            return self._count_window(m, count)
        happens = dut.event[counter] & dut.enable
        delayed = Signal(2 + self.chosen_twice, name=f"{counter.name.lower()}_delayed")
        m.d.sync += [delayed.eq(Cat(happens, delayed)), count.eq(count + delayed[-1])]
        with m.If(dut.clear):
            m.d.sync += [delayed.eq(0), count.eq(0)]
        return count

    def _count_window(self, m: Module, count: Signal) -> Signal:
        """Count the cycles from the first row to the last write, both included.

        The cycles since the last write are assumed to fit into the 32 bits in which the unit counts them.
        """
        dut = self.dut
        opened = Signal()
        cycles = Signal(64)
        window = Signal(64)
        passed = [Signal(64, name=f"window_{age}") for age in range(2 + self.chosen_twice)]
        # The unit looks at its inputs a cycle later.
        enable, row, write = (was(m, getattr(dut, n), f"{n}_before") for n in ("enable", "row", "write"))
        apart = Signal(64)
        m.d.comb += apart.eq(cycles - window)
        self.assume(apart < (1 << 32) - 8)
        self.claim("opened", self.peek("opened") == opened)
        self.claim("since the last write", self.peek("since") == apart)
        for before, after in pairwise((window, *passed)):
            m.d.sync += after.eq(before)
        m.d.comb += count.eq(passed[-1])
        with m.If(enable & (opened | row)):
            m.d.sync += [opened.eq(1), cycles.eq(cycles + 1)]
            with m.If(write):
                m.d.sync += window.eq(cycles + 1)
        with m.If(dut.clear):
            m.d.sync += [signal.eq(0) for signal in (enable, opened, cycles, window, *passed)]
        return count
