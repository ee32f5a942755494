"""Products of matrices."""

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
    """Rows and columns in front, then behind: none if padding is VALID, else as many that there is a window for every
    stride, an odd one behind.
    """
    before, behind = [], []
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        span = (window - 1) * dilation + 1
        if span > size and not context.same:
            raise context.refuse(f"has a window over {span:,} rows or columns, of which there are {size:,}")
        reach = (-(-size // stride) - 1) * stride + span
        pad = max(reach - size, 0) if context.same else 0
        before.append(pad // 2)
        behind.append(pad - pad // 2)
    return (*before, *behind)


_OUTPUTS_FIRST = (0, 3, 1, 2)
"""From (outputs, H, W, inputs) to ONNX's weights."""
_CHANNELS_LAST = (3, 0, 1, 2)
"""The same of depthwise and of transposed convolutions."""


def weights(context: Context, index: int, perm: Sequence[int]) -> str:
    """Weights as real numbers, with their axes in another order."""
    tensor = context.tensor(index)
    stored = context.builder.transposed(context.stored(index), perm, context.name)
    if tensor.quantisation is None:
        return stored if tensor.dtype.startswith("float") else context.real(index)
    return context.builder.dequantised(stored, tensor, perm)


def bias(context: Context, index: int, data: int, filters: int) -> tuple[str, ...]:
    """The bias if there is one. Without a scale of its own it has that of the products."""
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
    """CONV_2D, in groups if the filters have fewer channels than the image."""
    data, filters = context.image(0), context.image(1)
    channels, each = data.shape[3], filters.shape[3]
    if not each or channels % each:
        raise context.refuse(f"has filters for {each} channels, of which {data.label} has {channels}")
    _conv(context, filters.shape[1:3], channels // each, weights(context, 1, _OUTPUTS_FIRST))


def depthwise(context: Context) -> None:
    """DEPTHWISE_CONV_2D: as many groups as channels, each with `DepthMultiplier` results."""
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
    context.finish(context.activated(value), Order.CHANNELS_FIRST)


def transposed(context: Context) -> None:
    """TRANSPOSE_CONV, whose padding is that of the convolution it goes backwards through."""
    filters, data, output = context.image(1), context.image(2), context.output()
    strides, kernel = context.positive("StrideH", "StrideW"), filters.shape[1:3]
    if output.rank != 4:
        raise context.refuse(f"makes {output.label} of {output.rank} dimensions; it must have 4")
    before, behind, more = [], [], []
    for stride, size, many, made in zip(strides, kernel, data.shape[1:3], output.shape[1:3], strict=True):
        reach = (many - 1) * stride + size
        pad = max(reach - made, 0) if context.same else 0
        before.append(pad // 2)
        behind.append(pad - pad // 2)
        more.append(made - (reach - pad))
        if not 0 <= more[-1] < stride:
            raise context.refuse(f"makes {made} rows or columns of {many}, which a window of {size} does not")
    value = context.emit(
        "ConvTranspose",
        context.real(2, Order.CHANNELS_FIRST),
        weights(context, 1, _CHANNELS_LAST),
        *bias(context, 3, 2, 1),
        kernel_shape=kernel,
        strides=strides,
        pads=(*before, *behind),
        output_padding=tuple(more),
    )
    context.finish(context.activated(value), Order.CHANNELS_FIRST)


CONVOLUTIONS_OPERATORS = (
    Record(("CONV_2D",), (2, 3), "Conv", conv),
    Record(("DEPTHWISE_CONV_2D",), (2, 3), "Conv", depthwise),
    Record(("TRANSPOSE_CONV",), (3, 4), "ConvTranspose", transposed),
)


def fully_connected(context: Context) -> None:
    """Rows of as many elements as the weights take, times the weights' transpose."""
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
    value = _rows(context, (count // inputs, inputs))
    made = context.emit("Gemm", value, weights(context, 1, (0, 1)), *bias(context, 2, 0, 1), transB=1)
    made = context.activated(made)
    if context.output().shape == (count // inputs, outputs):
        return context.finish(made)
    return context.finish_reshaped(made)


def _rows(context: Context, shape: tuple[int, int]) -> str:
    """The first input as a matrix."""
    tensor = context.tensor()
    if tensor.shape == shape:
        return context.real()
    value = context.reshaped(context.stored(), shape)
    if tensor.quantisation is None:
        return value if tensor.dtype.startswith("float") else context.real()
    if not tensor.quantisation.whole:
        raise context.refuse(f"reads {tensor.label}, which has a scale for each element of a dimension")
    return context.builder.dequantised(value, tensor, (0, 1))


def batch_product(context: Context) -> None:
    """Products of the last two axes of both inputs, either of which may be transposed."""
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
"""The length that shorter rows count for."""


def pool(context: Context, operator: str) -> None:
    """A pool with a window, of which padding is no part."""
    data = context.image()
    kernel, strides = context.positive("FilterHeight", "FilterWidth"), context.positive("StrideH", "StrideW")
    pads = pads_of(context, data.shape[1:3], kernel, strides, (1, 1))
    value = context.real(0, Order.CHANNELS_FIRST)
    value = context.emit(operator, value, kernel_shape=kernel, strides=strides, pads=pads)
    context.finish(context.activated(value), Order.CHANNELS_FIRST)


def reduce(context: Context, operator: str) -> None:
    """A reduction of some axes, which may go or stay with one element."""
    rank, order = context.tensor().rank, context.order(0)
    axes = sorted(set(context.axes(1, "axis", rank)))
    if rank == 4 and axes == [1, 2]:
        order = Order.CHANNELS_FIRST  # rows and columns of images, wherever these come from
    if order is Order.CHANNELS_FIRST:
        axes = sorted(map(nchw, axes))
    if not axes:
        return context.finish(context.real(0, order), order)
    value = context.emit(operator, context.real(0, order), context.array(axes), keepdims=1)
    if context.output().rank == rank:
        return context.finish(value, order)
    return context.finish_reshaped(value, order)


def extreme(context: Context, operator: str) -> None:
    """The place of the largest or smallest element along an axis: the first of several."""
    rank, order = context.tensor().rank, context.order(0)
    places = context.numbers(1, "the axis")
    if places.size != 1:
        raise context.refuse(f"has {places.size} axes; it takes one")
    axis = context.axis(int(places[0]), "axis", rank)
    axis = nchw(axis) if order is Order.CHANNELS_FIRST else axis
    value = context.emit(operator, context.stored(0, order), axis=axis, keepdims=1)
    context.store_reshaped(context.cast(value), order)


def normalise(context: Context) -> None:
    """Rows divided by their length, along the last axis of the file."""
    order, rank = context.order(0), context.tensor().rank
    if not rank:
        raise context.refuse("has an input without dimensions")
    value = context.real(0, order)
    axis = context.array([1 if order is Order.CHANNELS_FIRST else rank - 1])
    length = context.emit("ReduceL2", value, axis, suffix="length", keepdims=1)
    length = context.emit("Max", length, context.array(_SHORTEST, "float32"), suffix="shortest")
    context.finish(context.activated(context.emit("Div", value, length)), order)


POOLS_OPERATORS = (
    Record(("L2_NORMALIZATION",), (1, 1), "ReduceL2, Max, Div", normalise),
    *(
        Record((name,), (1, 1), made, functools.partial(pool, operator=made))
        for name, made in (("AVERAGE_POOL_2D", "AveragePool"), ("MAX_POOL_2D", "MaxPool"))
    ),
    *(
        Record((name,), (2, 2), made, functools.partial(reduce, operator=made))
        for name, made in (
            ("MEAN", "ReduceMean"),
            ("SUM", "ReduceSum"),
            ("REDUCE_MAX", "ReduceMax"),
            ("REDUCE_MIN", "ReduceMin"),
            ("REDUCE_PROD", "ReduceProd"),
        )
    ),
    *(
        Record((name,), (2, 2), f"{made}, Cast", functools.partial(extreme, operator=made))
        for name, made in (("ARG_MAX", "ArgMax"), ("ARG_MIN", "ArgMin"))
    ),
)


OPERATORS = (*CONVOLUTIONS_OPERATORS, *POOLS_OPERATORS, *PRODUCTS_OPERATORS)
