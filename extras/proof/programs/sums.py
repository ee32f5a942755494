"""Integers that depend on a program's inputs, as far as a proof looks at them: residues, and a range."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.extras.proof.programs.field import residues

INT32 = 1 << 31
Integers = np.ndarray | np.signedinteger[Any] | int
"""Integers of a shape, or one for all."""
TERMS = 1 << 20
"""Terms of a product of matrices at most."""


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
    degree : int
        Of polynomials in values and functions at most: products add those of their factors.
    """

    primes: tuple[int, ...]
    f: np.ndarray
    low: np.ndarray
    high: np.ndarray
    degree: int = 1

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
        return Sums(self.primes, self.f[at], self.low[at], self.high[at], self.degree)

    def put(self, at: Any, other: Sums) -> Sums:
        """The same, with others written to some places."""
        self.f[at], self.low[at], self.high[at] = other.f, other.low, other.high
        return self if other.degree <= self.degree else replace(self, degree=other.degree)

    def reshape(self, *shape: int) -> Sums:
        """The same in another shape."""
        f = self.f.reshape(*shape, self.f.shape[-1])
        return Sums(self.primes, f, self.low.reshape(shape), self.high.reshape(shape), self.degree)

    def spread(self, shape: tuple[int, ...]) -> Sums:
        """The same repeated to another shape."""
        f = np.broadcast_to(self.f, (*shape, self.f.shape[-1]))
        low, high = (np.broadcast_to(end, shape) for end in (self.low, self.high))
        return Sums(self.primes, f, low, high, self.degree)

    def ranging(self, low: Integers, high: Integers) -> Sums:
        """The same, of which more is known."""
        ends = np.maximum(self.low, low), np.minimum(self.high, high)
        return Sums(self.primes, self.f, *ends, self.degree)

    def moved(self, order: tuple[int, ...]) -> Sums:
        """The same with other axes in front."""
        return Sums(
            self.primes,
            self.f.transpose(*order, len(order)),
            self.low.transpose(order),
            self.high.transpose(order),
            self.degree,
        )

    def plus(self, other: Sums) -> Sums:
        f = (self.f + other.f) % self._moduli
        degree = max(self.degree, other.degree)
        return Sums(self.primes, f, self.low + other.low, self.high + other.high, degree)

    def minus(self, other: Sums) -> Sums:
        return self.plus(other.scaled(-1))

    def shifted(self, integers: np.ndarray | int) -> Sums:
        """Plus integers of a shape that fits."""
        added = np.asarray(integers, np.int64)
        f = (self.f + residues(added, self.primes)) % self._moduli
        return Sums(self.primes, f, self.low + added, self.high + added, self.degree)

    def scaled(self, integers: np.ndarray | int) -> Sums:
        """Times integers of a shape that fits, below 2**32."""
        factor = np.asarray(integers, np.int64)
        f = self.f * residues(factor, self.primes) % self._moduli
        ends = self.low * factor, self.high * factor
        return Sums(self.primes, f, np.minimum(*ends), np.maximum(*ends), self.degree)

    def times(self, other: Sums) -> Sums:
        f = self.f * other.f % self._moduli
        ends = np.stack([a * b for a in (self.low, self.high) for b in (other.low, other.high)])
        return Sums(self.primes, f, ends.min(axis=0), ends.max(axis=0), self.degree + other.degree)

    def total(self, axis: int) -> Sums:
        """The sum along an axis of at most 2**32 elements."""
        axis %= self.low.ndim
        f = self.f.sum(axis=axis) % self._moduli
        return Sums(self.primes, f, self.low.sum(axis=axis), self.high.sum(axis=axis), self.degree)

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
        max(part.degree for part in parts),
    )


def product(left: Sums, right: Sums) -> Sums:
    """The product of matrices (rows, terms) and (terms, columns) of numbers below 2**15, of at most 2**20 terms.

    Residues are halved, so that sums of their products are exact in float64.
    """
    assert left.low.shape[1] <= TERMS
    lanes = [_residues_of_product(left.f[..., lane], right.f[..., lane], prime)
             for lane, prime in enumerate(left.primes)]  # fmt: skip
    ends = _product_ends(left, right)
    return Sums(left.primes, np.stack(lanes, axis=-1), *ends, left.degree + right.degree)


def _product_ends(left: Sums, right: Sums) -> tuple[np.ndarray, np.ndarray]:
    """Of numbers below 2**15 the range of products: of sums ``a + x`` and ``b + y``, where x and y have both signs."""
    (a, x), (b, y) = (
        ((part.low + part.high).astype(np.float64), (part.high - part.low).astype(np.float64))
        for part in (left, right)
    )
    middle = a @ b
    around = np.abs(a) @ y + x @ (np.abs(b) + y)
    return np.floor((middle - around) / 4).astype(np.int64), np.ceil((middle + around) / 4).astype(np.int64)


def _residues_of_product(left: np.ndarray, right: np.ndarray, prime: int) -> np.ndarray:
    """Of residues modulo a prime below 2**31: uint64."""
    half = np.uint64(16)
    mask = np.uint64((1 << 16) - 1)
    (a, b), (c, d) = (
        ((part >> half).astype(np.float64), (part & mask).astype(np.float64)) for part in (left, right)
    )

    def of(product: np.ndarray) -> np.ndarray:
        return np.asarray(product.astype(np.int64) % prime)

    high, middle, low = of(a @ c), of(of(a @ d) + of(b @ c)), of(b @ d)
    found = ((high << 16) + middle) % prime
    return np.asarray((((found << 16) + low) % prime).astype(np.uint64))
