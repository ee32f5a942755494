"""ONNX nodes for arithmetic on bytes and integers, exact to the last bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.extras.mlir.builder import Builder, Sum
from weft.extras.mlir.context import ELEMENTS
from weft.extras.mlir.program import Quantisation, Value
from weft.extras.mlir.rescaling import Scale

BYTES = ("int8", "uint8")
"""Types that TOSA's quantised operations take."""
ONE = np.ones(1, np.float32)
"""Scale of integers without quantisation."""


def byte_quantisation(scale: np.ndarray, zero: int, dtype: str, axis: int | None) -> Quantisation:
    """Return a quantisation with these scales, one for all or one for each index of `axis`, and one zero point."""
    limits, whole = np.iinfo(dtype), scale.size == 1
    scales = scale.reshape(-1).astype(np.float32)
    zeros = np.full(scales.shape, zero, np.int64)
    return Quantisation(scales, zeros, None if whole else axis, int(limits.min), int(limits.max))


def quantise_whole(builder: Builder, name: str, zero: int, bounds: tuple[int, int], dtype: str) -> str:
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
    return quantise_whole(
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
    rest = builder.emit("Mod", (name, divisor), "rest")
    return builder.emit("Div", (builder.emit("Sub", (name, rest), "whole"), divisor), "shift")


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
