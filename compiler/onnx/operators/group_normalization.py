"""InstanceNormalization and GroupNormalization of an image."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.layout import spatial
from weft.compiler.kernel.operators import GroupNorm
from weft.compiler.lower.rows import BYTES
from weft.compiler.machine.limits import COUNT_MAX
from weft.compiler.onnx.conditions import arranged, image_order, input_quantised, kernel_engine
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Pending, result

_EPSILON = 1e-5


def group_image(context: NodeContext) -> str | None:
    """InstanceNormalization and GroupNormalization must be of rows or images: (N, C, L) or (N, C, H, W)."""
    return None if len(context.shape()) in (3, 4) else f"the input has shape {context.shape()}"


def group_constants(context: NodeContext) -> str | None:
    """Scale and bias of a group normalisation must be constant and finite, with a value for each channel or group."""
    channels = context.shape()[1]
    for index in (1, 2):
        values = context.floats(index)
        if values is None or not np.isfinite(values).all():
            return f"input {context.node.inputs[index]!r} is not"
        if values.size not in (channels, channels // _group(context)):
            return f"input {context.node.inputs[index]!r} has {values.size} values for {channels} channels"
    return None


def group_size(context: NodeContext) -> str | None:
    """The channels of a group must be a power of two, and no more than a vector has elements ('n')."""
    size = _group(context)
    good = size & (size - 1) == 0 and size <= context.model.config.n
    return None if good else f"they are {size}"


def group_pixels(context: NodeContext) -> str | None:
    """Images to normalise must have at most 4095 pixels, and those of a vector of channels fit the scratchpad."""
    pixels, config = math.prod(context.shape()[2:]), context.model.config
    fits = pixels <= COUNT_MAX and pixels + 2 * BYTES <= config.scratchpad_size
    return None if fits else f"there are {pixels}"


def _group(context: NodeContext) -> int:
    """Channels that are normalised together."""
    if context.node.operator == "InstanceNormalization":
        return 1
    return max(1, context.shape()[1] // int(context.node.attributes["num_groups"]))


def _constant(context: NodeContext, index: int, channels: int) -> np.ndarray:
    """A value for each channel."""
    values = context.floats(index)
    assert values is not None
    return np.repeat(values.reshape(-1), channels // values.size).astype(np.float64)


def group_norm(context: NodeContext) -> Pending:
    """The device's GroupNorm."""
    (tensor, quant), layout = arranged(context), spatial(context.shape())
    channels = context.shape()[1]
    weight, bias = (_constant(context, index, channels) for index in (1, 2))
    op = GroupNorm(
        context.node.name,
        tensor.view(),
        result(layout.nhwc),
        weight,
        bias,
        float(context.node.attributes.get("epsilon", _EPSILON)) / quant.scale**2,
        x_zero=quant.zero,
        group=_group(context),
    )
    return Pending((op,), layout, (tensor,), (context.node.index,))


OPERATORS = (
    Operator(
        ("InstanceNormalization", "GroupNormalization"),
        (kernel_engine, input_quantised, group_image, image_order, group_size, group_constants, group_pixels),
        group_norm,
    ),
)
