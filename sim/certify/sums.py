"""Integers that depend on a program's inputs, as far as a proof looks at them: residues, and a range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.sim.certify.field import residues

INT32 = 1 << 31


@dataclass(frozen=True)
class Sums:
    """An array of integers.

    Attributes
    ----------
    primes : tuple of int
    f : uint64 (..., PRIMES)
        Residues.
    low, high : int64 (...)
        What they are at least and at most, whatever the inputs are.
    """

    primes: tuple[int, ...]
    f: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def constant(self) -> np.ndarray:
        """Where it is the same for all inputs: bool."""
        return self.low == self.high

    @property
    def overflows(self) -> bool:
        """Whether some might be no int32."""
        return bool(self.leaves.any())

    @property
    def leaves(self) -> np.ndarray:
        """Which might be none: bool."""
        return (self.low < -INT32) | (self.high >= INT32)

    def __getitem__(self, at: Any) -> Sums:
        return Sums(self.primes, self.f[at], self.low[at], self.high[at])

    def reshape(self, *shape: int) -> Sums:
        """The same in another shape."""
        return Sums(
            self.primes, self.f.reshape(*shape, self.f.shape[-1]), self.low.reshape(shape), self.high.reshape(shape)
        )  # fmt: skip

    def moved(self, order: tuple[int, ...]) -> Sums:
        """The same with other axes in front."""
        return Sums(
            self.primes,
            self.f.transpose(*order, len(order)),
            self.low.transpose(order),
            self.high.transpose(order),
        )

    def plus(self, other: Sums) -> Sums:
        f = (self.f + other.f) % self._moduli
        return Sums(self.primes, f, self.low + other.low, self.high + other.high)

    def shifted(self, integers: np.ndarray | int) -> Sums:
        """Plus integers of a shape that fits."""
        added = np.asarray(integers, np.int64)
        f = (self.f + residues(added, self.primes)) % self._moduli
        return Sums(self.primes, f, self.low + added, self.high + added)

    def scaled(self, integers: np.ndarray | int) -> Sums:
        """Times integers of a shape that fits, below 2**32."""
        factor = np.asarray(integers, np.int64)
        f = self.f * residues(factor, self.primes) % self._moduli
        ends = self.low * factor, self.high * factor
        return Sums(self.primes, f, np.minimum(*ends), np.maximum(*ends))

    def times(self, other: Sums) -> Sums:
        f = self.f * other.f % self._moduli
        ends = np.stack([a * b for a in (self.low, self.high) for b in (other.low, other.high)])
        return Sums(self.primes, f, ends.min(axis=0), ends.max(axis=0))

    def total(self, axis: int) -> Sums:
        """The sum along an axis of at most 2**32 elements."""
        axis %= self.low.ndim
        f = self.f.sum(axis=axis) % self._moduli
        return Sums(self.primes, f, self.low.sum(axis=axis), self.high.sum(axis=axis))

    @property
    def _moduli(self) -> np.ndarray:
        return np.array(self.primes, np.uint64)


def ranges(low: np.ndarray, high: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of products of values in ranges (rows, terms) and float64 weights (terms, columns): the ranges of their sums.

    Most rows have the same ranges, as only padding is constant: those are worked out once.
    """
    positive, negative = np.maximum(weights, 0), np.minimum(weights, 0)

    def of(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a, b = a.astype(np.float64), b.astype(np.float64)
        least, most = a @ positive + b @ negative, b @ positive + a @ negative
        return least.astype(np.int64), most.astype(np.int64)

    middle = slice(len(low) // 2, len(low) // 2 + 1)
    others = (low != low[middle]).any(axis=1) | (high != high[middle]).any(axis=1)
    least, most = (np.repeat(end, len(low), axis=0) for end in of(low[middle], high[middle]))
    if others.any():
        least[others], most[others] = of(low[others], high[others])
    return least, most


def concatenated(parts: list[Sums], axis: int) -> Sums:
    """Several along an axis."""
    axis %= parts[0].low.ndim
    return Sums(
        parts[0].primes,
        np.concatenate([part.f for part in parts], axis),
        np.concatenate([part.low for part in parts], axis),
        np.concatenate([part.high for part in parts], axis),
    )
