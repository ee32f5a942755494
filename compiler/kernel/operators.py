"""Operators that the kernel engine computes row by row: each is a kernel, made of expressions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Self

import numpy as np

from weft.compiler.ir.graph import DeviceOp, View
from weft.compiler.kernel.expressions import (
    FACTOR,
    IMMEDIATE,
    RECIPROCAL_PLACES,
    Expression,
    KernelError,
    Rows,
    constant,
)

MEAN_PLACES = 12
"""Binary places of a row's mean."""
REST = (1 << MEAN_PLACES - 1) + 64
"""Largest fraction of a mean: a half, and a little for rounding."""
FINE = 6
"""Binary places of results until they are rounded."""


class RowOp(DeviceOp):
    """An operator whose rows are the channels of a pixel. With `single` it has one result for each.

    Results are int8, or int16 with `wide`: `dst` is then the plane of upper bytes, as `View.planes` has them. Operands
    of 16 bits are two of the `sources`.
    """

    single: ClassVar[bool] = False
    wide: bool = False

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """Tensors that are the same for all rows, int16 (channels,), behind the first one."""
        return ()

    def rows(self) -> Rows:
        """Make the kernel, of nothing but fields."""
        raise NotImplementedError

    @cached_property
    def kernel(self) -> Rows:
        """What `rows` makes. Operators that differ in names and places alone share it."""
        return _kernel(_Kind(self))


class _Kind:
    """An operator; equal to others whose fields are the same, but for names, plans, and where operands lie."""

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
    """What is equal for values that are alike, and can be hashed."""
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
    """Normalise the channels of each pixel: q = sat(round((x - mean) / sqrt(variance + epsilon) * weight + bias)
    + y_zero), then clamped to [low, high].

    `epsilon` is in units of the squared input, `weight` and `bias` float64 (channels,); `scale`, 1 / the output's, is a
    factor of both. Without `centre` there is no mean, it is x less `x_zero`, and the mean square takes the place of the
    variance. With `least` epsilon is not added, but is the least that the variance counts as. Means have 12 binary
    places, roots 14 bits, weights and biases 16: results are at most one off the exact ones.
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
        """How many are normalised together."""
        return self.src.shape[3]

    def rows(self) -> Rows:
        rows = Rows(self.elements, 3)
        rows.store(_normalised(rows, self))
        return rows


@dataclass(frozen=True, eq=False)
class GroupNorm(LayerNorm):
    """The same of groups of `group` channels, a power of two, over all pixels of an image."""

    group: int = 1

    @property
    def elements(self) -> int:
        return self.src.shape[1] * self.src.shape[2] * self.group

    def rows(self) -> Rows:
        rows = Rows(self.elements, 3, lanes=self.group)
        rows.store(_normalised(rows, self))
        return rows


def _normalised(rows: Rows, op: LayerNorm) -> Expression:
    """The result of an element."""
    form, x = op.form, rows.read(0)
    middle, rest = middle_of(rows, x) if op.centre else (op.x_zero, 0)
    distance = (x << MEAN_PLACES) - ((middle << MEAN_PLACES) + rest)
    total = spread_of(rows, x, (middle, rest), form.places, form.squares)
    added = whole_number(form.added)
    root = (total.maximum(added) if op.least else total + added).rsqrt()
    normal = distance.over(root, form.normal_places, FACTOR - 1)
    result = rows.wide(2, rows.wide(1).times(normal, form.product_shift)).times(1, FINE)
    if op.low > -128:
        result = result.maximum(op.low)
    return result.minimum(op.high) if op.high < 127 else result


def middle_of(
    rows: Rows, x: Expression, most: int = 128, largest_rest: int = REST
) -> tuple[Expression, Expression]:
    """The mean of a row of elements from `-most` to `most - 1`: the nearest whole number, and what the mean is beside
    it, with `MEAN_PLACES`, at most `largest_rest`: nothing, if all elements are the same."""
    total = rows.sum(x)
    middle = total.scaled(1 / rows.columns).known(-most, most - 1)
    rest = (total - _times(middle, rows.columns)).scaled((1 << MEAN_PLACES) / rows.columns)
    return middle, rest.known(-largest_rest, largest_rest)


def spread_of(
    rows: Rows, x: Expression, mean: tuple[Expression | int, Expression | int], places: int, most: int
) -> Expression:
    """The sum of squared distances from a mean, with `places`; at most `most` without them.

    Squares of whole numbers are exact; what the mean is off the middle is taken off their sum.
    """
    middle, rest = mean
    whole = x - middle
    total = rows.sum(whole.times(whole, max(0, -places)), high=most) << max(0, places)
    if isinstance(rest, Expression):
        total = total - rest.times(rest).scaled(rows.columns * 2.0 ** (places - 2 * MEAN_PLACES))
    return total


def _times(value: Expression, number: int) -> Expression:
    """A whole number of any size as a factor."""
    places = max(0, number.bit_length() - 17)
    product = value.times(number >> places) << places
    return product + value.times(number & ((1 << places) - 1)) if places else product


@dataclass(frozen=True, eq=False)
class RowFunction(RowOp):
    """A kernel of somebody's own: `function` builds it of `inputs` and, behind them, `constants`, int16 (channels,)."""

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

    def on(self, view: Callable[[View], View]) -> Self:
        return self.replace(inputs=tuple(map(view, self.inputs)), dst=view(self.dst))

    def rows(self) -> Rows:
        rows = Rows(self.dst.shape[3], len(self.inputs) + len(self.constants))
        self.function(rows)
        if not rows.result:
            raise KernelError(f"the kernel {self.name!r} stores no result")
        return rows


def whole_number(value: int) -> Expression | int:
    """A number of 31 bits above zero, of which those beyond 24 are rounded away."""
    return value if value < IMMEDIATE else constant(min((value + 128) >> 8, IMMEDIATE - 1)) << 8


@dataclass(frozen=True, eq=False)
class _LayerNormForm:
    """The integers of a `LayerNorm`.

    The sum of squares has `places` places (negative: so many bits less), is at most `squares` without them, and `added`
    is epsilon's part of it. A distance from the mean, which has `MEAN_PLACES` places, divided by its root has
    `normal_places` places, and is the normalised element but for a factor, which is in `weight`.
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
        # The variance of bytes is at most a quarter of their range squared, and the middle at most a half off the mean.
        most = channels * (127.5**2 + 0.25 if op.centre else 255.0**2)
        places = min(16, math.floor(30.9 - math.log2(most + op.epsilon * channels)))
        # No element is further from the mean than root(channels) times the deviation.
        normal_places = max(0, min(RECIPROCAL_PLACES, 16 - MEAN_PLACES + places // 2))
        weight = op.weight * op.scale * math.sqrt(channels) * 2.0 ** (places / 2 - MEAN_PLACES)
        weight_places = max(15 - math.frexp(np.abs(weight).max())[1], FINE - normal_places + 3)
        weights = np.clip(np.rint(np.ldexp(weight, weight_places)), -(1 << 15), (1 << 15) - 1)
        biases = np.rint(np.ldexp(op.bias * op.scale + op.y_zero, FINE))
        return cls(
            places, math.ceil(most) if places >= 0 else math.ceil(math.ldexp(most, places)) + channels,
            max(round(math.ldexp(op.epsilon * channels, places)), 1), normal_places,
            weights.astype(np.int16), min(normal_places + weight_places - FINE, 63),
            np.clip(biases, -(1 << 15), (1 << 15) - 1).astype(np.int16),
        )  # fmt: skip
