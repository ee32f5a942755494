"""Pools with a window, over the whole image, and ReduceMean over the same."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from weft.compiler.ir.graph import Pool, Window
from weft.compiler.ir.layout import natural, packed
from weft.compiler.ir.windows import axes, span
from weft.compiler.machine.limits import COUNT_MAX
from weft.compiler.onnx.conditions import arranged, image, image_order, input_quantised, window_steps
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Pending, Symbol, result
from weft.compiler.onnx.windows import window_of

ELEMENTS = 1 << 16
"""Most elements of a window on the device, which multiplies them with as many weights to add them up."""


def pool_values(context: NodeContext) -> str | None:
    """MaxPool gives values only, no indices."""
    return None if len([name for name in context.node.outputs if name]) == 1 else "it has a second output"


def ceil_average(context: NodeContext) -> str | None:
    """AveragePool with ceil_mode and count_include_pad must not reach past its padding."""
    if not (context.attribute("ceil_mode", 0) and context.attribute("count_include_pad", 0)):
        return None
    kernel, pads = context.ints("kernel_shape", ()), context.ints("pads", (0, 0, 0, 0))
    strides, dilations = context.ints("strides", (1, 1)), context.ints("dilations", (1, 1))
    for axis in range(2):
        reach = (context.output[2 + axis] - 1) * strides[axis] + span(kernel[axis], dilations[axis])
        if reach > context.shape()[2 + axis] + pads[axis] + pads[axis + 2]:
            return f"the last window ends at {reach}"
    return None


def windows_filled(context: NodeContext) -> str | None:
    """Every window of a pool must hold at least one element of the input."""
    for name, axis in zip(
        ("height", "width"), axes(context.shape()[2:], context.node.attributes), strict=True
    ):
        empty = axis.inside() == 0
        if empty.any():
            return f"along {name}, output {int(np.argmax(empty))} has none"
    return None


def window_size(context: NodeContext) -> str | None:
    """Pools must have inputs of at most 4095 rows and columns, and windows of at most 65536 elements."""
    sides = context.shape()[2:] if len(context.shape()) == 4 else context.shape()[1:2]
    kernel = context.ints("kernel_shape", sides)
    if max(sides) > COUNT_MAX or max(kernel) > COUNT_MAX:
        return f"the input has shape {context.shape()}, the window {kernel}"
    return None if math.prod(kernel) <= ELEMENTS else f"the window is {kernel}"


def mean_axes(context: NodeContext) -> str | None:
    """ReduceMean must be over both spatial dimensions of (N, C, H, W), or the rows of (N, rows, C); axes constant."""
    axes = reduced_axes(context)
    return None if axes == {4: (2, 3), 3: (1,)}.get(len(context.shape())) else f"axes are {axes}"


def reduced_axes(context: NodeContext) -> tuple[int, ...] | None:
    """The constant, non-negative axes of a reduction; None if they are not known."""
    axes = context.node.attributes.get("axes")
    if axes is None and context.node.input(1):
        given = context.model.constants.get(context.node.input(1))
        axes = None if given is None else given.tolist()
    rank = len(context.shape())
    return None if axes is None else tuple(sorted(axis % rank for axis in axes))


def pool(context: NodeContext) -> Symbol:
    """A pool with a window."""
    kernel = context.ints("kernel_shape", ())
    window = window_of(context, (kernel[0], kernel[1]))
    return _pool(context, window, bool(context.attribute("count_include_pad", 0)))


def whole(context: NodeContext) -> Symbol:
    """A pool over all rows and columns."""
    shape = context.shape()
    h, w = shape[2:] if len(shape) == 4 else (1, shape[1])
    return _pool(context, Window((h, w), (1, 1)), False)


def _pool(context: NodeContext, window: Window, include_pad: bool) -> Pending:
    kind = "max" if context.node.op.endswith("MaxPool") else "average"
    source, quant = arranged(context)
    n, h, w, c = (
        source.layout.nhwc if len(context.shape()) == 4 else (context.shape()[0], 1, *context.shape()[1:])
    )
    shape = (n, *window.output(h, w), c)
    layout = natural(context.output)
    if len(context.output) != 4:  # ReduceMean without kept dimensions: the same bytes
        layout = dataclasses.replace(packed(context.output), nhwc=shape)
    op = Pool(
        context.node.name,
        source.view((n, h, w, c)),
        result(shape),
        kind,
        window,
        quant.scale,
        quant.zero,
        include_pad=include_pad,
    )
    return Pending((op,), layout, (source,), (context.node.index,))


_WINDOW = (image, input_quantised, image_order, window_steps, windows_filled, window_size)

OPERATORS = (
    Operator(("AveragePool",), (*_WINDOW, ceil_average), pool),
    Operator(
        ("GlobalAveragePool", "GlobalMaxPool"), (image, input_quantised, image_order, window_size), whole
    ),
    Operator(("MaxPool",), (*_WINDOW, pool_values), pool),
    Operator(("ReduceMean",), (input_quantised, image_order, mean_axes, window_size), whole),
)
