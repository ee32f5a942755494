"""Row operators that multiply or divide each row by a number of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from weft.compiler.ir.views import View
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
    FRACTION_PLACES,
    MEAN_PLACES,
    RowOp,
    mean_of,
    spread_of,
    whole_number,
)
from weft.hdl.isa.kernel import MULTIPLIER_BITS

_SATURATED_BITS = 9
SATURATED = 1 << _SATURATED_BITS
"""Steps that exceed every int8, whatever the zero point."""
LARGEST_OFFSET = 1 << 12
"""Most steps that may be added to a sum."""


class Total(Protocol):
    """Fields of an operator that describe a total of rows (see `RowTotal`)."""

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
    """Return the total of the elements `x` less `zero`, and its binary places: as many as fit if a root follows."""
    if op.total not in ("squares", "spread"):
        distance = x - zero
        total = {
            "sum": lambda: rows.sum(x) - exact_constant(rows.columns * zero),
            "magnitudes": lambda: rows.sum(distance.maximum(0 - distance)),
            "largest": lambda: rows.largest(x) - zero,
            "smallest": lambda: 0 - zero - rows.largest(0 - x),
        }[op.total]()
        places = _places(op, max(-total.low, total.high)) if op.root else 0
        return total << places, places
    # Sums of squares: bounded by the range of bytes, with as many places as fit.
    centred = op.total == "spread"
    most = rows.columns * (127.5**2 + 0.25 if centred else 255.0**2)
    places = _places(op, most)
    mean = mean_of(rows, x) if centred else (zero, 0)
    ceiling = math.ceil(most) if places >= 0 else math.ceil(math.ldexp(most, places)) + rows.columns
    return spread_of(rows, x, mean, places, ceiling), places


def _places(op: Total, most: float) -> int:
    """Return the binary places of a total of at most `most` such that the operator's offset still fits."""
    added = max(op.offset, op.least) / op.factor if op.root else 0.0
    return min(16 if op.root else 0, math.floor(30.9 - math.log2(most + added)))


def radicand(total: Expression, unit: float, op: Total) -> Expression:
    """Return the radicand of the total's root, in steps of `unit`."""
    added, least = (math.ceil(value / unit) for value in (op.offset, op.least))
    return (total + _bounded_number(added)).maximum(_bounded_number(least))


def quotient(
    value: Expression,
    divisor: Expression,
    reciprocal: Expression,
    scale: float,
    weight: Expression | None = None,
) -> Expression:
    """Return ``value / divisor * scale`` with `FRACTION_PLACES`, from the reciprocal of the divisor or of its root.

    With a weight, in units of ``2**-15``, it is multiplied by that. Division by 0 is saturated, and 0 by 0 the least
    result.
    """
    most = SATURATED if weight is None else WEIGHTED
    places = min(max(math.frexp(scale)[1] + 10, 0), RECIPROCAL_PLACES)
    result = steps(value.over(reciprocal, places, WORD - 1), math.ldexp(scale, -places), 0, most)
    if weight is not None:
        result = result.times(weight, WEIGHT_PLACES)
    if divisor.low > 0:
        return result
    # Shift the product so that its sign fits 32 bits.
    room = max(0, max(-value.low, value.high).bit_length() + WEIGHT_PLACES - 31)
    sign = value if weight is None else value.times(weight, room)
    endless = (sign.minimum(1).maximum(0) << _SATURATED_BITS + FRACTION_PLACES + 1) - (
        SATURATED << FRACTION_PLACES
    )
    size = divisor.maximum(0 - divisor) if divisor.low < 0 else divisor
    return (size < 1).choose(endless, result)


WEIGHTED = 1 << 20
"""Steps that saturate a value which a weight of at most 1 still multiplies."""
WEIGHT_PLACES = 15


def steps(value: Expression, factor: float, offset: float, most: int = SATURATED) -> Expression:
    """Return ``value * factor + offset`` with `FRACTION_PLACES` places.

    Values that are certainly beyond `most`, and offsets beyond `LARGEST_OFFSET` or `most`, are saturated.
    """
    # Clamp before the multiplication, which must not exceed 32 bits.
    limit = math.ceil(min((most + abs(offset)) / max(abs(factor), 2.0**-40), WORD - 1))
    limit = (limit + 255) & ~255 if limit >= IMMEDIATE else limit
    if limit < max(-value.low, value.high):
        value = value.minimum(whole_number(limit)).maximum(exact_constant(-limit))
    # A larger factor saturates all values but 0.
    factor = math.copysign(
        min(abs(factor), 2.0 * (most + min(abs(offset), max(LARGEST_OFFSET, most)))), factor
    )
    places = max(0, math.frexp(abs(factor) / (FACTOR >> FRACTION_PLACES + 1))[1])
    result = (value << places if places else value).scale(math.ldexp(factor, FRACTION_PLACES - places))
    return add_offset(result, offset, max(LARGEST_OFFSET, most))


def add_offset(value: Expression, offset: float, most: int = LARGEST_OFFSET) -> Expression:
    """Return steps with `FRACTION_PLACES` places plus an offset of at most `most` steps."""
    if not offset:
        return value
    added = exact_constant(round(math.ldexp(min(max(offset, -most), most), FRACTION_PLACES)))
    return value + added


def round_and_clamp(value: Expression, op: RowOp) -> Expression:
    """Return the result of steps with `FRACTION_PLACES` places, rounded and clamped."""
    result = value.times(1, FRACTION_PLACES)
    if op.low > -128:
        result = result.maximum(op.low)
    return result.minimum(op.high) if op.high < 127 else result


def exact_constant(value: int) -> Expression | int:
    """Return a 31-bit number as an operand, without rounding."""
    if -IMMEDIATE <= value < IMMEDIATE:
        return value
    return (constant(value >> 12) << 12) + (value & 0xFFF)


def _bounded_number(value: int) -> Expression | int:
    """Return a radicand number as an operand; of more than 24 bits, the least significant are dropped."""
    return whole_number(min(value, WORD - 256))


LOG_PLACES = 17
"""Binary places of logarithms."""
_LOG = (2, 130963, -64186, 37201, -17034, 3907)
"""Coefficients of log(1 + t) for t from 0 to 1, with `LOG_PLACES` places; the error is at most 2.2e-5."""


def logarithm(value: Expression) -> Expression:
    """Return the natural logarithm of a number of at least 1, with `LOG_PLACES`; the error is at most 1.6e-4.

    The reciprocal is ``f / 2**(15 + e)`` with f from 2**15 to 2**16, so that it is ``e log 2 - log(f / 2**15)``.
    """
    packed = value.reciprocal()
    exponent = packed.shift_right(MULTIPLIER_BITS).assume(0, 31)
    least = 1 << RECIPROCAL_PLACES
    t = (packed - ((exponent << MULTIPLIER_BITS) + least)).assume(0, least - 1)
    polynomial = t.times(_LOG[-1], RECIPROCAL_PLACES) + _LOG[-2]
    for factor in _LOG[-3::-1]:
        polynomial = polynomial.times(t, RECIPROCAL_PLACES) + factor
    return exponent.times(round(math.ldexp(math.log(2), LOG_PLACES))) - polynomial


_SQUARE_PLACES = 20
"""Binary places of the radicand of a divisor."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RowProduct(RowOp):
    """Base of operators that multiply rows by a number g per row.

    q = sat(round(scale * (gain * (x - x_zero) * g * weight + bias)) + y_zero), then clamped to [low, high].

    `weight` and `bias` are float64 (channels,), or None for 1 and 0; weights are rounded to 16 bits, relative to the
    largest. With `centre` the row's mean replaces `x_zero`. Division by 0 saturates with the sign of the element, and
    0 by 0 to the lower end, as in QuantizeLinear of ONNX Runtime.
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
        bias = np.rint(np.ldexp(self.bias * self.scale + self.y_zero, FRACTION_PLACES))
        return tuple(np.clip(item, -(1 << 15), (1 << 15) - 1).astype(np.int16) for item in (weight, bias))

    @property
    def _largest(self) -> float:
        return 1.0 if self.weight is None else float(np.abs(self.weight).max()) or 1.0

    def begin(self) -> tuple[Rows, Expression]:
        """Return the kernel, and the elements less their mean or zero point, with `MEAN_PLACES`."""
        rows = Rows(self.src.shape[3], len(self.sources) + len(self.vectors))
        x = rows.read(0)
        middle, fraction = mean_of(rows, x) if self.centre else (self.x_zero, 0)
        return rows, (x << MEAN_PLACES) - ((middle << MEAN_PLACES) + fraction)

    def end(
        self, rows: Rows, value: Expression, factor: float, by: tuple[Expression, Expression] | None = None
    ) -> Rows:
        """Store ``value * factor``, divided by `by`: (number, reciprocal of it or of its root)."""
        factor = math.ldexp(factor * self.gain * self.scale * self._largest, -MEAN_PLACES)
        at, weighted = len(self.sources), bool(self.vectors)
        weight = rows.wide(at) if weighted else None
        if by is not None:
            product = quotient(value, *by, factor, weight)
        else:
            product = steps(value, factor, 0, WEIGHTED if weighted else SATURATED)
            product = product if weight is None else product.times(weight, WEIGHT_PLACES)
        rows.store(
            round_and_clamp(
                rows.wide(at + 1, product) if weighted else add_offset(product, self.y_zero), self
            )
        )
        return rows


@dataclass(frozen=True, eq=False, kw_only=True)
class RowScale(RowProduct):
    """Rows times g, from a number r per row in a tensor of one channel.

    `by` selects g: r - r_zero ("times"), its reciprocal ("over"), or 1 / sqrt(r - r_zero + offset) ("root"). Without
    `number` g is 1.
    """

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
        square = (number << _SQUARE_PLACES) + exact_constant(round(math.ldexp(self.offset, _SQUARE_PLACES)))
        square = square.maximum(0) if square.low < 0 else square
        return self.end(rows, value, 2.0 ** (_SQUARE_PLACES // 2), (square, square.rsqrt()))


@dataclass(frozen=True, eq=False, kw_only=True)
class RowNorm(RowProduct):
    """Rows divided by a total of another tensor's row: g is 1 / root(factor * total + offset).

    `total`, `root` ("" or "root") and `least` are as in `RowTotal`, for the integers of `of` less `of_zero`. Without
    a root `offset` matters only where the total is 0: it must be far below `factor`, and no total negative.
    """

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
            square = radicand(total, unit, self)
            return self.end(rows, value, 1 / math.sqrt(unit), (square, square.rsqrt()))
        number = total.maximum(1) if self.offset else total
        return self.end(rows, value, 1 / unit, (number, number.reciprocal()))


@dataclass(frozen=True, eq=False, kw_only=True)
class RowShare(RowProduct):
    """Rows divided by the sum of their magnitudes; rows of zeros stay zeros."""

    def rows(self) -> Rows:
        rows, value = self.begin()
        distance = rows.read(0) - self.x_zero
        total = rows.sum(distance.maximum(0 - distance)).maximum(1)
        return self.end(rows, value, 1.0, (total, total.reciprocal()))
