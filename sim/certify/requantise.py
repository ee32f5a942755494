"""Requantisation of integers to values, which both a program and a network do."""

from __future__ import annotations

import numpy as np

from weft.sim.certify.sums import Sums
from weft.sim.certify.values import Form, Values


def requantised(
    values: Values,
    sums: Sums,
    mantissa: np.ndarray,
    shift: np.ndarray,
    clamp: tuple[int, int, int],
    table: bytes = b"",
    second: Sums | None = None,
    source: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """``table[clamp(round_half_even((max(sums) * mantissa + second) / 2**shift) + zero)]``, as `weft.hdl.isa.Vec`.

    Parameters
    ----------
    values : Values
    sums : Sums (rows, columns, set)
        Bias is added already. Where they may be no int32, results are unknown.
    mantissa, shift : int64 (columns,)
        Not negative.
    clamp : tuple of int
        Zero point, and least and largest result.
    table : bytes
        What becomes of each result; empty for itself.
    second : Sums (rows, columns)
        Is added behind the multiplication.
    source : tuple
        Values, int64 (rows, columns), and integers (columns,): the sums are these together, if they are given.
    """
    sums = values.bounded(sums)
    zero, low, high = clamp
    twos = np.minimum(_twos(mantissa), shift)
    if second is not None:
        twos = np.zeros_like(twos)
    factor, left = mantissa >> twos, shift - twos
    p = sums.scaled(factor[None, :, None])
    if second is not None:
        p = p.plus(second.reshape(*second.low.shape, 1))
    forms = [Form(int(item), zero, low, high, table) for item in left]
    if source is None or second is not None or left.any() or (factor != 1).any() or (source[1] + zero).any():
        return values.results(p, forms)
    return values.results(p, [form._replace(zero=0) for form in forms], source[0])


def _twos(numbers: np.ndarray) -> np.ndarray:
    """How often 2 divides each number; 63 for 0."""
    lowest = numbers & -numbers
    return np.where(numbers == 0, 63, np.round(np.log2(np.maximum(lowest, 1))).astype(np.int64))
