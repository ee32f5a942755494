"""Row operators whose results are totals of rows, positions in them, or elementwise functions of two tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weft.compiler.ir.views import View
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
from weft.compiler.kernel.operators import FRACTION_PLACES, MEAN_PLACES, RowOp
from weft.compiler.kernel.products import (
    LOG_PLACES,
    SATURATED,
    add_offset,
    exact_constant,
    logarithm,
    quotient,
    radicand,
    round_and_clamp,
    steps,
    total_of,
)
from weft.hdl.isa.config import LOOKUP_ENTRIES

_ROOT_PLACES = 15
_INVERSE_PLACES = 30
_PLACE_BITS = 16
"""Bits of an element's position in its row."""


@dataclass(frozen=True, eq=False)
class RowTotal(RowOp):
    """One number for the channels of each pixel.

    q = sat(round(scale * root(factor * total + offset)) + y_zero), then clamped to [low, high].

    `total` is of x - x_zero: "sum", "magnitudes" (their sum), "squares" (their sum), "spread" (the sum of squared
    distances from the mean), "largest" or "smallest". `root` is "" for the number itself, "root", or "inverse" (1 /
    root). If `least` is above 0, it bounds the number from below, before the root.
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
            result = steps(total, self.scale * unit, self.scale * self.offset + self.y_zero)
            if self.least:
                result = result.maximum(
                    round(math.ldexp(min(self.scale * self.least, SATURATED) + self.y_zero, FRACTION_PLACES))
                )
            rows.store_number(round_and_clamp(result, self))
            return rows
        value = radicand(total, unit, self)
        if self.root == "root":
            root = value.over(value.rsqrt(), _ROOT_PLACES, WORD - 1)
            result = steps(root, self.scale * math.sqrt(unit) * 2.0**-_ROOT_PLACES, self.y_zero)
        else:
            # 1 / root, for roots of at least 1, with 30 places.
            inverse = constant(IMMEDIATE >> 1).over(value.rsqrt(), _INVERSE_PLACES - 22, WORD - 1)
            result = steps(inverse, self.scale / math.sqrt(unit) * 2.0**-_INVERSE_PLACES, self.y_zero)
            result = (value < 1).choose(SATURATED << FRACTION_PLACES, result)
        rows.store_number(round_and_clamp(result, self))
        return rows


@dataclass(frozen=True, eq=False)
class RowPlace(RowOp):
    """Position of the largest element of each pixel's channels, or of the `smallest`.

    Among equal elements the first counts, or with `final` the last. The result is less 128, or, in 16 bits with
    `wide`, less 32768.
    """

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
        # Append digits to each element that break ties.
        tie_break = index if self.final else last - index
        # -1 - x reverses the order of int8 values, and is an int8 value itself.
        best = rows.largest(((-1 - x if self.smallest else x) << _PLACE_BITS) + tie_break)
        digits = (best - (best.shift_right(_PLACE_BITS) << _PLACE_BITS)).assume(0, last)
        place = digits if self.final else last - digits
        rows.store_number(place - (1 << 15 if self.wide else 128), wide=self.wide)
        return rows


@dataclass(frozen=True, eq=False)
class RowPair(RowOp):
    """Elementwise operator on two tensors; the second may broadcast a row, or have one channel.

    q = sat(round(f(a, b)) + y_zero), then clamped to [low, high]. a is (x - a_zero) * a_scale, and b likewise. `kind`
    selects f: "minimum", "maximum", "quotient" (a / b) or "ratio" (b / a). Division by 0 is as in `RowScale`. For
    quotients `a_scale` is the combined scale, and `b_scale` is 1.
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
            result = add_offset(quotient(fine, b, b.reciprocal(), scale), self.y_zero)
        else:
            first, other = steps(a, self.a_scale, self.y_zero), steps(b, self.b_scale, self.y_zero)
            result = first.minimum(other) if self.kind == "minimum" else first.maximum(other)
        rows.store(round_and_clamp(result, self))
        return rows


LOGARITHM_TABLES = 3
"""Look-up tables of a `RowLogSoftmax`."""
WHOLE_LOGARITHMS = 2048
"""Most elements of a row whose exponentials fit one sum."""
_LEVELS = np.arange(-255, 1)
"""Differences of an element and its row's largest."""


@dataclass(frozen=True, eq=False)
class RowLogSoftmax(RowOp):
    """Log-softmax over the channels of each pixel.

    q = sat(round(scale * (x_scale * x - log(sum exp(x_scale * x)))) + y_zero), then clamped to [low, high].
    Exponentials come from tables, and have 24 bits, or as many as the sum has room for; the logarithm's error is at
    most 0.005.
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
        total, unit = self._total(rows, (x - (largest - 127)).assume(-128, 127))
        spread = logarithm(total) - round(math.ldexp(math.log(unit), LOG_PLACES))
        offset = steps(spread, -math.ldexp(self.scale, -LOG_PLACES), self.y_zero)
        rows.store(round_and_clamp(steps(x - largest, self.x_scale * self.scale, 0) + offset, self))
        return rows

    def _total(self, rows: Rows, place: Expression) -> tuple[Expression, float]:
        """Return the sum of exponentials relative to the largest element, and its unit."""
        apart = rows.columns > WHOLE_LOGARITHMS
        unit = float(DIGITS << 8 if apart else min(DIGITS << 8, (WORD - 1) // rows.columns - 1))
        entries = np.rint(np.exp(_LEVELS * self.x_scale) * unit)
        first, second, third = (place.look_up(digit) for digit in digits(entries, LOGARITHM_TABLES))
        if not apart:
            element = (((first << 8) + second) << 8) + third
            return rows.sum(element.assume(0, int(unit))).maximum(1), unit
        # Long rows: add the digits in two sums, each of which fits.
        upper, lower = rows.sum((first << 8) + second), rows.sum(third)
        return (upper + lower.times(1, 8)).maximum(1), unit / 256


POWER_TABLES = 4
"""Look-up tables of a `RowPower`: two each for 16-bit logarithms and exponentials."""
LARGEST_LOGARITHM = 100.0
"""Largest magnitude of a power's logarithm, over all exponents and bases, at which it is at most one step off."""
_ENDS = math.log(0.02), math.log(300)
"""Logarithms of results, in steps, at the table's ends: lower results are 0, higher ones saturated."""
_PLACES = 14
_BEYOND = 26
"""Power of two beyond the ends of the table, for every float32 scale of results."""


@dataclass(frozen=True, eq=False)
class RowPower(RowOp):
    """Powers: q = sat(round(scale * a**b) + y_zero), then clamped to [low, high].

    a is (x + 128) * a_step, which is not negative, and b is (e - b_zero) * b_step. Bases x are `first` and exponents
    e `second`, or with `swapped` the reverse. `second` may broadcast a row, or have one channel. Powers of 0 are 0, 1
    or saturated, for exponents above, equal to or below 0. Logarithms come from a table, and exponentials from linear
    interpolation.
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
        rows.store(round_and_clamp(self._exponential(self._place(base, power)), self))
        return rows

    def _place(self, base: Expression, power: Expression) -> Expression:
        """Return the table position of a power's logarithm, with `_PLACES`."""
        places = (1 << _PLACES) * (LOOKUP_ENTRIES - 1) / (_ENDS[1] - _ENDS[0])
        levels = np.log(np.maximum(np.arange(LOOKUP_ENTRIES), 1) * self.a_step)
        unit = float(np.abs(levels).max()) / DIGITS
        logarithm = entry(base, np.rint(levels / unit).astype(np.int16))
        factor = min(self.b_step * unit * places, FACTOR / 2)
        product, most = logarithm.times(power), math.ceil((2 << _BEYOND) / factor)
        # Beyond the table's ends all results are alike, so clamp the product.
        if most < max(-product.low, product.high):
            product = product.minimum(most).maximum(-most)
        # The logarithm of 0 is saturated.
        endless = (0 - power.minimum(1).maximum(-1)) << _BEYOND + 1
        offset = (math.log(self.scale) - _ENDS[0]) * places
        position = (base < -127).choose(endless, product.scale(factor))
        return position + exact_constant(round(offset) - (LOOKUP_ENTRIES // 2 << _PLACES))

    def _exponential(self, place: Expression) -> Expression:
        """Return the power in steps with `FRACTION_PLACES` places."""
        entries = np.exp(np.linspace(*_ENDS, LOOKUP_ENTRIES))
        gain = DIGITS / entries[-1]
        value = place.interpolate(np.rint(entries * gain).astype(np.int16), _PLACES)
        return add_offset(value.scale(math.ldexp(1 / gain, FRACTION_PLACES)), self.y_zero)


LARGEST_SUM = 255 << 8
"""Largest sum: the last entry of a table is for it."""
ONE_TABLE_RATIO = 16.0
"""Largest ratio of the greatest gain to the bias for one table; its square is the limit for two."""
_FINE_PLACES = 4
_ROW_RESPONSE_PLACES = 8
_FINE_END = 255 << _FINE_PLACES


@dataclass(frozen=True, eq=False)
class RowResponse(RowOp):
    """Local response: q = sat(round(scale * (x - x_zero) * (bias + gain * sum)**-power) + y_zero), clamped to [low,
    high].

    `sums` has 16 bits: integers from 0 to `LARGEST_SUM`, stored less 32768. The power is interpolated between 16-bit
    entries. If the largest gain exceeds `ONE_TABLE_RATIO` times the bias, entries are denser below a sixteenth of
    `LARGEST_SUM`. For powers up to 1, and gains up to `ONE_TABLE_RATIO` squared, the error is at most 0.2 %.
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
        if table_count(self.gain * LARGEST_SUM / self.bias) == 2:
            factor = self._interpolate_power(total, _ROW_RESPONSE_PLACES, unit)
        else:
            # Powers of larger sums are smaller: give them finer steps.
            more = math.floor(
                math.log2(
                    self._power(0) / self._power(_FINE_END >> _ROW_RESPONSE_PLACES << _ROW_RESPONSE_PLACES)
                )
            )
            unit = math.ldexp(unit, -more)
            small = self._interpolate_power(
                total - LIMITS[0] - (128 << _FINE_PLACES), _FINE_PLACES, math.ldexp(unit, more)
            )
            large = self._interpolate_power(total, _ROW_RESPONSE_PLACES, unit)
            factor = (total < _FINE_END + LIMITS[0]).choose(small << more, large)
        result = steps(factor.times(rows.read(0) - self.x_zero), self.scale * unit, self.y_zero)
        rows.store(round_and_clamp(result, self))
        return rows

    def _power(self, total: float) -> float:
        return float((self.bias + self.gain * total) ** -self.power)

    def _interpolate_power(self, place: Expression, places: int, unit: float) -> Expression:
        """Return the power in steps of `unit`, interpolated between entries ``2**places`` apart."""
        powers = np.array([self._power(entry << places) for entry in range(256)])
        return place.interpolate(np.minimum(np.rint(powers / unit), DIGITS).astype(np.int16), places)


def table_count(ratio: float) -> int:
    """Return the number of look-up tables of a `RowResponse`, from the ratio of its largest gain to the bias."""
    return 2 if ratio <= ONE_TABLE_RATIO else 4
