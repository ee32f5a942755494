"""TFLite's convolutions, matrix products, pools and reductions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from weft.compiler.tflite.builder import Order
from weft.compiler.tflite.context import Context, nchw
from weft.compiler.tflite.record import Record


def pads_of(
    context: Context,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """Return the padding before, then after, rows and columns.

    VALID has none. SAME gives every stride a window; an odd element goes after.
    """
    before, after = [], []
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        span = (window - 1) * dilation + 1
        if span > size and not context.pads_same:
            raise context.refuse(f"has a window over {span:,} rows or columns, of which there are {size:,}")
        reach = (-(-size // stride) - 1) * stride + span
        pad = max(reach - size, 0) if context.pads_same else 0
        before.append(pad // 2)
        after.append(pad - pad // 2)
    return (*before, *after)


_OUTPUTS_FIRST = (0, 3, 1, 2)
"""Permutation from (outputs, H, W, inputs) to ONNX's weights."""
_CHANNELS_LAST = (3, 0, 1, 2)
"""Permutation to ONNX's weights for depthwise and transposed convolutions."""


def weights(context: Context, index: int, perm: Sequence[int]) -> str:
    """Return weights as real numbers, with permuted axes."""
    return context.builder.transpose(context.real(index), perm, context.name)


def bias(context: Context, index: int, data: int, filters: int) -> tuple[str, ...]:
    """Return the bias if there is one. Without a scale it has the scale of the products."""
    if not context.has(index):
        return ()
    tensor, a, b = (context.tensor(at) for at in (index, data, filters))
    if tensor.rank != 1:
        raise context.refuse(f"has bias {tensor.label} of {tensor.rank} dimensions; it must have one")
    integers = tensor.dtype in ("int32", "int64") and tensor.data is not None
    if integers and tensor.quantisation is None and a.quantisation is not None and b.quantisation is not None:
        scales = np.broadcast_to(a.quantisation.scales * b.quantisation.scales, tensor.shape)
        return (context.array(tensor.data * scales, "float32"),)
    return (context.real(index),)


def conv(context: Context) -> None:
    """Convert CONV_2D, with groups if the filters have fewer channels than the image."""
    data, filters = context.image(0), context.image(1)
    channels, each = data.shape[3], filters.shape[3]
    if not each or channels % each:
        raise context.refuse(f"has filters for {each} channels, of which {data.label} has {channels}")
    _conv(context, filters.shape[1:3], channels // each, weights(context, 1, _OUTPUTS_FIRST))


def depthwise(context: Context) -> None:
    """Convert DEPTHWISE_CONV_2D: one group per channel, with `DepthMultiplier` results each."""
    data, filters = context.image(0), context.image(1)
    channels = data.shape[3]
    if filters.shape[0] != 1 or not channels or filters.shape[3] % channels:
        raise context.refuse(
            f"has filters of shape {'x'.join(map(str, filters.shape))} for {channels} channels; the first size must be "
            "1, the last a multiple of the channels"
        )
    _conv(context, filters.shape[1:3], channels, weights(context, 1, _CHANNELS_LAST))


def _conv(context: Context, kernel: tuple[int, ...], groups: int, filters: str) -> None:
    strides = context.positive("StrideH", "StrideW")
    dilations = context.positive("DilationHFactor", "DilationWFactor")
    value = context.emit(
        "Conv",
        context.real(0, Order.CHANNELS_FIRST),
        filters,
        *bias(context, 2, 0, 1),
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        pads=pads_of(context, context.tensor(0).shape[1:3], kernel, strides, dilations),
        group=groups,
    )
    context.finish(context.activate(value), Order.CHANNELS_FIRST)


def transpose_conv(context: Context) -> None:
    """Convert TRANSPOSE_CONV, whose padding is that of the corresponding convolution."""
    filters, data, output = context.image(1), context.image(2), context.output()
    strides, kernel = context.positive("StrideH", "StrideW"), filters.shape[1:3]
    if output.rank != 4:
        raise context.refuse(f"makes {output.label} of {output.rank} dimensions; it must have 4")
    before, after, output_padding = [], [], []
    for stride, size, count, result_size in zip(
        strides, kernel, data.shape[1:3], output.shape[1:3], strict=True
    ):
        reach = (count - 1) * stride + size
        pad = max(reach - result_size, 0) if context.pads_same else 0
        before.append(pad // 2)
        after.append(pad - pad // 2)
        output_padding.append(result_size - (reach - pad))
        if not 0 <= output_padding[-1] < stride:
            raise context.refuse(
                f"has {result_size} rows or columns in its result, which {count} inputs and a window of {size} "
                "cannot give"
            )
    value = context.emit(
        "ConvTranspose",
        context.real(2, Order.CHANNELS_FIRST),
        weights(context, 1, _CHANNELS_LAST),
        *bias(context, 3, 2, 1),
        kernel_shape=kernel,
        strides=strides,
        pads=(*before, *after),
        output_padding=tuple(output_padding),
    )
    context.finish(context.activate(value), Order.CHANNELS_FIRST)


CONVOLUTIONS_OPERATORS = (
    Record(("CONV_2D",), (2, 3), "Conv", conv),
    Record(("DEPTHWISE_CONV_2D",), (2, 3), "Conv", depthwise),
    Record(("TRANSPOSE_CONV",), (3, 4), "ConvTranspose", transpose_conv),
)


def fully_connected(context: Context) -> None:
    """Convert to Gemm of rows with the transposed weights."""
    data, matrix = context.tensor(0), context.tensor(1)
    if context.option("WeightsFormat"):
        raise context.refuse(
            "has shuffled weights, which weft does not read; convert the model with the default format"
        )
    if matrix.rank != 2:
        raise context.refuse(f"has weights of {matrix.rank} dimensions; they must have 2")
    outputs, inputs = matrix.shape
    count = math.prod(data.shape)
    if not inputs or count % inputs:
        raise context.refuse(f"takes rows of {inputs} elements; {data.label} has {count:,}")
    value = _as_matrix(context, (count // inputs, inputs))
    result = context.emit("Gemm", value, weights(context, 1, (0, 1)), *bias(context, 2, 0, 1), transB=1)
    result = context.activate(result)
    if context.output().shape == (count // inputs, outputs):
        return context.finish(result)
    return context.finish_reshaped(result)


def _as_matrix(context: Context, shape: tuple[int, int]) -> str:
    tensor = context.tensor()
    if tensor.shape == shape:
        return context.real()
    if tensor.quantisation is not None and not tensor.quantisation.per_tensor:
        raise context.refuse(f"reads {tensor.label}, which has a scale for each element of a dimension")
    return context.reshape(context.real(), shape)


def batch_product(context: Context) -> None:
    """Convert to MatMul; either input may be transposed."""
    values = []
    for index, name in enumerate(("AdjX", "AdjY")):
        tensor = context.tensor(index)
        if tensor.rank < 2:
            raise context.refuse(f"takes matrices; {tensor.label} has {tensor.rank} dimensions")
        if context.option(name):
            values.append(
                weights(context, index, (*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2))
            )
        else:
            values.append(context.real(index))
    context.finish(context.emit("MatMul", *values))


PRODUCTS_OPERATORS = (
    Record(("FULLY_CONNECTED",), (2, 3), "Gemm", fully_connected),
    Record(("BATCH_MATMUL",), (2, 2), "MatMul", batch_product),
)


_SHORTEST = 1e-6
"""Least length of a row, to avoid division by zero."""


def pool(context: Context, operator: str) -> None:
    """Convert to a pool without padding in its windows."""
    data = context.image()
    kernel, strides = context.positive("FilterHeight", "FilterWidth"), context.positive("StrideH", "StrideW")
    pads = pads_of(context, data.shape[1:3], kernel, strides, (1, 1))
    value = context.real(0, Order.CHANNELS_FIRST)
    value = context.emit(operator, value, kernel_shape=kernel, strides=strides, pads=pads)
    context.finish(context.activate(value), Order.CHANNELS_FIRST)


def reduce(context: Context, operator: str) -> None:
    """Convert to a reduction; reduced axes may stay with one element."""
    rank, order = context.tensor().rank, context.order(0)
    axes = sorted(set(context.axes(1, "axis", rank)))
    if rank == 4 and axes == [1, 2]:
        order = Order.CHANNELS_FIRST  # axes 1 and 2 are rows and columns of images
    if order is Order.CHANNELS_FIRST:
        axes = sorted(map(nchw, axes))
    if not axes:
        return context.finish(context.real(0, order), order)
    value = context.emit(operator, context.real(0, order), context.array(axes), keepdims=1)
    if context.output().rank == rank:
        return context.finish(value, order)
    return context.finish_reshaped(value, order)


def extreme(context: Context, operator: str) -> None:
    """Convert to ArgMax or ArgMin; the first of equal elements counts."""
    rank, order = context.tensor().rank, context.order(0)
    places = context.numbers(1, "the axis")
    if places.size != 1:
        raise context.refuse(f"has {places.size} axes; it takes one")
    axis = context.axis(int(places[0]), "axis", rank)
    axis = nchw(axis) if order is Order.CHANNELS_FIRST else axis
    value = context.emit(operator, context.raw(0, order), raw=True, axis=axis, keepdims=1)
    context.store_reshaped(context.cast(value), order)


def normalise(context: Context) -> None:
    """Convert L2_NORMALIZATION: rows along the file's last axis divided by their length."""
    order, rank = context.order(0), context.tensor().rank
    if not rank:
        raise context.refuse("has an input without dimensions")
    value = context.real(0, order)
    axis = context.array([1 if order is Order.CHANNELS_FIRST else rank - 1])
    length = context.emit("ReduceL2", value, axis, suffix="length", keepdims=1)
    length = context.emit("Max", length, context.array(_SHORTEST, "float32"), suffix="shortest")
    context.finish(context.activate(context.emit("Div", value, length)), order)


POOLS_OPERATORS = (
    Record(("L2_NORMALIZATION",), (1, 1), "ReduceL2, Max, Div", normalise),
    *(
        Record((name,), (1, 1), onnx_operator, functools.partial(pool, operator=onnx_operator))
        for name, onnx_operator in (("AVERAGE_POOL_2D", "AveragePool"), ("MAX_POOL_2D", "MaxPool"))
    ),
    *(
        Record((name,), (2, 2), onnx_operator, functools.partial(reduce, operator=onnx_operator))
        for name, onnx_operator in (
            ("MEAN", "ReduceMean"),
            ("SUM", "ReduceSum"),
            ("REDUCE_MAX", "ReduceMax"),
            ("REDUCE_MIN", "ReduceMin"),
            ("REDUCE_PROD", "ReduceProd"),
        )
    ),
    *(
        Record((name,), (2, 2), f"{onnx_operator}, Cast", functools.partial(extreme, operator=onnx_operator))
        for name, onnx_operator in (("ARG_MAX", "ArgMax"), ("ARG_MIN", "ArgMin"))
    ),
)


OPERATORS = (*CONVOLUTIONS_OPERATORS, *POOLS_OPERATORS, *PRODUCTS_OPERATORS)
