"""Requantisation of integers to values, which both a program and a network do."""

from __future__ import annotations

import math

import numpy as np

from weft.extras.proof.programs.form import Form
from weft.extras.proof.programs.sums import INT32, Sums
from weft.extras.proof.programs.values import Values

_SHIFTS = 63
"""Largest shift of a requantisation."""


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
    if source is not None and second is None:
        numbers = np.arange(-128, 128) + source[1][:, None]
        if bool((np.abs(numbers) < INT32).all()):
            return values.mapped(source[0], _tables(numbers, mantissa, shift, clamp, table))
    sums = values.bounded(sums)
    zero, low, high = clamp
    twos = np.minimum(_twos(mantissa), shift)
    if second is not None:
        twos = np.zeros_like(twos)
    factor, left = mantissa >> twos, shift - twos
    p = sums.scaled(factor[None, :, None])
    if second is not None:
        p = p.plus(second.reshape(*second.low.shape, 1))
    return values.results(p, [Form(int(item), zero, low, high, table) for item in left])


def _tables(
    numbers: np.ndarray, mantissa: np.ndarray, shift: np.ndarray, clamp: tuple[int, int, int], table: bytes
) -> np.ndarray:
    """What becomes of integers (columns, 256), each column by its own scale."""
    products = numbers * mantissa[:, None]
    return np.stack(
        [Form(int(bits), *clamp, table).of(row) for row, bits in zip(products, shift, strict=True)]
    )


def _twos(numbers: np.ndarray) -> np.ndarray:
    """How often 2 divides each number; 63 for 0."""
    lowest = numbers & -numbers
    return np.where(numbers == 0, 63, np.round(np.log2(np.maximum(lowest, 1))).astype(np.int64))


def quantised(scale: float, bits: int) -> tuple[int, int]:
    """The mantissa and the shift nearest to a scale: the mantissa has `bits` bits, unless the shift were above 63."""
    if scale == 0:
        return 0, _SHIFTS
    fraction, exponent = math.frexp(scale)
    mantissa, shift = round(fraction * (1 << bits)), bits - exponent
    if mantissa == 1 << bits:
        mantissa, shift = mantissa >> 1, shift - 1
    if shift > _SHIFTS:
        return round(math.ldexp(scale, _SHIFTS)), _SHIFTS
    return mantissa, shift
