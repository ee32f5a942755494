"""Operators on rows whose results are totals of them, places in them, or made of elements of two: each is a kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weft.compiler.ir.graph import View
from weft.compiler.kernel.evaluate import LIMITS
from weft.compiler.kernel.expressions import (
    DIGITS,
    FACTOR,
    IMMEDIATE,
    WORD,
    Expression,
    Rows,
    constant,
    digits,
    entry,
)
from weft.compiler.kernel.operators import FINE, MEAN_PLACES, RowOp
from weft.compiler.kernel.products import (
    LOG_PLACES,
    SATURATED,
    exact,
    logarithm,
    positive,
    quotient,
    rounded,
    shifted,
    steps,
    total_of,
)
from weft.hdl.isa.config import LOOKUP_ENTRIES

_ROOT_PLACES = 15
_INVERSE_PLACES = 30
_PLACE_BITS = 16
"""Bits of the number of an element in its row."""


@dataclass(frozen=True, eq=False)
class RowTotal(RowOp):
    """One number for the channels of each pixel: q = sat(round(scale * root(factor * total + offset)) + y_zero), then
    clamped to [low, high].

    `total` is of x - x_zero: "sum", "magnitudes" (their sum), "squares" (their sum), "spread" (the sum of squared
    distances from the mean), "largest" or "smallest". `root` is "" for the number itself, "root" or "inverse", one
    divided by the root. Before that the number counts as at least `least`, if that is above 0.
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
        total, places = total_of(rows, rows.read(0), self.x_zero, self)
        unit = math.ldexp(self.factor, -places)
        if not self.root:
            made = steps(total, self.scale * unit, self.scale * self.offset + self.y_zero)
            if self.least:
                made = made.maximum(
                    round(math.ldexp(min(self.scale * self.least, SATURATED) + self.y_zero, FINE))
                )
            rows.store_number(rounded(made, self))
            return rows
        value = positive(total, unit, self)
        if self.root == "root":
            root = value.over(value.rsqrt(), _ROOT_PLACES, WORD - 1)
            made = steps(root, self.scale * math.sqrt(unit) * 2.0**-_ROOT_PLACES, self.y_zero)
        else:
            # The reciprocal of a root of at least 1, with 30 places.
            inverse = constant(IMMEDIATE >> 1).over(value.rsqrt(), _INVERSE_PLACES - 22, WORD - 1)
            made = steps(inverse, self.scale / math.sqrt(unit) * 2.0**-_INVERSE_PLACES, self.y_zero)
            made = (value < 1).choose(SATURATED << FINE, made)
        rows.store_number(rounded(made, self))
        return rows


@dataclass(frozen=True, eq=False)
class RowPlace(RowOp):
    """Where the largest element of the channels of each pixel is, or the `smallest`: the first of several, or the
    `final` one. Of that channel's number 128 is taken off, or with `wide` 32768, which is then 16 bits."""

    single: ClassVar[bool] = True

    name: str
    src: View
    dst: View
    smallest: bool = False
    final: bool = False
    wide: bool = False
    low: int = -128
    high: int = 127

    def rows(self) -> Rows:
        rows = Rows(self.src.shape[3], 1)
        x, index, last = rows.read(0), rows.index(), (1 << _PLACE_BITS) - 1
        # Behind the element are digits by which equal ones differ.
        behind = index if self.final else last - index
        best = rows.largest(((-1 - x if self.smallest else x) << _PLACE_BITS) + behind)
        digits = (best - (best.floored(_PLACE_BITS) << _PLACE_BITS)).known(0, last)
        place = digits if self.final else last - digits
        rows.store_number(place - (1 << 15 if self.wide else 128), wide=self.wide)
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
        a, b = rows.read(0) - self.a_zero, rows.operand(1, self.b.shape[3]) - self.b_zero
        if self.kind in ("quotient", "ratio"):
            a, b = (a, b) if self.kind == "quotient" else (b, a)
            fine = a << MEAN_PLACES
            scale = math.ldexp(self.a_scale, -MEAN_PLACES)
            made = shifted(quotient(fine, b, b.reciprocal(), scale), self.y_zero)
        else:
            first, other = steps(a, self.a_scale, self.y_zero), steps(b, self.b_scale, self.y_zero)
            made = first.minimum(other) if self.kind == "minimum" else first.maximum(other)
        rows.store(rounded(made, self))
        return rows


LOGARITHM_TABLES = 3
"""Look-up tables of a `RowLogSoftmax`."""
WHOLE_LOGARITHMS = 2048
"""Most elements of a row whose exponentials are added up in one number."""
_LEVELS = np.arange(-255, 1)
"""What an element may be less the largest one of its row."""


@dataclass(frozen=True, eq=False)
class RowLogSoftmax(RowOp):
    """The channels of each pixel less the logarithm of the sum of their exponentials.

    q = sat(round(scale * (x_scale * x - log(sum exp(x_scale * x)))) + y_zero), then clamped to [low, high].
    Exponentials come from tables, and have 24 bits, or as many as a sum has room for; the logarithm of their sum is at
    most 0.005 off.
    """

    name: str
    src: View
    dst: View
    x_scale: float
    scale: float = 1.0
    y_zero: int = 0
    low: int = -128
    high: int = 127

    def rows(self) -> Rows:
        rows = Rows(self.src.shape[3], 1)
        x = rows.read(0)
        largest = rows.largest(x)
        total, unit = self._total(rows, (x - (largest - 127)).known(-128, 127))
        spread = logarithm(total) - round(math.ldexp(math.log(unit), LOG_PLACES))
        behind = steps(spread, -math.ldexp(self.scale, -LOG_PLACES), self.y_zero)
        rows.store(rounded(steps(x - largest, self.x_scale * self.scale, 0) + behind, self))
        return rows

    def _total(self, rows: Rows, place: Expression) -> tuple[Expression, float]:
        """The sum of the exponentials less the largest element, and the unit that it is in."""
        apart = rows.columns > WHOLE_LOGARITHMS
        unit = float(DIGITS << 8 if apart else min(DIGITS << 8, (WORD - 1) // rows.columns - 1))
        entries = np.rint(np.exp(_LEVELS * self.x_scale) * unit)
        first, second, third = (place.looked_up(digit) for digit in digits(entries, LOGARITHM_TABLES))
        if not apart:
            element = (((first << 8) + second) << 8) + third
            return rows.sum(element.known(0, int(unit))).maximum(1), unit
        upper, lower = rows.sum((first << 8) + second), rows.sum(third)
        return (upper + lower.times(1, 8)).maximum(1), unit / 256


POWER_TABLES = 4
"""Look-up tables of a `RowPower`: two each for logarithms and exponentials of 16 bits."""
MOST = 100.0
"""The largest logarithm of a power, of exponents and bases that there can be, for which it is at most one step off."""
_ENDS = math.log(0.02), math.log(300)
"""Logarithms of results, in steps, between which there are entries: those below are 0, those above saturated."""
_PLACES = 14
_BEYOND = 26
"""Places, as a power of two, that are beyond the ends of the table, whatever scale of float32 results have."""


@dataclass(frozen=True, eq=False)
class RowPower(RowOp):
    """Elements of one tensor to the power of those of another: q = sat(round(scale * a**b) + y_zero), then clamped to
    [low, high], where a is (x + 128) * a_step, which is not negative, and b is (e - b_zero) * b_step.

    The bases x are `first`, or with `swapped` they are `second`, and the exponents e the other. `second` may be one
    row for several, or have one channel for a row. A power of 0 is 0, 1, or endless, as the exponent is above, equal
    to, or below 0. Logarithms are from a table, and exponentials on straight lines between entries.
    """

    name: str
    first: View
    second: View
    dst: View
    a_step: float
    b_step: float
    b_zero: int
    swapped: bool = False
    scale: float = 1.0
    y_zero: int = 0
    low: int = -128
    high: int = 127

    @property
    def sources(self) -> tuple[View, ...]:
        return self.first, self.second

    def rows(self) -> Rows:
        rows = Rows(self.first.shape[3], 2)
        values = rows.read(0), rows.operand(1, self.second.shape[3])
        base, exponent = values[::-1] if self.swapped else values
        power = exponent - self.b_zero
        rows.store(rounded(self._exponential(self._place(base, power)), self))
        return rows

    def _place(self, base: Expression, power: Expression) -> Expression:
        """Where the logarithm of a power lies between entries, with `_PLACES`."""
        places = (1 << _PLACES) * (LOOKUP_ENTRIES - 1) / (_ENDS[1] - _ENDS[0])
        levels = np.log(np.maximum(np.arange(LOOKUP_ENTRIES), 1) * self.a_step)
        unit = float(np.abs(levels).max()) / DIGITS
        logarithm = entry(base, np.rint(levels / unit).astype(np.int16))
        factor = min(self.b_step * unit * places, FACTOR / 2)
        product, most = logarithm.times(power), math.ceil((2 << _BEYOND) / factor)
        if most < max(-product.low, product.high):
            product = product.minimum(most).maximum(-most)
        # Of a base of 0 it is endless.
        endless = (0 - power.minimum(1).maximum(-1)) << _BEYOND + 1
        offset = (math.log(self.scale) - _ENDS[0]) * places
        found = (base < -127).choose(endless, product.scaled(factor))
        return found + exact(round(offset) - (LOOKUP_ENTRIES // 2 << _PLACES))

    def _exponential(self, place: Expression) -> Expression:
        """Steps with `FINE` places."""
        entries = np.exp(np.linspace(*_ENDS, LOOKUP_ENTRIES))
        gain = DIGITS / entries[-1]
        made = place.interpolated(np.rint(entries * gain).astype(np.int16), _PLACES)
        return shifted(made.scaled(math.ldexp(1 / gain, FINE)), self.y_zero)


WHOLE = 255 << 8
"""The largest sum: the last entry of a table is for it."""
FLAT = 16.0
"""How many times the bias what comes of the largest sum may be for one table to do, and the square of it for two."""
_FINE_PLACES = 4
_ROW_RESPONSE_PLACES = 8
_FINE_END = 255 << _FINE_PLACES


@dataclass(frozen=True, eq=False)
class RowResponse(RowOp):
    """Elements times a power of a sum for each: q = sat(round(scale * (x - x_zero) * (bias + gain * sum)**-power)
    + y_zero), then clamped to [low, high].

    `sums` has 16 bits, and stands for whole numbers from 0 to `WHOLE`, stored less 32768. The power is interpolated
    between entries of 16 bits; below a sixteenth of `WHOLE` entries are closer, if the largest gain is above `FLAT`
    times the bias. For powers up to 1, and gains up to `FLAT` squared, it is at most 0.2 % off.
    """

    name: str
    src: View
    sums: View
    dst: View
    bias: float
    gain: float
    power: float
    scale: float = 1.0
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127

    @property
    def sources(self) -> tuple[View, ...]:
        return (self.src, *self.sums.planes)

    def rows(self) -> Rows:
        rows = Rows(self.src.shape[3], 3)
        total, unit = rows.bytes_of(1, 2), self._power(0) / DIGITS
        if tables(self.gain * WHOLE / self.bias) == 2:
            factor = self._interpolated(total, _ROW_RESPONSE_PLACES, unit)
        else:
            # What is only for larger sums has finer steps.
            more = math.floor(
                math.log2(
                    self._power(0) / self._power(_FINE_END >> _ROW_RESPONSE_PLACES << _ROW_RESPONSE_PLACES)
                )
            )
            unit = math.ldexp(unit, -more)
            small = self._interpolated(
                total - LIMITS[0] - (128 << _FINE_PLACES), _FINE_PLACES, math.ldexp(unit, more)
            )
            large = self._interpolated(total, _ROW_RESPONSE_PLACES, unit)
            factor = (total < _FINE_END + LIMITS[0]).choose(small << more, large)
        made = steps(factor.times(rows.read(0) - self.x_zero), self.scale * unit, self.y_zero)
        rows.store(rounded(made, self))
        return rows

    def _power(self, total: float) -> float:
        return float((self.bias + self.gain * total) ** -self.power)

    def _interpolated(self, place: Expression, places: int, unit: float) -> Expression:
        """The power in a unit, between entries that are so many binary places apart."""
        powers = np.array([self._power(entry << places) for entry in range(256)])
        return place.interpolated(np.minimum(np.rint(powers / unit), DIGITS).astype(np.int16), places)


def tables(ratio: float) -> int:
    """Look-up tables of a `RowResponse` of which the largest gain is so many times the bias."""
    return 2 if ratio <= FLAT else 4
