"""Phase and capture of the SDRAM for all clocks, against pads and a chip that are looked at moment by moment."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path

import pytest

from weft.boards.board import Board, MemoryKind
from weft.boards.errors import BoardError, PllError
from weft.boards.families.ecp5 import Ecp5Pll
from weft.boards.families.ecp5_sdram import pll
from weft.boards.registry import BOARDS
from weft.boards.sdram.chip import SdramTiming
from weft.boards.sdram.eye import (
    CAPTURES,
    CAS_LATENCY,
    MIN_MARGIN_NS,
    Eye,
    PadDelays,
    arrival,
    best_eye,
    eye_at,
)

SOURCE = 25e6
CLOCKS = range(10, 143)
"""MHz that a chip of 7 ns and the 25 MHz of the board allow; some of them the PLL makes only nearly."""
WORDS = 24


def made(clock: int) -> Ecp5Pll | None:
    try:
        return pll(SOURCE, clock * 1e6)
    except PllError:
        return None


class Pads:
    """Commands and words on their way, at any moment. Picoseconds, so that all sums are exact.

    Command k leaves at cycle k and asks for the word of that number, which stands where it does only as long as it
    must: at any other moment, whatever is looked at is None.
    """

    def __init__(self, clock: float, phase: float) -> None:
        timing, pads = SdramTiming(), PadDelays()
        self.period = 1e12 / clock
        self.late = phase / 360 * self.period
        self.output, self.input = 1e3 * pads.output, 1e3 * pads.input
        self.setup, self.hold = 1e3 * timing.setup, 1e3 * timing.hold
        self.access, self.stays = 1e3 * timing.access3, 1e3 * timing.output_hold

    def received_command(self, edge: int) -> int | None:
        """Return the command that the chip receives at one of its edges."""
        at = edge * self.period + self.late + self.output
        seen = {int((at + moment - self.output) // self.period) for moment in (-self.setup, self.hold)}
        return seen.pop() if len(seen) == 1 else None

    def word(self, at: float) -> int | None:
        """The word at the register in the FPGA's pad."""
        for edge in range(WORDS):
            begins = edge * self.period + self.late + self.output + self.input
            stands = begins + (CAS_LATENCY - 1) * self.period + self.access
            if stands <= at <= begins + CAS_LATENCY * self.period + self.stays:
                return self.received_command(edge)
        return None

    def works(self, capture: int) -> bool:
        """Return whether all words arrive where a controller expects them."""
        return all(
            self.word((command + CAS_LATENCY - 1 + capture) * self.period) == command
            for command in range(4, WORDS - 4)
        )


def transfers(eye: Eye) -> float:
    """The least margin without `turnaround`."""
    return min(eye.write_setup, eye.write_hold, eye.read_setup, eye.read_hold)


@pytest.mark.parametrize("capture", CAPTURES)
def test_margins_tell_what_works(capture: int) -> None:
    draw = random.Random(capture)
    outcomes = []
    for clock in range(10, 151):
        for phase in (draw.uniform(0, 360) for _ in range(12)):
            margin = transfers(eye_at(clock * 1e6, phase, capture))
            if abs(margin) > 1e-3:
                outcomes.append(margin > 0)
                assert Pads(clock * 1e6, phase).works(capture) == outcomes[-1], (clock, phase)
    assert capture == 3 or 50 < sum(outcomes) < len(outcomes) - 50


def test_every_clock_has_an_eye() -> None:
    for clock in CLOCKS:
        eye = best_eye(clock * 1e6)
        assert eye.min_margin >= MIN_MARGIN_NS
        assert Pads(clock * 1e6, eye.phase).works(eye.capture)
        # The chip lets go 6 ns after its edge; its edge before the next word to write comes two cycles ahead of that.
        assert eye.turnaround == pytest.approx((2 - eye.phase / 360) * 1e3 / clock - 6)
        # Nothing else is better, to the degree.
        others = (eye_at(clock * 1e6, phase, capture) for phase in range(0, 360, 7) for capture in CAPTURES)
        assert all(other.min_margin <= eye.min_margin for other in others)


def test_the_pll_makes_the_phase() -> None:
    clocks = [dividers for dividers in map(made, CLOCKS) if dividers]
    assert len(clocks) > 120
    for dividers in clocks:
        eye = best_eye(dividers.output)
        assert abs(dividers.phase - eye.phase) <= 45 / dividers.output_divider / 2 + 1e-9
        first, coarse, fine = dividers.phases
        assert 0 <= fine < 8
        assert first <= coarse <= 127
        shown = (coarse - first + fine / 8) / dividers.output_divider * 360
        assert shown == pytest.approx(dividers.phase)
        assert eye_at(dividers.output, shown, eye.capture).min_margin >= MIN_MARGIN_NS
        assert Pads(dividers.output, shown).works(eye.capture)
        assert arrival(dividers.output, shown) == CAS_LATENCY - 1 + eye.capture


def test_a_phase_of_half_a_cycle_fails() -> None:
    """With equal delays: 6.5 ns less half a cycle."""
    holds = {clock: eye_at(clock * 1e6, 180, 2).read_hold for clock in (80, 75, 70, 40)}
    assert holds == pytest.approx({80: 0.25, 75: -1 / 6, 70: -0.643, 40: -6}, abs=1e-3)
    for clock in range(50, 101):
        quarter = eye_at(clock * 1e6, 270, 2).min_margin
        assert 0 < quarter <= best_eye(clock * 1e6).min_margin + 0.05


@pytest.mark.parametrize(
    "board",
    [board for board in BOARDS.values() if board.memory.kind is MemoryKind.SDRAM],
    ids=lambda board: board.name,
)
def test_the_boards_own_clocks(board: Board) -> None:
    eye = best_eye(board.clock)
    assert eye.min_margin > 2.5
    assert eye.report()["margins_ns"]["read_hold"] == round(eye.read_hold, 2)


@pytest.mark.parametrize(
    ("clock", "chip", "message"),
    [
        (150e6, SdramTiming(),
         "cannot run at 150 MHz: its clock cycle is at least 7 ns; the nearest clock that can be used is 142 MHz"),
        (60.5e6, SdramTiming(cl3=30.0),
         "cannot run at 60.5 MHz: its clock cycle is at least 30 ns; the nearest clock that can be used is 33 MHz"),
        # Words stand for 10 - 11.2 + 2.5 ns, half of which is left at either end; with 2 ns it is enough.
        (100e6, SdramTiming(access3=11.2, setup=0.5, hold=0.5),
         "cannot run at 100 MHz: its smallest margin is 0.6 ns, and at least 1 ns are necessary; "
         "the nearest clock that can be used is 93 MHz"),
        (80e6, SdramTiming(setup=300.0, hold=800.0), "it cannot be used at all"),
    ],
)  # fmt: skip
def test_clocks_without_an_eye_are_refused(clock: float, chip: SdramTiming, message: str) -> None:
    with pytest.raises(BoardError) as refused:
        best_eye(clock, chip)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_clock_that_a_refusal_names_is_the_nearest() -> None:
    """Whatever the chip: all clocks up to some limit can be used, and it is named."""
    draw = random.Random(5)
    named = set()
    for _ in range(5):
        chip = SdramTiming(
            access3=draw.uniform(4, 12), output_hold=draw.uniform(0.2, 3), setup=draw.uniform(0.5, 8),
            hold=draw.uniform(0.5, 4), release=draw.uniform(3, 12),
        )  # fmt: skip
        with pytest.raises(BoardError) as refused:
            best_eye(144e6, chip)
        limit = int(str(refused.value).split()[-2])
        named.add(limit)
        for clock in [*range(5, limit, 9), limit, *range(limit + 1, 144, 9)]:
            assert is_open(clock * 1e6, chip) == (clock <= limit)
    assert len(named) == 5


def is_open(clock: float, chip: SdramTiming) -> bool:
    try:
        return best_eye(clock, chip).min_margin >= MIN_MARGIN_NS
    except BoardError:
        return False


def test_the_docs_agree() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "boards.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+)° \| CAS latency \+ (\d) \| ([\d.]+) ns \|$", text, re.M)
    assert len(rows) > 4
    for clock, phase, capture, least in rows:
        eye = best_eye(float(clock) * 1e6)
        assert (phase, capture, least) == (f"{eye.phase:g}", f"{eye.capture}", f"{eye.min_margin:.1f}")


def test_a_pll_too_slow_for_a_phase_says_so() -> None:
    dividers = Ecp5Pll.solve(SOURCE, 5e6)
    assert dataclasses.replace(dividers, phase=0).phases[1] <= 127
    with pytest.raises(PllError, match=r"late by 300 degrees: ask for 6\.25 MHz or more$"):
        dividers.with_phase(300)
