"""Arrays of integers that depend on a program's inputs, represented by residues and ranges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.extras.proof.programs.field import moduli, residues

INT32 = 1 << 31
Integers = np.ndarray | np.signedinteger[Any] | int
"""Integers that broadcast to some shape."""
MAX_TERMS = 1 << 20
"""Most terms of a sum in `matmul`."""


@dataclass(frozen=True)
class Sums:
    """Array of integers.

    Attributes
    ----------
    primes : tuple of int
    f : uint64 (..., PRIMES)
        Residues.
    low, high : int64 (...)
        Bounds for all inputs.
    degree : int
        Upper bound of the degree of the polynomials in values and functions.
    """

    primes: tuple[int, ...]
    f: np.ndarray
    low: np.ndarray
    high: np.ndarray
    degree: int = 1

    @property
    def constant(self) -> np.ndarray:
        """Mask of integers that are equal for all inputs: bool (...)."""
        return self.low == self.high

    @property
    def may_overflow(self) -> bool:
        """True if any of the integers may be outside int32."""
        return bool(self.int32_overflow.any())

    @property
    def int32_overflow(self) -> np.ndarray:
        """Mask of integers that may be outside int32: bool (...)."""
        return (self.low < -INT32) | (self.high >= INT32)

    @property
    def singletons(self) -> Sums:
        """Sets (..., 1) of one integer each."""
        return self.reshape(*self.low.shape, 1)

    def __getitem__(self, at: Any) -> Sums:
        return Sums(self.primes, self.f[at], self.low[at], self.high[at], self.degree)

    def put(self, at: Any, other: Sums) -> Sums:
        """Overwrite elements in place; the result has the larger degree."""
        self.f[at], self.low[at], self.high[at] = other.f, other.low, other.high
        return self if other.degree <= self.degree else replace(self, degree=other.degree)

    def reshape(self, *shape: int) -> Sums:
        f = self.f.reshape(*shape, self.f.shape[-1])
        return Sums(self.primes, f, self.low.reshape(shape), self.high.reshape(shape), self.degree)

    def broadcast_to(self, shape: tuple[int, ...]) -> Sums:
        f = np.broadcast_to(self.f, (*shape, self.f.shape[-1]))
        low, high = (np.broadcast_to(end, shape) for end in (self.low, self.high))
        return Sums(self.primes, f, low, high, self.degree)

    def narrow(self, low: Integers, high: Integers) -> Sums:
        """Intersect the ranges with known bounds."""
        ends = np.maximum(self.low, low), np.minimum(self.high, high)
        return Sums(self.primes, self.f, *ends, self.degree)

    def transpose(self, order: tuple[int, ...]) -> Sums:
        return Sums(
            self.primes,
            self.f.transpose(*order, len(order)),
            self.low.transpose(order),
            self.high.transpose(order),
            self.degree,
        )

    def plus(self, other: Sums) -> Sums:
        f = (self.f + other.f) % moduli(self.primes)
        degree = max(self.degree, other.degree)
        return Sums(self.primes, f, self.low + other.low, self.high + other.high, degree)

    def minus(self, other: Sums) -> Sums:
        return self.plus(other.times_constant(-1))

    def plus_constant(self, integers: np.ndarray | int) -> Sums:
        """Add integers that broadcast to this shape."""
        added = np.asarray(integers, np.int64)
        f = (self.f + residues(added, self.primes)) % moduli(self.primes)
        return Sums(self.primes, f, self.low + added, self.high + added, self.degree)

    def times_constant(self, integers: np.ndarray | int) -> Sums:
        """Multiply by integers below 2**32 that broadcast to this shape."""
        factor = np.asarray(integers, np.int64)
        f = self.f * residues(factor, self.primes) % moduli(self.primes)
        ends = self.low * factor, self.high * factor
        return Sums(self.primes, f, np.minimum(*ends), np.maximum(*ends), self.degree)

    def times(self, other: Sums) -> Sums:
        f = self.f * other.f % moduli(self.primes)
        ends = np.stack([a * b for a in (self.low, self.high) for b in (other.low, other.high)])
        return Sums(self.primes, f, ends.min(axis=0), ends.max(axis=0), self.degree + other.degree)

    def sum(self, axis: int) -> Sums:
        """Sum along an axis of at most 2**32 elements."""
        axis %= self.low.ndim
        f = self.f.sum(axis=axis) % moduli(self.primes)
        return Sums(self.primes, f, self.low.sum(axis=axis), self.high.sum(axis=axis), self.degree)


def matmul_ranges(low: np.ndarray, high: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds, int64 (rows, columns), of products of a matrix with float64 weights.

    Most rows have equal ranges, because only padding is constant. Their bounds are computed once.

    Parameters
    ----------
    low, high : (rows, terms)
        Bounds of the matrix.
    weights : float64 (terms, columns)
    """
    positive, negative = np.maximum(weights, 0), np.minimum(weights, 0)

    def bounds(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a, b = a.astype(np.float64), b.astype(np.float64)
        least, most = a @ positive + b @ negative, b @ positive + a @ negative
        return least.astype(np.int64), most.astype(np.int64)

    middle = slice(len(low) // 2, len(low) // 2 + 1)
    others = (low != low[middle]).any(axis=1) | (high != high[middle]).any(axis=1)
    least, most = (np.repeat(end, len(low), axis=0) for end in bounds(low[middle], high[middle]))
    if others.any():
        least[others], most[others] = bounds(low[others], high[others])
    return least, most


def concatenate(parts: list[Sums], axis: int) -> Sums:
    """Join arrays along an axis."""
    axis %= parts[0].low.ndim
    return Sums(
        parts[0].primes,
        np.concatenate([part.f for part in parts], axis),
        np.concatenate([part.low for part in parts], axis),
        np.concatenate([part.high for part in parts], axis),
        max(part.degree for part in parts),
    )


def matmul(left: Sums, right: Sums) -> Sums:
    """Multiply matrices (rows, terms) and (terms, columns) of integers below 2**15, with at most `MAX_TERMS` terms."""
    assert left.low.shape[1] <= MAX_TERMS
    lanes = [
        _matmul_residues(left.f[..., lane], right.f[..., lane], prime)
        for lane, prime in enumerate(left.primes)
    ]
    ends = _matmul_range(left, right)
    return Sums(left.primes, np.stack(lanes, axis=-1), *ends, left.degree + right.degree)


def _matmul_range(left: Sums, right: Sums) -> tuple[np.ndarray, np.ndarray]:
    # Each factor is (a + x) / 2: a is the middle of its range, doubled, and x has either sign and is at most its width.
    (a, x), (b, y) = (
        ((part.low + part.high).astype(np.float64), (part.high - part.low).astype(np.float64))
        for part in (left, right)
    )
    middle = a @ b
    around = np.abs(a) @ y + x @ (np.abs(b) + y)
    return np.floor((middle - around) / 4).astype(np.int64), np.ceil((middle + around) / 4).astype(np.int64)


def _matmul_residues(left: np.ndarray, right: np.ndarray, prime: int) -> np.ndarray:
    """Multiply matrices of residues modulo a prime below 2**31: uint64 (rows, columns)."""
    # In halves of 16 bits, the sums of products are exact in float64.
    half = np.uint64(16)
    mask = np.uint64((1 << 16) - 1)
    (a, b), (c, d) = (
        ((part >> half).astype(np.float64), (part & mask).astype(np.float64)) for part in (left, right)
    )

    def reduce(product: np.ndarray) -> np.ndarray:
        return np.asarray(product.astype(np.int64) % prime)

    high, middle, low = reduce(a @ c), reduce(reduce(a @ d) + reduce(b @ c)), reduce(b @ d)
    upper = ((high << 16) + middle) % prime
    return np.asarray((((upper << 16) + low) % prime).astype(np.uint64))
