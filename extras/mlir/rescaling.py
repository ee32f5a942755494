"""TOSA's rescale as the device's requantisation, where both give the same bytes.

TOSA multiplies an integer by a multiplier of 31 bits, adds half of ``2**shift``, and shifts right: it rounds half up.
The device multiplies by a mantissa of 24 bits and rounds half to even. Both are monotonic step functions, so they are
equal if each step is at the same integer. `find_scales` searches for such a mantissa over all possible integers, up
to the results that are clamped. If there is none, the host computes TOSA's steps.

The ONNX nodes for arithmetic on bytes and integers are exact to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from weft.compiler.ir.scales import SHIFT_MAX, quantise_scale
from weft.extras.mlir.builder import Builder, Sum
from weft.extras.mlir.context import ELEMENTS
from weft.extras.mlir.program import Quantisation, Value

BITS = 24
"""Width of the device's mantissas."""
_DOUBLE = 1 << 30
"""Constant that double rounding adds to positive products and subtracts from negative ones, for shifts above 31."""
_CANDIDATES = 64
"""Largest number of mantissas to try."""


@dataclass(frozen=True)
class Scale:
    """TOSA's scale: ``(value * multiplier + half) >> shift``; double rounding changes ``half`` by the value's sign."""

    multiplier: int
    shift: int
    double: bool = False

    @property
    def extra(self) -> int:
        """Constant that double rounding adds to ``half`` for positive values, and subtracts for negative ones."""
        return _DOUBLE if self.double and self.shift > 31 else 0

    def apply(self, value: int) -> int:
        """Return the scaled value: apply_scale_32 and apply_scale_16 of the specification."""
        extra = self.extra if value >= 0 else -self.extra
        return (value * self.multiplier + (1 << (self.shift - 1)) + extra) >> self.shift

    def first(self, level: int) -> int | None:
        """Return the least value whose result is at least `level`, or None."""
        if not self.multiplier:
            return None
        # Solve (value * multiplier + half + extra) >> shift >= level, where `extra` has the sign of the value.
        half, extra = 1 << (self.shift - 1), self.extra
        positive = _ceil((level << self.shift) - half - extra, self.multiplier)
        negative = _ceil((level << self.shift) - half + extra, self.multiplier)
        return min(negative, 0) if negative < 0 else max(positive, 0)


def reciprocal_scale(count: int) -> Scale:
    """Return the scale by which TOSA divides by `count`: reciprocal_scale of the specification."""
    shift = (count - 1).bit_length()
    return Scale((((1 << 30) + 1) << shift) // count, 30 + shift)


def first_on_device(mantissa: int, shift: int, level: int) -> int | None:
    """Return the least value whose product with mantissa / 2**shift the device rounds to at least `level`, or None."""
    if not mantissa:
        return None
    # Half to even: an even level includes its lower tie, an odd level does not.
    wanted = (2 * level - 1) << shift
    return _ceil(wanted, 2 * mantissa) if level % 2 == 0 else wanted // (2 * mantissa) + 1


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


Range = tuple[int, int]
"""Least and greatest of some integers."""


def find_mantissa(scale: Scale, values: Range, levels: Range) -> tuple[int, int] | None:
    """Return a mantissa and shift of the device that give the results of `scale`, or None.

    The results agree for every integer in `values` after clamping to `levels`.
    """
    if not scale.multiplier:
        return (0, SHIFT_MAX) if levels[0] <= 0 <= levels[1] else None
    simple = _direct_mantissa(scale, values)
    if simple is not None:
        return simple
    steps = [(level, scale.first(level)) for level in range(levels[0] + 1, levels[1] + 1)]
    firsts = [
        (level, min(max(first, values[0]), values[1] + 1)) for level, first in steps if first is not None
    ]
    # Each step bounds the scale: its first value must reach the level, the value before it must not.
    exact = Fraction(scale.multiplier, 1 << scale.shift)
    least, most = exact / 2, exact * 2
    for level, first in firsts:
        half = Fraction(2 * level - 1, 2)
        if first <= values[1]:
            least, most = _tighten(least, most, first, half, above=True)
        if first > values[0]:
            least, most = _tighten(least, most, first - 1, half, above=False)
    return _search(least, most, exact, lambda m, s: _has_steps(m, s, firsts, values))


def _direct_mantissa(scale: Scale, values: Range) -> tuple[int, int] | None:
    """Return the scale itself if it fits the mantissa and no value is a tie."""
    zeros = (scale.multiplier & -scale.multiplier).bit_length() - 1
    odd, shift = scale.multiplier >> zeros, scale.shift - zeros
    if scale.extra or odd.bit_length() > BITS or may_tie(odd, shift, values):
        return None
    pair = quantise_scale(math.ldexp(float(odd), -shift)) if shift >= 0 and scale.shift <= SHIFT_MAX else None
    return pair if pair is not None and Fraction(pair[0], 1 << pair[1]) == Fraction(odd, 1 << shift) else None


def may_tie(odd: int, shift: int, values: Range) -> bool:
    """Return whether an integer in `values` times ``odd / 2**shift`` may be half way between two integers."""
    if shift < 1 or not odd:
        return False
    return max(abs(values[0]), abs(values[1])) >= 1 << (shift - 1)


def _tighten(
    least: Fraction, most: Fraction, value: int, half: Fraction, *, above: bool
) -> tuple[Fraction, Fraction]:
    """Restrict scales to those whose product with `value` is at least (`above`) or at most `half`."""
    if not value:
        wrong = half > 0 if above else half < 0
        return (Fraction(1), Fraction(0)) if wrong else (least, most)
    bound = half / value
    return (max(least, bound), most) if above == (value > 0) else (least, min(most, bound))


def _search(
    least: Fraction, most: Fraction, exact: Fraction, good: Callable[[int, int], bool]
) -> tuple[int, int] | None:
    """Return the mantissa and shift nearest to `exact`, within the bounds, that satisfy `good`."""
    if least > most:
        return None
    _, shift = quantise_scale(float((least + most) / 2))
    low, high = math.ceil(least * (1 << shift)), math.floor(most * (1 << shift))
    # The candidates nearest to TOSA's own scale are the most likely ones: search outwards.
    middle = min(max(round(exact * (1 << shift)), low), high)
    for offset in range(_CANDIDATES):
        for mantissa in {middle + offset, middle - offset}:
            if low <= mantissa <= high and 0 < mantissa < 1 << BITS and good(mantissa, shift):
                return mantissa, shift
    return None


def _has_steps(m: int, s: int, firsts: Sequence[tuple[int, int]], values: Range) -> bool:
    """Return whether the device first reaches each level at the given value."""
    for level, first in firsts:
        own = first_on_device(m, s, level)
        if own is None or min(max(own, values[0]), values[1] + 1) != first:
            return False
    return True


def is_exact(scale: Scale, pair: tuple[int, int], values: Range, levels: Range) -> bool:
    """Return whether the device, with a mantissa and shift, gives the results of `scale` clamped to `levels`."""
    for level in range(levels[0] + 1, levels[1] + 1):
        firsts = (scale.first(level), first_on_device(*pair, level))
        ends = [None if first is None else min(max(first, values[0]), values[1] + 1) for first in firsts]
        if ends[0] != ends[1]:
            return False
    return True


def find_scales(scales: Sequence[Scale], values: Sequence[Range], levels: Range) -> np.ndarray | None:
    """Return the device's scale of each channel, float32, with which no byte changes, or None."""
    pairs = [find_mantissa(scale, each, levels) for scale, each in zip(scales, values, strict=True)]
    if any(item is None for item in pairs):
        return None
    return np.array([math.ldexp(item[0], -item[1]) for item in pairs if item is not None], np.float32)


BYTES = ("int8", "uint8")
"""Types that TOSA's quantised operations take."""
ONE = np.ones(1, np.float32)
"""Scale of integers without quantisation."""


def byte_quantisation(scale: np.ndarray, zero: int, dtype: str, axis: int | None) -> Quantisation:
    """Return a quantisation with these scales, one for all or one for each index of `axis`, and one zero point."""
    limits, single = np.iinfo(dtype), scale.size == 1
    scales = scale.reshape(-1).astype(np.float32)
    zeros = np.full(scales.shape, zero, np.int64)
    return Quantisation(scales, zeros, None if single else axis, int(limits.min), int(limits.max))


def quantise_integral(builder: Builder, name: str, zero: int, bounds: tuple[int, int], dtype: str) -> str:
    """Emit integral real numbers plus a zero point as bytes, clamped to `bounds`."""
    kind = Quantisation(ONE, np.array([zero]), None, *bounds)
    return builder.quantise(name, kind, dtype)


def emit_lookup(builder: Builder, value: Value, table: np.ndarray) -> str:
    """Emit the entry of `table` for each byte, as floats. `table` has 256 integers, in ascending order of the bytes."""
    dtype = value.type.dtype
    real = builder.dequantise(builder.stored_value(value), byte_quantisation(ONE, 0, dtype, None), value.type)
    limits = np.iinfo(dtype)
    keys = tuple(float(key) for key in range(int(limits.min), int(limits.max) + 1))
    entries = tuple(float(entry) for entry in table.tolist())
    return builder.emit(
        "ai.onnx.ml:LabelEncoder",
        (real,),
        "table",
        keys_floats=keys,
        values_floats=entries,
        default_float=0.0,
    )


def emit_byte_function(builder: Builder, value: Value, table: np.ndarray, dtype: str) -> str:
    """Emit the entry of `table` for each byte, as bytes."""
    limits = np.iinfo(dtype)
    return quantise_integral(
        builder, emit_lookup(builder, value, table), 0, (int(limits.min), int(limits.max)), dtype
    )


def all_bytes(dtype: str) -> np.ndarray:
    """Return all values of an 8-bit type in ascending order, int64 (256,)."""
    limits = np.iinfo(dtype)
    return np.arange(int(limits.min), int(limits.max) + 1)


def sum_of_byte(builder: Builder, value: Value, table: np.ndarray) -> Sum:
    """Return the description of an int32 function of bytes.

    It is linear if each entry is the byte less a zero point, times a power of two; else a table.
    """
    dtype = value.type.dtype
    steps = np.diff(table)
    # Times a power of two, a float32 scale stays exact.
    linear = (
        steps[0] > 0
        and (steps == steps[0]).all()
        and not table[0] % steps[0]
        and not steps[0] & (steps[0] - 1)
    )
    zero = int(all_bytes(dtype)[0] - table[0] // steps[0]) if linear else 0
    linear = bool(linear and zero in all_bytes(dtype))

    def emit_scaled(scale: np.ndarray) -> str:
        if linear:
            kind = byte_quantisation(scale * np.float32(steps[0]), zero, dtype, len(value.type.shape) - 1)
            return builder.dequantise(builder.stored_value(value), kind, value.type)
        return builder.emit(
            "Mul", (emit_lookup(builder, value, table), builder.constant(scale, "scale")), "scaled"
        )

    return Sum(np.array([table.min()]), np.array([table.max()]), emit_scaled, value, table)


def emit_cast(builder: Builder, name: str, dtype: str) -> str:
    return builder.emit("Cast", (name,), "cast", to=ELEMENTS[dtype])


def emit_right_shift(builder: Builder, name: str, shifts: np.ndarray) -> str:
    """Emit 64-bit integers divided by powers of two, rounded down."""
    divisor = builder.constant(np.left_shift(np.int64(1), shifts.astype(np.int64)), "divisor")
    # ONNX's Div truncates towards 0 and its Mod has the divisor's sign: subtract the rest first to round down.
    remainder = builder.emit("Mod", (name, divisor), "rest")
    return builder.emit("Div", (builder.emit("Sub", (name, remainder), "whole"), divisor), "shift")


def emit_rescale(
    builder: Builder,
    name: str,
    scales: Sequence[Scale],
    zero: int,
    dtype: str,
    bounds: tuple[int, int] | None,
) -> str:
    """Emit integers rescaled in exactly TOSA's steps: times `scales` of the last axis or one, plus `zero`, clamped."""
    wide = emit_cast(builder, name, "int64")
    factors = builder.constant(np.array([scale.multiplier for scale in scales], np.int64), "multiplier")
    product = builder.emit("Mul", (wide, factors), "product")
    tie_bits = np.array([1 << (scale.shift - 1) for scale in scales], np.int64)
    extra = np.array([scale.extra for scale in scales], np.int64)
    half = builder.constant(tie_bits + extra, "half")
    if extra.any():
        none = builder.constant(np.zeros((), np.int64), "none")
        negative = builder.emit("Less", (wide, none), "negative")
        half = builder.emit("Where", (negative, builder.constant(tie_bits - extra, "half"), half), "half")
    total = builder.emit("Add", (product, half), "rounded")
    result = emit_right_shift(builder, total, np.array([scale.shift for scale in scales]))
    if zero:
        result = builder.emit("Add", (result, builder.constant(np.array(zero, np.int64), "zero")), "zero")
    if bounds is not None:
        ends = (builder.constant(np.array(end, np.int64), "bound") for end in bounds)
        result = builder.emit("Clip", (result, *ends), "exact_rounding_of_tosa")
    return emit_cast(builder, result, dtype)
