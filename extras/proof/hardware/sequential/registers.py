"""Properties of `weft.hdl.sequential.control`: registers of the sequential core, some of them in data memory."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, implies, latch
from weft.extras.proof.hardware.property import Invariant, proves
from weft.extras.proof.hardware.registers import Answers, RunsBench
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import assume_stable, axi_channel, transfer
from weft.hdl.control.counters import SETTLING_CYCLES
from weft.hdl.isa import BASES
from weft.hdl.isa.memmap import WATCHDOG_BITS, Counter, Reg, counter_register
from weft.hdl.sequential.control import Control

_COUNTED = (Counter.CYCLES, Counter.READ_BEATS)
_CONTROL, _WATCHDOG = Reg.CONTROL >> 2, Reg.WATCHDOG >> 2


class _RegistersBench(RunsBench, unit=Control):
    """The registers, with progress in every cycle: the watchdog has properties of its own."""

    @staticmethod
    def is_stored(word: Value) -> Value:
        """Return whether a register is in data memory."""
        base = Reg.BASE >> 2
        return (word == Reg.PROGRAM >> 2) | (word >= base) & (word < base + BASES)


@proves(
    "sequential/control",
    "writes",
    Invariant(),
    SMALLEST,
    _COUNTED,
    cover=2 * SETTLING_CYCLES,
    proven=("state",),
)
class WritesBench(_RegistersBench):
    """Address and data of a write are taken together, in the cycle after data memory takes its own registers, and
    answered once, in the next cycle. A start is a pulse, comes with a write of 1 to CONTROL, and never during a run.

    Assumed, as AXI4 demands: address and data stay until they are taken.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        _busy, was_busy = self.runs(m)
        word, is_stored = dut.s_axi_awaddr[2:], self.is_stored(dut.s_axi_awaddr[2:])
        both = dut.s_axi_awvalid & dut.s_axi_wvalid
        for name in ("aw", "w"):
            assume_stable(m, self, axi_channel(dut, f"s_axi_{name}"), name)
        taken = dut.s_axi_awvalid & dut.s_axi_awready
        may = both & ~taken & ~dut.s_axi_bvalid & (~is_stored | dut.write_ready)
        could = ago(m, may, 1, "could", reset=True)
        answers = Answers(m, self, "b")
        for name in ("aw", "w"):
            waits = answers.to(name, most=1, beside=could)
            self.claim(f"an answer in the cycle after {name}", waits == answers.new)
        self.claim("both are taken at once", taken == (dut.s_axi_wvalid & dut.s_axi_wready))
        written_now = dut.write_valid & dut.write_ready
        was_written = ago(m, written_now, 1, "went", reset=True)
        self.claim("what data memory keeps goes there once", was_written == (taken & is_stored))
        same = (dut.write_address == word[: len(dut.write_address)]) & (dut.write_data == dut.s_axi_wdata)
        self.claim("as it came", implies(written_now, same & (dut.write_strobe == dut.s_axi_wstrb)))
        low = taken & dut.s_axi_wstrb[0]
        stops = low & (word == _CONTROL) & dut.s_axi_wdata[1]
        self.claim("stop as written", self.peek("state.asked") == stops)
        started = ago(m, low & (word == _CONTROL) & dut.s_axi_wdata[0], 1, "started", reset=True)
        self.claim("start as written", dut.start == (started & ~was_busy))
        limit = latch(m, low & (word == _WATCHDOG), dut.s_axi_wdata, WATCHDOG_BITS, "expected_limit")
        self.claim("the limit of the watchdog", self.peek("state.limit") == limit)
        waited = ago(m, both & is_stored & ~dut.write_ready, 1, "waited", reset=True)
        self.cover("data memory lets it wait", waited & written_now)
        self.cover("started again", dut.start & dut.irq)


@proves("sequential/control", "reads", Invariant(), SMALLEST, _COUNTED, proven=("state",))
class ReadsBench(_RegistersBench):
    """Every read has one answer, OKAY, that stays until it is taken: the register in the cycle before, from data memory
    or not, or the whole counter that passed. It comes as soon as its data is available.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.runs(m)
        answers = Answers(m, self, "r")
        waits = answers.to("ar", most=1)
        place = latch(m, transfer(axi_channel(dut, "s_axi_ar")), dut.s_axi_araddr[2:], name="place")
        is_stored = self.is_stored(place)
        counters = Cat(place >> 1 == counter_register(counter) >> 3 for counter in _COUNTED).any()
        passes = dut.counter_complete & (place == dut.counter + (Reg.COUNTER >> 2))
        written_now = dut.read_valid & dut.read_ready
        asked, counted = Signal(name="asked"), waits & counters & passes
        m.d.sync += asked.eq(written_now | asked & waits & ~answers.new)
        # It is requested once, in the cycle before the answer.
        asks = waits & ~answers.new & is_stored & ~asked
        self.claim("data memory is asked for what it keeps", dut.read_valid == asks)
        right = dut.read_address == place[: len(dut.read_address)]
        self.claim("at its place", implies(dut.read_valid, right))
        expected = Signal(32, name="expected")
        with m.If(is_stored):
            m.d.comb += expected.eq(dut.read_data)
        with m.Elif(counters):
            m.d.comb += expected.eq(dut.counter_value)
        with m.Else():
            m.d.comb += expected.eq(self.register_at(m, place, {}))
        before = ago(m, expected, 1, "expected")
        self.claim("the register of the cycle before", implies(answers.new, dut.s_axi_rdata == before))
        ready = Mux(is_stored, asked, Mux(counters, counted, waits)) & ~answers.new
        self.claim("an answer as soon as it is there", answers.new == ago(m, ready, 1, "ready", reset=True))
        self.cover("a counter", answers.new & counters & (before != 0))
        self.cover("a register in data memory", answers.new & is_stored & (before != 0))
