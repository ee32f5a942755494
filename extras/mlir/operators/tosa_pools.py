"""Pools, reductions and argmax of TOSA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.compiler.ir.scales import quantise_scale
from weft.extras.mlir import rescaling
from weft.extras.mlir.builder import Sum
from weft.extras.mlir.context import Context, Record
from weft.extras.mlir.operators.tosa_products import bytes_of, zero_point
from weft.extras.mlir.rescaling import (
    BYTES,
    ONE,
    byte_quantisation,
    find_mantissa,
    is_exact,
    quantise_integral,
    reciprocal_scale,
)

_FRONT, _BACK = (0, 3, 1, 2), (0, 2, 3, 1)
_KEEP: dict[str, Any] = {"keepdims": 1}
_TRIED = 64
"""Number of scales to try, each the next larger float32."""


def _window(context: Context) -> dict[str, Any]:
    """Return kernel, strides and padding."""
    if len(context.shape()) != 4:
        raise context.refuse(f"is of {context.operand().type}; it takes images of four dimensions")
    kernel, strides = context.integers("kernel", rank=2), context.integers("stride", rank=2)
    top, bottom, left, right = context.integers("pad", rank=4)
    if min(*kernel, *strides) < 1 or min(top, bottom, left, right) < 0:
        raise context.refuse("has kernels or strides below 1, or negative padding")
    if max(top, bottom) >= kernel[0] or max(left, right) >= kernel[1]:
        raise context.refuse("has padding as large as its kernel")
    return {"kernel_shape": kernel, "strides": strides, "pads": (top, left, bottom, right)}


def max_pool(context: Context) -> None:
    window, value, builder = _window(context), context.operand(), context.builder
    if value.type.dtype not in BYTES:
        result = context.emit("MaxPool", context.transpose(context.stored_operand(), _FRONT), **window)
        return context.put(context.transpose(result, _BACK))
    # A maximum of stored bytes needs no zero point: a scale of 1 keeps them exact as floats.
    real = builder.dequantise(
        context.stored_operand(), byte_quantisation(ONE, 0, value.type.dtype, None), value.type
    )
    result = context.transpose(context.emit("MaxPool", context.transpose(real, _FRONT), **window), _BACK)
    limits = np.iinfo(value.type.dtype)
    return context.put(
        quantise_integral(builder, result, 0, (int(limits.min), int(limits.max)), value.type.dtype)
    )


def average_pool(context: Context) -> None:
    """Read avg_pool2d, which leaves out padding: on the device if a scale gives the same bytes, else on the host."""
    window, builder = _window(context), context.builder
    value = bytes_of(context, 0)
    zeros = zero_point(context, 1, "input_zp"), zero_point(context, 2, "output_zp")
    counts = _counts(context, window)
    scale = _scale(counts, zeros, value.type.dtype)
    dtype, op = value.type.dtype, context.op
    limits = np.iinfo(dtype)
    if scale is not None:
        real = builder.dequantise(
            context.stored_operand(), byte_quantisation(scale, zeros[0], dtype, None), value.type
        )
        result = context.emit("AveragePool", context.transpose(real, _FRONT), count_include_pad=0, **window)
        return context.put(
            quantise_integral(
                builder, context.transpose(result, _BACK), zeros[1], (int(limits.min), int(limits.max)), dtype
            )
        )
    builder.op = op
    # An integer convolution with ones gives the exact sum of each window.
    channels = value.type.shape[3]
    ones = builder.constant(np.ones((channels, 1, *window["kernel_shape"]), np.int8), "ones")
    image = context.transpose(context.stored_operand(), _FRONT)
    attributes = {"group": channels, "strides": window["strides"], "pads": window["pads"]}
    inputs = (image, ones, context.emit_constant(zeros[0], dtype), context.emit_constant(0, "int8"))
    total = context.transpose(builder.emit("ConvInteger", inputs, "sum", **attributes), _BACK)
    return context.put(_emit_division(context, total, counts, zeros[1], dtype))


def _counts(context: Context, window: dict[str, Any]) -> np.ndarray:
    """Return the number of elements in each window, (rows, columns) of the result."""
    sides = []
    for axis in (0, 1):
        size, kernel, stride = (
            context.shape()[1 + axis],
            window["kernel_shape"][axis],
            window["strides"][axis],
        )
        before, after = window["pads"][axis], window["pads"][2 + axis]
        starts = np.arange((size + before + after - kernel) // stride + 1) * stride - before
        sides.append(np.minimum(starts + kernel, size) - np.maximum(starts, 0))
    counts = np.outer(*sides)
    if not counts.size or counts.min() < 1:
        raise context.refuse("has windows that hold no element")
    return counts


def _scale(counts: np.ndarray, zeros: tuple[int, int], dtype: str) -> np.ndarray | None:
    """Return the scale of the device's pool that gives TOSA's bytes for every window size, or None."""
    limits = np.iinfo(dtype)
    levels = (int(limits.min) - zeros[1], int(limits.max) - zeros[1])
    sums = {
        count: (count * (int(limits.min) - zeros[0]), count * (int(limits.max) - zeros[0]))
        for count in np.unique(counts).tolist()
    }
    largest = max(sums)
    exact = find_mantissa(reciprocal_scale(largest), sums[largest], levels)
    if exact is None:
        return None
    scale = np.float32(math.ldexp(exact[0] * largest, -exact[1]))
    # The scale must serve windows of every size, which padding makes smaller at the border.
    for _ in range(_TRIED):
        pairs = {count: quantise_scale(float(scale) / count) for count in sums}
        if all(is_exact(reciprocal_scale(count), pairs[count], sums[count], levels) for count in sums):
            return np.array([scale], np.float32)
        scale = np.nextafter(scale, np.float32(2))
    return None


def _emit_division(context: Context, total: str, counts: np.ndarray, zero: int, dtype: str) -> str:
    """Emit sums divided by their windows' sizes, as TOSA does."""
    builder = context.builder
    scales = [reciprocal_scale(count) for count in counts.reshape(-1).tolist()]
    shape = (*counts.shape, 1)
    factors, tie_bits, shifts = (
        np.array(numbers, np.int64).reshape(shape)
        for numbers in (
            [scale.multiplier for scale in scales],
            [1 << (scale.shift - 1) for scale in scales],
            [scale.shift for scale in scales],
        )
    )
    wide = rescaling.emit_cast(builder, total, "int64")
    product = builder.emit("Mul", (wide, builder.constant(factors, "multiplier")), "product")
    rounded = builder.emit("Add", (product, builder.constant(tie_bits, "half")), "rounded")
    quotient = rescaling.emit_right_shift(builder, rounded, shifts)
    limits = np.iinfo(dtype)
    quotient = builder.emit("Add", (quotient, context.emit_constant(zero)), "zero")
    bounds = (context.emit_constant(int(limits.min)), context.emit_constant(int(limits.max)))
    return rescaling.emit_cast(
        builder, builder.emit("Clip", (quotient, *bounds), "exact_rounding_of_tosa"), dtype
    )


def reduce_sum(context: Context) -> None:
    builder, op = context.builder, context.op
    axis, keep = _axis(context), _KEEP
    value = context.operand()
    if value.type.dtype.startswith("float"):
        return context.put(
            context.emit("ReduceSum", context.stored_operand(), context.emit_constant([axis]), **keep)
        )
    known, count = builder.sums.get(value), context.shape()[axis]

    def emit_stored() -> str:
        builder.op = op
        return builder.emit(
            "ReduceSum",
            (builder.stored_value(value), builder.constant(np.array([axis]), "axes")),
            "integers",
            **keep,
        )

    if known is None or known.low.size > 1 or known.source is None:
        return builder.set_lazy(
            context.result(),
            emit_stored,
            lambda: rescaling.emit_cast(builder, builder.stored_value(context.result()), "float32"),
        )

    def emit_scaled(scale: np.ndarray) -> str:
        builder.op = op
        return builder.emit(
            "ReduceSum", (known.emit_scaled(scale), builder.constant(np.array([axis]), "axes")), "", **keep
        )

    return builder.set_sum(
        context.result(), Sum(known.low * count, known.high * count, emit_scaled), emit_stored
    )


def _axis(context: Context) -> int:
    rank = len(context.shape())
    (axis,) = context.axes([context.attribute("axis", default=-1)], rank, "axis")
    return axis


def reduce_max(context: Context) -> None:
    value, builder = context.operand(), context.builder
    operator = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin"}[context.short]
    if value.type.dtype not in BYTES:
        return context.put(
            context.emit(
                operator, context.stored_operand(), context.emit_constant([_axis(context)]), keepdims=1
            )
        )
    real = builder.dequantise(
        context.stored_operand(), byte_quantisation(ONE, 0, value.type.dtype, None), value.type
    )
    result = context.emit(operator, real, context.emit_constant([_axis(context)]), keepdims=1)
    limits = np.iinfo(value.type.dtype)
    return context.put(
        quantise_integral(builder, result, 0, (int(limits.min), int(limits.max)), value.type.dtype)
    )


def argmax(context: Context) -> None:
    index = context.emit("ArgMax", context.stored_operand(), axis=_axis(context), keepdims=0)
    context.put(rescaling.emit_cast(context.builder, index, context.result().type.dtype))


OPERATORS = (
    Record(("tosa.max_pool2d",), (1, 1), "MaxPool", max_pool),
    Record(("tosa.avg_pool2d",), (1, 3), "AveragePool, ConvInteger", average_pool),
    Record(("tosa.reduce_sum",), (1, 1), "ReduceSum", reduce_sum),
    Record(("tosa.reduce_max", "tosa.reduce_min"), (1, 1), "ReduceMax, ReduceMin", reduce_max),
    Record(("tosa.argmax",), (1, 1), "ArgMax", argmax),
)
