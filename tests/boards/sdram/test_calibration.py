"""Reports of boards on their SDRAM's clock: bytes, degrees, words."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from weft.boards.sdram.calibration import (
    CALIBRATION_BYTES,
    FIELDS,
    NOT_CALIBRATED,
    Calibration,
    CalibrationState,
    Sweep,
    calibration_layout,
)

FOUND = Calibration(CalibrationState.FOUND, 2, 2, 40, 25, last=26, count=12, chosen=21)


def test_bytes_are_those_of_the_hardware() -> None:
    draw = random.Random(11)
    layout = calibration_layout()
    assert layout.size == 8 * CALIBRATION_BYTES
    for _ in range(20):
        values = {name: draw.getrandbits(width) for name, width in FIELDS.items()}
        values["state"] = draw.choice(list(CalibrationState))
        told = Calibration(**values)
        word = layout.const(values).as_bits()  # as Amaranth lays it out
        assert told.encode() == word.to_bytes(CALIBRATION_BYTES, "little")
        assert Calibration.decode(told.encode()) == told


def test_bytes_that_are_none() -> None:
    assert Calibration.decode(bytes(CALIBRATION_BYTES)) == NOT_CALIBRATED
    with pytest.raises(ValueError, match="4 is not a valid"):
        Calibration.decode(bytes([4, *bytes(CALIBRATION_BYTES - 1)]))
    with pytest.raises(struct.error):
        replace(FOUND, phases=1 << 16).encode()


def test_degrees_are_counted_from_zero() -> None:
    """The calculated phase is in the middle of those that are tried; one after half a cycle more is opposite."""
    computed = 360 * FOUND.computed_phase / FOUND.phases
    assert FOUND.degrees(FOUND.phases // 2) == computed
    assert FOUND.degrees(0) == (computed + 180) % 360
    step = 360 / FOUND.phases
    assert FOUND.working == (computed - 5 * step, computed + 6 * step)
    around = replace(FOUND, last=2, count=6)
    assert around.working == ((computed + 180 - 3 * step) % 360, (computed + 180 + 2 * step) % 360)
    assert replace(FOUND, count=0).working is None


def test_plain_values() -> None:
    assert NOT_CALIBRATED.as_dict() is None
    assert replace(FOUND, capture=1).as_dict() == {
        "state": "found", "phases": 40, "working_degrees": [180, 279], "chosen_degrees": 234, "computed_degrees": 225,
        "capture_cycles": 1, "computed_capture_cycles": 2,
    }  # fmt: skip
    failed = replace(FOUND, state=CalibrationState.FAILED, count=0, chosen=20).as_dict()
    assert failed is not None
    assert (failed["state"], failed["working_degrees"]) == ("failed", None)


def test_phases_that_must_work() -> None:
    """One nanosecond and no further phase."""
    sweep = Sweep(lambda clock: 56)
    assert sweep.min_phases(80e6) == 5
    for clock in (25e6, 40e6, 100e6):
        assert (sweep.min_phases(clock) - 1) / clock / 56 < 1e-9 <= sweep.min_phases(clock) / clock / 56
