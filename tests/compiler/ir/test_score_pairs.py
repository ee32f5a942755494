"""Which Q/DQ pairs of scores are followed, and how, against a closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.repeated import repeated

from weft.compiler.ir.scales import SCORE_CLAMP, Bounds, Pair, common_rounding, exceeded_pairs

EVERYTHING = Bounds(-math.inf, math.inf)


def random_pair(rng: np.random.Generator) -> Pair:
    lowest, highest = ((-128, 127), (0, 255), (-32768, 32767), (-8, 7))[
        int(rng.choice(4, p=[0.5, 0.3, 0.1, 0.1]))
    ]
    zero = int(rng.choice([lowest, highest, 0, rng.integers(lowest, highest + 1)]))
    return Pair(float(10 ** rng.uniform(-3, 0.5)), zero, lowest, highest, float(rng.choice([1.0, 0.25, 8.0])))


def passed(pair: Pair, values: np.ndarray) -> np.ndarray:
    """What QuantizeLinear and DequantizeLinear make of products, as products."""
    steps = np.clip(np.rint(values * pair.factor / pair.scale) + pair.zero, pair.lowest, pair.highest)
    return (steps - pair.zero) * pair.scale / pair.factor


@repeated("seed", range(200))
def test_what_is_made_is_what_the_model_makes_but_for_rounding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = tuple(random_pair(rng) for _ in range(int(rng.integers(0, 4))))
    unit, size = float(10 ** rng.uniform(-5, -1)), int(rng.integers(1, 30_000))
    bounds = Bounds(-size * unit, int(rng.integers(1, 30_000)) * unit)
    products = np.unique(np.rint(np.linspace(bounds.low, bounds.high, 2001) / unit)) * unit
    wanted = products
    for pair in pairs:
        wanted = passed(pair, wanted)
    found, behind = exceeded_pairs(pairs, bounds)
    half_steps = sum(pair.scale / pair.factor / 2 for pair in pairs)
    slack = 1e-9 * max(-bounds.low, bounds.high)
    assert behind.low - slack <= wanted.min()
    assert wanted.max() <= behind.high + slack
    if not found:
        assert np.abs(products - wanted).max() <= half_steps + slack
        return
    known = common_rounding(found, unit, 1.0, bounds)
    if known is None:
        return
    to, step = known
    made = (np.clip(np.rint(products / unit * to.scale) + to.zero, to.low, to.high) - to.zero) * step
    assert -128 <= to.low <= to.zero <= to.high <= 127
    assert np.abs(made - wanted).max() <= half_steps + step + slack
    if len(pairs) == 1:
        assert np.abs(made - wanted).max() <= slack


@pytest.mark.parametrize(("pair", "possible"), [
    (Pair(0.1, 0, -128, 127), True), (Pair(0.1, 0, -8, 7), True), (Pair(0.1, 200, 0, 255), True),
    (Pair(0.1, 0, -32768, 32767), False), (Pair(1.38, 0, -128, 127), True), (Pair(1.39, 0, -128, 127), False),
    (Pair(11.7, 0, 0, 15), True), (Pair(1e-9, 0, -128, 127), False),
])  # fmt: skip
def test_what_the_device_can_follow(pair: Pair, possible: bool) -> None:
    """8 bits or less, all of their logits within those of the device, at a scale that it has."""
    assert (common_rounding((pair,), 1e-4, 1.0, EVERYTHING) is not None) == possible


def test_the_finest_pair_is_followed_within_the_range_of_all() -> None:
    """Steps of 0.1 from -12.8 on, of 0.3 up to 4.2 (of logits a quarter of the products), and of 0.5 on either side."""
    pairs = (Pair(0.1, 0, -128, 127), Pair(0.075, 113, -128, 127, 0.25), Pair(0.5, 0, -128, 127))
    known = common_rounding(pairs, 0.01, 0.25, EVERYTHING)
    assert known is not None
    to, nats = known
    assert (to.scale, to.zero, to.low, to.high, nats) == pytest.approx((0.1, 0, -128, 42, 0.025))


def test_masked_scores_are_the_least_of_a_pair_behind_the_mask() -> None:
    before, behind = Pair(0.1, 0, -128, 127), Pair(0.2, 0, -128, 127, masked=True)
    assert exceeded_pairs((before,), Bounds(-99, 99))[1].masked == -math.inf
    found, bounds = exceeded_pairs((before, behind), Bounds(-99, 99))
    assert found == (before,)
    assert np.allclose((bounds.low, bounds.high, bounds.masked), (-12.9, 12.8, -25.6))


def test_clamp_is_that_of_the_instruction() -> None:
    assert math.isclose(SCORE_CLAMP * math.log2(math.e) * 128, 1 << 15)
