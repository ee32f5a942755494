"""Softmax, Normalise and Table in plain integers, from the docstrings of `weft.hdl.isa`."""

from __future__ import annotations

from collections.abc import Sequence


def wrap(value: int, bits: int) -> int:
    """Return `value` modulo 2**bits, signed."""
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def half_even(value: int, shift: int) -> int:
    """Return ``value / 2**shift``, rounded half to even."""
    quotient, rest = value >> shift, value & ((1 << shift) - 1)
    twice = 2 * rest - (1 << shift)
    return quotient + (1 if twice > 0 or (twice == 0 and quotient & 1) else 0)


def rsh(value: int, shift: int) -> int:
    return (value + (1 << (shift - 1))) >> shift if shift else value


def score(element: int, bias: int, mantissa: int, shift: int) -> int:
    return clamp(half_even(wrap(element + bias, 32) * mantissa, shift), -(1 << 15), (1 << 15) - 1)


def probabilities(scores: Sequence[int], limit: int, table: Sequence[int]) -> tuple[int, list[int]]:
    """Return ``e`` and all ``p``, where the first `limit` columns are valid."""
    step = 11 - (len(table) - 1).bit_length()
    peak = max((-(-y // 128) for y in scores[: max(limit, 0)]), default=-256)
    values = []
    for column, y in enumerate(scores):
        distance = 128 * peak - y
        values.append(table[distance >> step] if column < limit and distance < 2048 else 0)
    return peak, values


def advance(state: tuple[int, int], peak: int, total: int) -> tuple[tuple[int, int], int]:
    """Return the row state after a vector, and the vector's alignment."""
    m, row_sum = state
    after = max(m, peak)
    u, v = min(after - m, 31), min(after - peak, 31)
    return (after, (rsh(row_sum, u) + rsh(256 * total, v)) % (1 << 32)), u - v


def final_alignment(state: tuple[int, int], peak: int) -> int:
    return clamp(state[0] - peak, 0, 31)


def divide(row_sum: int, scale: int, exponent: int, v_zero: int) -> tuple[int, int, int]:
    """Return ``r``, ``E + exponent`` and ``z``."""
    size = row_sum.bit_length()
    top = row_sum << (17 - size) if size <= 17 else row_sum >> (size - 17)
    mantissa = min(65535, (scale << 16) // top) if row_sum else 0
    return mantissa, size + exponent, v_zero * rsh(row_sum, 8)


def normalise(element: int, result: tuple[int, int, int], alignment: int) -> int:
    """Return ``q``."""
    mantissa, base, z = result
    return half_even(wrap(element - z, 32) * mantissa, clamp(base + alignment, 0, 63))
