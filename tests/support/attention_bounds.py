"""Worst-case distance of the device's attention and softmax from float64.

The bounds add up every rounding that docs/attention.md describes.

Each group of N scores of a row has an exponent (its largest score rounded up to an octave) and probabilities of 8 (or
7) bits relative to it. Scores are exact to 1/128 octave; the table of powers has a fixed number of entries an octave.
"""

from __future__ import annotations

import math

import numpy as np

from support import attention_cases as cases
from weft.compiler.ir.graph import Attention, Softmax
from weft.compiler.ir.scales import NEGLIGIBLE_SHIFT, k_zero_shift
from weft.hdl.isa.config import Config

SCORE_CLAMP = 256 * math.log(2)
"""Nats at which the device clamps scores."""


def may_clamp(op: Attention, inputs: dict[str, np.ndarray]) -> bool:
    """Return whether a score could reach the clamp, with or without the zero point of K."""
    without = {"q": inputs["q"], "k": inputs["k"]}
    plain = cases.largest_score(op, without, k_zero=0)
    return max(plain, cases.largest_score(op, without)) > 0.999 * SCORE_CLAMP


def score_shift(op: Attention, query: np.ndarray) -> np.ndarray | float:
    """Return how far the device's scores lie above the formula's, in nats: add it to scores of shape (..., rows, keys).

    Shifts that are equal for all scores of a row are left out; 8-bit scores count from the middle of their range.

    `query` (..., rows, size) are integers less their zero point.
    """
    if op.rounding is not None:
        to = op.rounding
        return (to.zero - (to.low + to.high) // 2) * op.score_scale
    if k_zero_shift(op.k_zero, op.head_size, op.score_scale) > NEGLIGIBLE_SHIFT:
        return 0.0
    return query.sum(axis=-1, keepdims=True) * op.k_zero * op.score_scale


def powers(
    scores: np.ndarray, mask: np.ndarray, config: Config, nats: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return probabilities of rows before the division, their error bounds, and the unit of each row's largest.

    `scores` (rows, keys) are the device's, in nats, up to `nats`: exponents depend on the device's own scores
    (`score_shift`). `mask` selects the keys that count; a row without any is 0.
    """
    rows, keys = scores.shape
    octaves = np.where(mask, scores * math.log2(math.e), -np.inf)
    most = np.max(octaves, axis=1, keepdims=True, initial=-np.inf)
    most = np.where(np.isfinite(most), most, 0)
    octaves = octaves - most
    padded = np.full((rows, -(-keys // config.n) * config.n), -np.inf)
    padded[:, :keys] = octaves
    # Rounding may move the largest over the edge of an octave: by 1/128, or by the multiplier's error.
    slack = 1 / 128 + 256 * 2.0 ** (1 - config.mantissa_bits)
    edge = most % 1
    top = np.ceil(padded.reshape(rows, -1, config.n).max(2) + edge + slack + nats * math.log2(math.e)) - edge
    unit = 2.0 ** np.repeat(top, config.n, axis=1)[:, :keys] / ((1 << config.probability_bits) - 1)
    p = 2.0**octaves
    relative = math.log(2) * (8 / config.table_depth + slack) * math.exp(nats) + math.expm1(nats)
    return p, np.where(mask, 0.5 * unit + p * relative, 0), unit.max(1)


def means(
    powers: tuple[np.ndarray, np.ndarray, np.ndarray], v: np.ndarray, v_zero: int, config: Config
) -> np.ndarray:
    """Return the largest error of means of `v` (keys, size), integers less their zero point, in their steps."""
    p, off, unit = powers
    total = np.maximum(p.sum(1), np.finfo(float).tiny)[:, None]
    mean = p @ v / total
    first = off @ np.abs(v) + np.abs(mean) * off.sum(1, keepdims=True)
    # The accumulator rounds once a group, and subtracting the zero point of V rounds to a unit.
    groups = -(-len(v) // config.n)
    rest = unit[:, None] * (groups * (1 + 0.01 * np.abs(mean)) + 0.5 * abs(v_zero) + 1)
    error: np.ndarray = (first + rest) / total / np.maximum(1 - off.sum(1, keepdims=True) / total, 0.05)
    return error + np.abs(mean) * 2.0**-14


def score_rounding_error(op: Attention, products: np.ndarray, config: Config) -> float:
    """Return the error of 8-bit scores in nats because the multiplier is rounded: a step if some lie on an edge."""
    if op.rounding is None:
        return 0.0
    steps = np.clip(products * op.rounding.scale, -256, 256)
    edge = np.abs(np.abs(steps - np.floor(steps)) - 0.5) < 256 * 2.0 ** (1 - config.mantissa_bits)
    return op.score_scale if edge.any() else 0.0


def attention(op: Attention, inputs: dict[str, np.ndarray], config: Config) -> np.ndarray:
    """Return the largest error of every output in steps, before rounding, in the output's shape."""
    out = np.zeros(op.dst.shape)
    for image in range(op.images):
        mask = cases.valid(op, image)
        for index in range(op.heads):
            q, k, v = cases.operands(op, inputs, image, index)
            products = q @ k.T
            made = powers(
                cases.scores(op, products) + score_shift(op, q),
                mask,
                config,
                score_rounding_error(op, products, config),
            )
            cases.store(out, op, image, index, means(made, v, op.v_zero, config) * op.scale)
    return out


def softmax(op: Softmax, x: np.ndarray, config: Config) -> np.ndarray:
    """Return the largest error of stand-alone softmax, as `attention` does."""
    scores = (x.reshape(-1, x.shape[-1]).astype(float) - op.x_zero) * op.score_scale
    p, off, _ = powers(scores, np.ones(scores.shape, bool), config)
    total = p.sum(1, keepdims=True)
    error = (off + p / total * off.sum(1, keepdims=True)) / total
    error /= np.maximum(1 - off.sum(1, keepdims=True) / total, 0.05)
    return (error + p / total * 2.0**-14).reshape(x.shape) * op.scale
