"""Registers of kernels: integers, and the sets whose maximum or minimum they are.

A kernel reduces a row in any order, so a maximum is identified by the set of its members. The set's hash is the sum of
its members' hashes (as in `weft.extras.proof.programs.field.hash_sets`). Constant members together are a lower bound.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.extras.proof.programs.field import member_hashes, mix_bits, moduli, residues
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.symbols import Symbols

_LEAST = -(1 << 62)


@dataclass(frozen=True)
class Members:
    """Sets of integers, which stand for their maximum.

    Attributes
    ----------
    words : uint64 (..., PRIMES)
        Sum of the hashes of members that are not constants.
    count : int64 (...)
        Number of these members.
    f : uint64 (..., PRIMES)
        Residues of one of these members.
    low, high : int64 (...)
        Range of their maximum.
    floor : int64 (...)
        Largest constant member.
    """

    words: np.ndarray
    count: np.ndarray
    f: np.ndarray
    low: np.ndarray
    high: np.ndarray
    floor: np.ndarray

    @classmethod
    def of(cls, sums: Sums) -> Members:
        """Return sets of one member."""
        constant = sums.constant
        words = np.where(constant[..., None], np.uint64(0), member_hashes(sums.f))
        low, high = (np.where(constant, _LEAST, end) for end in (sums.low, sums.high))
        return cls(
            words, (~constant).astype(np.int64), sums.f, low, high, np.where(constant, sums.low, _LEAST)
        )

    def union(self, other: Members) -> Members:
        """Return the unions; the union of equal sets is that set."""
        # Sets that overlap otherwise count a common member twice. Their maximum is right, its hash merely differs.
        same = ((self.words == other.words).all(axis=-1)) & (self.count == other.count)
        return Members(
            np.where(same[..., None], self.words, self.words + other.words),
            np.where(same, self.count, self.count + other.count),
            np.where((self.count > 0)[..., None], self.f, other.f),
            np.maximum(self.low, other.low),
            np.maximum(self.high, other.high),
            np.maximum(self.floor, other.floor),
        )

    def union_along(self, axis: int) -> Members:
        """Return the unions along an axis, which keeps one element."""
        one = np.expand_dims(self.count.argmax(axis=axis), axis)
        return Members(
            self.words.sum(axis=axis, keepdims=True, dtype=np.uint64),
            self.count.sum(axis=axis, keepdims=True),
            np.take_along_axis(self.f, one[..., None], axis),
            self.low.max(axis=axis, keepdims=True),
            self.high.max(axis=axis, keepdims=True),
            self.floor.max(axis=axis, keepdims=True),
        )

    def take(self, places: Any) -> Members:
        """Index the sets like an array."""
        return Members(*(part[places] for part in vars(self).values()))

    def where(self, condition: np.ndarray, other: Members) -> Members:
        """Return these sets where a condition, bool (...), is True, else others."""

        def choose(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.where(condition.reshape(*condition.shape, *[1] * (a.ndim - condition.ndim)), a, b)

        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Members(*(choose(a, b) for a, b in pairs))

    def to_sums(self, symbols: Symbols) -> Sums:
        """Return the maxima."""
        values = symbols.values
        values.function_count += self.count.size
        bounding = self.floor > self.low
        fixed = (self.count == 0) | (self.floor >= self.high)
        bound = member_hashes(residues(np.maximum(self.floor, _LEAST), values.primes))
        words = self.words + np.where(bounding[..., None], mix_bits(bound), np.uint64(0))
        f = mix_bits(words ^ values.random_words("largest")) % moduli(values.primes)
        single = (self.count == 1) & ~bounding
        f = np.where(single[..., None], self.f, f)
        low = np.where(fixed, self.floor, np.maximum(self.low, self.floor))
        high = np.where(fixed, self.floor, np.maximum(self.high, self.floor))
        return symbols.fold_constants(Sums(values.primes, f, low, high))


@dataclass(frozen=True)
class Register:
    """Integers (rows, N), and the sets whose maximum or minimum they are; `smallest` has the negatives of a minimum.

    A difference keeps its operands in `parts`: kernels exchange two elements by adding one operand to it again.
    """

    number: Sums
    largest: Members | None = None
    smallest: Members | None = None
    parts: tuple[Sums, Sums] | None = None

    def take(self, places: Any) -> Register:
        """Index the integers and their sets like an array."""
        largest, smallest = (
            None if part is None else part.take(places) for part in (self.largest, self.smallest)
        )
        return Register(self.number[places], largest, smallest)


def add(symbols: Symbols, a: Register, b: Register) -> Register:
    """Add, modulo 2**32."""
    if a.parts is not None and bool((a.parts[1].f == b.number.f).all()):
        return Register(a.parts[0])
    return Register(symbols.limit(a.number.plus(b.number)))


def subtract(symbols: Symbols, a: Register, b: Register) -> Register:
    """Subtract, modulo 2**32."""
    return Register(symbols.limit(symbols.difference(a.number, b.number)), parts=(a.number, b.number))


def select(symbols: Symbols, condition: Sums, yes: Register, no: Register) -> Register:
    """Return `yes` where a condition is 1, `no` where it is 0. A constant condition keeps the sets."""
    number = symbols.select(condition, yes.number, no.number)
    if not condition.constant.all():
        return Register(number)
    holds = condition.low == 1
    sets: list[Members | None] = []
    for first, second, sign in ((yes.largest, no.largest, 1), (yes.smallest, no.smallest, -1)):
        if first is None and second is None:
            sets.append(None)
            continue
        one, other = (
            Members.of(item.number.times_constant(sign)) if part is None else part
            for item, part in ((yes, first), (no, second))
        )
        sets.append(one.where(holds, other))
    return Register(number, sets[0], sets[1])


def maximum(symbols: Symbols, a: Register, b: Register) -> Register:
    """Return the larger operand, as int32."""
    return _maximum(symbols, _to_int32(symbols, a), _to_int32(symbols, b))


def minimum(symbols: Symbols, a: Register, b: Register) -> Register:
    """Return the smaller operand, as int32: the negative of the larger negative."""
    return _negative(_maximum(symbols, _negative(_to_int32(symbols, a)), _negative(_to_int32(symbols, b))))


def _maximum(symbols: Symbols, a: Register, b: Register) -> Register:
    one, other = (Members.of(item.number) if item.largest is None else item.largest for item in (a, b))
    union, values = one.union(other), symbols.values
    # max(x, -x) is a magnitude, which is not negative
    opposite = ((a.number.f + b.number.f) % moduli(values.primes) == 0).all(axis=-1)
    low = np.where(opposite & (union.count > 0), np.maximum(union.low, 0), union.low)
    union = dataclasses.replace(union, low=low)
    values.degree = max(values.degree, a.number.degree, b.number.degree)
    return Register(union.to_sums(symbols), union)


def _negative(a: Register) -> Register:
    return Register(a.number.times_constant(-1), a.smallest, a.largest)


def _to_int32(symbols: Symbols, a: Register) -> Register:
    """Wrap to int32; integers that cannot overflow keep their sets."""
    return Register(symbols.to_int32(a.number)) if a.number.may_overflow else a


def row_maximum(symbols: Symbols, register: Register, axis: int, valid: np.ndarray | None = None) -> Register:
    """Return the largest int32 along an axis, which keeps one element; with `valid`, the largest valid one."""
    elements = _to_int32(symbols, register)
    members = Members.of(elements.number) if elements.largest is None else elements.largest
    if valid is not None:
        least = Members(*(np.zeros_like(part) for part in vars(members).values()))
        least = dataclasses.replace(
            least, low=least.low + _LEAST, high=least.high + _LEAST, floor=least.floor + _LEAST
        )
        members = members.where(valid, least)
    union = members.union_along(axis)
    symbols.values.degree = max(symbols.values.degree, elements.number.degree)
    return Register(union.to_sums(symbols), union)
