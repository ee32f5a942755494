"""Scales at the ends of their ranges, causal masks key by key, and Q/DQ pairs of scores against a closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.repeated import repeated

from weft.compiler.errors import CompileError
from weft.compiler.ir.scales import (
    SCORE_CLAMP,
    Bounds,
    Pair,
    causal,
    common_rounding,
    exceeded_pairs,
    negative_parts,
    normaliser,
    quantise_pair,
    quantise_scale,
    quantise_scales,
    score_multiplier,
)


@pytest.mark.parametrize(
    ("scale", "actual"),
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
def test_shifts_have_six_bits(scale: float, actual: tuple[int, int]) -> None:
    assert quantise_scale(scale) == actual


@pytest.mark.parametrize("bits", [16, 24])
def test_scale_arrays_equal_single_scales(bits: int) -> None:
    """Scales of all magnitudes, ends of ranges included; shapes are preserved."""
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
    actual = list(zip(mantissa.reshape(-1).tolist(), shift.reshape(-1).tolist(), strict=True))
    assert actual == [quantise_scale(scale, bits) for scale in drawn]
    assert tuple(map(int, quantise_scales(0.3, bits))) == quantise_scale(0.3, bits)


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf, 2.0**24])
def test_invalid_scale_in_an_array(wrong: float) -> None:
    with pytest.raises(CompileError, match="requantisation scale"):
        quantise_scales(np.array([1.0, wrong, 2.0]))


def test_the_least_scale_that_is_too_large() -> None:
    with pytest.raises(CompileError, match=r"^requantisation scale 1.67772e\+07 is too large"):
        quantise_scale(2.0**24)


def test_negated_zero_points_are_bytes() -> None:
    for zero in range(-128, 128):
        actual = negative_parts(zero)
        assert sum(actual) == -zero
        assert all(item and -128 <= item <= 127 for item in actual)
        assert len(actual) == (2 if zero == -128 else 1 if zero else 0)


def test_scores_are_in_parts_of_an_octave() -> None:
    assert score_multiplier(0.5) == (1 << 23, 17)
    for octaves in (0.0, -1.0, float("inf")):
        with pytest.raises(
            CompileError, match=r"^the scale of attention scores must be a positive finite number"
        ):
            score_multiplier(octaves)


@pytest.mark.parametrize(
    ("multiplier", "actual"),
    [
        (1.0, (1 << 15, 6)),
        (1 - 2.0**-18, (1 << 15, 6)),  # rounds up to 1
        (0.75, (3 << 14, 7)),
        (2.0**21, (1 << 15, -15)),
        (2.0**-60, (1 << 15, 63)),  # the largest exponent
    ],
)
def test_normalisers(multiplier: float, actual: tuple[int, int]) -> None:
    assert normaliser(multiplier) == actual


@pytest.mark.parametrize("multiplier", [0.0, -1.0, float("nan"), 2.0**22])
def test_invalid_normalisers(multiplier: float) -> None:
    with pytest.raises(
        CompileError, match=r"^an output scale of softmax must be a positive number below 2\*\*22"
    ):
        normaliser(multiplier)


def test_pairs_whose_larger_one_rounds_up() -> None:
    assert quantise_pair(1 - 2.0**-26, 0.5) == (1 << 23, 1 << 22, 23)
    assert quantise_pair(0.5, 1 - 2.0**-26) == (1 << 22, 1 << 23, 23)


@pytest.mark.parametrize("offset", [-2, 0, 3])
def test_causal(offset: int) -> None:
    expected = [[key <= query + offset for key in range(4)] for query in range(3)]
    assert causal(3, 4, offset).tolist() == expected


def test_offset_of_each_image() -> None:
    actual = causal(3, 4, np.array([1, -1]).reshape(2, 1, 1))
    assert np.array_equal(actual, [causal(3, 4, 1), causal(3, 4, -1)])


EVERYTHING = Bounds(-math.inf, math.inf)


def random_pair(rng: np.random.Generator) -> Pair:
    lowest, highest = ((-128, 127), (0, 255), (-32768, 32767), (-8, 7))[
        int(rng.choice(4, p=[0.5, 0.3, 0.1, 0.1]))
    ]
    zero = int(rng.choice([lowest, highest, 0, rng.integers(lowest, highest + 1)]))
    return Pair(float(10 ** rng.uniform(-3, 0.5)), zero, lowest, highest, float(rng.choice([1.0, 0.25, 8.0])))


def round_products(pair: Pair, values: np.ndarray) -> np.ndarray:
    """Products after a QuantizeLinear and DequantizeLinear pair."""
    steps = np.clip(np.rint(values * pair.factor / pair.scale) + pair.zero, pair.lowest, pair.highest)
    return (steps - pair.zero) * pair.scale / pair.factor


@repeated("seed", range(200))
def test_rounded_scores_are_near_those_of_the_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = tuple(random_pair(rng) for _ in range(int(rng.integers(0, 4))))
    unit, size = float(10 ** rng.uniform(-5, -1)), int(rng.integers(1, 30_000))
    bounds = Bounds(-size * unit, int(rng.integers(1, 30_000)) * unit)
    products = np.unique(np.rint(np.linspace(bounds.low, bounds.high, 2001) / unit)) * unit
    expected = products
    for pair in pairs:
        expected = round_products(pair, expected)
    actual, behind = exceeded_pairs(pairs, bounds)
    half_steps = sum(pair.scale / pair.factor / 2 for pair in pairs)
    slack = 1e-9 * max(-bounds.low, bounds.high)
    assert behind.low - slack <= expected.min()
    assert expected.max() <= behind.high + slack
    if not actual:
        assert np.abs(products - expected).max() <= half_steps + slack
        return
    known = common_rounding(actual, unit, 1.0, bounds)
    if known is None:
        return
    to, step = known
    result = (np.clip(np.rint(products / unit * to.scale) + to.zero, to.low, to.high) - to.zero) * step
    assert -128 <= to.low <= to.zero <= to.high <= 127
    assert np.abs(result - expected).max() <= half_steps + step + slack
    if len(pairs) == 1:
        assert np.abs(result - expected).max() <= slack


@pytest.mark.parametrize(("pair", "possible"), [
    (Pair(0.1, 0, -128, 127), True), (Pair(0.1, 0, -8, 7), True), (Pair(0.1, 200, 0, 255), True),
    (Pair(0.1, 0, -32768, 32767), False), (Pair(1.38, 0, -128, 127), True), (Pair(1.39, 0, -128, 127), False),
    (Pair(11.7, 0, 0, 15), True), (Pair(1e-9, 0, -128, 127), False),
])  # fmt: skip
def test_pairs_that_the_device_can_round(pair: Pair, possible: bool) -> None:
    """A pair of 8 bits or less, with all logits within the device's range, at a representable scale."""
    assert (common_rounding((pair,), 1e-4, 1.0, EVERYTHING) is not None) == possible


def test_finest_pair_within_the_common_range() -> None:
    """Steps of 0.1 from -12.8 on, of 0.3 up to 4.2 (of logits a quarter of the products), and of 0.5 on either side."""
    pairs = (Pair(0.1, 0, -128, 127), Pair(0.075, 113, -128, 127, 0.25), Pair(0.5, 0, -128, 127))
    known = common_rounding(pairs, 0.01, 0.25, EVERYTHING)
    assert known is not None
    to, nats = known
    assert (to.scale, to.zero, to.low, to.high, nats) == pytest.approx((0.1, 0, -128, 42, 0.025))


def test_masked_scores_get_the_lowest_value_of_the_pair() -> None:
    before, behind = Pair(0.1, 0, -128, 127), Pair(0.2, 0, -128, 127, masked=True)
    assert exceeded_pairs((before,), Bounds(-99, 99))[1].masked == -math.inf
    actual, bounds = exceeded_pairs((before, behind), Bounds(-99, 99))
    assert actual == (before,)
    assert np.allclose((bounds.low, bounds.high, bounds.masked), (-12.9, 12.8, -25.6))


def test_clamp_equals_the_instruction() -> None:
    assert math.isclose(SCORE_CLAMP * math.log2(math.e) * 128, 1 << 15)
