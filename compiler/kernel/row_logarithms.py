"""Logarithms of probabilities: a kernel, made of expressions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import View
from weft.compiler.kernel.expressions import DIGITS, WORD, Expression, Rows, digits
from weft.compiler.kernel.operators import RowOp
from weft.compiler.kernel.steps import LOG_PLACES, logarithm, rounded, steps

TABLES = 3
"""Look-up tables of a `RowLogSoftmax`."""
WHOLE = 2048
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
        apart = rows.columns > WHOLE
        unit = float(DIGITS << 8 if apart else min(DIGITS << 8, (WORD - 1) // rows.columns - 1))
        entries = np.rint(np.exp(_LEVELS * self.x_scale) * unit)
        first, second, third = (place.looked_up(digit) for digit in digits(entries, TABLES))
        if not apart:
            element = (((first << 8) + second) << 8) + third
            return rows.sum(element.known(0, int(unit))).maximum(1), unit
        upper, lower = rows.sum((first << 8) + second), rows.sum(third)
        return (upper + lower.times(1, 8)).maximum(1), unit / 256
