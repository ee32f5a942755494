"""The SDRAM controller: a memory port on one side, the pads of a 16-bit chip on the other."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.boards.bus.port import memory_port, write_layout
from weft.boards.sdram.calibration import Sweep, calibration_layout
from weft.boards.sdram.calibrator import Calibrator
from weft.boards.sdram.chip import A_BITS, COLUMN_BITS, ROW_BITS, SdramTiming, sdram_pads
from weft.boards.sdram.eye import CAPTURES, phase_of
from weft.boards.sdram.schedule import UNIT, RowSplitter, Scheduler

READ_WORDS = 16
"""Words read that wait, or are on their way: enough for the way there and back at any width of the bus."""


def read_latency(cas_latency: int, capture: int) -> int:
    """Cycles from the decision to read a unit to its first half in a register of the controller: one each to the
    scheduler's registers, to the pads, and from the pads, beside the chip's own."""
    return 3 + cas_latency + capture


class WriteUnits(wiring.Component):
    """Cuts words to write into units.

    Parameters
    ----------
    bus_bytes : int

    Members
    -------
    write : In(stream of write_layout(bus_bytes))
    have : Out(1)
        `unit` is there.
    unit : Out(write_layout(UNIT))
    take : In(1)
        `unit` is used; at most in every second cycle, which is when the next word comes in.
    """

    def __init__(self, bus_bytes: int) -> None:
        self.bus_bytes = bus_bytes
        super().__init__(
            {
                "write": In(stream.Signature(write_layout(bus_bytes))),
                "have": Out(1),
                "unit": Out(write_layout(UNIT)),
                "take": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        units = self.bus_bytes // UNIT
        word = Signal(write_layout(self.bus_bytes))
        left = Signal(range(max(units, 2)))  # after the current one
        m.d.comb += [
            self.write.ready.eq(~self.have),
            self.unit.data.eq(word.data),
            self.unit.strobe.eq(word.strobe),
        ]
        with m.If(self.take):
            m.d.sync += [
                word.data.eq(word.data >> 8 * UNIT),
                word.strobe.eq(word.strobe >> UNIT),
                left.eq(left - 1),
                self.have.eq(left != 0),
            ]
        with m.If(self.write.valid & self.write.ready):
            m.d.sync += [word.eq(self.write.payload), left.eq(units - 1), self.have.eq(1)]
        return m


class ReadWords(wiring.Component):
    """Gathers words from what the chip sends, and keeps room for all that is on its way.

    Parameters
    ----------
    bus_bytes : int
    latency : int
        Cycles from `unit` to its first half at `half`.
    delays : int
        How many different latencies there may be, from that one on.

    Members
    -------
    delay : In(range(delays))
        Cycles more than the first of them; changes only while nothing is on its way. With several only.
    unit : In(1)
        A unit was asked for; at most in every second cycle.
    reserve : In(1)
        It is the first of a word.
    room : Out(1)
        There is room for a word; unspecified in the cycle after `reserve`.
    half : In(16)
    arrives : Out(1)
        It is one of a unit.
    seen : Out(16)
        The last that was.
    read : Out(stream of 8 * bus_bytes bits)
    """

    def __init__(self, bus_bytes: int, latency: int, delays: int = 1) -> None:
        self.bus_bytes, self.latency, self.delays = bus_bytes, latency, delays
        super().__init__(
            {
                **({"delay": In(range(delays))} if delays > 1 else {}),
                "unit": In(1),
                "reserve": In(1),
                "room": Out(1),
                "half": In(16),
                "arrives": Out(1),
                "seen": Out(16),
                "read": Out(stream.Signature(8 * bus_bytes)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.queue = queue = SyncFIFO(width=8 * self.bus_bytes, depth=READ_WORDS)
        coming = Signal(
            self.latency + 1
        )  # bit i: a unit's first half is at `half` in i cycles less the latency
        word = Signal(8 * self.bus_bytes)
        halves = Signal(range(self.bus_bytes // 2))
        complete = Signal()
        free = Signal(range(READ_WORDS + 1), init=READ_WORDS)
        taken = self.read.valid & self.read.ready
        asked: Value = self.unit
        if self.delays > 1:
            later = Signal(self.delays - 1)
            m.d.sync += later.eq(Cat(self.unit, later))
            asked = Array([self.unit, *later])[self.delay]
        m.d.comb += [
            self.arrives.eq(coming[self.latency - 1] | coming[self.latency]),
            self.seen.eq(word[-16:]),
        ]
        m.d.sync += [
            coming.eq(Cat(asked, coming)),
            complete.eq(self.arrives & halves.all()),
            free.eq(free + taken - self.reserve),
            self.room.eq(free != 0),
        ]
        with m.If(self.arrives):
            m.d.sync += [word.eq(Cat(word[16:], self.half)), halves.eq(halves + 1)]
        m.d.comb += [
            queue.w_data.eq(word),
            queue.w_en.eq(complete),
            self.read.payload.eq(queue.r_data),
            self.read.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.read.ready),
        ]
        return m


class SdramController(wiring.Component):
    """Memory in a 16-bit single-data-rate SDRAM.

    A byte address is, from the low end: byte of the column, column, bank, row. Commands are carried out one after
    the other; what is to be written should come soon after its command, because later commands wait for it.

    Parameters
    ----------
    bus_bytes : int
        A power of two from 4 to 128.
    clock : float
        Frequency of `sync` in Hz. The chip's clock has the same frequency and a phase of its own, which
        `weft.boards.sdram.eye.best_eye` chooses.
    timing : SdramTiming
    row_bits, column_bits : int
        Of the chip: 13 and 9 for 32 MB, 13 and 10 for 64 MB.
    cas_latency : int
        2 or 3.
    capture : int
        Cycles that the pads' registers outside of this component, the wires and the phase of the chip's clock add
        to the CAS latency: a word comes in at `dq_i` ``cas_latency + capture`` cycles after its command went out,
        and is taken into a register at the end of that cycle. See `weft.boards.sdram.eye.Eye.capture`.
    sweep : Sweep, optional
        Find phase and capture at the start, beginning with those of `weft.boards.sdram.eye.best_eye` and `capture`,
        one of `weft.boards.sdram.eye.CAPTURES`. Commands wait until then.

    Raises
    ------
    ValueError
        For a clock that the chip or its refresh does not allow, or a parameter outside of these limits.

    Members
    -------
    bus : In(memory_port(bus_bytes))
    pads : Out(sdram_pads())
        All from registers; `dq_i` goes to registers.
    step : Out(1), calibration : Out(calibration_layout())
        With a `sweep` only: see `weft.boards.sdram.calibrator.Calibrator`.
    """

    def __init__(
        self,
        bus_bytes: int,
        clock: float,
        timing: SdramTiming | None = None,
        *,
        row_bits: int = ROW_BITS,
        column_bits: int = COLUMN_BITS,
        cas_latency: int = 3,
        capture: int = 0,
        sweep: Sweep | None = None,
    ) -> None:
        timing = timing or SdramTiming()
        timing.check_clock(clock, cas_latency)
        _check("bus", bus_bytes in (4, 8, 16, 32, 64, 128), bus_bytes, "4, 8, 16, 32, 64 or 128 bytes wide")
        _check("rows", 1 <= row_bits <= A_BITS, row_bits, f"addressed with 1 to {A_BITS} bits")
        _check("columns", 8 <= column_bits <= 11, column_bits, "addressed with 8 to 11 bits")
        _check("capture", 0 <= capture <= 8, capture, "0 to 8 cycles")
        self.cycles = timing.cycles(clock)
        # One refresh with all that comes before and after it.
        pause = self.cycles.ras + self.cycles.wr + self.cycles.rp + self.cycles.rfc + self.cycles.rcd + 8
        if self.cycles.refresh <= pause:
            raise ValueError(
                f"at {clock / 1e6:g} MHz a refresh is due every {self.cycles.refresh} cycles but takes up to {pause}: "
                "raise the clock"
            )
        self.bus_bytes, self.row_bits, self.column_bits = bus_bytes, row_bits, column_bits
        self.cas_latency, self.capture = cas_latency, capture
        self.calibrator = None if sweep is None else self._calibrator(sweep, clock)
        found = {"step": Out(1), "calibration": Out(calibration_layout())} if sweep else {}
        super().__init__({"bus": In(memory_port(bus_bytes)), "pads": Out(sdram_pads()), **found})

    def _calibrator(self, sweep: Sweep, clock: float) -> Calibrator:
        phases = sweep.phases(clock)
        _check("capture", self.capture in CAPTURES, self.capture, "1 to 3 cycles where it is found out")
        return Calibrator(
            phases,
            blocks=sweep.blocks,
            least=sweep.least(clock),
            computed_phase=phase_of(clock, phases),
            computed_capture=self.capture,
            row_bits=self.row_bits,
            column_bits=self.column_bits,
        )

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return 2 << (self.column_bits + 2 + self.row_bits)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.splitter = splitter = RowSplitter(self.bus_bytes, self.row_bits, self.column_bits)
        m.submodules.scheduler = scheduler = Scheduler(
            self.cycles,
            word_units=self.bus_bytes // UNIT,
            row_bits=self.row_bits,
            column_bits=self.column_bits,
            cas_latency=self.cas_latency,
        )
        m.submodules.units = units = WriteUnits(self.bus_bytes)
        first, delays = (self.capture, 1) if self.calibrator is None else (CAPTURES[0], len(CAPTURES))
        latency = read_latency(self.cas_latency, first)
        m.submodules.words = words = ReadWords(self.bus_bytes, latency, delays)
        bus, pads = wiring.flipped(self.bus), self.pads
        wiring.connect(m, bus.command, splitter.command)
        wiring.connect(m, bus.write, units.write)
        unit = Signal.like(units.unit)
        m.d.comb += [
            scheduler.room.eq(words.room),
            words.unit.eq(scheduler.read),
            words.reserve.eq(scheduler.reserve),
        ]
        m.d.sync += words.half.eq(pads.dq_i)
        if self.calibrator is None:
            wiring.connect(m, splitter.segment, scheduler.segment)
            wiring.connect(m, words.read, bus.read)
            m.d.comb += [
                scheduler.have.eq(units.have),
                units.take.eq(scheduler.write),
                unit.eq(units.unit),
                self.bus.written.eq(scheduler.written),
            ]
        else:
            self._calibrate(m, splitter, scheduler, units, words, unit)
        self._outputs(m, scheduler, unit)
        return m

    def _calibrate(
        self,
        m: Module,
        splitter: RowSplitter,
        scheduler: Scheduler,
        units: WriteUnits,
        words: ReadWords,
        unit: Any,
    ) -> None:
        """Scheduler and words read are the calibrator's until it is done."""
        m.submodules.calibrator = calibrator = self.calibrator
        assert calibrator is not None
        done, bus = calibrator.done, self.bus
        # A cycle later, from a register of its own: words read are far from the calibrator, and the scheduler's
        # decisions are long paths. No unit of the bus is due in that cycle.
        ended = Signal()
        m.d.sync += ended.eq(done)
        ours, theirs = calibrator.segment, splitter.segment
        m.d.comb += [
            scheduler.segment.payload.eq(Mux(done, theirs.payload, ours.payload)),
            scheduler.segment.valid.eq(Mux(done, theirs.valid, ours.valid)),
            theirs.ready.eq(scheduler.segment.ready & done),
            ours.ready.eq(scheduler.segment.ready & ~done),
            scheduler.restart.eq(calibrator.restart),
            scheduler.have.eq(units.have | ~ended),
            units.take.eq(scheduler.write & done),
            unit.data.eq(Mux(done, units.unit.data, calibrator.unit)),
            unit.strobe.eq(Mux(done, units.unit.strobe, calibrator.strobe.replicate(UNIT))),
            bus.written.eq(scheduler.written & done),
            calibrator.written.eq(scheduler.write),
            calibrator.arrives.eq(words.arrives),
            calibrator.seen.eq(words.seen),
            words.delay.eq(calibrator.late),
            # What the calibrator reads, it has seen before it comes here.
            bus.read.payload.eq(words.read.payload),
            bus.read.valid.eq(words.read.valid & ended),
            words.read.ready.eq(bus.read.ready | ~ended),
            self.step.eq(calibrator.step),
            self.calibration.eq(calibrator.result),
        ]

    def _outputs(self, m: Module, scheduler: Scheduler, written: Any) -> None:
        """The registers at the pads. Nothing else reads them, so that they can be placed there."""
        pads = self.pads
        unit = Signal(data.StructLayout({"data": 32, "strobe": 4}))
        first, second = Signal(), Signal()  # halves of `unit` that go out next
        with m.If(scheduler.write):
            m.d.sync += unit.eq(written)
        strobe = Mux(first, unit.strobe[:2], unit.strobe[2:])
        ras, cas, we = scheduler.operation
        m.d.sync += [
            first.eq(scheduler.write),
            second.eq(first),
            pads.clk_en.eq(1),
            pads.cs.eq(1),
            pads.ras.eq(ras),
            pads.cas.eq(cas),
            pads.we.eq(we),
            pads.ba.eq(scheduler.bank),
            pads.a.eq(scheduler.address),
            pads.dq_o.eq(Mux(first, unit.data[:16], unit.data[16:])),
            pads.dq_oe.eq(first | second),
            pads.dqm.eq(Mux(first | second, ~strobe, (~scheduler.awake).replicate(2))),
        ]


def _check(what: str, good: bool, value: int, must: str) -> None:
    if not good:
        raise ValueError(f"an SDRAM controller's {what} must be {must}, not {value}")
