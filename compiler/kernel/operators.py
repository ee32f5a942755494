"""Row operators of the kernel engine: base class, normalisations, and custom kernels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Self

import numpy as np

from weft.compiler.errors import KernelError
from weft.compiler.ir.graph import DeviceOp
from weft.compiler.ir.views import View
from weft.compiler.kernel.expressions import FACTOR, IMMEDIATE, RECIPROCAL_PLACES, Expression, Rows, constant

MEAN_PLACES = 12
"""Binary places of a row's mean."""
LARGEST_FRACTION = (1 << MEAN_PLACES - 1) + 64
"""Largest fraction of a mean, with `MEAN_PLACES`: a half, plus an allowance for rounding."""
FRACTION_PLACES = 6
"""Binary places of results before they are rounded."""


class RowOp(DeviceOp):
    """Base of operators whose rows are the channels of a pixel; with `single` each row has one result.

    Results are int8, or int16 with `wide`: `dst` is then the plane of upper bytes (`View.planes`). 16-bit operands
    are two of the `sources`.
    """

    single: ClassVar[bool] = False
    wide: bool = False

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """Constant tensors for all rows, int16 (channels,), which follow the sources."""
        return ()

    def rows(self) -> Rows:
        """Build the kernel, from the operator's fields alone."""
        raise NotImplementedError

    @cached_property
    def kernel(self) -> Rows:
        """Kernel from `rows`, shared by operators that differ only in names and places."""
        return _kernel(_Kind(self))


class _Kind:
    """Cache key: equal for operators that differ only in names, plans, and places of operands."""

    def __init__(self, op: RowOp) -> None:
        self.op = op
        named = ((item.name, getattr(op, item.name)) for item in dataclasses.fields(op))
        self._key = (
            type(op),
            *(_plain(value) for name, value in named if name not in ("name", "plan", "lookup")),
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self._key == other._key


def _plain(value: object) -> object:
    """Return a hashable form of a field's value."""
    if isinstance(value, View):
        return value.shape
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


@lru_cache(256)
def _kernel(kind: _Kind) -> Rows:
    return kind.op.rows()


@dataclass(frozen=True, eq=False)
class LayerNorm(RowOp):
    """Normalisation of each pixel's channels.

    q = sat(round((x - mean) / sqrt(variance + epsilon) * weight + bias) + y_zero), then clamped to [low, high]. Means
    have 12 binary places, roots 14 bits, weights and biases 16 bits: results are at most one step off.

    Attributes
    ----------
    epsilon : float
        In units of the squared input.
    weight, bias : ndarray
        float64 (channels,); both are multiplied by `scale`, 1 / the output's scale.
    centre : bool
        If False there is no mean: x is less `x_zero`, and the mean square replaces the variance.
    least : bool
        If True epsilon is a lower bound of the variance, and not added.
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
    least: bool = False

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """Weights and biases."""
        return self.form.weight, self.form.bias

    @cached_property
    def form(self) -> _LayerNormForm:
        return _LayerNormForm.of(self)

    @property
    def elements(self) -> int:
        """Elements that are normalised together."""
        return self.src.shape[3]

    def rows(self) -> Rows:
        rows = Rows(self.elements, 3)
        rows.store(_normalise(rows, self))
        return rows


@dataclass(frozen=True, eq=False)
class GroupNorm(LayerNorm):
    """Normalisation of groups of `group` channels, a power of two, over all pixels of an image."""

    group: int = 1

    @property
    def elements(self) -> int:
        return self.src.shape[1] * self.src.shape[2] * self.group

    def rows(self) -> Rows:
        rows = Rows(self.elements, 3, lanes=self.group)
        rows.store(_normalise(rows, self))
        return rows


def _normalise(rows: Rows, op: LayerNorm) -> Expression:
    form, x = op.form, rows.read(0)
    middle, fraction = mean_of(rows, x) if op.centre else (op.x_zero, 0)
    distance = (x << MEAN_PLACES) - ((middle << MEAN_PLACES) + fraction)
    total = spread_of(rows, x, (middle, fraction), form.places, form.squares)
    added = whole_number(form.added)
    root = (total.maximum(added) if op.least else total + added).rsqrt()
    normal = distance.over(root, form.normal_places, FACTOR - 1)
    result = rows.wide(2, rows.wide(1).times(normal, form.product_shift)).times(1, FRACTION_PLACES)
    if op.low > -128:
        result = result.maximum(op.low)
    return result.minimum(op.high) if op.high < 127 else result


def mean_of(
    rows: Rows, x: Expression, most: int = 128, largest_fraction: int = LARGEST_FRACTION
) -> tuple[Expression, Expression]:
    """Return the mean of a row of elements from `-most` to `most - 1`, as (nearest integer, fraction).

    The fraction has `MEAN_PLACES` places and is at most `largest_fraction`; it is 0 if all elements are equal.
    """
    total = rows.sum(x)
    # Integer part first: it makes the squares of distances exact (`spread_of`).
    middle = total.scale(1 / rows.columns).assume(-most, most - 1)
    fraction = (total - _times(middle, rows.columns)).scale((1 << MEAN_PLACES) / rows.columns)
    return middle, fraction.assume(-largest_fraction, largest_fraction)


def spread_of(
    rows: Rows, x: Expression, mean: tuple[Expression | int, Expression | int], places: int, most: int
) -> Expression:
    """Return the sum of squared distances from a mean, with `places` places; without them it is at most `most`.

    Squares of integer distances are exact; the effect of the mean's fraction is subtracted from their sum.
    """
    middle, fraction = mean
    distance = x - middle
    total = rows.sum(distance.times(distance, max(0, -places)), high=most) << max(0, places)
    if isinstance(fraction, Expression):
        # sum (x - m - r)**2 = sum (x - m)**2 - n * r**2, for the mean m + r.
        total = total - fraction.times(fraction).scale(rows.columns * 2.0 ** (places - 2 * MEAN_PLACES))
    return total


def _times(value: Expression, number: int) -> Expression:
    """Return `value` times an integer of any size."""
    places = max(0, number.bit_length() - 17)
    product = value.times(number >> places) << places
    return product + value.times(number & ((1 << places) - 1)) if places else product


@dataclass(frozen=True, eq=False)
class RowFunction(RowOp):
    """Custom kernel: `function` builds it from `inputs`, then `constants`, int16 (channels,)."""

    name: str
    inputs: tuple[View, ...]
    dst: View
    function: Callable[[Rows], object]
    constants: tuple[np.ndarray, ...] = ()
    y_zero: int = 0
    low: int = -128
    high: int = 127

    @property
    def sources(self) -> tuple[View, ...]:
        return self.inputs

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        return self.constants

    def map_views(self, view: Callable[[View], View]) -> Self:
        return self.replace(inputs=tuple(map(view, self.inputs)), dst=view(self.dst))

    def rows(self) -> Rows:
        rows = Rows(self.dst.shape[3], len(self.inputs) + len(self.constants))
        self.function(rows)
        if not rows.result:
            raise KernelError(f"the kernel {self.name!r} stores no result")
        return rows


def whole_number(value: int) -> Expression | int:
    """Return a positive 31-bit number as an operand; bits beyond 24 are rounded away."""
    return value if value < IMMEDIATE else constant(min((value + 128) >> 8, IMMEDIATE - 1)) << 8


@dataclass(frozen=True, eq=False)
class _LayerNormForm:
    """Integers of a `LayerNorm`.

    Attributes
    ----------
    places : int
        Binary places of the sum of squares; negative if it drops bits.
    squares : int
        Bound of the sum of squares, without places.
    added : int
        Epsilon's part of the sum.
    normal_places : int
        Places of a distance, which has `MEAN_PLACES`, divided by the root of the sum. That is the normalised element
        but for a factor, which is in `weight`.
    """

    places: int
    squares: int
    added: int
    normal_places: int
    weight: np.ndarray
    product_shift: int
    bias: np.ndarray

    @classmethod
    def of(cls, op: LayerNorm) -> _LayerNormForm:
        channels = op.elements
        # The variance of bytes is at most a quarter of their range squared; the middle is at most 1/2 from the mean.
        most = channels * (127.5**2 + 0.25 if op.centre else 255.0**2)
        places = min(16, math.floor(30.9 - math.log2(most + op.epsilon * channels)))
        # |element - mean| <= sqrt(channels) * deviation.
        normal_places = max(0, min(RECIPROCAL_PLACES, 16 - MEAN_PLACES + places // 2))
        weight = op.weight * op.scale * math.sqrt(channels) * 2.0 ** (places / 2 - MEAN_PLACES)
        # As many places as 16-bit weights allow, and enough that products fit.
        weight_places = max(15 - math.frexp(np.abs(weight).max())[1], FRACTION_PLACES - normal_places + 3)
        weights = np.clip(np.rint(np.ldexp(weight, weight_places)), -(1 << 15), (1 << 15) - 1)
        biases = np.rint(np.ldexp(op.bias * op.scale + op.y_zero, FRACTION_PLACES))
        return cls(
            places,
            math.ceil(most) if places >= 0 else math.ceil(math.ldexp(most, places)) + channels,
            max(round(math.ldexp(op.epsilon * channels, places)), 1),
            normal_places,
            weights.astype(np.int16),
            min(normal_places + weight_places - FRACTION_PLACES, 63),
            np.clip(biases, -(1 << 15), (1 << 15) - 1).astype(np.int16),
        )
