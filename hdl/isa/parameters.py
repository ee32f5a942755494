"""The parameter word: what `Vec` and `Softmax` multiply and add a column by, 8 bytes for each of the N columns.

A parameter block is `PARAMETER_VECTORS` scratchpad vectors; vector i holds byte i of every column's word.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PARAMETER_VECTORS = 8
"""Scratchpad vectors of a parameter block: bytes of a parameter word."""


class Part(NamedTuple):
    """Some bits of a word."""

    low: int
    width: int
    signed: bool = False

    @property
    def bits(self) -> slice:
        return slice(self.low, self.low + self.width)

    def of(self, words: np.ndarray) -> np.ndarray:
        """This part of uint64 words, as int64."""
        value = (words >> np.uint64(self.low)).astype(np.int64) & ((1 << self.width) - 1)
        return value - ((value >> (self.width - 1)) << self.width) if self.signed else value

    def put(self, values: np.ndarray) -> np.ndarray:
        """uint64 words of which this part holds integers, modulo ``2**width``; the rest is 0."""
        part = values.astype(np.int64) & ((1 << self.width) - 1)
        return part.astype(np.uint64) << np.uint64(self.low)


BIAS = Part(0, 32, signed=True)
MANTISSA = Part(32, 24)
SHIFT = Part(56, 6)


def block(bias: np.ndarray, mantissa: np.ndarray, shift: np.ndarray, n: int) -> bytes:
    """The parameter block of at most `n` columns, arrays of integers of equal length; the other columns are 0."""
    words = np.zeros(n, "<u8")
    words[: len(bias)] = BIAS.put(bias) | MANTISSA.put(mantissa) | SHIFT.put(shift)
    return words.view(np.uint8).reshape(n, PARAMETER_VECTORS).T.tobytes()


def words(vectors: np.ndarray) -> np.ndarray:
    """The words (N,) uint64 in a parameter block, (`PARAMETER_VECTORS`, N) bytes of any sign."""
    return np.ascontiguousarray(vectors.view(np.uint8).T).view("<u8").ravel()
