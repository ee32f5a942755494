"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.compiler.tflite.builder import Order
from weft.compiler.tflite.context import Context
from weft.compiler.tflite.record import Record
from weft.compiler.tflite.windows import pads_of

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


OPERATORS = (
    Record(("CONV_2D",), (2, 3), "Conv", conv),
    Record(("DEPTHWISE_CONV_2D",), (2, 3), "Conv", depthwise),
    Record(("TRANSPOSE_CONV",), (3, 4), "ConvTranspose", transposed),
)
