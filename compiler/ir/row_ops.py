"""Operators that the kernel engine computes row by row: each is a kernel, made of expressions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.compiler.ir.graph import DeviceOp, View
from weft.compiler.kernel.expressions import FACTOR, RECIPROCAL_PLACES, Expression, Rows

MEAN_PLACES = 8
"""Binary places of a row's mean."""
FINE = 6
"""Binary places of results until they are rounded."""
SQUARES = (1 << 31) - (1 << 27)
"""Sums of squares stay below; what is added to them is part of that."""


class RowOp(DeviceOp):
    """An operator whose rows are the channels of a pixel."""

    src: View
    dst: View

    @property
    def sources(self) -> tuple[View, ...]:
        return (self.src,)

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """Tensors that are the same for all rows, int16 (channels,), behind the first one."""
        return ()

    def rows(self) -> Rows:
        """The kernel."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class LayerNorm(RowOp):
    """Normalise the channels of each pixel: q = sat(round((x - mean) / sqrt(variance + epsilon) * weight + bias)
    + y_zero), then clamped to [low, high].

    `epsilon` is in units of the squared input, `weight` and `bias` float64 (channels,); `scale`, 1 / the output's, is a
    factor of both. Without `centre` there is no mean, it is x less `x_zero`, and the mean square takes the place of the
    variance. Means have 8 binary places, roots 14 bits, weights and biases 16: results are at most one off the
    exact ones.
    """

    name: str
    src: View
    dst: View
    weight: np.ndarray
    bias: np.ndarray
    epsilon: float
    scale: float = 1.0
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    centre: bool = True

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """Weights and biases."""
        return self._form.weight, self._form.bias

    @cached_property
    def _form(self) -> _LayerNormForm:
        return _LayerNormForm.of(self)

    def rows(self) -> Rows:
        form, rows = self._form, Rows(self.src.shape[3], 3)
        x = rows.read(0)
        middle: Expression | int = self.x_zero << MEAN_PLACES
        if self.centre:
            middle = rows.sum(x).scaled((1 << MEAN_PLACES) / rows.columns)
            middle = middle.known(-128 << MEAN_PLACES, 127 << MEAN_PLACES)
        distance = (x << MEAN_PLACES) - middle
        squares = rows.sum(distance.times(distance, form.shift), high=SQUARES)
        root = (squares + form.added).known(0, (1 << 31) - 1).rsqrt()
        normal = distance.over(root, form.places, FACTOR - 1)
        product = rows.wide(1).times(normal, form.product_shift)
        total = rows.wide(2, product)
        result = total.times(1, FINE)
        if self.low > -128:
            result = result.maximum(self.low)
        rows.store(result.minimum(self.high) if self.high < 127 else result)
        return rows


@dataclass(frozen=True, eq=False)
class _LayerNormForm:
    """The integers of a `LayerNorm`.

    With distances d from the mean in `MEAN_PLACES` places, S is the sum of d**2 >> `shift`, plus `added`; d / root(S)
    has `places` places, and is the normalised element times root(2**shift / channels), which `weight` makes up for.
    """

    shift: int
    added: int
    places: int
    weight: np.ndarray
    product_shift: int
    bias: np.ndarray

    @classmethod
    def of(cls, op: LayerNorm) -> _LayerNormForm:
        channels = op.src.shape[3]
        # The variance of bytes is at most a quarter of their range squared.
        most = channels * (2.0**14 if op.centre else 2.0**16) + op.epsilon * channels
        shift = max(1, math.ceil(math.log2(most) + 2 * MEAN_PLACES - 30.9))
        added = round(op.epsilon * channels * 2.0 ** (2 * MEAN_PLACES - shift))
        places = min(RECIPROCAL_PLACES, 16 - math.ceil(shift / 2))
        weight = op.weight * op.scale * math.sqrt(channels / 2.0**shift)
        weight_places = max(15 - math.frexp(np.abs(weight).max())[1], FINE - places + 3)
        integers = np.clip(np.rint(np.ldexp(weight, weight_places)), -(1 << 15), (1 << 15) - 1)
        biases = np.rint(np.ldexp(op.bias * op.scale + op.y_zero, FINE))
        return cls(
            shift, max(added, 1), places, integers.astype(np.int16), min(places + weight_places - FINE, 63),
            np.clip(biases, -(1 << 15), (1 << 15) - 1).astype(np.int16),
        )  # fmt: skip
