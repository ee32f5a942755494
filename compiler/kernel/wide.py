"""Convolutions of which inputs or results have 16 bits: a kernel makes the results of the sums in the accumulator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from weft.compiler.ir.graph import ONE, CompileError, View, Weighted, Window
from weft.compiler.ir.layout import fills, joined, split
from weft.compiler.kernel.evaluate import LIMITS, ClampedRows, evaluate, stored
from weft.compiler.kernel.expressions import (
    DIGITS,
    FACTOR,
    RECIPROCAL_PLACES,
    WORD,
    Expression,
    Rows,
    constant,
)
from weft.compiler.kernel.operators import FINE, MEAN_PLACES, LayerNorm, middle_of, whole_number
from weft.hdl.isa.config import LOOKUP_ENTRIES

_MANTISSA_BITS = 16
_BIAS_BITS = 24
_ROOM = 29
"""Bits of a product of a sum and a scale, so that two of them and a bias fit 32."""
_PLACES = 2
"""Places of results before they are rounded, at least."""
_SUM_MAX = (1 << 31) - 1
_EXPONENT_MAX = 63


@dataclass(frozen=True, eq=False, kw_only=True)
class WideConv(Weighted):
    """Convolution, or matrix product as 1x1 convolution, with inputs or results of 16 bits.

    q = sat(round((sum (x - x_zero) * weight + bias) * scale) + y_zero), then clamped to `clamp`; padding reads
    x_zero. `weight`, `bias` (int64), `scale`, `window` and `groups` are as in `Conv`. `x_wide` tells whether inputs
    have 16 bits, `wide` whether results have; `src` and `dst` are then the planes of upper bytes. Sums of upper and of
    lower bytes lie side by side in the accumulator, and a kernel combines them. Scales have 16 bits: results are at
    most one off.
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
        """The bytes that padding reads, for each plane of inputs."""
        return fills(self.x_zero) if self.x_wide else (self.x_zero,)

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """What the kernel is given for each output channel: three tensors of int16 (channels,)."""
        return self.form.vectors

    @cached_property
    def form(self) -> _Form:
        return _Form.of(self)

    @cached_property
    def kernel(self) -> Rows:
        """The kernel: tensor 0 are the sums."""
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
    """What the kernel of a `WideConv` of so many channels depends on."""

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
    made = rows.accumulated(int(op.x_wide), op.largest).over(factor, places, 1 << _ROOM)
    if op.x_wide:
        made = made + rows.accumulated(0, op.largest).over(factor, places + 8, 1 << _ROOM)
    for byte, at in ((rows.read(3), 16), (rows.lower(3), 8), (rows.lower(2), 0)):
        made = made + (byte << at + op.bias_shift)
    return stored(rows, made, op, op.places)


@dataclass(frozen=True, eq=False)
class _Form:
    """The integers of a `WideConv`.

    No sum is above `largest`. A scale is ``mantissa / 2**(shift + exponent)``, and makes results with `places`.
    `vectors` are mantissas, exponents with the lowest bytes of biases, and what is left of these, which are shifted
    by `bias_shift`.
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
        reached = math.log2(float((most * op.scale).max() or 1.0)) + step
        places = min(FINE, math.floor(_ROOM - reached), int(bits.min()) - step)
        if places < _PLACES:
            raise CompileError(
                f"{op.name}: of 16 bits sums times their scale must stay below {1 << _ROOM - _PLACES:,}, but there is "
                f"a scale of {op.scale.max():g}"
            )
        mantissa = np.minimum(np.rint(np.ldexp(fraction, _MANTISSA_BITS)), (1 << _MANTISSA_BITS) - 1)
        more = np.minimum(bits - bits.min(), _EXPONENT_MAX)
        added = 128 * (len(op.fills) - 1) - op.x_zero
        # In proportion to the rounded scale: results are exact in the middle of their range, and little off elsewhere,
        # however large the parts of sums are that zero points take away again.
        used = np.ldexp(mantissa, -bits)
        zero = op.y_zero * np.divide(used, op.scale, out=np.ones_like(used), where=op.scale > 0)
        bias = np.ldexp((op.bias + added * weight.sum(axis=1)) * used + zero, places)
        shift = max(0, math.ceil(math.log2(max(float(np.abs(bias).max()), 1.0) + 1)) + 1 - _BIAS_BITS)
        whole = np.rint(np.ldexp(bias, -shift)).astype(np.int64)
        kept = (
            mantissa.astype(np.uint16).view(np.int16),
            (more.astype(np.int64) << 8 | whole & 255).astype(np.int16),
            (whole >> 8).astype(np.int16),
        )
        return cls(int(most.max()), int(bits.min()) - places, places, shift, kept)


TABLES = 2
"""Look-up tables that entries of 16 bits take."""
_WIDE_FUNCTION_PLACES = 14
"""Binary places between two entries."""
_BEYOND = 1.25
"""How far entries may lie beyond the range of results, so that lines cross its ends where the function does."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WideFunction(ClampedRows):
    """q = sat(round(line(x) * scale)), where line(x) is on the straight line between the entries of `table`, int16
    (256,), next to ``(x - first) / spacing``, and x has 16 bits. Results have 8, or 16 with `wide`."""

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
        along = (rows.bytes_of(0, 1) - self.first).scaled((1 << _WIDE_FUNCTION_PLACES) / self.spacing)
        place = along - (LOOKUP_ENTRIES // 2 << _WIDE_FUNCTION_PLACES)
        value = place.interpolated(self.table, _WIDE_FUNCTION_PLACES)
        return stored(rows, value.scaled(math.ldexp(self.scale, FINE)), self)

    @property
    def results(self) -> np.ndarray:
        """What it makes of each x, from the least on: (65536,)."""
        x = np.arange(LIMITS[0], LIMITS[1] + 1)
        found = evaluate(self._single().rows(), [plane[:, None] for plane in split(x)])
        return joined(found[:, 0], found[:, 1]) if self.wide else found[:, 0].astype(np.int32)

    def _single(self) -> WideFunction:
        """The same of one element."""
        one = View(self.src.buffer, (1, 1, 1, 1))
        return self.replace(src=one, dst=one)


class Lines(NamedTuple):
    """The fields of a `WideFunction`."""

    table: np.ndarray
    first: int
    spacing: int
    scale: float


def lines(values: np.ndarray, limits: tuple[int, int]) -> Lines:
    """The entries nearest to a function, by least squares.

    `values` are its results for each x, float64 (65536,), in steps and with the zero point, before they are rounded and
    clamped to `limits`. Where it does not change at either end there are no entries.
    """
    middle, half = (limits[0] + limits[1]) / 2, (limits[1] - limits[0]) / 2 * _BEYOND
    wanted = np.clip(values, middle - half, middle + half)
    whole = np.clip(np.rint(wanted), *limits)
    changing = np.flatnonzero(np.diff(whole))
    begin, end = (int(changing[0]), int(changing[-1]) + 1) if changing.size else (0, 1)
    spacing = max(1, -(-(end - begin) // (LOOKUP_ENTRIES - 1)))
    begin = max(0, min(begin, len(wanted) - 1 - spacing))
    x = np.arange(begin, min(begin + spacing * (LOOKUP_ENTRIES - 1) + 1, len(wanted)))
    entries = _fitted((x - begin) / spacing, wanted[x])
    largest = max(float(np.abs(entries).max()), 2.0**-20)
    gain = min(DIGITS / largest, 2.0**20)
    return Lines(np.rint(entries * gain).astype(np.int16), begin + LIMITS[0], spacing, 1 / gain)


def _fitted(at: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The entries between which straight lines come nearest to what is wanted at places counted in entries."""
    place = np.minimum(at.astype(np.int64), LOOKUP_ENTRIES - 2)
    rest = at - place
    matrix, right = np.zeros((LOOKUP_ENTRIES, LOOKUP_ENTRIES)), np.zeros(LOOKUP_ENTRIES)
    for i, a in ((0, 1 - rest), (1, rest)):
        np.add.at(right, place + i, a * wanted)
        for j, b in ((0, 1 - rest), (1, rest)):
            np.add.at(matrix, (place + i, place + j), a * b)
    used = np.flatnonzero(np.diag(matrix))
    found = np.full(LOOKUP_ENTRIES, wanted[-1])
    found[used] = np.linalg.solve(matrix[np.ix_(used, used)], right[used])
    return found


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
