"""Fixed-point arithmetic that several instructions share, on int64 arrays."""

from __future__ import annotations

import numpy as np


def wrap(value: np.ndarray) -> np.ndarray:
    """`value` modulo 2**32 as two's complement, in int64."""
    return ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def rsh(value: np.ndarray, shift: np.ndarray | int) -> np.ndarray:
    """``(value + 2**(shift - 1)) >> shift``, arithmetic, halves up; `value` where the shift is 0. Shifts 0 to 31."""
    half = (np.int64(1) << np.asarray(shift, np.int64)) >> 1
    return (value + half) >> shift


def round_half_even(p: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """``p / 2**shift`` rounded to the nearest, halves to the even; int64, exact for shifts 0 to 63.

    The remainder is compared instead of adding a half first, so that nothing overflows.
    """
    one = np.int64(1)
    low = p >> shift
    # 2**63 - 1 is the mask for shift 63: the shift wraps to the smallest int64, and less 1 to the largest.
    with np.errstate(over="ignore"):
        rest = p & ((one << shift) - one)
    half = np.where(shift > 0, one << np.maximum(shift - 1, 0), one)
    return low + ((rest > half) | ((rest == half) & (low & 1 == 1)))
