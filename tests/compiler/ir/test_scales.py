"""Scales as the device holds them, where their ranges end."""

from __future__ import annotations

import numpy as np
import pytest

from weft.compiler.errors import CompileError
from weft.compiler.ir.scales import (
    negative_parts,
    normaliser,
    quantise_pair,
    quantise_scale,
    quantise_scales,
    score_multiplier,
)


@pytest.mark.parametrize(
    ("scale", "found"),
    [
        (0.0, (0, 63)),
        (2.0**-40, (1 << 23, 63)),  # the last full mantissa
        (2.0**-41, (1 << 22, 63)),
        (3 * 2.0**-64, (2, 63)),  # half way: to even
        (2.0**-63, (1, 63)),
        (2.0**-64, (0, 63)),
        (1 - 2.0**-26, (1 << 23, 23)),  # rounds up to 1
        (2.0**24 - 1, (2**24 - 1, 0)),
    ],
)
def test_shifts_have_six_bits(scale: float, found: tuple[int, int]) -> None:
    assert quantise_scale(scale) == found


@pytest.mark.parametrize("bits", [16, 24])
def test_many_scales_at_once_are_each_by_itself(bits: int) -> None:
    """Of all magnitudes, with the ends of ranges among them; in the shape that they have."""
    rng = np.random.default_rng(bits)
    ends = [
        0.0,
        2.0**-40,
        2.0**-41,
        3 * 2.0**-64,
        2.0**-63,
        2.0**-64,
        1 - 2.0**-26,
        1 - 2.0**-18,
        2.0**bits - 1,
    ]
    drawn = [*ends, *np.ldexp(1 + rng.random(591), rng.integers(-72, bits - 1, 591))]
    scales = np.array(drawn).reshape(20, 30)
    mantissa, shift = quantise_scales(scales, bits)
    assert mantissa.shape == shift.shape == scales.shape
    assert mantissa.dtype == shift.dtype == np.int64
    found = list(zip(mantissa.reshape(-1).tolist(), shift.reshape(-1).tolist(), strict=True))
    assert found == [quantise_scale(scale, bits) for scale in drawn]
    assert tuple(map(int, quantise_scales(0.3, bits))) == quantise_scale(0.3, bits)


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf, 2.0**24])
def test_one_of_many_scales_is_none(wrong: float) -> None:
    with pytest.raises(CompileError, match="requantisation scale"):
        quantise_scales(np.array([1.0, wrong, 2.0]))


def test_the_least_scale_that_is_too_large() -> None:
    with pytest.raises(CompileError, match=r"^requantisation scale 1.67772e\+07 is too large"):
        quantise_scale(2.0**24)


def test_negated_zero_points_are_bytes() -> None:
    for zero in range(-128, 128):
        found = negative_parts(zero)
        assert sum(found) == -zero
        assert all(item and -128 <= item <= 127 for item in found)
        assert len(found) == (2 if zero == -128 else 1 if zero else 0)


def test_scores_are_in_parts_of_an_octave() -> None:
    assert score_multiplier(0.5) == (1 << 23, 17)
    for octaves in (0.0, -1.0, float("inf")):
        with pytest.raises(
            CompileError, match=r"^the scale of attention scores must be a positive finite number"
        ):
            score_multiplier(octaves)


@pytest.mark.parametrize(
    ("multiplier", "found"),
    [
        (1.0, (1 << 15, 6)),
        (1 - 2.0**-18, (1 << 15, 6)),  # rounds up to 1
        (0.75, (3 << 14, 7)),
        (2.0**21, (1 << 15, -15)),
        (2.0**-60, (1 << 15, 63)),  # the largest exponent
    ],
)
def test_normalisers(multiplier: float, found: tuple[int, int]) -> None:
    assert normaliser(multiplier) == found


@pytest.mark.parametrize("multiplier", [0.0, -1.0, float("nan"), 2.0**22])
def test_normalisers_that_are_none(multiplier: float) -> None:
    with pytest.raises(
        CompileError, match=r"^an output scale of softmax must be a positive number below 2\*\*22"
    ):
        normaliser(multiplier)


def test_pairs_whose_larger_one_rounds_up() -> None:
    assert quantise_pair(1 - 2.0**-26, 0.5) == (1 << 23, 1 << 22, 23)
    assert quantise_pair(0.5, 1 - 2.0**-26) == (1 << 22, 1 << 23, 23)
