"""Normalisation of rows of 16-bit elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.compiler.ir.graph import View
from weft.compiler.kernel.expressions import (
    FACTOR,
    RECIPROCAL_PLACES,
    WORD,
    Expression,
    Rows,
    constant,
)
from weft.compiler.kernel.int16 import LIMITS, stored
from weft.compiler.kernel.operators import FINE, MEAN_PLACES, LayerNorm, middle_of, whole_number

_REST = 1 << MEAN_PLACES
"""Largest fraction of a mean whose nearest whole number is known to 17 bits."""
_UNIT_PLACES = 15
"""Places of elements less their mean, divided by the largest of them."""
_SHIFT = 8
"""Bits by which the sum of squares is made smaller, so that much larger epsilons fit beside it."""
_EPSILON_SHIFT = 4
"""Bits that the square of the root of epsilon's part of the sum loses."""
_MORE = 6
"""Places of that root beyond those of a factor."""
_LEAST_LARGEST = 1 << MEAN_PLACES - 2
"""No element of a row is further from the mean than this unless all are the same."""


@dataclass(frozen=True, eq=False)
class WideLayerNorm(LayerNorm):
    """The same of elements of 16 bits; results have 8, or 16 with `wide`.

    Squares of such elements do not fit: the elements of a row are first divided by the largest of them, less the
    mean, or a part of epsilon's root, which takes one more loop over the row. Results of 8 bits are at most one off;
    those of 16 have about 13 bits, as roots have 14, and less where a row has elements that are far larger, or is so
    uniform that the places of its mean count.
    """

    clamp: tuple[int, int] = LIMITS
    wide: bool = False

    @property
    def sources(self) -> tuple[View, ...]:
        return self.src.planes

    @cached_property
    def shift(self) -> int:
        """Bits that squares lose, so that the sum of them fits."""
        return math.ceil(math.log2(self.elements)) if self.elements > 1 else 0

    @cached_property
    def _weight_places(self) -> int:
        return max(15 - math.frexp(np.abs(self._weights).max())[1], FINE - RECIPROCAL_PLACES + 3)

    @property
    def _weights(self) -> np.ndarray:
        """Weights as factors of an element divided by the root of the shifted sum of squares."""
        root = 2.0 ** (-(self.shift + _SHIFT) / 2)
        return np.asarray(self.weight * self.scale * math.sqrt(self.elements) * root)

    @property
    def _least(self) -> int:
        """What elements are divided by at least: so much that epsilon's part of the sum fits."""
        return max(round(math.ldexp(math.sqrt(self.epsilon), MEAN_PLACES - _SHIFT // 2)), _LEAST_LARGEST)

    @cached_property
    def _bias_shift(self) -> int:
        """Places by which biases are shifted to the left: those of 16 bits have few behind the point."""
        largest = float(np.abs(self.bias * self.scale + self.y_zero).max())
        return max(0, math.frexp(largest)[1] + FINE - 15) if self.wide else 0

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """Weights and biases."""
        biases = np.ldexp(self.bias * self.scale + self.y_zero, FINE - self._bias_shift)
        pairs = (np.ldexp(self._weights, self._weight_places), biases)
        return tuple(np.clip(np.rint(item), -(1 << 15), (1 << 15) - 1).astype(np.int16) for item in pairs)

    def rows(self) -> Rows:
        rows = Rows(self.elements, 4)
        x = rows.bytes_of(0, 1)
        if self.centre:
            middle, rest = middle_of(rows, x, 1 << 15, _REST)
            distance = (x << MEAN_PLACES) - ((middle << MEAN_PLACES) + rest)
        else:
            distance = (x - self.x_zero) << MEAN_PLACES
        largest = rows.largest(distance.maximum(0 - distance).known(0, 1 << 30)).maximum(
            whole_number(self._least)
        )
        inverse = largest.reciprocal()
        unit = distance.over(inverse, _UNIT_PLACES, (1 << _UNIT_PLACES) + 8)
        square = rows.sum(unit.times(unit, self.shift)).times(1, _SHIFT)
        root = (square + self._added(inverse)).maximum(1).rsqrt()
        # No element is further from the mean than root(elements) times the deviation.
        most = 2 << RECIPROCAL_PLACES + math.ceil((self.shift + _SHIFT) / 2)
        normal = unit.over(root, RECIPROCAL_PLACES, most)
        product = normal.times(rows.wide(2), min(RECIPROCAL_PLACES + self._weight_places - FINE, 63))
        if self._bias_shift:
            return stored(rows, product + (rows.wide(3) << self._bias_shift), self)
        return stored(rows, rows.wide(3, product), self)

    def _added(self, inverse: Expression) -> Expression:
        """Epsilon's part of the shifted sum of squares: the square of a number divided by the largest distance."""
        shift = (self.shift + _SHIFT - _EPSILON_SHIFT) / 2
        wanted = math.sqrt(self.epsilon * self.elements) * 2.0 ** (MEAN_PLACES + _UNIT_PLACES - shift)
        # The square of a number c * 2**more + r is about (c * 2**more + 2 * r) * c * 2**more: c alone has too few bits.
        more = min(_MORE, max(30 + RECIPROCAL_PLACES - math.frexp(wanted)[1], 0))
        places = min(max(math.frexp(wanted)[1] - 22, 0), RECIPROCAL_PLACES)
        number = whole_number(min(round(math.ldexp(wanted, more - places)), WORD - 256))
        number = constant(number) if isinstance(number, int) else number
        part = number.over(inverse, places, (1 << 31) - 1)
        part = part.minimum(FACTOR - 1 << more).known(0, FACTOR - 1 << more)
        coarse = part.times(1, more)
        doubled = ((part << 1) - (coarse << more)).known(0, FACTOR - 1 << more)
        return doubled.times(coarse, _EPSILON_SHIFT + more)
