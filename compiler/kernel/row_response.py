"""Normalisation of channels by their neighbours: a kernel, made of expressions, behind sums of squares."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import View
from weft.compiler.kernel.expressions import DIGITS, Expression, Rows
from weft.compiler.kernel.int16 import LIMITS
from weft.compiler.kernel.operators import RowOp
from weft.compiler.kernel.steps import rounded, steps

WHOLE = 255 << 8
"""The largest sum: the last entry of a table is for it."""
FLAT = 16.0
"""How many times the bias what comes of the largest sum may be for one table to do, and the square of it for two."""
_FINE_PLACES = 4
_PLACES = 8
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
            factor = self._interpolated(total, _PLACES, unit)
        else:
            # What is only for larger sums has finer steps.
            more = math.floor(math.log2(self._power(0) / self._power(_FINE_END >> _PLACES << _PLACES)))
            unit = math.ldexp(unit, -more)
            small = self._interpolated(
                total - LIMITS[0] - (128 << _FINE_PLACES), _FINE_PLACES, math.ldexp(unit, more)
            )
            large = self._interpolated(total, _PLACES, unit)
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
