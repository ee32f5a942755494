"""Registers of kernels: numbers, and the sets whose largest or smallest they are.

A kernel takes the largest element of a row in an order of its own, so a maximum is known by the set of its members,
whose hash is the sum of theirs (as in `weft.extras.proof.programs.field.hashed`). Constants among them are one lower
bound.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.extras.proof.programs.field import member_words, mixed, residues
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.symbols import Symbols

_LEAST = -(1 << 62)


@dataclass(frozen=True)
class Members:
    """Sets of numbers, whose largest is meant.

    Attributes
    ----------
    words : uint64 (..., PRIMES)
        The sum of hashes of members that are no constants.
    count : int64 (...)
        How many those are.
    f : uint64 (..., PRIMES)
        Residues of one of them.
    low, high : int64 (...)
        Range of the largest of them.
    floor : int64 (...)
        The largest constant.
    """

    words: np.ndarray
    count: np.ndarray
    f: np.ndarray
    low: np.ndarray
    high: np.ndarray
    floor: np.ndarray

    @classmethod
    def of(cls, sums: Sums) -> Members:
        """A set of one."""
        constant = sums.constant
        words = np.where(constant[..., None], np.uint64(0), member_words(sums.f))
        low, high = (np.where(constant, _LEAST, end) for end in (sums.low, sums.high))
        return cls(
            words, (~constant).astype(np.int64), sums.f, low, high, np.where(constant, sums.low, _LEAST)
        )

    def joined(self, other: Members) -> Members:
        """The union; that of equal sets is the same."""
        same = ((self.words == other.words).all(axis=-1)) & (self.count == other.count)
        return Members(
            np.where(same[..., None], self.words, self.words + other.words),
            np.where(same, self.count, self.count + other.count),
            np.where((self.count > 0)[..., None], self.f, other.f),
            np.maximum(self.low, other.low), np.maximum(self.high, other.high), np.maximum(self.floor, other.floor),
        )  # fmt: skip

    def over(self, axis: int) -> Members:
        """The unions along an axis, which keeps one element."""
        one = np.expand_dims(self.count.argmax(axis=axis), axis)
        return Members(
            self.words.sum(axis=axis, keepdims=True, dtype=np.uint64), self.count.sum(axis=axis, keepdims=True),
            np.take_along_axis(self.f, one[..., None], axis), self.low.max(axis=axis, keepdims=True),
            self.high.max(axis=axis, keepdims=True), self.floor.max(axis=axis, keepdims=True),
        )  # fmt: skip

    def at(self, places: Any) -> Members:
        """Some of them."""
        return Members(*(part[places] for part in vars(self).values()))

    def where(self, condition: np.ndarray, other: Members) -> Members:
        """These where a condition of bool holds, else others."""

        def of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.where(condition.reshape(*condition.shape, *[1] * (a.ndim - condition.ndim)), a, b)

        return Members(*(of(a, b) for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def largest(self, symbols: Symbols) -> Sums:
        """The number."""
        values = symbols.values
        values.symbols += self.count.size
        bounding = self.floor > self.low
        fixed = (self.count == 0) | (self.floor >= self.high)
        bound = member_words(residues(np.maximum(self.floor, _LEAST), values.primes))
        words = self.words + np.where(bounding[..., None], mixed(bound), np.uint64(0))
        f = mixed(words ^ values.keys("largest")) % np.array(values.primes, np.uint64)
        single = (self.count == 1) & ~bounding
        f = np.where(single[..., None], self.f, f)
        low, high = np.maximum(self.low, self.floor), np.maximum(self.high, self.floor)
        made = Sums(values.primes, f, np.where(fixed, self.floor, low), np.where(fixed, self.floor, high))
        return symbols.settled(made)


@dataclass(frozen=True)
class Register:
    """Numbers (rows, N), and whose largest they are, or whose smallest: of those `smallest` has the negatives. A
    difference keeps both numbers in `parts`: what is exchanged between elements is one that is added up again."""

    number: Sums
    largest: Members | None = None
    smallest: Members | None = None
    parts: tuple[Sums, Sums] | None = None

    def at(self, places: Any) -> Register:
        """Some of them."""
        largest, smallest = (
            None if part is None else part.at(places) for part in (self.largest, self.smallest)
        )
        return Register(self.number[places], largest, smallest)


def added(symbols: Symbols, a: Register, b: Register) -> Register:
    """The sum, modulo 2**32."""
    if a.parts is not None and bool((a.parts[1].f == b.number.f).all()):
        return Register(a.parts[0])
    return Register(symbols.kept(a.number.plus(b.number)))


def subtracted(symbols: Symbols, a: Register, b: Register) -> Register:
    """The difference, modulo 2**32."""
    return Register(symbols.kept(symbols.difference(a.number, b.number)), parts=(a.number, b.number))


def chosen(symbols: Symbols, condition: Sums, yes: Register, no: Register) -> Register:
    """`yes` where a condition is 1, `no` where it is 0; by a known condition sets are kept."""
    number = symbols.chosen(condition, yes.number, no.number)
    if not condition.constant.all():
        return Register(number)
    holds = condition.low == 1
    sets: list[Members | None] = []
    for first, second, sign in ((yes.largest, no.largest, 1), (yes.smallest, no.smallest, -1)):
        if first is None and second is None:
            sets.append(None)
            continue
        one, other = (
            Members.of(item.number.scaled(sign)) if part is None else part
            for item, part in ((yes, first), (no, second))
        )
        sets.append(one.where(holds, other))
    return Register(number, sets[0], sets[1])


def larger(symbols: Symbols, a: Register, b: Register) -> Register:
    """The larger one, as int32."""
    return _joined(symbols, _word(symbols, a), _word(symbols, b))


def smaller(symbols: Symbols, a: Register, b: Register) -> Register:
    """The smaller one: the negative of the largest negative."""
    return _negative(_joined(symbols, _negative(_word(symbols, a)), _negative(_word(symbols, b))))


def _joined(symbols: Symbols, a: Register, b: Register) -> Register:
    one, other = (Members.of(item.number) if item.largest is None else item.largest for item in (a, b))
    joined, values = one.joined(other), symbols.values
    opposite = ((a.number.f + b.number.f) % np.array(values.primes, np.uint64) == 0).all(axis=-1)
    low = np.where(opposite & (joined.count > 0), np.maximum(joined.low, 0), joined.low)
    joined = dataclasses.replace(joined, low=low)
    values.degree = max(values.degree, a.number.degree, b.number.degree)
    return Register(joined.largest(symbols), joined)


def _negative(a: Register) -> Register:
    return Register(a.number.scaled(-1), a.smallest, a.largest)


def _word(symbols: Symbols, a: Register) -> Register:
    """As int32; what is one already keeps its sets."""
    return Register(symbols.word(a.number)) if a.number.overflows else a


def largest_of(symbols: Symbols, given: Register, axis: int, valid: np.ndarray | None = None) -> Register:
    """The largest int32 along an axis, which keeps one element; of those that are `valid`, if that is given."""
    elements = _word(symbols, given)
    members = Members.of(elements.number) if elements.largest is None else elements.largest
    if valid is not None:
        least = Members(*(np.zeros_like(part) for part in vars(members).values()))
        least = dataclasses.replace(
            least, low=least.low + _LEAST, high=least.high + _LEAST, floor=least.floor + _LEAST
        )
        members = members.where(valid, least)
    found = members.over(axis)
    symbols.values.degree = max(symbols.values.degree, elements.number.degree)
    return Register(found.largest(symbols), found)
