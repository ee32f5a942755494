"""Operators on rows that multiply or divide each by a number of its own: each is a kernel, made of expressions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from weft.compiler.ir.graph import View
from weft.compiler.kernel.expressions import (
    FACTOR,
    IMMEDIATE,
    RECIPROCAL_PLACES,
    WORD,
    Expression,
    Rows,
    constant,
)
from weft.compiler.kernel.operators import FINE, MEAN_PLACES, RowOp, middle_of, spread_of, whole_number
from weft.hdl.isa.kernel import MULTIPLIER_BITS

_SATURATED_BITS = 9
SATURATED = 1 << _SATURATED_BITS
"""Steps that are beyond every int8, whatever the zero point."""
OFFSET = 1 << 12
"""Most steps that a sum may be shifted by."""


class Total(Protocol):
    """What of an operator tells a total of rows: see `RowTotal`."""

    @property
    def total(self) -> str: ...
    @property
    def factor(self) -> float: ...
    @property
    def offset(self) -> float: ...
    @property
    def root(self) -> str: ...
    @property
    def least(self) -> float: ...


def total_of(rows: Rows, x: Expression, zero: int, op: Total) -> tuple[Expression, int]:
    """The total of the elements `x` less `zero`, and its binary places: as many as there is room for if its root is
    taken."""
    if op.total not in ("squares", "spread"):
        distance = x - zero
        total = {
            "sum": lambda: rows.sum(x) - exact(rows.columns * zero),
            "magnitudes": lambda: rows.sum(distance.maximum(0 - distance)),
            "largest": lambda: rows.largest(x) - zero,
            "smallest": lambda: 0 - zero - rows.largest(0 - x),
        }[op.total]()
        places = _places(op, max(-total.low, total.high)) if op.root else 0
        return total << places, places
    centred = op.total == "spread"
    most = rows.columns * (127.5**2 + 0.25 if centred else 255.0**2)
    places = _places(op, most)
    mean = middle_of(rows, x) if centred else (zero, 0)
    ceiling = math.ceil(most) if places >= 0 else math.ceil(math.ldexp(most, places)) + rows.columns
    return spread_of(rows, x, mean, places, ceiling), places


def _places(op: Total, most: float) -> int:
    """The binary places of a total of at most `most`, so that what is added to it still fits."""
    added = max(op.offset, op.least) / op.factor if op.root else 0.0
    return min(16 if op.root else 0, math.floor(30.9 - math.log2(most + added)))


def positive(total: Expression, unit: float, op: Total) -> Expression:
    """What a root is taken of, in steps of `unit`."""
    added, least = (math.ceil(value / unit) for value in (op.offset, op.least))
    return (total + _bounded(added)).maximum(_bounded(least))


def quotient(
    value: Expression,
    divisor: Expression,
    reciprocal: Expression,
    scale: float,
    weight: Expression | None = None,
) -> Expression:
    """``value / divisor * scale`` with `FINE` places, for the reciprocal of the divisor or of its root; with a weight,
    of which 1 is ``2**15``, times that. A division by 0 is endless, and 0 by 0 the least."""
    most = SATURATED if weight is None else WEIGHTED
    places = min(max(math.frexp(scale)[1] + 10, 0), RECIPROCAL_PLACES)
    made = steps(value.over(reciprocal, places, WORD - 1), math.ldexp(scale, -places), 0, most)
    if weight is not None:
        made = made.times(weight, WEIGHT_PLACES)
    if divisor.low > 0:
        return made
    room = max(0, max(-value.low, value.high).bit_length() + WEIGHT_PLACES - 31)
    sign = value if weight is None else value.times(weight, room)
    endless = (sign.minimum(1).maximum(0) << _SATURATED_BITS + FINE + 1) - (SATURATED << FINE)
    size = divisor.maximum(0 - divisor) if divisor.low < 0 else divisor
    return (size < 1).choose(endless, made)


WEIGHTED = 1 << 20
"""Steps that saturate what is multiplied with a weight of at most 1."""
WEIGHT_PLACES = 15


def steps(value: Expression, factor: float, offset: float, most: int = SATURATED) -> Expression:
    """``value * factor + offset`` with `FINE` places; what is certainly beyond `most`, or an offset beyond `OFFSET` or
    `most`, is saturated."""
    limit = math.ceil(min((most + abs(offset)) / max(abs(factor), 2.0**-40), WORD - 1))
    limit = (limit + 255) & ~255 if limit >= IMMEDIATE else limit
    if limit < max(-value.low, value.high):
        value = value.minimum(whole_number(limit)).maximum(exact(-limit))
    # With a larger factor all values but 0 are beyond.
    factor = math.copysign(min(abs(factor), 2.0 * (most + min(abs(offset), max(OFFSET, most)))), factor)
    places = max(0, math.frexp(abs(factor) / (FACTOR >> FINE + 1))[1])
    made = (value << places if places else value).scaled(math.ldexp(factor, FINE - places))
    return shifted(made, offset, max(OFFSET, most))


def shifted(value: Expression, offset: float, most: int = OFFSET) -> Expression:
    """Steps with `FINE` places plus an offset of at most so many."""
    if not offset:
        return value
    added = exact(round(math.ldexp(min(max(offset, -most), most), FINE)))
    return value + added


def rounded(value: Expression, op: RowOp) -> Expression:
    """The result of steps with `FINE` places."""
    result = value.times(1, FINE)
    if op.low > -128:
        result = result.maximum(op.low)
    return result.minimum(op.high) if op.high < 127 else result


def exact(value: int) -> Expression | int:
    """Any number of 31 bits as an operand."""
    if -IMMEDIATE <= value < IMMEDIATE:
        return value
    return (constant(value >> 12) << 12) + (value & 0xFFF)


def _bounded(value: int) -> Expression | int:
    """A number above zero as an operand; those beyond 24 bits lose bits that do not count."""
    return whole_number(min(value, WORD - 256))


LOG_PLACES = 17
"""Binary places of logarithms."""
_LOG = (2, 130963, -64186, 37201, -17034, 3907)
"""log(1 + t) for t from 0 to 1 as a polynomial with `LOG_PLACES`, at most 2.2e-5 off."""


def logarithm(value: Expression) -> Expression:
    """The natural logarithm of a number of at least 1, with `LOG_PLACES`: at most 1.6e-4 off.

    The reciprocal is ``f / 2**(15 + e)`` with f from 2**15 to 2**16, so that it is ``e log 2 - log(f / 2**15)``.
    """
    packed = value.reciprocal()
    exponent = packed.floored(MULTIPLIER_BITS).known(0, 31)
    least = 1 << RECIPROCAL_PLACES
    t = (packed - ((exponent << MULTIPLIER_BITS) + least)).known(0, least - 1)
    found = t.times(_LOG[-1], RECIPROCAL_PLACES) + _LOG[-2]
    for factor in _LOG[-3::-1]:
        found = found.times(t, RECIPROCAL_PLACES) + factor
    return exponent.times(round(math.ldexp(math.log(2), LOG_PLACES))) - found


_SQUARE_PLACES = 20
"""Places of the number whose root divides."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RowProduct(RowOp):
    """Elements of rows times a number g for each row: q = sat(round(scale * (gain * (x - x_zero) * g * weight + bias))
    + y_zero), then clamped to [low, high].

    `weight` and `bias` are float64 (channels,), or None for 1 and 0; weights have 16 bits below the largest. With
    `centre` the mean of the row takes the place of `x_zero`. A division by 0 is saturated with the sign of the element,
    and 0 by 0 to the lower end, as QuantizeLinear of ONNX Runtime does.
    """

    name: str
    src: View
    dst: View
    gain: float = 1.0
    weight: np.ndarray | None = None
    bias: np.ndarray | None = None
    scale: float = 1.0
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    centre: bool = False

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """Weights, of which the largest is 2**15, and biases."""
        if self.weight is None or self.bias is None:
            return ()
        weight = np.rint(np.ldexp(self.weight / self._largest, WEIGHT_PLACES))
        bias = np.rint(np.ldexp(self.bias * self.scale + self.y_zero, FINE))
        return tuple(np.clip(item, -(1 << 15), (1 << 15) - 1).astype(np.int16) for item in (weight, bias))

    @property
    def _largest(self) -> float:
        return 1.0 if self.weight is None else float(np.abs(self.weight).max()) or 1.0

    def begin(self) -> tuple[Rows, Expression]:
        """The kernel, and the elements less their mean or the zero point, with `MEAN_PLACES`."""
        rows = Rows(self.src.shape[3], len(self.sources) + len(self.vectors))
        x = rows.read(0)
        middle, rest = middle_of(rows, x) if self.centre else (self.x_zero, 0)
        return rows, (x << MEAN_PLACES) - ((middle << MEAN_PLACES) + rest)

    def end(
        self, rows: Rows, value: Expression, factor: float, by: tuple[Expression, Expression] | None = None
    ) -> Rows:
        """Store ``value * factor``, divided `by` a number, with the reciprocal of it or of its root."""
        factor = math.ldexp(factor * self.gain * self.scale * self._largest, -MEAN_PLACES)
        at, weighted = len(self.sources), bool(self.vectors)
        weight = rows.wide(at) if weighted else None
        if by is not None:
            made = quotient(value, *by, factor, weight)
        else:
            made = steps(value, factor, 0, WEIGHTED if weighted else SATURATED)
            made = made if weight is None else made.times(weight, WEIGHT_PLACES)
        rows.store(rounded(rows.wide(at + 1, made) if weighted else shifted(made, self.y_zero), self))
        return rows


@dataclass(frozen=True, eq=False, kw_only=True)
class RowScale(RowProduct):
    """With a number r for each row in a tensor of one channel: `by` tells what g is, r - r_zero ("times"), its
    reciprocal ("over"), or 1 / sqrt(r - r_zero + offset) ("root"). Without `number` g is 1."""

    number: View | None = None
    by: str = ""
    offset: float = 0.0
    r_zero: int = 0

    @property
    def sources(self) -> tuple[View, ...]:
        return (self.src,) if self.number is None else (self.src, self.number)

    def rows(self) -> Rows:
        rows, value = self.begin()
        if self.number is None:
            return self.end(rows, value, 1.0)
        number = rows.number(1) - self.r_zero
        if self.by == "times":
            return self.end(rows, value.times(number), 1.0)
        if self.by == "over":
            return self.end(rows, value, 1.0, (number, number.reciprocal()))
        square = (number << _SQUARE_PLACES) + exact(round(math.ldexp(self.offset, _SQUARE_PLACES)))
        square = square.maximum(0) if square.low < 0 else square
        return self.end(rows, value, 2.0 ** (_SQUARE_PLACES // 2), (square, square.rsqrt()))


@dataclass(frozen=True, eq=False, kw_only=True)
class RowNorm(RowProduct):
    """Divided by a total of the row of another tensor: g is 1 / root(factor * total + offset), where `total`, `root`
    ("" or "root") and `least` are as in `RowTotal`, of the integers of `of` less `of_zero`. Without a root `offset`
    counts only where the total is 0: it must be far below `factor`, and no total negative."""

    of: View
    total: str
    factor: float = 1.0
    offset: float = 0.0
    root: str = ""
    least: float = 0.0
    of_zero: int = 0

    @property
    def sources(self) -> tuple[View, ...]:
        return self.src, self.of

    def rows(self) -> Rows:
        rows, value = self.begin()
        total, places = total_of(rows, rows.read(1), self.of_zero, self)
        unit = math.ldexp(self.factor, -places)
        if self.root:
            square = positive(total, unit, self)
            return self.end(rows, value, 1 / math.sqrt(unit), (square, square.rsqrt()))
        number = total.maximum(1) if self.offset else total
        return self.end(rows, value, 1 / unit, (number, number.reciprocal()))


@dataclass(frozen=True, eq=False, kw_only=True)
class RowShare(RowProduct):
    """Divided by the sum of the magnitudes of the row. Rows of zeros stay zeros."""

    def rows(self) -> Rows:
        rows, value = self.begin()
        distance = rows.read(0) - self.x_zero
        total = rows.sum(distance.maximum(0 - distance)).maximum(1)
        return self.end(rows, value, 1.0, (total, total.reciprocal()))
