"""Operators on rows whose results are totals of them, places in them, or made of elements of two: each is a kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from weft.compiler.ir.graph import View
from weft.compiler.kernel.expressions import IMMEDIATE, WORD, Rows, constant
from weft.compiler.kernel.operators import FINE, MEAN_PLACES, RowOp
from weft.compiler.kernel.steps import SATURATED, positive, quotient, rounded, shifted, steps, total_of

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
