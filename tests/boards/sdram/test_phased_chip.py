"""The model of an SDRAM's eye; what it does to a controller is in test_sdram_calibrator."""

from __future__ import annotations

import random

import pytest

from weft.boards.sdram.chip import sdram_pads
from weft.boards.sdram.eye import CAPTURES, PadDelays, best_eye, eye_at, phase_of
from weft.boards.sdram.model import LINES, Phase, encode, eye_layout, eye_of


def test_eyes_are_laid_out_as_the_hardware_has_them() -> None:
    draw = random.Random(3)
    eye = [
        Phase(draw.randrange(4), draw.random() < 0.5, draw.random() < 0.5, draw.randrange(len(LINES)))
        for _ in range(12)
    ]
    word = eye_layout(len(eye)).const([vars(phase) for phase in eye]).as_bits()
    assert encode(eye) == word


def test_lines_are_pads() -> None:
    assert len(set(LINES)) == len(LINES)
    for name, bit in LINES:
        assert bit < sdram_pads().members[name].shape


@pytest.mark.parametrize("clock", [25e6, 50e6, 70e6, 80e6, 100e6, 133e6])
def test_the_eye_on_paper(clock: float) -> None:
    """The calculated phase and capture are in it, as far from either end as margins of set-up and hold are."""
    phases = 48
    eye, best = eye_of(clock, phases), best_eye(clock)
    middle = phases // 2
    assert eye[middle] == Phase(best.capture)
    step = 1e9 / clock / phases
    for way in (1, -1):
        room = next(at for at in range(1, phases) if eye[(middle + way * at) % phases] != Phase(best.capture))
        late, early = (best.write_hold, best.read_setup), (best.write_setup, best.read_hold)
        assert room * step == pytest.approx(min(late if way > 0 else early), abs=1.5 * step)


def test_eyes_of_other_pads() -> None:
    draw, clock, phases = random.Random(9), 80e6, 56
    for _ in range(20):
        pads = PadDelays(draw.uniform(0.5, 8), draw.uniform(0.1, 4))
        for number, phase in enumerate(eye_of(clock, phases, pads)):
            degrees = 360 * ((phase_of(clock, phases) + number - phases // 2) % phases) / phases
            works = [
                capture
                for capture in CAPTURES
                if (eye := eye_at(clock, degrees, capture, pads=pads))
                and min(eye.write_setup, eye.write_hold, eye.read_setup, eye.read_hold) >= 0
            ]
            assert works == ([phase.capture] if phase.capture and not phase.lost else [])
