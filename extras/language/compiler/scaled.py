"""How sums of products become steps: a mantissa and a bias for each column, and a shift for each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.kernel.expressions import DIGITS
from weft.extras.language.compiler.weights import Weights

MOST_BITS = 16
"""Of which the bits of a row are taken away: it is then a shift to the right."""
BYTE_BITS = 7
"""Bits of the largest element of a row that has become int8."""
BIAS_PLACES = 6
"""Places of int8 results while a bias is added to them, which is not rounded to their steps so."""


@dataclass(frozen=True)
class Scaled:
    """How sums of products become steps: ``sum * mantissa / 2**(shift + row)``, rounded half to even.

    Attributes
    ----------
    mantissas : numpy.ndarray of int16, shape (columns,)
        1 to `DIGITS`.
    shift : int
        0 to 32: with that of a row, of at most `MOST_BITS`, it is the exponent of the product.
    most, reach : int
        No sum is larger than `most`, and nothing that it becomes larger than `reach`.
    """

    mantissas: np.ndarray
    shift: int
    most: int
    reach: int

    @classmethod
    def of(cls, scales: np.ndarray, sums: np.ndarray, bits: int = 16) -> Scaled:
        """Factors of sums, of rows whose largest element has `BYTE_BITS`: float64 (columns,), positive. `sums` are the
        largest ones, and rows have at most so many `bits`."""
        reach = math.ceil(math.ldexp(float((scales * sums).max()), bits - BYTE_BITS)) + 1
        reach = min(reach, 1 << 30)  # far beyond all 24 bits; only sums that no text makes reach it
        places = 15 - math.frexp(float(scales.max()))[1]
        if round(math.ldexp(float(scales.max()), places)) > DIGITS:
            places -= 1
        mantissas = np.maximum(np.rint(np.ldexp(scales, places)), 1).astype(np.int16)
        return cls(mantissas, places - (MOST_BITS - BYTE_BITS), int(sums.max()), reach)

    @property
    def factors(self) -> np.ndarray:
        """What sums are multiplied by, if the bits of a row are `BYTE_BITS`: float64 (columns,)."""
        return np.ldexp(self.mantissas.astype(float), -self.shift - (MOST_BITS - BYTE_BITS))


@dataclass(frozen=True)
class Biases:
    """What is added to the steps of each column: whole numbers times ``2**shift``.

    Attributes
    ----------
    numbers : list of numpy.ndarray of int64, shape (columns,)
        Of each block, of as many digits as were asked for.
    shift : int
        The same for all blocks.
    """

    numbers: list[np.ndarray]
    shift: int

    @classmethod
    def of(cls, biases: Sequence[np.ndarray], digits: int = 2) -> Biases:
        """The biases of each block in steps, float64 (columns,), as numbers of so many digits: rounded half to even,
        to steps where that many digits reach."""
        largest = max(float(np.abs(bias).max()) for bias in biases)
        most = DIGITS << 8 * (digits - 2)
        shift = max(0, math.ceil(math.log2(largest / most))) if largest > most else 0
        return cls([np.rint(np.ldexp(bias, -shift)).astype(np.int64) for bias in biases], shift)


def power_of_two(value: float) -> float:
    """The smallest power of two that is at least so much."""
    return 2.0 ** math.ceil(math.log2(value))


def together(matrices: Sequence[Weights], factors: Sequence[float]) -> list[Scaled]:
    """How the sums of all blocks become steps, each block's scales times its factor, with one shift."""
    products = [matrix.scales * factor for matrix, factor in zip(matrices, factors, strict=True)]
    made = Scaled.of(np.concatenate(products), np.concatenate([matrix.sums for matrix in matrices]))
    parts = np.split(made.mantissas, len(products))
    return [Scaled(part, made.shift, made.most, made.reach) for part in parts]
