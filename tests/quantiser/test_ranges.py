"""Ranges of activations by minimum and maximum, by percentile, and by least squared error."""

from __future__ import annotations

import numpy as np
import pytest
from support import float_nets

from weft.quantiser import float_model, ranges
from weft.samples import Samples, fit_samples


def histogram(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    counts, edges = np.histogram(
        values[values != 0], ranges.BINS, (min(values.min(), 0), max(values.max(), 0))
    )
    return counts.astype(np.float64), edges


def error(values: np.ndarray, low: float, high: float) -> float:
    """Sum of squared errors of 8-bit quantisation from `low` to `high`."""
    step = (high - low) / 255
    zero = np.rint(-low / step)
    stored = np.clip(np.rint(values / step) + zero, 0, 255)
    return float((((stored - zero) * step - values) ** 2).sum())


def draw(rng: np.random.Generator, kind: str) -> np.ndarray:
    values = rng.normal(0, 1, 20_000)
    if kind == "tails":
        values = rng.standard_t(3, 20_000)
    if kind == "rectified":
        values = np.maximum(values, 0)
    if kind == "negative":
        values = -np.abs(values)
    return values * rng.uniform(0.01, 100)


@pytest.mark.parametrize("kind", ["normal", "tails", "rectified", "negative"])
def test_least_error(kind: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        values = draw(rng, kind)
        low, high = ranges.least_error(*histogram(values))
        assert min(values.min(), 0) <= low <= 0 <= high <= max(values.max(), 0)
        actual = error(values, low, high)
        assert actual <= error(values, min(values.min(), 0), max(values.max(), 0)) * 1.01
        if kind == "tails":
            assert values.min() * 0.99 < low < high < values.max() * 0.99
        others = [error(values, low * a, high * b) for a in (0.7, 1, 1.4) for b in (0.7, 1, 1.4)]
        assert actual <= min(others) * 1.05


@pytest.mark.parametrize("kind", ["normal", "tails", "rectified", "negative"])
def test_percentile(kind: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(3):
        values = draw(rng, kind)
        low, high = ranges.percentile(*histogram(values))
        outside = np.count_nonzero((values < low) | (values > high))
        assert outside <= len(values) * (1 - ranges.PERCENTILE / 100)
        assert np.count_nonzero(values <= low) <= 0.51 * len(values)
        bins = (values.max() - values.min()) / ranges.BINS * 1.01
        # One bin less on either side leaves more than the share outside.
        assert np.count_nonzero(values > high - bins) > 1 or high >= values.max() - bins


def test_ranges_of_a_model_do_not_depend_on_the_order_of_samples() -> None:
    model = float_nets.perceptron()
    prepared, _ = float_model.prepare(model, {})
    samples = fit_samples(float_nets.samples(model, 7), float_model.signature(prepared))
    turned = Samples({name: array[::-1] for name, array in samples.arrays.items()})
    for method in ranges.METHODS:
        actual = ranges.ranges(prepared, samples, method)
        assert actual == ranges.ranges(prepared, turned, method)
        softmax = next(node for node in prepared.graph.node if node.op_type == "Softmax")
        assert softmax.output[0] not in actual
        assert "x" in actual
        assert all(low <= 0 <= high and low < high for low, high in actual.values())


def test_zeros_do_not_count() -> None:
    """Three values among 20,000 zeros are no outliers."""
    prepared, _ = float_model.prepare(float_nets.perceptron(), {})
    samples = Samples({"x": np.zeros((1000, 1, 20), np.float32)})
    samples.arrays["x"][[1, 2, 3], 0, 0] = 1, 2, 4
    assert ranges.ranges(prepared, samples, "percentile")["x"] == pytest.approx((0, 4), abs=0.002)


def test_values_that_are_always_zero_have_no_range() -> None:
    model = float_nets.perceptron()
    prepared, _ = float_model.prepare(model, {})
    samples = Samples({"x": np.zeros((2, 1, 20), np.float32)})
    assert "x" not in ranges.ranges(prepared, samples, "mse")
