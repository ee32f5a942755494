"""Operators on rows that multiply or divide each by a number of its own: each is a kernel, made of expressions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import View
from weft.compiler.kernel.expressions import Expression, Rows
from weft.compiler.kernel.operators import FINE, MEAN_PLACES, RowOp, middle_of
from weft.compiler.kernel.steps import (
    SATURATED,
    WEIGHT_PLACES,
    WEIGHTED,
    exact,
    positive,
    quotient,
    rounded,
    shifted,
    steps,
    total_of,
)

_SQUARE_PLACES = 20
"""Places of the number whose root divides."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RowProduct(RowOp):
    """Elements of rows times a number g for each row: q = sat(round(scale * (gain * (x - x_zero) * g * weight + bias))
    + y_zero), then clamped to [low, high].

    `weight` and `bias` are float64 (channels,), or None for 1 and 0; weights have 16 bits below the largest. With
    `centre` the mean of the row takes the place of `x_zero`. A division by 0 is saturated with the sign of the element,
    and 0 by 0 to the lower end, as QuantizeLinear of ONNX Runtime does.
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
        bias = np.rint(np.ldexp(self.bias * self.scale + self.y_zero, FINE))
        return tuple(np.clip(item, -(1 << 15), (1 << 15) - 1).astype(np.int16) for item in (weight, bias))

    @property
    def _largest(self) -> float:
        return 1.0 if self.weight is None else float(np.abs(self.weight).max()) or 1.0

    def begin(self) -> tuple[Rows, Expression]:
        """The kernel, and the elements less their mean or the zero point, with `MEAN_PLACES`."""
        rows = Rows(self.src.shape[3], len(self.sources) + len(self.vectors))
        x = rows.read(0)
        middle, rest = middle_of(rows, x) if self.centre else (self.x_zero, 0)
        return rows, (x << MEAN_PLACES) - ((middle << MEAN_PLACES) + rest)

    def end(
        self, rows: Rows, value: Expression, factor: float, by: tuple[Expression, Expression] | None = None
    ) -> Rows:
        """Store ``value * factor``, divided `by` a number, with the reciprocal of it or of its root."""
        factor = math.ldexp(factor * self.gain * self.scale * self._largest, -MEAN_PLACES)
        at, weighted = len(self.sources), bool(self.vectors)
        weight = rows.wide(at) if weighted else None
        if by is not None:
            made = quotient(value, *by, factor, weight)
        else:
            made = steps(value, factor, 0, WEIGHTED if weighted else SATURATED)
            made = made if weight is None else made.times(weight, WEIGHT_PLACES)
        rows.store(rounded(rows.wide(at + 1, made) if weighted else shifted(made, self.y_zero), self))
        return rows


@dataclass(frozen=True, eq=False, kw_only=True)
class RowScale(RowProduct):
    """With a number r for each row in a tensor of one channel: `by` tells what g is, r - r_zero ("times"), its
    reciprocal ("over"), or 1 / sqrt(r - r_zero + offset) ("root"). Without `number` g is 1."""

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
        square = (number << _SQUARE_PLACES) + exact(round(math.ldexp(self.offset, _SQUARE_PLACES)))
        square = square.maximum(0) if square.low < 0 else square
        return self.end(rows, value, 2.0 ** (_SQUARE_PLACES // 2), (square, square.rsqrt()))


@dataclass(frozen=True, eq=False, kw_only=True)
class RowNorm(RowProduct):
    """Divided by a total of the row of another tensor: g is 1 / root(factor * total + offset), where `total`, `root`
    ("" or "root") and `least` are as in `RowTotal`, of the integers of `of` less `of_zero`. Without a root `offset`
    counts only where the total is 0: it must be far below `factor`, and no total negative."""

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
            square = positive(total, unit, self)
            return self.end(rows, value, 1 / math.sqrt(unit), (square, square.rsqrt()))
        number = total.maximum(1) if self.offset else total
        return self.end(rows, value, 1 / unit, (number, number.reciprocal()))


@dataclass(frozen=True, eq=False, kw_only=True)
class RowShare(RowProduct):
    """Divided by the sum of the magnitudes of the row. Rows of zeros stay zeros."""

    def rows(self) -> Rows:
        rows, value = self.begin()
        distance = rows.read(0) - self.x_zero
        total = rows.sum(distance.maximum(0 - distance)).maximum(1)
        return self.end(rows, value, 1.0, (total, total.reciprocal()))
