"""Ranges of activations without their outliers, from histograms of their values.

The model runs twice on all samples: for the ends of the histograms, and to fill them. So they take as little memory for
many samples as for few, and the order of samples does not matter. Zeros are left out: every range has them exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from weft import float_model
from weft.samples import Samples

Range = tuple[float, float]
BINS = 2048
PERCENTILE = 99.99
"""Of the values, which a range by percentile holds."""
_SHARES = np.linspace(1, 0.05, 39)
"""Of either end of the values, among which the range of least error is looked for."""
_STEPS = 255
"""Of a range of 8 bits."""


def percentile(counts: np.ndarray, edges: np.ndarray) -> Range:
    """The range that holds `PERCENTILE` of the values, and as many of the others below as above it."""
    outside = counts.sum() * (1 - PERCENTILE / 100) / 2
    below = np.cumsum(counts)
    first = int(np.searchsorted(below, outside, side="right"))
    above = np.cumsum(counts[::-1])
    last = len(counts) - 1 - int(np.searchsorted(above, outside, side="right"))
    return float(edges[min(first, last)]), float(edges[max(first, last) + 1])


def least_error(counts: np.ndarray, edges: np.ndarray) -> Range:
    """The range by which the sum of squared errors of rounding and of clipping is least."""
    middles = (edges[:-1] + edges[1:]) / 2
    lows, highs = np.minimum(edges[0], 0) * _SHARES, np.maximum(edges[-1], 0) * _SHARES
    clipped = [
        np.array([(counts * np.clip(sign * (middles - end), 0, None) ** 2).sum() for end in ends])
        for sign, ends in ((-1, lows), (1, highs))
    ]
    rounded = counts.sum() * ((highs[None, :] - lows[:, None]) / _STEPS) ** 2 / 12
    errors = clipped[0][:, None] + clipped[1][None, :] + rounded
    low, high = np.unravel_index(int(np.argmin(errors)), errors.shape)
    return float(lows[low]), float(highs[high])


METHODS: dict[str, Callable[[np.ndarray, np.ndarray], Range]] = {"percentile": percentile, "mse": least_error}


def ranges(model: onnx.ModelProto, samples: Samples, method: str) -> dict[str, Range]:
    """The range of every float activation of a prepared model, 0 always in it; results of softmax have 0 to 1."""
    inputs = [name for name, (dtype, _) in float_model.signature(model).items() if dtype == "float32"]
    shares = {node.output[0] for node in model.graph.node if node.op_type == "Softmax"}
    made = [name for name in float_model.made_floats(model) if name not in shares]
    probe = float_model.Probe(model, made)
    ends = {name: [0.0, 0.0] for name in (*inputs, *made)}
    for run in samples:
        values = run | probe(run)
        for name, (low, high) in ends.items():
            ends[name] = [min(low, float(values[name].min())), max(high, float(values[name].max()))]
    ends = {
        name: found for name, found in ends.items() if np.isfinite(found).all()
    }  # minus infinity of masks
    counts = {name: np.zeros(BINS, np.int64) for name in ends}
    for run in samples:
        values = run | probe(run)
        for name, (low, high) in ends.items():
            value = values[name]
            counts[name] += np.histogram(value[value != 0], BINS, (low, high))[0]
    choose = METHODS[method]
    found = {
        name: choose(counts[name].astype(np.float64), np.linspace(low, high, BINS + 1))
        for name, (low, high) in ends.items()
    }
    return {name: (min(low, 0.0), max(high, 0.0)) for name, (low, high) in found.items() if low < high}
