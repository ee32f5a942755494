"""Scaling of products' sums to steps: a mantissa and a bias for each column, and a shift for each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.kernel.expressions import DIGITS
from weft.extras.language.compiler.weights import Weights

MAX_ROW_BITS = 16
"""Minuend of a row's shift, which is this minus the row's bits: always a shift to the right."""
BYTE_BITS = 7
"""Bits of the largest element of a row after its conversion to int8."""
BIAS_PLACES = 6
"""Extra fractional bits of int8 results while a bias is added, so that the bias is not rounded to their steps."""


@dataclass(frozen=True)
class Scaled:
    """Scaling of sums to steps: ``sum * mantissa / 2**(shift + row)``, rounded half to even.

    Attributes
    ----------
    mantissas : numpy.ndarray of int16, shape (columns,)
        1 to `DIGITS`.
    shift : int
        0 to 32; the row's shift, at most `MAX_ROW_BITS`, is added to it.
    max_sum, max_result : int
        Upper bounds of the magnitudes of sums and of results.
    """

    mantissas: np.ndarray
    shift: int
    max_sum: int
    max_result: int

    @classmethod
    def of(cls, scales: np.ndarray, sums: np.ndarray, bits: int = 16) -> Scaled:
        """Return the scaling by float64 factors (columns,), for rows whose largest element has `BYTE_BITS`.

        `sums` are the largest possible sums; rows have at most `bits` bits.
        """
        max_result = math.ceil(math.ldexp(float((scales * sums).max()), bits - BYTE_BITS)) + 1
        max_result = min(max_result, 1 << 30)  # far above 24 bits; no sum of a real text comes near
        places = 15 - math.frexp(float(scales.max()))[1]
        if round(math.ldexp(float(scales.max()), places)) > DIGITS:
            places -= 1
        mantissas = np.maximum(np.rint(np.ldexp(scales, places)), 1).astype(np.int16)
        return cls(mantissas, places - (MAX_ROW_BITS - BYTE_BITS), int(sums.max()), max_result)

    @property
    def factors(self) -> np.ndarray:
        """Factors of sums for rows with `BYTE_BITS`: float64 (columns,)."""
        return np.ldexp(self.mantissas.astype(float), -self.shift - (MAX_ROW_BITS - BYTE_BITS))


@dataclass(frozen=True)
class Biases:
    """Biases of all blocks in steps: integers times ``2**shift``.

    Attributes
    ----------
    numbers : list of numpy.ndarray of int64, shape (columns,)
        For each block, within the requested number of digits.
    shift : int
        Common to all blocks.
    """

    numbers: list[np.ndarray]
    shift: int

    @classmethod
    def of(cls, biases: Sequence[np.ndarray], digits: int = 2) -> Biases:
        """Round the biases of each block, float64 (columns,) in steps, to integers of `digits` digits.

        The shift is 0 if the largest bias fits. Rounding is half to even.
        """
        largest = max(float(np.abs(bias).max()) for bias in biases)
        largest_number = DIGITS << 8 * (digits - 2)
        shift = max(0, math.ceil(math.log2(largest / largest_number))) if largest > largest_number else 0
        return cls([np.rint(np.ldexp(bias, -shift)).astype(np.int64) for bias in biases], shift)


def power_of_two(value: float) -> float:
    """Return the smallest power of two that is at least `value`."""
    return 2.0 ** math.ceil(math.log2(value))


def scale_blocks(matrices: Sequence[Weights], factors: Sequence[float]) -> list[Scaled]:
    """Return the scaling of each block, its scales times its factor, with one shift for all blocks."""
    products = [matrix.scales * factor for matrix, factor in zip(matrices, factors, strict=True)]
    scaled = Scaled.of(np.concatenate(products), np.concatenate([matrix.sums for matrix in matrices]))
    parts = np.split(scaled.mantissas, len(products))
    return [Scaled(part, scaled.shift, scaled.max_sum, scaled.max_result) for part in parts]
