"""Powers of two tensors: a kernel, made of expressions. A power is the exponential of a product with a logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import View
from weft.compiler.kernel.expressions import DIGITS, FACTOR, Expression, Rows, entry
from weft.compiler.kernel.operators import FINE, RowOp
from weft.compiler.kernel.steps import exact, rounded, shifted
from weft.hdl.isa.config import LOOKUP_ENTRIES

TABLES = 4
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
