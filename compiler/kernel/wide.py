"""Operators with 16-bit inputs or results: convolution, functions, and layer normalisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Weighted
from weft.compiler.ir.layout import fill_planes, join_planes, split_planes
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import ONE, Window
from weft.compiler.kernel.evaluate import LIMITS, ClampedRows, evaluate, store_clamped
from weft.compiler.kernel.expressions import (
    DIGITS,
    FACTOR,
    RECIPROCAL_PLACES,
    WORD,
    Expression,
    Rows,
    constant,
)
from weft.compiler.kernel.operators import FRACTION_PLACES, MEAN_PLACES, LayerNorm, mean_of, whole_number
from weft.hdl.isa.config import LOOKUP_ENTRIES

_MANTISSA_BITS = 16
_BIAS_BITS = 24
_PRODUCT_BITS = 29
"""Bits of a product of a sum and a scale, such that two products and a bias fit 32 bits."""
_PLACES = 2
"""Least binary places of results before they are rounded."""
_SUM_MAX = (1 << 31) - 1
_EXPONENT_MAX = 63


@dataclass(frozen=True, eq=False, kw_only=True)
class WideConv(Weighted):
    """Convolution, or matrix product as 1x1 convolution, with 16-bit inputs or results.

    q = sat(round((sum (x - x_zero) * weight + bias) * scale) + y_zero), then clamped to `clamp`; padding reads
    x_zero. `weight`, `bias` (int64), `scale`, `window` and `groups` are as in `Conv`. `x_wide` says whether inputs
    have 16 bits, `wide` whether results do; `src` and `dst` are then the planes of upper bytes. Sums of upper and
    lower bytes lie side by side in the accumulator, and a kernel combines them. Scales have 16 bits: results are at
    most one step off.
    """

    pool: ClassVar[None] = None
    epilogue: ClassVar[None] = None

    name: str
    src: View
    dst: View
    weight: np.ndarray
    bias: np.ndarray
    scale: np.ndarray
    window: Window = ONE
    groups: int = 1
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    clamp: tuple[int, int] = LIMITS
    x_wide: bool = False
    wide: bool = False

    @property
    def sources(self) -> tuple[View, ...]:
        return self.src.planes if self.x_wide else (self.src,)

    @property
    def fills(self) -> tuple[int, ...]:
        """Bytes that padding reads, for each plane of inputs."""
        return fill_planes(self.x_zero) if self.x_wide else (self.x_zero,)

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """Constants of the kernel per output channel: three tensors of int16 (channels,)."""
        return self.form.vectors

    @cached_property
    def form(self) -> _Form:
        return _Form.of(self)

    @cached_property
    def kernel(self) -> Rows:
        """Kernel; its tensor 0 are the sums."""
        form = self.form
        columns = len(self.scale)
        return _rows(
            _Kernel(
                columns,
                form.largest,
                form.shift,
                form.places,
                form.bias_shift,
                self.clamp,
                self.x_wide,
                self.wide,
            )
        )


class _Kernel(NamedTuple):
    """Parameters that determine the kernel of a `WideConv`."""

    columns: int
    largest: int
    shift: int
    places: int
    bias_shift: int
    clamp: tuple[int, int]
    x_wide: bool
    wide: bool


@lru_cache(256)
def _rows(op: _Kernel) -> Rows:
    rows = Rows(op.columns, 4)
    factor, places = rows.factor(1, 2), RECIPROCAL_PLACES - op.shift
    total = rows.accumulator(int(op.x_wide), op.largest).over(factor, places, 1 << _PRODUCT_BITS)
    if op.x_wide:
        total = total + rows.accumulator(0, op.largest).over(factor, places + 8, 1 << _PRODUCT_BITS)
    # A 24-bit bias from the bytes of tensors 2 and 3.
    for byte, at in ((rows.read(3), 16), (rows.lower(3), 8), (rows.lower(2), 0)):
        total = total + (byte << at + op.bias_shift)
    return store_clamped(rows, total, op, op.places)


@dataclass(frozen=True, eq=False)
class _Form:
    """Integers of a `WideConv`.

    No sum exceeds `largest`. A scale is ``mantissa / 2**(shift + exponent)``, and gives results with `places`.
    `vectors` are mantissas; exponents with the lowest bytes of biases; and the upper bytes of biases. Biases are
    shifted right by `bias_shift`.
    """

    largest: int
    shift: int
    places: int
    bias_shift: int
    vectors: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, op: WideConv) -> _Form:
        weight = op.weight.astype(np.int64).reshape(len(op.scale), -1)
        most, step = 128 * np.abs(weight).sum(axis=1), 8 * (len(op.fills) - 1)
        if most.max() > _SUM_MAX:
            raise CompileError(
                f"{op.name}: sums of products must fit 32 bits, but may be {int(most.max()):,}; use fewer inputs"
            )
        fraction, exponent = np.frexp(op.scale)
        bits = _MANTISSA_BITS - exponent
        bits_reached = math.log2(float((most * op.scale).max() or 1.0)) + step
        places = min(FRACTION_PLACES, math.floor(_PRODUCT_BITS - bits_reached), int(bits.min()) - step)
        if places < _PLACES:
            raise CompileError(
                f"{op.name}: of 16 bits sums times their scale must stay below {1 << _PRODUCT_BITS - _PLACES:,}, "
                f"but there is a scale of {op.scale.max():g}"
            )
        # Rounding up to 2**16 would not fit: saturate.
        mantissa = np.minimum(np.rint(np.ldexp(fraction, _MANTISSA_BITS)), (1 << _MANTISSA_BITS) - 1)
        more = np.minimum(bits - bits.min(), _EXPONENT_MAX)
        # Lower bytes are stored less 128, which the bias puts back.
        added = 128 * (len(op.fills) - 1) - op.x_zero
        # Scale the bias like the rounded scale: results are then exact in the middle of their range and nearly so
        # elsewhere, however large the parts of sums are that zero points cancel.
        used = np.ldexp(mantissa, -bits)
        zero = op.y_zero * np.divide(used, op.scale, out=np.ones_like(used), where=op.scale > 0)
        bias = np.ldexp((op.bias + added * weight.sum(axis=1)) * used + zero, places)
        shift = max(0, math.ceil(math.log2(max(float(np.abs(bias).max()), 1.0) + 1)) + 1 - _BIAS_BITS)
        rounded_bias = np.rint(np.ldexp(bias, -shift)).astype(np.int64)
        tensors = (
            mantissa.astype(np.uint16).view(np.int16),
            (more.astype(np.int64) << 8 | rounded_bias & 255).astype(np.int16),
            (rounded_bias >> 8).astype(np.int16),
        )
        return cls(int(most.max()), int(bits.min()) - places, places, shift, tensors)


WIDE_FUNCTION_TABLES = 2
"""Look-up tables for 16-bit entries."""
_WIDE_FUNCTION_PLACES = 14
"""Binary places between two entries."""
_ENTRY_RANGE = 1.25
"""Range of entries relative to that of results, so that lines cross the ends of the range where the function does."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WideFunction(ClampedRows):
    """Piecewise linear function: q = sat(round(line(x) * scale)), where x has 16 bits.

    line(x) interpolates between the entries of `table`, int16 (256,), around ``(x - first) / spacing``. Results have
    8 bits, or 16 with `wide`.
    """

    src: View
    table: np.ndarray
    first: int
    spacing: int
    scale: float

    @property
    def sources(self) -> tuple[View, ...]:
        return self.src.planes

    def rows(self) -> Rows:
        rows = Rows(self.src.shape[3], 2)
        along = (rows.bytes_of(0, 1) - self.first).scale((1 << _WIDE_FUNCTION_PLACES) / self.spacing)
        place = along - (LOOKUP_ENTRIES // 2 << _WIDE_FUNCTION_PLACES)
        value = place.interpolate(self.table, _WIDE_FUNCTION_PLACES)
        return store_clamped(rows, value.scale(math.ldexp(self.scale, FRACTION_PLACES)), self)

    @property
    def results(self) -> np.ndarray:
        """Results for all x in order, (65536,)."""
        x = np.arange(LIMITS[0], LIMITS[1] + 1)
        results = evaluate(self._single().rows(), [plane[:, None] for plane in split_planes(x)])
        return join_planes(results[:, 0], results[:, 1]) if self.wide else results[:, 0].astype(np.int32)

    def _single(self) -> WideFunction:
        """Return this function for one element."""
        one = View(self.src.buffer, (1, 1, 1, 1))
        return self.replace(src=one, dst=one)


class Lines(NamedTuple):
    """Fields of a `WideFunction`."""

    table: np.ndarray
    first: int
    spacing: int
    scale: float


def fit_lines(values: np.ndarray, limits: tuple[int, int]) -> Lines:
    """Fit the entries of a `WideFunction` to a function, by least squares.

    `values` are the function's results for each x, float64 (65536,), in steps with zero point, before rounding and
    clamping to `limits`. Entries cover only the range in which results change.
    """
    middle, half = (limits[0] + limits[1]) / 2, (limits[1] - limits[0]) / 2 * _ENTRY_RANGE
    wanted = np.clip(values, middle - half, middle + half)
    rounded = np.clip(np.rint(wanted), *limits)
    # Entries only where results change: constant ends come from the clamped lines.
    changing = np.flatnonzero(np.diff(rounded))
    begin, end = (int(changing[0]), int(changing[-1]) + 1) if changing.size else (0, 1)
    spacing = max(1, -(-(end - begin) // (LOOKUP_ENTRIES - 1)))
    begin = max(0, min(begin, len(wanted) - 1 - spacing))
    x = np.arange(begin, min(begin + spacing * (LOOKUP_ENTRIES - 1) + 1, len(wanted)))
    entries = _fit_entries((x - begin) / spacing, wanted[x])
    largest = max(float(np.abs(entries).max()), 2.0**-20)
    gain = min(DIGITS / largest, 2.0**20)
    return Lines(np.rint(entries * gain).astype(np.int16), begin + LIMITS[0], spacing, 1 / gain)


def _fit_entries(at: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the entries whose interpolation at positions `at` comes nearest to `wanted`."""
    place = np.minimum(at.astype(np.int64), LOOKUP_ENTRIES - 2)
    fraction = at - place
    matrix, right = np.zeros((LOOKUP_ENTRIES, LOOKUP_ENTRIES)), np.zeros(LOOKUP_ENTRIES)
    for i, a in ((0, 1 - fraction), (1, fraction)):
        np.add.at(right, place + i, a * wanted)
        for j, b in ((0, 1 - fraction), (1, fraction)):
            np.add.at(matrix, (place + i, place + j), a * b)
    # Normal equations of the least squares; entries that no x touches stay at the last value.
    used = np.flatnonzero(np.diag(matrix))
    entries = np.full(LOOKUP_ENTRIES, wanted[-1])
    entries[used] = np.linalg.solve(matrix[np.ix_(used, used)], right[used])
    return entries


_LARGEST_FRACTION = 1 << MEAN_PLACES
"""Largest fraction of a mean whose nearest integer is known to 17 bits."""
_UNIT_PLACES = 15
"""Binary places of elements less their mean, divided by the largest magnitude."""
_SQUARE_SUM_SHIFT = 8
"""Bits that the sum of squares drops, so that much larger epsilons fit."""
_EPSILON_SHIFT = 4
"""Bits that the square of epsilon's root drops."""
_ROOT_EXTRA_PLACES = 6
"""Binary places of epsilon's root beyond those of a factor."""
_LEAST_LARGEST = 1 << MEAN_PLACES - 2
"""Least distance of some element from the mean, unless all elements are equal."""


@dataclass(frozen=True, eq=False)
class WideLayerNorm(LayerNorm):
    """Layer normalisation of 16-bit elements; results have 8 bits, or 16 with `wide`.

    Squares of such elements do not fit. So the elements of a row are first divided by their largest magnitude less
    the mean, or by a part of epsilon's root; that takes one more loop over the row. 8-bit results are at most one
    step off. 16-bit results have about 13 bits, because roots have 14. They have fewer where some elements of a row
    are far larger, or where a row is so uniform that the mean's rounding matters.
    """

    clamp: tuple[int, int] = LIMITS
    wide: bool = False

    @property
    def sources(self) -> tuple[View, ...]:
        return self.src.planes

    @cached_property
    def shift(self) -> int:
        """Bits that squares drop, so that their sum fits."""
        return math.ceil(math.log2(self.elements)) if self.elements > 1 else 0

    @cached_property
    def _weight_places(self) -> int:
        return max(15 - math.frexp(np.abs(self._weights).max())[1], FRACTION_PLACES - RECIPROCAL_PLACES + 3)

    @property
    def _weights(self) -> np.ndarray:
        """Weights, as factors of an element divided by the root of the shifted sum of squares."""
        root = 2.0 ** (-(self.shift + _SQUARE_SUM_SHIFT) / 2)
        return np.asarray(self.weight * self.scale * math.sqrt(self.elements) * root)

    @property
    def _least(self) -> int:
        """Least divisor of elements, such that epsilon's part of the sum fits."""
        return max(
            round(math.ldexp(math.sqrt(self.epsilon), MEAN_PLACES - _SQUARE_SUM_SHIFT // 2)), _LEAST_LARGEST
        )

    @cached_property
    def _bias_shift(self) -> int:
        """Bits that biases are shifted left in the kernel; large ones have few binary places."""
        largest = float(np.abs(self.bias * self.scale + self.y_zero).max())
        return max(0, math.frexp(largest)[1] + FRACTION_PLACES - 15) if self.wide else 0

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """Weights and biases."""
        biases = np.ldexp(self.bias * self.scale + self.y_zero, FRACTION_PLACES - self._bias_shift)
        pairs = (np.ldexp(self._weights, self._weight_places), biases)
        return tuple(np.clip(np.rint(item), -(1 << 15), (1 << 15) - 1).astype(np.int16) for item in pairs)

    def rows(self) -> Rows:
        rows = Rows(self.elements, 4)
        x = rows.bytes_of(0, 1)
        if self.centre:
            middle, fraction = mean_of(rows, x, 1 << 15, _LARGEST_FRACTION)
            distance = (x << MEAN_PLACES) - ((middle << MEAN_PLACES) + fraction)
        else:
            distance = (x - self.x_zero) << MEAN_PLACES
        largest = rows.largest(distance.maximum(0 - distance).assume(0, 1 << 30)).maximum(
            whole_number(self._least)
        )
        inverse = largest.reciprocal()
        unit = distance.over(inverse, _UNIT_PLACES, (1 << _UNIT_PLACES) + 8)
        square = rows.sum(unit.times(unit, self.shift)).times(1, _SQUARE_SUM_SHIFT)
        root = (square + self._epsilon_part(inverse)).maximum(1).rsqrt()
        # |element - mean| <= sqrt(elements) * deviation.
        most = 2 << RECIPROCAL_PLACES + math.ceil((self.shift + _SQUARE_SUM_SHIFT) / 2)
        normal = unit.over(root, RECIPROCAL_PLACES, most)
        product = normal.times(
            rows.wide(2), min(RECIPROCAL_PLACES + self._weight_places - FRACTION_PLACES, 63)
        )
        if self._bias_shift:
            return store_clamped(rows, product + (rows.wide(3) << self._bias_shift), self)
        return store_clamped(rows, rows.wide(3, product), self)

    def _epsilon_part(self, inverse: Expression) -> Expression:
        """Return epsilon's part of the shifted sum of squares: the square of a number divided by the largest
        distance."""
        shift = (self.shift + _SQUARE_SUM_SHIFT - _EPSILON_SHIFT) / 2
        wanted = math.sqrt(self.epsilon * self.elements) * 2.0 ** (MEAN_PLACES + _UNIT_PLACES - shift)
        # (c * 2**more + r)**2 is about (c * 2**more + 2 * r) * c * 2**more; c alone has too few bits.
        more = min(_ROOT_EXTRA_PLACES, max(30 + RECIPROCAL_PLACES - math.frexp(wanted)[1], 0))
        places = min(max(math.frexp(wanted)[1] - 22, 0), RECIPROCAL_PLACES)
        number = whole_number(min(round(math.ldexp(wanted, more - places)), WORD - 256))
        number = constant(number) if isinstance(number, int) else number
        part = number.over(inverse, places, (1 << 31) - 1)
        part = part.minimum(FACTOR - 1 << more).assume(0, FACTOR - 1 << more)
        coarse = part.times(1, more)
        doubled = ((part << 1) - (coarse << more)).assume(0, FACTOR - 1 << more)
        return doubled.times(coarse, _EPSILON_SHIFT + more)
