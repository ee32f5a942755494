"""Operators on rows whose results are sums, extremes and quotients: each is a kernel, made of expressions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

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
from weft.compiler.kernel.operators import (
    FINE,
    MEAN_PLACES,
    RowOp,
    middle_of,
    spread_of,
    whole_number,
)

SATURATED = 1 << 9
"""Steps that are beyond every int8, whatever the zero point."""
OFFSET = 1 << 12
"""Most steps that a sum may be shifted by."""
_ROOT_PLACES = 15
_INVERSE_PLACES = 30


@dataclass(frozen=True, eq=False)
class RowTotal(RowOp):
    """One number for the channels of each pixel: q = sat(round(scale * root(factor * total + offset)) + y_zero), then
    clamped to [low, high].

    `total` is of x - x_zero: "sum", "magnitudes" (their sum), "squares" (their sum), "spread" (the sum of squared
    distances from the mean), "largest" or "smallest". `root` is "" for the number itself, "root" or "inverse", one
    divided by the root. The number whose root is taken counts as at least `least`.
    """

    single: ClassVar[bool] = True

    name: str
    src: View
    dst: View
    total: str
    factor: float = 1.0
    offset: float = 0.0
    root: str = ""
    least: float = 0.0
    scale: float = 1.0
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127

    def rows(self) -> Rows:
        rows = Rows(self.src.shape[3], 1)
        total, places = _total(rows, rows.read(0), self)
        unit = math.ldexp(self.factor, -places)
        if not self.root:
            steps = _steps(total, self.scale * unit, self.scale * self.offset + self.y_zero)
            rows.store_number(_rounded(steps, self))
            return rows
        value = _positive(total, unit, self)
        if self.root == "root":
            root = value.over(value.rsqrt(), _ROOT_PLACES, WORD - 1)
            steps = _steps(root, self.scale * math.sqrt(unit) * 2.0**-_ROOT_PLACES, self.y_zero)
        else:
            # The reciprocal of a root of at least 1, with 30 places.
            inverse = constant(IMMEDIATE >> 1).over(value.rsqrt(), _INVERSE_PLACES - 22, WORD - 1)
            steps = _steps(inverse, self.scale / math.sqrt(unit) * 2.0**-_INVERSE_PLACES, self.y_zero)
            steps = (value < 1).choose(SATURATED << FINE, steps)
        rows.store_number(_rounded(steps, self))
        return rows


def _total(rows: Rows, x: Expression, op: RowTotal | RowNorm) -> tuple[Expression, int]:
    """The total of a row, and its binary places."""
    zero = op.x_zero if isinstance(op, RowTotal) else op.of_zero
    if op.total not in ("squares", "spread"):
        distance = x - zero
        total = {
            "sum": lambda: rows.sum(x) - _exact(rows.columns * zero),
            "magnitudes": lambda: rows.sum(distance.maximum(0 - distance)),
            "largest": lambda: rows.largest(x) - zero,
            "smallest": lambda: 0 - zero - rows.largest(0 - x),
        }[op.total]()
        fine = op.root or isinstance(op, RowNorm)
        places = _places(op, max(-total.low, total.high)) if fine else 0
        return total << places, places
    centred = op.total == "spread"
    most = rows.columns * (127.5**2 + 0.25 if centred else 255.0**2)
    places = _places(op, most)
    mean = middle_of(rows, x) if centred else (zero, 0)
    ceiling = math.ceil(most) if places >= 0 else math.ceil(math.ldexp(most, places)) + rows.columns
    return spread_of(rows, x, mean, places, ceiling), places


def _places(op: RowTotal | RowNorm, most: float) -> int:
    """The binary places of a total of at most `most`, so that what is added to it still fits."""
    fine = op.root or isinstance(op, RowNorm)
    added = max(abs(op.offset), op.least) / abs(op.factor) if fine else 0.0
    return min(16, math.floor(30.9 - math.log2(most + added)))


def _positive(total: Expression, unit: float, op: RowTotal | RowNorm) -> Expression:
    """What a root is taken of, in steps of `unit`."""
    added, least = (math.ceil(value / unit) for value in (op.offset, op.least))
    return (total + _bounded(added)).maximum(_bounded(least))


@dataclass(frozen=True, eq=False)
class RowScale(RowOp):
    """The elements of each row with a number for it, which is in a tensor of one channel.

    q = sat(round(scale * (x - x_zero) * g) + y_zero), then clamped to [low, high], where `by` tells what g is: the
    number r - r_zero ("times"), its reciprocal ("over"), or 1 / sqrt(r - r_zero + offset) ("root"). Without a number
    g is 1. With `centre` the mean of the row takes the place of `x_zero`. A division by 0, or a root of less, is
    saturated with the sign of the element, and 0 by 0 to the lower end, as QuantizeLinear of ONNX Runtime does.
    """

    name: str
    src: View
    number: View | None
    dst: View
    by: str = ""
    offset: float = 0.0
    scale: float = 1.0
    x_zero: int = 0
    r_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    centre: bool = False

    @property
    def sources(self) -> tuple[View, ...]:
        return (self.src,) if self.number is None else (self.src, self.number)

    def rows(self) -> Rows:
        rows = Rows(self.src.shape[3], len(self.sources))
        distance = _distance(rows, self)
        scale = math.ldexp(self.scale, -MEAN_PLACES)
        if self.number is None:
            rows.store(_rounded(_steps(distance, scale, self.y_zero), self))
            return rows
        number = rows.number(1) - self.r_zero
        if self.by == "times":
            steps = _steps(distance.times(number), scale, self.y_zero)
        elif self.by == "over":
            steps = _quotient(distance, number, number.reciprocal(), scale, self.y_zero)
        else:
            value = (number << _SQUARE_PLACES) + _exact(round(math.ldexp(self.offset, _SQUARE_PLACES)))
            scale = math.ldexp(scale, _SQUARE_PLACES // 2)
            steps = _quotient(distance, value.maximum(0), value.rsqrt(), scale, self.y_zero)
        rows.store(_rounded(steps, self))
        return rows


_SQUARE_PLACES = 20
"""Places of the number whose root divides."""


@dataclass(frozen=True, eq=False)
class RowNorm(RowOp):
    """The elements of each row, divided by a total of the row of another tensor.

    q = sat(round(scale * (x - x_zero) / root(factor * total + offset)) + y_zero), then clamped to [low, high]; `total`,
    `root` ("" or "root") and `least` are as in `RowTotal`, of the integers of `of` less `of_zero`. With `centre`
    the mean of the row takes the place of `x_zero`. A division by 0 is as in `RowScale`.
    """

    name: str
    src: View
    of: View
    dst: View
    total: str
    factor: float = 1.0
    offset: float = 0.0
    root: str = ""
    least: float = 0.0
    scale: float = 1.0
    x_zero: int = 0
    of_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    centre: bool = False

    @property
    def sources(self) -> tuple[View, ...]:
        return self.src, self.of

    def rows(self) -> Rows:
        rows = Rows(self.src.shape[3], 2)
        total, places = _total(rows, rows.read(1), self)
        unit = math.ldexp(self.factor, -places)
        distance, scale = _distance(rows, self), math.ldexp(self.scale, -MEAN_PLACES)
        if self.root:
            value = _positive(total, unit, self)
            steps = _quotient(distance, value, value.rsqrt(), scale / math.sqrt(unit), self.y_zero)
        else:
            value = total + _exact(round(self.offset / unit))
            steps = _quotient(distance, value, value.reciprocal(), scale / unit, self.y_zero)
        rows.store(_rounded(steps, self))
        return rows


@dataclass(frozen=True, eq=False)
class RowShare(RowOp):
    """The elements of each row, divided by the sum of their magnitudes: q = sat(round(scale * (x - x_zero) / sum)
    + y_zero), then clamped to [low, high]. Rows of zeros stay zeros."""

    name: str
    src: View
    dst: View
    scale: float = 1.0
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127

    def rows(self) -> Rows:
        rows = Rows(self.src.shape[3], 1)
        x = rows.read(0)
        distance = x - self.x_zero
        total = rows.sum(distance.maximum(0 - distance))
        fine = (x << MEAN_PLACES) - (self.x_zero << MEAN_PLACES)
        steps = _divided(fine, total.maximum(1).reciprocal(), math.ldexp(self.scale, -MEAN_PLACES))
        rows.store(_rounded(_shifted(steps, self.y_zero), self))
        return rows


@dataclass(frozen=True, eq=False)
class RowPair(RowOp):
    """Elements of two tensors, of which the second may be one row for several, or have one channel for a row.

    q = sat(round(f(a, b)) + y_zero), then clamped to [low, high], where a is (x - a_zero) * a_scale, b likewise, and
    `kind` tells what f is: "minimum", "maximum", "quotient" (a / b) or "ratio" (b / a). A division by 0 is as in
    `RowScale`. For quotients only the product of the scales' part counts: `a_scale` is theirs, and `b_scale` is 1.
    """

    name: str
    a: View
    b: View
    dst: View
    kind: str
    a_scale: float
    b_scale: float
    a_zero: int = 0
    b_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127

    @property
    def sources(self) -> tuple[View, ...]:
        return self.a, self.b

    def rows(self) -> Rows:
        rows = Rows(self.a.shape[3], 2)
        second = rows.number(1) if self.b.shape[3] < rows.columns else rows.read(1)
        a, b = rows.read(0) - self.a_zero, second - self.b_zero
        if self.kind in ("quotient", "ratio"):
            a, b = (a, b) if self.kind == "quotient" else (b, a)
            fine = a << MEAN_PLACES
            scale = math.ldexp(self.a_scale, -MEAN_PLACES)
            steps = _quotient(fine, b, b.reciprocal(), scale, self.y_zero)
        else:
            first, other = _steps(a, self.a_scale, self.y_zero), _steps(b, self.b_scale, self.y_zero)
            steps = first.minimum(other) if self.kind == "minimum" else first.maximum(other)
        rows.store(_rounded(steps, self))
        return rows


def _distance(rows: Rows, op: RowScale | RowNorm) -> Expression:
    """Elements less their mean or the zero point, with `MEAN_PLACES`."""
    x = rows.read(0)
    middle, rest = middle_of(rows, x) if op.centre else (op.x_zero, 0)
    return (x << MEAN_PLACES) - ((middle << MEAN_PLACES) + rest)


def _quotient(
    value: Expression, divisor: Expression, reciprocal: Expression, scale: float, zero: int
) -> Expression:
    """``value / divisor * scale + zero`` with `FINE` places, for the reciprocal of the divisor or of its root."""
    steps = _shifted(_divided(value, reciprocal, scale), zero)
    endless = (value < 1).choose(-SATURATED << FINE, SATURATED << FINE)
    size = divisor.maximum(0 - divisor) if divisor.low < 0 else divisor
    return (size < 1).choose(endless, steps)


def _divided(value: Expression, reciprocal: Expression, scale: float) -> Expression:
    """``value * reciprocal * scale`` with `FINE` places, saturated."""
    places = min(max(math.frexp(scale)[1] + 10, 0), RECIPROCAL_PLACES)
    return _steps(value.over(reciprocal, places, WORD - 1), math.ldexp(scale, -places), 0)


def _steps(value: Expression, factor: float, offset: float) -> Expression:
    """``value * factor + offset`` with `FINE` places; what is certainly beyond int8 is saturated."""
    most = (SATURATED + abs(offset)) / max(abs(factor), 2.0**-40)
    limit = math.ceil(min(most, WORD - 1))
    limit = (limit + 255) & ~255 if limit >= IMMEDIATE else limit
    if limit < max(-value.low, value.high):
        value = value.minimum(whole_number(limit)).maximum(_exact(-limit))
    # With a larger factor all values but 0 are beyond.
    factor = math.copysign(min(abs(factor), FACTOR / (2 << FINE)), factor)
    return _shifted(value.scaled(math.ldexp(factor, FINE)), offset)


def _shifted(steps: Expression, offset: float) -> Expression:
    """Steps with `FINE` places plus an offset."""
    return steps + round(math.ldexp(min(max(offset, -OFFSET), OFFSET), FINE)) if offset else steps


def _rounded(steps: Expression, op: RowTotal | RowScale | RowNorm | RowShare | RowPair) -> Expression:
    """The result of steps with `FINE` places."""
    result = steps.times(1, FINE)
    if op.low > -128:
        result = result.maximum(op.low)
    return result.minimum(op.high) if op.high < 127 else result


def _exact(value: int) -> Expression | int:
    """Any number of 31 bits as an operand."""
    if -IMMEDIATE <= value < IMMEDIATE:
        return value
    high = value >> 12
    return (constant(high) << 12) + (value & 0xFFF)


def _bounded(value: int) -> Expression | int:
    """A number above zero as an operand; those beyond 24 bits lose bits that do not count."""
    return whole_number(min(value, WORD - 256))
