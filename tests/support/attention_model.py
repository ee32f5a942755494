"""Attention and softmax as the device rounds them, one group of N keys after the other, and in float64.  Written from
the docstrings of `weft.hdl.isa` alone: plain arrays, and nothing of the interpreter or the compiler.

A *score multiplier* is ``(mantissa, shift)`` of `Softmax`: it takes integer scores to octaves in steps of 1/128. An
*output multiplier* is ``(scale, exponent)`` of `Normalise`. `score_multiplier` and `output_multiplier` make them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.hdl.isa.config import Config


def score_multiplier(nats: float, bits: int = 24) -> tuple[int, int]:
    """Return (mantissa, shift) for scores in units of `nats`: mantissas of `bits` bits, shifts up to 63."""
    value = nats * math.log2(math.e) * 128
    shift = min(bits - math.frexp(value)[1], 63)
    mantissa = round(value * 2.0**shift)
    return (mantissa >> 1, shift - 1) if mantissa >> bits else (mantissa, shift)


def output_multiplier(multiplier: float) -> tuple[int, int]:
    """Return (scale, exponent) such that outputs are `multiplier` times the mean of V: ``scale = multiplier *
    2**(exponent + 9)``."""
    exponent = 16 - 9 - math.frexp(multiplier)[1]
    scale = round(multiplier * 2.0 ** (exponent + 9))
    return (scale >> 1, exponent - 1) if scale >> 16 else (scale, exponent)


def half_even(p: np.ndarray, shift: np.ndarray | int) -> np.ndarray:
    """Return p / 2**shift rounded half to even, for |p| < 2**57; shifts over 61 give 0, as 61 does."""
    shift = np.minimum(np.asarray(shift, np.int64), 61)
    half = np.where(shift > 0, np.left_shift(1, np.maximum(shift - 1, 0)), 0)
    up = (p + half) >> shift
    tie = (shift > 0) & (((p + half) & (np.left_shift(1, shift) - 1)) == 0)
    return up - (tie & (up % 2 == 1))


def half_up(x: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return x / 2**shift rounded half up: `rsh` of the instruction set's description."""
    return np.where(shift > 0, (x + np.left_shift(1, np.maximum(shift - 1, 0))) >> shift, x)


def int32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int64).astype(np.uint32).view(np.int32).astype(np.int64)


@dataclass
class Rows:
    """States (maximum, sum) of the rows of one instruction, updated by `group`."""

    m: np.ndarray
    sums: np.ndarray

    @classmethod
    def fresh(cls, rows: int) -> Rows:
        return cls(np.full(rows, -256), np.zeros(rows, np.int64))

    def group(self, e: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return shifts (u, v) of the earlier sums and of this group (rows, N)."""
        m = np.where(e > self.m, e, self.m)
        u, v = np.clip(m - self.m, 0, 31), np.clip(m - e, 0, 31)
        self.sums = (half_up(self.sums, u) + half_up(256 * p.sum(1), v)) % (1 << 32)
        self.m = m
        return u, v


def block(
    scores: np.ndarray, valid: np.ndarray, multiplier: tuple[int, int], bias: int, config: Config
) -> tuple[np.ndarray, np.ndarray]:
    """Return exponents (rows) and probabilities (rows, N), both int64, of a group of int32 scores (rows, N)."""
    y = np.clip(
        half_even(int32(scores.astype(np.int64) + bias) * multiplier[0], multiplier[1]), -32768, 32767
    )
    e = np.array(
        [
            max((math.ceil(v / 128) for v in row[mask]), default=-256)
            for row, mask in zip(y, valid, strict=True)
        ]
    )
    d = 128 * e[:, None] - y
    entry = np.clip(d, 0, 2047) >> (11 - (config.table_depth.bit_length() - 1))
    table = np.frombuffer(config.exp2_table, np.uint8).astype(np.int64)
    return e, np.where(valid & (d < 2048), table[entry], 0)


def divide(
    elements: np.ndarray, row_sums: np.ndarray, shift: np.ndarray | int, *, output: tuple[int, int], v_zero: int,
    zero: int, low: int, high: int,
) -> np.ndarray:  # fmt: skip
    """Return int8 (rows, columns): elements divided by row sums; `shift` (rows, columns or 1) is the alignment."""
    result = np.empty(elements.shape, np.int8)
    shifts = np.broadcast_to(shift, elements.shape)
    for row, total in enumerate(int(x) for x in row_sums):
        bits = total.bit_length()
        top = total << (17 - bits) if bits <= 17 else total >> (bits - 17)
        r = min(65535, (output[0] << 16) // top) if total else 0
        z = v_zero * ((total + 128) >> 8)
        s = np.clip(bits + output[1] + shifts[row], 0, 63)
        q = half_even(int32(elements[row] - z) * r, s)
        result[row] = np.clip(q + zero, low, high)
    return result


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, config: Config, score: tuple[int, int], output: tuple[int, int], *,
    counts: np.ndarray | None = None, bias: int = 0, q_zero: int = 0, v_zero: int = 0, zero: int = 0, low: int = -128,
    high: int = 127,
) -> np.ndarray:  # fmt: skip
    """One head of fused attention, int8 (rows, size of v).

    Parameters
    ----------
    q, k, v : int8 (rows, d), (keys, d), (keys, size of v)
    config : Config
        Its N, table and probability bits are used.
    score, output
        Multipliers.
    counts : int (rows,), optional
        Number of leading keys that each row sees, clipped to the length; None for all.
    bias : int
        Added to all scores. A zero point of K changes all scores of a row alike, so it is left out, or in the bias.
    q_zero, v_zero, zero : int
        Zero points; that of V is taken from the result.
    """
    n, keys = config.n, len(k)
    limit = np.full(len(q), keys) if counts is None else np.minimum(counts, keys)
    rows = Rows.fresh(len(q))
    sums = np.zeros((len(q), v.shape[1]), np.int64)
    for start in range(0, keys, n):
        columns = np.arange(start, start + n)
        inside = columns[columns < keys]
        scores = np.zeros((len(q), n), np.int64)
        scores[:, : inside.size] = (q.astype(np.int64) - q_zero) @ k[inside].astype(np.int64).T
        e, p = block(scores, columns < limit[:, None], score, bias, config)
        before, now = rows.group(e, p)
        product = p[:, : inside.size] @ v[inside].astype(np.int64)
        sums = int32(half_up(sums, before[:, None]) + half_up(product, now[:, None]))
    return divide(sums, rows.sums, 0, output=output, v_zero=v_zero, zero=zero, low=low, high=high)


def softmax_rows(
    x: np.ndarray, config: Config, score: tuple[int, int], output: tuple[int, int], *, counts: np.ndarray | None = None,
    bias: int = 0, zero: int = 0, low: int = -128, high: int = 127,
) -> np.ndarray:  # fmt: skip
    """Return stand-alone softmax of int8 or int32 rows (rows, columns), int8: two passes, then the division."""
    n, width = config.n, x.shape[1]
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, -width % n)))
    limit = np.full(len(x), width) if counts is None else np.minimum(counts, width)
    rows = Rows.fresh(len(x))
    exponents, probabilities = [], []
    for start in range(0, width, n):
        valid = np.arange(start, start + n) < limit[:, None]
        e, p = block(padded[:, start : start + n], valid, score, bias, config)
        rows.group(e, p)
        exponents.append(e)
        probabilities.append(p)
    shift = np.repeat(np.clip(rows.m[:, None] - np.stack(exponents, 1), 0, 31), n, axis=1)
    p = np.concatenate(probabilities, axis=1)
    return divide(p, rows.sums, shift, output=output, v_zero=0, zero=zero, low=low, high=high)[:, :width]


def softmax_float(x: np.ndarray, nats: float, counts: np.ndarray | None = None) -> np.ndarray:
    """Return float64 softmax over the last axis of scores in units of `nats`; rows that see no key are 0."""
    limit = np.full(len(x), x.shape[1]) if counts is None else counts
    scores = np.where(np.arange(x.shape[1]) < limit[:, None], x * float(nats), -np.inf)
    top = scores.max(axis=1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
    return powers / np.maximum(powers.sum(axis=1, keepdims=True), np.finfo(float).tiny)


def attention_float(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    nats: float,
    counts: np.ndarray | None = None,
    v_zero: int = 0,
) -> np.ndarray:
    """Return float64 (rows, size of v): means of ``v - v_zero``, without the output's multiplier."""
    return softmax_float(q.astype(float) @ k.astype(float).T, nats, counts) @ (v.astype(float) - v_zero)
