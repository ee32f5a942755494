"""Cycles of the bus by a target, by hand and against the cycle model."""

from __future__ import annotations

import numpy as np
import pytest

from weft.compiler.machine.target import RUN_CYCLES, Target
from weft.hdl.isa.config import PRESETS

DEFAULT = PRESETS["default"]


@pytest.mark.parametrize(
    ("bandwidth", "beat"), [(None, 1), (16, 1), (64, 1), (8, 2), (1.9, 16 / 1.9), (0.5, 32)]
)
def test_beats(bandwidth: float | None, beat: float) -> None:
    """A memory that is faster than the bus is as fast as the bus."""
    target = Target(DEFAULT, bandwidth)
    assert target.beat == beat
    assert target.transfer_cycles(160) == 10 * beat
    assert target.run(1) == max(beat, 1 + RUN_CYCLES)
    assert target.run(33) == max(3 * beat, 3 + RUN_CYCLES)
    assert target.run(33, 0) == 3 * beat
    assert target.span(24) == max(1.5 * beat, 1.5 + RUN_CYCLES)


@pytest.mark.parametrize("bandwidth", [None, 3.0])
def test_arrays(bandwidth: float | None) -> None:
    target, sizes = Target(DEFAULT, bandwidth), np.arange(1, 100)
    assert target.runs(sizes).tolist() == [target.run(int(size)) for size in sizes]
    assert target.transfer_cycles(sizes).tolist() == [target.transfer_cycles(int(size)) for size in sizes]
