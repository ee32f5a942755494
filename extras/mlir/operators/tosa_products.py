"""Convolutions and matrix products of TOSA: 8-bit operands, 32-bit sums."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from weft.extras.mlir.builder import Sum
from weft.extras.mlir.context import Context, Record
from weft.extras.mlir.program import TensorType, Value
from weft.extras.mlir.rescaling import BYTES, byte_quantisation

_BACK = (0, 2, 3, 1)
_FRONT = (0, 3, 1, 2)
INT32 = np.iinfo(np.int32)


def zero_point(context: Context, index: int, *names: str) -> int:
    """Return a zero point: an operand of one number, or an attribute in older versions of TOSA, else 0."""
    if index < len(context.op.operands):
        array = context.constant_operand(index, "a zero point")
        if array.size != 1:
            raise context.refuse(f"has {array.size} zero points in operand {index}; there must be one")
        return int(array.item())
    text = context.attribute("quantization_info", default="")
    for name in names:
        number = context.attribute(name)
        match = re.search(rf"\b{name}\s*=\s*(-?\d+)", text) if isinstance(text, str) else None
        if number is None and match is not None:
            number = int(match.group(1))
        if isinstance(number, int):
            return int(number)
    return 0


def bytes_of(context: Context, index: int) -> Value:
    """Return an operand that must have 8 bits."""
    value = context.operand(index)
    if value.type.dtype not in BYTES or value.type.quantisation is not None:
        raise context.refuse(f"is of {value.type}; weft reads it of i8")
    return value


def _window(context: Context) -> dict[str, tuple[int, ...]]:
    """Return strides, dilations and padding."""
    top, bottom, left, right = context.integers("pad", rank=4)
    strides = context.integers("stride", rank=2)
    dilations = context.integers("dilation", rank=2)
    if min(*strides, *dilations) < 1 or min(top, bottom, left, right) < 0:
        raise context.refuse("has strides or dilations below 1, or negative padding")
    return {"strides": strides, "dilations": dilations, "pads": (top, left, bottom, right)}


def convolution(context: Context) -> None:
    """Read conv2d and depthwise_conv2d.

    Weights are constant, (outputs, rows, columns, inputs) or (rows, columns, channels, outputs per channel).
    """
    depthwise = context.short == "depthwise_conv2d"
    image, weights = bytes_of(context, 0), context.constant_operand(1, "its weights")
    if len(image.type.shape) != 4 or weights.ndim != 4 or weights.dtype != np.int8:
        raise context.refuse(
            f"is of {image.type} and weights of {context.operand(1).type}; both must be i8 of four dimensions"
        )
    channels = image.type.shape[3]
    if depthwise:
        rows, columns, inputs, each = weights.shape
        weights = weights.transpose(2, 3, 0, 1).reshape(inputs * each, 1, rows, columns)
    else:
        inputs = weights.shape[3]
        weights = weights.transpose(0, 3, 1, 2)
    if inputs != channels:
        raise context.refuse(f"has weights for {inputs} channels; the image has {channels}")
    zeros = zero_point(context, 3, "input_zp"), zero_point(context, 4, "weight_zp")
    attributes = {"group": channels if depthwise else 1, **_window(context)}
    _product(context, weights, zeros, "Conv", attributes, (_FRONT, _BACK))


def _product(
    context: Context,
    weights: np.ndarray,
    zeros: tuple[int, int],
    operator: str,
    attributes: dict[str, object],
    perms: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    """Set the sums of a convolution with weights whose first axis is the output."""
    builder, op, (image, _, *_) = context.builder, context.op, context.op.operands
    bias = _bias(context, weights.shape[0])
    weight_zero = builder.constant(np.asarray(zeros[1], np.int8), "zero")
    image_zero = builder.constant(np.asarray(zeros[0], image.type.dtype), "zero")

    def emit_scaled(scale: np.ndarray) -> str:
        builder.op = op
        real = builder.dequantise(
            builder.stored_value(image),
            byte_quantisation(np.ones(1), zeros[0], image.type.dtype, None),
            image.type,
        )
        parameters = byte_quantisation(scale, zeros[1], "int8", 0)
        filters = builder.dequantise(
            builder.constant(weights, "weights"), parameters, TensorType("int8", weights.shape)
        )
        biases = builder.dequantise(
            builder.constant(bias, "bias"),
            byte_quantisation(scale, 0, "int32", 0),
            TensorType("int32", bias.shape),
        )
        result = builder.emit(
            operator, (context.transpose(real, perms[0]), filters, biases), "", **attributes
        )
        return context.transpose(result, perms[1])

    def emit_stored() -> str:
        builder.op = op
        operand = context.transpose(builder.stored_value(image), perms[0])
        inputs = (operand, builder.constant(weights, "weights"), image_zero, weight_zero)
        sums = context.transpose(
            builder.emit(f"{operator}Integer", inputs, "integers", **attributes), perms[1]
        )
        return builder.emit("Add", (sums, builder.constant(bias, "bias")), "bias")

    low, high = sums_range(weights.astype(np.int64) - zeros[1], bias, image.type.dtype, zeros[0])
    if low.min() < INT32.min or high.max() > INT32.max:
        raise context.refuse("may make sums that do not fit 32 bits")
    builder.set_sum(context.result(), Sum(low, high, emit_scaled), emit_stored)


def sums_range(weights: np.ndarray, bias: np.ndarray, dtype: str, zero: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the greatest sum of products of each output.

    Inputs lie in the type's range less the zero point; padding is 0.
    """
    limits = np.iinfo(dtype)
    least, most = min(int(limits.min) - zero, 0), max(int(limits.max) - zero, 0)
    flat = weights.reshape(len(weights), -1)
    above, below = np.maximum(flat, 0).sum(1), np.minimum(flat, 0).sum(1)
    return bias + above * least + below * most, bias + above * most + below * least


def _bias(context: Context, outputs: int) -> np.ndarray:
    """Return the bias: one number per output, or one for all."""
    bias = context.constant_operand(2, "its bias")
    if bias.dtype != np.int32 or bias.ndim != 1 or bias.size not in (1, outputs):
        raise context.refuse(f"has a bias of {bias.dtype} of shape {bias.shape} for {outputs} outputs")
    return np.broadcast_to(bias, (outputs,))


def fully_connected(context: Context) -> None:
    """Read fully_connected of older versions: rows times constant weights (outputs, inputs)."""
    rows, weights = bytes_of(context, 0), context.constant_operand(1, "its weights")
    if len(rows.type.shape) != 2 or weights.ndim != 2 or weights.dtype != np.int8:
        raise context.refuse("takes rows and weights of two dimensions, of i8")
    if rows.type.shape[1] != weights.shape[1]:
        raise context.refuse(f"has weights for {weights.shape[1]} inputs; rows have {rows.type.shape[1]}")
    zeros = zero_point(context, 3, "input_zp"), zero_point(context, 4, "weight_zp")
    _gemm(context, np.ascontiguousarray(weights.T), zeros)


def _gemm(context: Context, weights: np.ndarray, zeros: tuple[int, int]) -> None:
    """Set the sums of rows times weights (inputs, outputs), plus a bias."""
    bias = _bias(context, weights.shape[1])
    _matrix(context, lambda: context.builder.stored_value(context.op.operands[0]), weights, zeros, bias)


def _matrix(
    context: Context,
    emit_rows: Callable[[], str],
    weights: np.ndarray,
    zeros: tuple[int, int],
    bias: np.ndarray,
) -> None:
    """Set the sums of rows times constant weights whose last axis is the output."""
    builder, op, rows = context.builder, context.op, context.op.operands[0]

    def emit_scaled(scale: np.ndarray) -> str:
        builder.op = op
        real = builder.dequantise(
            emit_rows(), byte_quantisation(np.ones(1), zeros[0], rows.type.dtype, None), rows.type
        )
        kind = byte_quantisation(scale, zeros[1], "int8", weights.ndim - 1)
        product = builder.emit(
            "MatMul",
            (
                real,
                builder.dequantise(
                    builder.constant(weights, "weights"), kind, TensorType("int8", weights.shape)
                ),
            ),
        )
        if not bias.any():
            return product
        kind_of_bias = byte_quantisation(scale, 0, "int32", 0)
        real_bias = builder.dequantise(
            builder.constant(bias, "bias"), kind_of_bias, TensorType("int32", bias.shape)
        )
        return builder.emit("Add", (product, real_bias), "bias")

    def emit_stored() -> str:
        builder.op = op
        kinds = [
            builder.constant(np.asarray(zero, dtype), "zero")
            for zero, dtype in zip(zeros, (rows.type.dtype, "int8"), strict=True)
        ]
        product = builder.emit(
            "MatMulInteger", (emit_rows(), builder.constant(weights, "weights"), *kinds), "integers"
        )
        return (
            builder.emit("Add", (product, builder.constant(bias, "bias")), "bias") if bias.any() else product
        )

    by_output = np.moveaxis(weights.astype(np.int64) - zeros[1], -1, 0)
    outputs = weights.shape[-1]
    if weights.ndim == 3:  # the union of the ranges of all matrices
        ranges = [
            sums_range(by_output[:, at], bias, rows.type.dtype, zeros[0]) for at in range(weights.shape[0])
        ]
        low, high = np.min([item[0] for item in ranges], 0), np.max([item[1] for item in ranges], 0)
    else:
        low, high = sums_range(by_output.reshape(outputs, -1), bias, rows.type.dtype, zeros[0])
    if low.min() < INT32.min or high.max() > INT32.max:
        raise context.refuse("may make sums that do not fit 32 bits")
    builder.set_sum(context.result(), Sum(low, high, emit_scaled), emit_stored)


def matmul(context: Context) -> None:
    """Read matmul of (N, rows, inputs) and (N, inputs, columns): with a constant, or of two activations."""
    one, other = bytes_of(context, 0), context.operand(1)
    zeros = zero_point(context, 2, "a_zp"), zero_point(context, 3, "b_zp")
    if len(one.type.shape) != 3 or len(other.type.shape) != 3 or other.type.dtype != one.type.dtype:
        raise context.refuse(f"is of {one.type} and {other.type}; both must be i8 of three dimensions")
    if one.type.shape[2] != other.type.shape[1] or one.type.shape[0] != other.type.shape[0]:
        raise context.refuse(f"multiplies {one.type} and {other.type}, whose sizes do not agree")
    array = context.array(1)
    if array is not None and one not in context.builder.arrays:
        weights = array[0] if array.shape[0] == 1 else array
        return _matrix(
            context,
            lambda: context.builder.stored_value(one),
            weights,
            zeros,
            np.zeros(weights.shape[-1], np.int32),
        )
    return _activations(context, (one, other), zeros)


def _activations(context: Context, values: tuple[Value, Value], zeros: tuple[int, int]) -> None:
    """Set the sums of products of two activations."""
    builder, op = context.builder, context.op
    count = values[0].type.shape[2]

    def emit_scaled(scale: np.ndarray) -> str:
        builder.op = op
        scales = (scale, np.ones(1))
        if scale.size > 1:
            raise context.refuse("of two activations has a scale for each column; weft reads one")
        reals = [
            builder.dequantise(
                builder.stored_value(value), byte_quantisation(each, zero, value.type.dtype, None), value.type
            )
            for value, zero, each in zip(values, zeros, scales, strict=True)
        ]
        return builder.emit("MatMul", reals)

    def emit_stored() -> str:
        builder.op = op
        kinds = [
            builder.constant(np.asarray(zero, value.type.dtype), "zero")
            for zero, value in zip(zeros, values, strict=True)
        ]
        return builder.emit(
            "MatMulInteger", (*(builder.stored_value(value) for value in values), *kinds), "integers"
        )

    # A byte less its zero point lies in [-255, 255].
    most = count * 255 * 255
    if most > INT32.max:
        raise context.refuse("may make sums that do not fit 32 bits")
    builder.set_sum(context.result(), Sum(np.array([-most]), np.array([most]), emit_scaled), emit_stored)


OPERATORS = (
    Record(("tosa.conv2d", "tosa.depthwise_conv2d"), (3, 5), "Conv, ConvInteger", convolution),
    Record(("tosa.fully_connected",), (3, 5), "MatMul, MatMulInteger", fully_connected),
    Record(("tosa.matmul",), (2, 4), "MatMul, MatMulInteger", matmul),
)
