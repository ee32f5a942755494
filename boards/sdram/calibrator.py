"""Hardware that finds a working phase of the SDRAM's clock at start-up, by testing memory at every phase."""

from __future__ import annotations

import random
from functools import cache

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from weft.boards.sdram.calibration import CalibrationState, calibration_layout
from weft.boards.sdram.eye import CAPTURES
from weft.boards.sdram.schedule import segment_layout

UNITS = 16
"""Units per block. They are adjacent in a row, so that their words follow each other on the pads."""
PASSES = 3
"""Passes of a test: write all blocks, write inverses with mask over every second unit, read all blocks."""
STEP_CYCLES = 32
"""Cycles per phase step of the PLL; the step signal is high in the first half. FPGA-TN-02200 requires each half to last
four cycles of the PLL's oscillator, at most 10 ns."""


@cache
def parity_taps(bits: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each data pad, the bits of a unit's number whose parity the pad carries, such that all units
    differ."""
    draw = random.Random(bits)
    while True:
        pads = tuple(tuple(sorted(draw.sample(range(bits), min(3, bits)))) for _ in range(16))
        words = {
            tuple(sum(number >> bit & 1 for bit in pad) & 1 for pad in pads) for number in range(1 << bits)
        }
        if len(words) == 1 << bits:
            return pads


def pattern(number: Value, salt: Value) -> Value:
    """Return the first half of a unit as 16 bits, which depend on its number and on `salt`.

    `salt` has up to 16 bits and differs between tests, so that words of an earlier test count as wrong. The second half
    of a unit is the inverse, so that all pads change.
    """
    salted = Cat(salt, Const(0, 16))
    return Cat(
        Cat(*(number[bit] for bit in pad), salted[at]).xor()
        for at, pad in enumerate(parity_taps(len(number)))
    )


def scatter_lines(block: Value, bits: int, first: int) -> Value:
    """Return `bits` address lines of a block, of which `first` is the number of the lowest among all lines.

    Two consecutive blocks, starting at an even number, differ in all lines; other pairs differ in some.
    """
    others = len(block) - 1
    lines = []
    for line in range(first, first + bits):
        chosen = {line % (others + 1), (line + line // 3 % 2) % (others + 1)} - {others}
        lines.append(Cat(block[0], *(block[1 + bit] for bit in chosen)).xor() ^ (line & 1))
    return Cat(lines)


class Calibrator(wiring.Component):
    """Controller that moves the SDRAM's clock through all phases, twice for each capture cycle, and tests memory at
    each.

    At each phase the chip is initialised again, because it may have misread earlier commands. Then blocks of memory are
    written and read. The chosen phase is the middle of the longest run of working phases, which may span the end of the
    cycle. Memory is tested once more there.

    If there is no such run, the clock returns to the calculated phase. After a reset without new configuration, phases
    are counted from the current one: the chosen phase works, but the reported degrees are wrong.

    Parameters
    ----------
    phases : int
        Phases per cycle, an even number. The PLL starts with the calculated phase.
    blocks : int
        A power of two from 2 to 32.
    min_phases : int
        Smallest length of a run of working phases.
    computed_phase, computed_capture : int
        See `weft.boards.sdram.calibration.Calibration`.
    row_bits, column_bits : int
        Address bits of the chip.

    Members
    -------
    segment : Out(stream of segment_layout(row_bits, column_bits))
        Segments for the scheduler.
    restart : Out(1)
        The clock is moving: send no commands, and initialise the chip afterwards.
    unit : Out(32), strobe : Out(1)
        Data to write; `strobe` is 0 to mask them.
    written : In(1)
        `unit` is used.
    arrives : In(1)
        Half a unit has been read; it is at `seen` in the next cycle.
    seen : In(16)
    late : Out(range(len(CAPTURES)))
        Capture cycle, less the first of `CAPTURES`.
    step : Out(1)
        Each falling edge moves the clock to the next later phase.
    done : Out(1)
        Calibration is finished, and no read is in progress.
    result : Out(calibration_layout())
    """

    def __init__(
        self,
        phases: int,
        *,
        blocks: int,
        min_phases: int = 1,
        computed_phase: int = 0,
        computed_capture: int = CAPTURES[0],
        row_bits: int,
        column_bits: int,
    ) -> None:
        if phases < 2 or phases % 2:
            raise ValueError(f"the phases of a cycle must be an even number from 2 on, not {phases}")
        if blocks not in (2, 4, 8, 16, 32):
            raise ValueError(f"blocks to try must be 2, 4, 8, 16 or 32, not {blocks}")
        self.phases, self.blocks, self.min_phases = phases, blocks, max(min_phases, 1)
        self.computed_phase, self.computed_capture = computed_phase, computed_capture
        self.row_bits, self.column_bits = row_bits, column_bits
        super().__init__(
            {
                "segment": Out(stream.Signature(segment_layout(row_bits, column_bits))),
                "restart": Out(1),
                "unit": Out(32),
                "strobe": Out(1),
                "written": In(1),
                "arrives": In(1),
                "seen": In(16),
                "late": Out(range(len(CAPTURES)), init=computed_capture - CAPTURES[0]),
                "step": Out(1),
                "done": Out(1),
                "result": Out(calibration_layout()),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._phase = Signal(range(self.phases), init=self.phases // 2, name="phase")
        self._begin = Signal(name="begin")
        self._over = Signal(name="over")
        self._wrong = Signal(name="wrong")
        self._left = Signal(range(2 * self.phases), init=2 * self.phases - 1, name="left")
        self._final = Signal(name="final")
        self._run = Signal(range(self.phases + 1), name="run")
        self._best = Signal(range(self.phases + 1), name="best")
        self._last = Signal(range(self.phases), name="last")
        self._target = Signal(range(self.phases), name="target")
        self._best_late = Signal.like(self.late, name="best_late")
        self._swept = Signal(range(len(CAPTURES)), name="swept")
        self._failed = Signal(name="failed")
        self._test(m)
        self._sweep(m)
        result = self.result
        final_state = Signal(CalibrationState)
        m.d.comb += final_state.eq(Mux(self._failed, CalibrationState.FAILED, CalibrationState.FOUND))
        m.d.comb += [
            result.state.eq(Mux(self.done, final_state, CalibrationState.BUSY)),
            result.capture.eq(self.late + CAPTURES[0]),
            result.computed_capture.eq(self.computed_capture),
            result.phases.eq(self.phases),
            result.computed_phase.eq(self.computed_phase),
            result.last.eq(self._last),
            result.count.eq(self._best),
            result.chosen.eq(self._phase),
        ]
        return m

    def _test(self, m: Module) -> None:
        """Test memory from `_begin` to `_over`: write, write over, read. `_wrong` is set if a word is wrong."""
        blocks, bits = self.blocks, (self.blocks * UNITS - 1).bit_length()
        asked = Signal(range(PASSES * blocks + 1), init=PASSES * blocks)
        moved = Signal(range((PASSES + 1) << bits))  # units
        block, segment = asked[: (blocks - 1).bit_length()], self.segment.payload
        second = Signal()
        check = Signal()
        expected = Signal(16)
        number, turn = moved[:bits], moved[bits:]
        word = pattern(number, Cat(self._left, self.late, self._final))
        masked = (turn == 1) & number[0]
        # A block starts at a multiple of `UNITS` units; its number is scattered over all other address lines.
        low = (UNITS - 1).bit_length()
        high = self.column_bits - 1 - low
        m.d.comb += [
            self.segment.valid.eq(asked != PASSES * blocks),
            segment.write.eq(asked < (PASSES - 1) * blocks),
            segment.last.eq(1),
            segment.unit.eq(Cat(Const(0, low), scatter_lines(block, high, self.row_bits + 2))),
            segment.bank.eq(scatter_lines(block, 2, self.row_bits)),
            segment.row.eq(scatter_lines(block, self.row_bits, 0)),
            segment.more.eq(UNITS - 1),
            self.unit.eq(Mux(masked, Cat(~word, word), Cat(word, ~word))),
            self.strobe.eq(~masked),
        ]
        with m.If(self.segment.valid & self.segment.ready):
            m.d.sync += asked.eq(asked + 1)
        with m.If(self.arrives):
            m.d.sync += [second.eq(~second), expected.eq(Mux(second, ~word, word))]
        with m.If(self.written | (self.arrives & second)):
            m.d.sync += moved.eq(moved + 1)
        m.d.sync += [check.eq(self.arrives), self._over.eq((turn == PASSES) & ~check & ~self._begin)]
        with m.If(check & (self.seen != expected)):
            m.d.sync += self._wrong.eq(1)
        with m.If(self._begin):
            m.d.sync += [asked.eq(0), moved.eq(0), self._wrong.eq(0)]

    def _sweep(self, m: Module) -> None:
        """Add the FSM that moves the clock and evaluates the tests."""
        phase, late = self._phase, self.late
        wait = Signal(range(STEP_CYCLES))
        sweeping = Signal()
        middle = Signal(range(-self.phases, self.phases))
        m.d.sync += [self.step.eq(0), wait.eq(STEP_CYCLES - 1)]
        with m.FSM():
            with m.State("AT"):
                m.d.comb += self.restart.eq(1)
                m.next = "STEP"
                with m.If(sweeping | (phase == self._target)):
                    m.d.comb += self._begin.eq(1)
                    m.next = "TEST"
            with m.State("STEP"):
                m.d.comb += self.restart.eq(1)
                m.d.sync += [self.step.eq(wait >= STEP_CYCLES // 2), wait.eq(wait - 1)]
                with m.If(wait == 0):
                    m.d.sync += phase.eq(Mux(phase == self.phases - 1, 0, phase + 1))
                    m.next = "AT"
            # `run` counts consecutive working phases, at most all.
            with m.State("TEST"), m.If(self._over):
                m.d.sync += self._run.eq(Mux(self._wrong, 0, self._run + (self._run != self.phases)))
                m.next = "JUDGE"
                with m.If(self._final):
                    m.next = "CONFIRM"
            # Going around twice per capture cycle finds runs that span the end of the cycle.
            with m.State("JUDGE"):
                m.d.sync += [self._left.eq(self._left - 1), sweeping.eq(1)]
                with m.If(self._run > self._best):
                    m.d.sync += [self._best.eq(self._run), self._last.eq(phase), self._best_late.eq(late)]
                m.next = "STEP"
                with m.If(self._left == 0):
                    m.d.sync += [
                        self._run.eq(0),
                        self._left.eq(2 * self.phases - 1),
                        late.eq(Mux(late == len(CAPTURES) - 1, 0, late + 1)),
                        self._swept.eq(self._swept + 1),
                    ]
                    with m.If(self._swept == len(CAPTURES) - 1):
                        m.next = "CHOOSE"
            with m.State("CHOOSE"):
                # Half a run back from its last phase, possibly before the start of the cycle.
                m.d.sync += [
                    middle.eq(self._last - ((self._best - 1) >> 1)[: len(self._best)]),
                    self._failed.eq(self._failed | (self._best < self.min_phases)),
                    self._final.eq(1),
                    sweeping.eq(0),
                ]
                m.next = "AIM"
            with m.State("AIM"):
                m.d.sync += [
                    self._target.eq(Mux(middle < 0, middle + self.phases, middle)),
                    late.eq(self._best_late),
                ]
                # Without a working phase, return to the calculated one.
                with m.If(self._failed):
                    m.d.sync += [
                        self._target.eq(self.phases // 2),
                        late.eq(self.computed_capture - CAPTURES[0]),
                    ]
                m.next = "AT"
            # If the test in the middle fails, aim again, now at the calculated phase.
            with m.State("CONFIRM"):
                m.next = "REST"
                with m.If(self._wrong & ~self._failed):
                    m.d.sync += self._failed.eq(1)
                    m.next = "CHOOSE"
            with m.State("REST"):  # until all words read have arrived
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.sync += self.done.eq(1)
