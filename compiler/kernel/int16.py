"""Operators on elements of 16 bits: each is a kernel, made of expressions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from weft.compiler.ir.graph import CompileError, View
from weft.compiler.kernel.expressions import Expression, Rows, factor_of
from weft.compiler.kernel.operators import FINE, RowOp
from weft.compiler.kernel.steps import steps
from weft.hdl.isa.kernel import MULTIPLIER_BITS

LIMITS = (-(1 << 15), (1 << 15) - 1)
"""Least and largest int16."""
SATURATED = 1 << 17
"""Steps that are beyond every int16, whatever the zero point."""
_PRODUCT_SHIFT = 3
"""Bits that products of two 16-bit elements less their zero points lose."""
_FAR = 1 << 22
"""Steps that a term of a sum may reach."""
_LOST = 1 << FINE - 3
"""Fine steps that a term may lose by the rounding of its scale: more of it are added."""


class Clamped(Protocol):
    """What of an operator tells how results are stored: in 16 bits if `wide`, and within `clamp`."""

    @property
    def wide(self) -> bool: ...
    @property
    def clamp(self) -> tuple[int, int]: ...


def stored(rows: Rows, value: Expression, op: Clamped, places: int = FINE) -> Rows:
    """Store steps with so many places, rounded and clamped, in as many bits as results have."""
    result, ends = value.times(1, places), LIMITS if op.wide else (-128, 127)
    if op.clamp[0] > ends[0]:
        result = result.maximum(op.clamp[0])
    if op.clamp[1] < ends[1]:
        result = result.minimum(op.clamp[1])
    if op.wide:
        rows.store_bytes(result)
    else:
        rows.store(result)
    return rows


@dataclass(frozen=True, eq=False, kw_only=True)
class ClampedRows(RowOp):
    """An operator whose results are stored as `stored` does it."""

    name: str
    dst: View
    y_zero: int = 0
    low: int = -128
    high: int = 127
    clamp: tuple[int, int] = LIMITS
    wide: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class WideElements(ClampedRows):
    """Elements of one or two tensors of 8 or 16 bits: q = sat(round(f(a, b)) + y_zero), clamped to `clamp`.

    `kind` tells what f is: "requantise" (a), "sum" (a + b), "product" (a * b), "minimum" or "maximum", where a is
    (x - a_zero) * a_scale, and b likewise; of products only `a_scale` counts, for both. `b` may repeat, as in `Add`,
    or have one channel. Results are at most one off the exact ones.
    `a_wide` and `b_wide` tell which have 16 bits, `wide` whether results have.
    """

    a: View
    b: View | None = None
    kind: str
    a_scale: float = 1.0
    b_scale: float = 1.0
    a_zero: int = 0
    b_zero: int = 0
    a_wide: bool = False
    b_wide: bool = False

    @cached_property
    def sources(self) -> tuple[View, ...]:
        a = self.a.planes if self.a_wide else (self.a,)
        if self.b is None:
            return a
        return (*a, *(self.b.planes if self.b_wide else (self.b,)))

    def _second(self, rows: Rows, at: int) -> Expression:
        """An element of `b`, or the number that it has for a row."""
        assert self.b is not None
        if self.b.shape[3] == rows.columns:
            return rows.bytes_of(at, at + 1) if self.b_wide else rows.read(at)
        upper = rows.number(at)
        return (upper << 8) + rows.number(at + 1) + 128 if self.b_wide else upper

    def rows(self) -> Rows:
        rows = Rows(self.sources[0].shape[3], len(self.sources))
        a = (rows.bytes_of(0, 1) if self.a_wide else rows.read(0)) - self.a_zero
        if self.kind == "requantise":
            return stored(rows, steps(a, self.a_scale, self.y_zero, SATURATED), self)
        b = self._second(rows, 1 + self.a_wide) - self.b_zero
        if self.kind == "product":
            shift = _PRODUCT_SHIFT if self.a_wide and self.b_wide else 0
            if shift and abs(self.a_scale) > 2.0**-shift:
                raise CompileError(
                    f"{self.name}: scales of products of two values of 16 bits are at most {2.0**-shift:g}, but one is "
                    f"{abs(self.a_scale):g}"
                )
            made = steps(a.times(b, shift), self.a_scale * 2.0**shift, self.y_zero, SATURATED)
            return stored(rows, made, self)
        if self.kind == "sum":
            total = self._term(a, self.a_scale, self.y_zero) + self._term(b, self.b_scale, 0)
            return stored(rows, total, self)
        x, y = (steps(e, by, self.y_zero, SATURATED) for e, by in ((a, self.a_scale), (b, self.b_scale)))
        return stored(rows, x.minimum(y) if self.kind == "minimum" else x.maximum(y), self)

    def _term(self, value: Expression, scale: float, offset: int) -> Expression:
        """A term of a sum in steps, which another one may bring back into the range of results."""
        largest = max(-value.low, value.high)
        if largest * abs(scale) > _FAR:
            raise CompileError(
                f"{self.name}: terms of sums of 16 bits are at most {_FAR:,} steps of the result, but one may be "
                f"{largest * abs(scale):,.0f}"
            )
        made, fine = steps(value, scale, offset, _FAR), math.ldexp(scale, FINE)
        places = max(0, math.frexp(fine)[1] - MULTIPLIER_BITS + 2)
        mantissa, shift = factor_of(math.ldexp(fine, -places))
        rest = fine - math.ldexp(mantissa, places - shift)
        return made + value.scaled(rest) if largest * abs(rest) > _LOST else made
