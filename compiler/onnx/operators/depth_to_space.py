"""DepthToSpace and SpaceToDepth: blocks of pixels that become channels, and back."""

from __future__ import annotations

import itertools

import numpy as np

from weft.compiler.ir.graph import DeviceOp, View
from weft.compiler.ir.layout import natural
from weft.compiler.onnx.boxes import Moved, results, tensor_of
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.operators.part import bytes_given
from weft.compiler.onnx.qdq import Results, Tensor, result
from weft.compiler.onnx.reorder import placed
from weft.compiler.onnx.runs import BOXES, WEIGHTS, of_channels, ordered


def image_bytes(context: NodeContext) -> str | None:
    """The input's elements must be images of rows of pixels on the device, or be made these by at most 256 copies."""
    return None if _images(context) is not None else f"input {context.node.inputs[0]!r}"


def blocks_small(context: NodeContext) -> str | None:
    """Blocks must be at most 8 x 8 pixels, and in mode CRD there may be at most 1048576 pairs of channels."""
    size, channels = _size(context), context.shape()[1]
    if size * size <= BOXES and (_rows_first(context) or channels * channels // size**2 <= WEIGHTS):
        return None
    return f"blocksize is {size}, the input has {channels} channels"


def channels_stay(context: NodeContext) -> str | None:
    """SpaceToDepth must have mode DCR."""
    if context.node.op == "DepthToSpace" or _rows_first(context):
        return None
    return f"mode is {context.attribute('mode')}"


def blocks(context: NodeContext) -> Results:
    """A copy for each pixel of a block."""
    source, layout = _images(context), natural(context.output)
    assert source is not None
    size, ops = _size(context), list[DeviceOp]()
    packed, spread = source.view(), result(layout.nhwc)
    narrow, wide = (packed, spread) if context.node.op == "DepthToSpace" else (spread, packed)
    n, h, w, depth = narrow.shape
    channels = np.arange(depth)
    for y, x in itertools.product(range(size), repeat=2):
        pixel = View(wide.buffer, (n, h, w, wide.shape[3]), y, x, step=(size, size))
        first, count = (y * size + x) * wide.shape[3], wide.shape[3]
        if context.node.op == "SpaceToDepth":
            target = of_channels(narrow, first, count)
            made = ordered(context.node.name, pixel, target, np.arange(count))
        else:
            taken = (
                channels[first : first + count]
                if _rows_first(context)
                else channels[y * size + x :: size * size]
            )
            made = ordered(context.node.name, narrow, pixel, taken)
        assert made is not None
        ops += made
    return results(context, [Moved(source, ops, layout)])


def _images(context: NodeContext) -> Tensor | None:
    tensor = tensor_of(context.symbol(0))
    assert tensor is not None
    return placed(tensor, natural(context.shape()))


def _size(context: NodeContext) -> int:
    return int(context.node.attributes["blocksize"])


def _rows_first(context: NodeContext) -> bool:
    """Whether channels that become pixels, or are made of them, are ahead of those that stay."""
    return str(context.attribute("mode", "DCR")) == "DCR"


_CONDITIONS = (bytes_given, image_bytes, blocks_small, channels_stay)

OPERATORS = (Operator(("DepthToSpace", "SpaceToDepth"), _CONDITIONS, blocks),)
