"""SDRAM controller, from a memory port to the pads of a 16-bit chip."""

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
"""Words read that are buffered or in progress: enough for the round trip at any bus width."""


def read_latency(cas_latency: int, capture: int) -> int:
    """Return the cycles from issuing a unit's read to its first half in the controller.

    In addition to the chip's own cycles there is one each to the scheduler's registers, to the pads, and from the pads.
    """
    return 3 + cas_latency + capture


class WriteUnits(wiring.Component):
    """Splits words to write into units.

    Parameters
    ----------
    bus_bytes : int

    Members
    -------
    write : In(stream of write_layout(bus_bytes))
    have : Out(1)
        `unit` is valid.
    unit : Out(write_layout(UNIT))
    take : In(1)
        `unit` is used, at most in every second cycle. The next word is accepted in the cycles between.
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
        left = Signal(range(max(units, 2)))  # units after the current one
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
    """Assembles words from the chip's data, and reserves room for all words in progress.

    Parameters
    ----------
    bus_bytes : int
    latency : int
        Cycles from `unit` to its first half at `half`.
    delays : int
        Number of different latencies, from `latency` on.

    Members
    -------
    delay : In(range(delays))
        Cycles in addition to `latency`; may change only while no word is in progress. Only with several delays.
    unit : In(1)
        A unit's read is issued, at most in every second cycle.
    reserve : In(1)
        It is the first unit of a word.
    room : Out(1)
        There is room for a word; undefined in the cycle after `reserve`.
    half : In(16)
    arrives : Out(1)
        `half` belongs to a unit.
    seen : Out(16)
        Last `half` of a unit.
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
        # Bit i is set i + 1 cycles after `unit`, so the last two bits mark a unit's halves at `half`.
        coming = Signal(self.latency + 1)
        word = Signal(8 * self.bus_bytes)
        halves = Signal(range(self.bus_bytes // 2))
        complete = Signal()
        # A word's place in the queue is reserved when its first unit is issued.
        free = Signal(range(READ_WORDS + 1), init=READ_WORDS)
        taken = self.read.valid & self.read.ready
        asked: Value = self.unit
        # Delaying the issue by `delay` cycles has the effect of a higher latency.
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
    """Controller of a 16-bit single-data-rate SDRAM behind a memory port.

    A byte address consists of, from the low end: byte of the column, column, bank, row. Commands are carried out in
    order. Words to write should follow their command soon, because later commands wait for them.

    Parameters
    ----------
    bus_bytes : int
        A power of two from 4 to 128.
    clock : float
        Frequency of `sync` in Hz. The chip's clock has the same frequency and the phase that
        `weft.boards.sdram.eye.best_eye` chooses.
    timing : SdramTiming
    row_bits, column_bits : int
        Address bits of the chip: 13 and 9 for 32 MB, 13 and 10 for 64 MB.
    cas_latency : int
        2 or 3.
    capture : int
        Cycles that the pads' registers outside this component, the wires and the phase of the chip's clock add to the
        CAS latency. A word is at `dq_i` ``cas_latency + capture`` cycles after its command left, and is captured at the
        end of that cycle. See `weft.boards.sdram.eye.Eye.capture`.
    sweep : Sweep, optional
        Calibrate phase and capture cycle at start-up, starting from `weft.boards.sdram.eye.best_eye` and `capture`, one
        of `weft.boards.sdram.eye.CAPTURES`. Commands wait until calibration ends.

    Raises
    ------
    ValueError
        If the chip or its refresh does not allow the clock, or if a parameter is out of range.

    Members
    -------
    bus : In(memory_port(bus_bytes))
    pads : Out(sdram_pads())
        All outputs come from registers; `dq_i` goes to registers.
    step : Out(1), calibration : Out(calibration_layout())
        Only with a `sweep`: see `weft.boards.sdram.calibrator.Calibrator`.
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
        # Longest pause for one refresh, including precharge before and activate after it.
        pause = self.cycles.ras + self.cycles.wr + self.cycles.rp + self.cycles.rfc + self.cycles.rcd + 8
        if self.cycles.refresh <= pause:
            raise ValueError(
                f"at {clock / 1e6:g} MHz a refresh is due every {self.cycles.refresh} cycles but takes up to {pause}: "
                "raise the clock"
            )
        self.bus_bytes, self.row_bits, self.column_bits = bus_bytes, row_bits, column_bits
        self.cas_latency, self.capture = cas_latency, capture
        self.calibrator = None if sweep is None else self._calibrator(sweep, clock)
        members = {"step": Out(1), "calibration": Out(calibration_layout())} if sweep else {}
        super().__init__({"bus": In(memory_port(bus_bytes)), "pads": Out(sdram_pads()), **members})

    def _calibrator(self, sweep: Sweep, clock: float) -> Calibrator:
        phases = sweep.phases(clock)
        _check("capture", self.capture in CAPTURES, self.capture, "1 to 3 cycles with calibration")
        return Calibrator(
            phases,
            blocks=sweep.blocks,
            min_phases=sweep.min_phases(clock),
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
        # With calibration, the capture cycle is variable.
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
        """Connect scheduler and read words to the calibrator until it is done, then to the bus."""
        m.submodules.calibrator = calibrator = self.calibrator
        assert calibrator is not None
        done, bus = calibrator.done, self.bus
        # `ended` is `done` one cycle later, to shorten paths to the read words and to the scheduler. In that cycle no
        # unit of the bus is due.
        ended = Signal()
        m.d.sync += ended.eq(done)
        from_calibrator, from_bus = calibrator.segment, splitter.segment
        m.d.comb += [
            scheduler.segment.payload.eq(Mux(done, from_bus.payload, from_calibrator.payload)),
            scheduler.segment.valid.eq(Mux(done, from_bus.valid, from_calibrator.valid)),
            from_bus.ready.eq(scheduler.segment.ready & done),
            from_calibrator.ready.eq(scheduler.segment.ready & ~done),
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
            # Words that the calibrator has read are discarded here; it has already checked them through `seen`.
            bus.read.payload.eq(words.read.payload),
            bus.read.valid.eq(words.read.valid & ended),
            words.read.ready.eq(bus.read.ready | ~ended),
            self.step.eq(calibrator.step),
            self.calibration.eq(calibrator.result),
        ]

    def _outputs(self, m: Module, scheduler: Scheduler, written: Any) -> None:
        """Drive the output registers. Nothing else reads them, so that they can be placed in the pads."""
        pads = self.pads
        current_unit = Signal(data.StructLayout({"data": 32, "strobe": 4}))
        first = Signal()  # the first half of `current_unit` goes out next
        second = Signal()  # the second half of `current_unit` goes out next
        with m.If(scheduler.write):
            m.d.sync += current_unit.eq(written)
        # The halves of a unit follow each other on the pads. In reads `dqm` is 0, before initialisation 1.
        strobe = Mux(first, current_unit.strobe[:2], current_unit.strobe[2:])
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
            pads.dq_o.eq(Mux(first, current_unit.data[:16], current_unit.data[16:])),
            pads.dq_oe.eq(first | second),
            pads.dqm.eq(Mux(first | second, ~strobe, (~scheduler.awake).replicate(2))),
        ]


def _check(name: str, valid: bool, value: int, requirement: str) -> None:
    if not valid:
        raise ValueError(f"an SDRAM controller's {name} must be {requirement}, not {value}")
