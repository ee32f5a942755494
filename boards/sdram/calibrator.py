"""Finds the phase of an SDRAM's clock when the FPGA starts: memory is tried at all of them."""

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
"""Units of a block: they lie in a row one after the other, so that their words follow each other on the pads."""
PASSES = 3
"""Blocks are written, every second unit is written over with its inverse but masked, and blocks are read."""
STEP_CYCLES = 32
"""Cycles that a step of the PLL takes; the step's level is high in the first half of them. FPGA-TN-02200 asks for four
cycles of the PLL's oscillator, 10 ns at most, in each."""


@cache
def taps(bits: int) -> tuple[tuple[int, ...], ...]:
    """For each of the 16 data pads the bits of a unit's number whose parity it shows, such that no two units show the
    same."""
    draw = random.Random(bits)
    while True:
        found = tuple(tuple(sorted(draw.sample(range(bits), min(3, bits)))) for _ in range(16))
        words = {
            tuple(sum(number >> bit & 1 for bit in pad) & 1 for pad in found) for number in range(1 << bits)
        }
        if len(words) == 1 << bits:
            return found


def pattern(number: Value, salt: Value) -> Value:
    """The first half of a unit: 16 bits from its number in the test, and from `salt`, up to 16 bits that are others in
    each test, so that what an earlier one has written is wrong. The second half is the inverse: all pads change."""
    salted = Cat(salt, Const(0, 16))
    return Cat(
        Cat(*(number[bit] for bit in pad), salted[at]).xor() for at, pad in enumerate(taps(len(number)))
    )


def place(block: Value, bits: int, first: int) -> Value:
    """`bits` address lines of a block, the `first` of which is the one with that number of all: two blocks in a row,
    from an even number on, differ in all of them, others in some."""
    others = len(block) - 1
    lines = []
    for line in range(first, first + bits):
        chosen = {line % (others + 1), (line + line // 3 % 2) % (others + 1)} - {others}
        lines.append(Cat(block[0], *(block[1 + bit] for bit in chosen)).xor() ^ (line & 1))
    return Cat(lines)


class Calibrator(wiring.Component):
    """Moves the clock through all phases, twice, with each capture cycle. At each the chip is initialised anew, as
    nobody knows what it took for commands before, and blocks of memory are written and read. The longest row of phases
    that work, across the end of the cycle too, has the phase in its middle; there memory is tried once more.

    Without such a row, the phase is the calculated one in the end. After a reset without a new configuration, phases
    are counted from where the clock is: what is found works, but by how much the clock is late is not told right.

    Parameters
    ----------
    phases : int
        Of a cycle, an even number. The PLL begins with the calculated one.
    blocks : int
        A power of two from 2 to 32.
    least : int
        Phases that a row must have.
    computed_phase, computed_capture : int
        See `weft.boards.sdram.calibration.Calibration`.
    row_bits, column_bits : int
        Of the chip.

    Members
    -------
    segment : Out(stream of segment_layout(row_bits, column_bits))
        To the scheduler.
    restart : Out(1)
        The clock moves: no commands; the chip is to be initialised after that.
    unit : Out(32), strobe : Out(1)
        What is written; `strobe` is 0 if it is masked.
    written : In(1)
        `unit` is used.
    arrives : In(1)
        Half a unit was read; it is at `seen` in the next cycle.
    seen : In(16)
    late : Out(range(len(CAPTURES)))
        Capture cycle, less the first of `CAPTURES`.
    step : Out(1)
        Falls for each step to a later phase.
    done : Out(1)
        Nothing more is done from here, and no read is under way.
    result : Out(calibration_layout())
    """

    def __init__(
        self,
        phases: int,
        *,
        blocks: int,
        least: int = 1,
        computed_phase: int = 0,
        computed_capture: int = CAPTURES[0],
        row_bits: int,
        column_bits: int,
    ) -> None:
        if phases < 2 or phases % 2:
            raise ValueError(f"the phases of a cycle must be an even number from 2 on, not {phases}")
        if blocks not in (2, 4, 8, 16, 32):
            raise ValueError(f"blocks to try must be 2, 4, 8, 16 or 32, not {blocks}")
        self.phases, self.blocks, self.least = phases, blocks, max(least, 1)
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
        self._begin, self._over, self._wrong = Signal(name="begin"), Signal(name="over"), Signal(name="wrong")
        self._left = Signal(range(2 * self.phases), init=2 * self.phases - 1, name="left")
        self._final = Signal(name="final")
        self._run = Signal(range(self.phases + 1), name="run")
        self._best = Signal(range(self.phases + 1), name="best")
        self._last, self._target = (Signal(range(self.phases), name=name) for name in ("last", "target"))
        self._best_late, self._swept = Signal.like(self.late, name="best_late"), Signal(range(len(CAPTURES)))
        self._failed = Signal(name="failed")
        self._test(m)
        self._moves(m)
        result, found = self.result, Signal(CalibrationState)
        m.d.comb += found.eq(Mux(self._failed, CalibrationState.FAILED, CalibrationState.FOUND))
        m.d.comb += [
            result.state.eq(Mux(self.done, found, CalibrationState.BUSY)),
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
        """From `_begin` to `_over`: write, write over, read; `_wrong` if a word is not what it should be."""
        blocks, bits = self.blocks, (self.blocks * UNITS - 1).bit_length()
        asked = Signal(range(PASSES * blocks + 1), init=PASSES * blocks, name="asked")
        moved = Signal(range((PASSES + 1) << bits), name="moved")  # units
        block, segment = asked[: (blocks - 1).bit_length()], self.segment.payload
        second, check, expected = Signal(name="second"), Signal(name="check"), Signal(16, name="expected")
        number, turn = moved[:bits], moved[bits:]
        word = pattern(number, Cat(self._left, self.late, self._final))
        masked = (turn == 1) & number[0]
        low = (UNITS - 1).bit_length()
        high = self.column_bits - 1 - low
        m.d.comb += [
            self.segment.valid.eq(asked != PASSES * blocks),
            segment.write.eq(asked < (PASSES - 1) * blocks),
            segment.last.eq(1),
            segment.unit.eq(Cat(Const(0, low), place(block, high, self.row_bits + 2))),
            segment.bank.eq(place(block, 2, self.row_bits)),
            segment.row.eq(place(block, self.row_bits, 0)),
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

    def _moves(self, m: Module) -> None:
        """Where the clock goes, and what is made of each test."""
        phase, late, wait = self._phase, self.late, Signal(range(STEP_CYCLES), name="wait")
        sweeping, middle = Signal(name="sweeping"), Signal(range(-self.phases, self.phases), name="middle")
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
            with m.State("TEST"), m.If(self._over):
                m.d.sync += self._run.eq(Mux(self._wrong, 0, self._run + (self._run != self.phases)))
                m.next = "JUDGE"
                with m.If(self._final):
                    m.next = "CONFIRM"
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
                # Half a row back, maybe beyond the begin of the cycle.
                m.d.sync += [
                    middle.eq(self._last - ((self._best - 1) >> 1)[: len(self._best)]),
                    self._failed.eq(self._failed | (self._best < self.least)),
                    self._final.eq(1),
                    sweeping.eq(0),
                ]
                m.next = "AIM"
            with m.State("AIM"):
                m.d.sync += [
                    self._target.eq(Mux(middle < 0, middle + self.phases, middle)),
                    late.eq(self._best_late),
                ]
                with m.If(self._failed):
                    m.d.sync += [
                        self._target.eq(self.phases // 2),
                        late.eq(self.computed_capture - CAPTURES[0]),
                    ]
                m.next = "AT"
            with m.State("CONFIRM"):
                m.next = "REST"
                with m.If(self._wrong & ~self._failed):
                    m.d.sync += self._failed.eq(1)
                    m.next = "CHOOSE"
            with m.State("REST"):  # until what was read is gone
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.sync += self.done.eq(1)
