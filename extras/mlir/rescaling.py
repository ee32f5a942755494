"""TOSA's rescale beside the device's requantisation, and when the two give the same bytes.

TOSA multiplies an integer by a multiplier of 31 bits, adds half of 2**shift, and shifts right: halves go up. The
device multiplies by a mantissa of 24 bits and rounds halves to even. Both are steps that never go down, so that they
are the same function where each step is at the same integer. `mantissas` looks for a mantissa with which that is so,
over all integers that there can be and all results that are not clamped. Where there is none, the host computes as
TOSA does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from weft.compiler.ir.scales import SHIFT_MAX, quantise_scale

BITS = 24
"""Bits of the device's mantissas."""
_DOUBLE = 1 << 30
"""What double rounding adds to positive products, and takes from negative ones, if the shift is above 31."""
_CANDIDATES = 64
"""Most mantissas that are tried."""


@dataclass(frozen=True)
class Scale:
    """TOSA's scale: ``(value * multiplier + half) >> shift``; double rounding changes half by the value's sign."""

    multiplier: int
    shift: int
    double: bool = False

    @property
    def extra(self) -> int:
        """What double rounding adds to half for positive values, and takes from it for negative ones."""
        return _DOUBLE if self.double and self.shift > 31 else 0

    def apply(self, value: int) -> int:
        """The scaled value, as apply_scale_32 and apply_scale_16 of the specification."""
        extra = self.extra if value >= 0 else -self.extra
        return (value * self.multiplier + (1 << (self.shift - 1)) + extra) >> self.shift

    def first(self, level: int) -> int | None:
        """The least value whose result is at least `level`; None if there is none."""
        if not self.multiplier:
            return None
        half, extra = 1 << (self.shift - 1), self.extra
        positive = _ceil((level << self.shift) - half - extra, self.multiplier)
        negative = _ceil((level << self.shift) - half + extra, self.multiplier)
        return min(negative, 0) if negative < 0 else max(positive, 0)


def reciprocal_scale(count: int) -> Scale:
    """The scale by which TOSA divides by `count`: reciprocal_scale of the specification."""
    shift = (count - 1).bit_length()
    return Scale((((1 << 30) + 1) << shift) // count, 30 + shift)


def first_on_device(mantissa: int, shift: int, level: int) -> int | None:
    """The least value whose product with mantissa / 2**shift the device rounds to at least `level`."""
    if not mantissa:
        return None
    wanted = (2 * level - 1) << shift
    return _ceil(wanted, 2 * mantissa) if level % 2 == 0 else wanted // (2 * mantissa) + 1


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


Range = tuple[int, int]
"""The least and the greatest of some integers."""


def find_mantissa(scale: Scale, values: Range, levels: Range) -> tuple[int, int] | None:
    """A mantissa and a shift of the device, whose results are those of `scale` for every integer of `values`, clamped
    to `levels`; None if there is none."""
    if not scale.multiplier:
        return (0, SHIFT_MAX) if levels[0] <= 0 <= levels[1] else None
    simple = _direct_mantissa(scale, values)
    if simple is not None:
        return simple
    steps = [(level, scale.first(level)) for level in range(levels[0] + 1, levels[1] + 1)]
    firsts = [
        (level, min(max(first, values[0]), values[1] + 1)) for level, first in steps if first is not None
    ]
    exact = Fraction(scale.multiplier, 1 << scale.shift)
    least, most = exact / 2, exact * 2
    for level, first in firsts:
        half = Fraction(2 * level - 1, 2)
        if first <= values[1]:
            least, most = _tighten(least, most, first, half, above=True)
        if first > values[0]:
            least, most = _tighten(least, most, first - 1, half, above=False)
    return _search(least, most, exact, lambda m, s: _has_steps(m, s, firsts, values))


def _direct_mantissa(scale: Scale, values: Range) -> tuple[int, int] | None:
    """The scale itself, if it has few enough bits and no value is half way between two results."""
    zeros = (scale.multiplier & -scale.multiplier).bit_length() - 1
    odd, shift = scale.multiplier >> zeros, scale.shift - zeros
    if scale.extra or odd.bit_length() > BITS or may_tie(odd, shift, values):
        return None
    found = (
        quantise_scale(math.ldexp(float(odd), -shift)) if shift >= 0 and scale.shift <= SHIFT_MAX else None
    )
    return (
        found
        if found is not None and Fraction(found[0], 1 << found[1]) == Fraction(odd, 1 << shift)
        else None
    )


def may_tie(odd: int, shift: int, values: Range) -> bool:
    """Whether an integer of `values` may be, times ``odd / 2**shift``, half way between two integers."""
    if shift < 1 or not odd:
        return False
    return max(abs(values[0]), abs(values[1])) >= 1 << (shift - 1)


def _tighten(
    least: Fraction, most: Fraction, value: int, half: Fraction, *, above: bool
) -> tuple[Fraction, Fraction]:
    """Scales whose product with `value` is at least `half`, or at most."""
    if not value:
        wrong = half > 0 if above else half < 0
        return (Fraction(1), Fraction(0)) if wrong else (least, most)
    bound = half / value
    return (max(least, bound), most) if above == (value > 0) else (least, min(most, bound))


def _search(
    least: Fraction, most: Fraction, exact: Fraction, good: Callable[[int, int], bool]
) -> tuple[int, int] | None:
    """A mantissa and shift between two scales, the nearest to `exact` that is good."""
    if least > most:
        return None
    _, shift = quantise_scale(float((least + most) / 2))
    low, high = math.ceil(least * (1 << shift)), math.floor(most * (1 << shift))
    middle = min(max(round(exact * (1 << shift)), low), high)
    for offset in range(_CANDIDATES):
        for found in {middle + offset, middle - offset}:
            if low <= found <= high and 0 < found < 1 << BITS and good(found, shift):
                return found, shift
    return None


def _has_steps(m: int, s: int, firsts: Sequence[tuple[int, int]], values: Range) -> bool:
    """Whether every level is first reached at the same value."""
    for level, first in firsts:
        own = first_on_device(m, s, level)
        if own is None or min(max(own, values[0]), values[1] + 1) != first:
            return False
    return True


def is_exact(scale: Scale, pair: tuple[int, int], values: Range, levels: Range) -> bool:
    """Whether the device with a mantissa and a shift makes the results of `scale`, clamped to `levels`."""
    for level in range(levels[0] + 1, levels[1] + 1):
        firsts = (scale.first(level), first_on_device(*pair, level))
        ends = [None if first is None else min(max(first, values[0]), values[1] + 1) for first in firsts]
        if ends[0] != ends[1]:
            return False
    return True


def find_scales(scales: Sequence[Scale], values: Sequence[Range], levels: Range) -> np.ndarray | None:
    """The device's scale of each channel, float32, of which none changes a byte; None if a channel has none."""
    found = [find_mantissa(scale, each, levels) for scale, each in zip(scales, values, strict=True)]
    if any(item is None for item in found):
        return None
    return np.array([math.ldexp(item[0], -item[1]) for item in found if item is not None], np.float32)
