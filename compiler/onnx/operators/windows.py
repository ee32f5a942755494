"""Pools with a window, over the whole image, and reductions over the same."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from weft.compiler.ir.graph import DeviceOp, Pad, Pool, View, Window
from weft.compiler.ir.layout import Layout, Shape4, row_major_layout, spatial
from weft.compiler.ir.windows import axes
from weft.compiler.machine.target import COUNT_MAX, has_coordinates
from weft.compiler.onnx.boxes import Arrangement, Movement, arrange, copy_ops, results, tensor_of
from weft.compiler.onnx.conditions import (
    activation,
    depth_alone,
    image,
    image_operand,
    image_order,
    input_quantised,
)
from weft.compiler.onnx.convolutions import window_of
from weft.compiler.onnx.indices import constants, selections
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.operators.move import bytes_given, rows_order
from weft.compiler.onnx.qdq import (
    Activation,
    Constant,
    Pending,
    Quant,
    Results,
    Symbol,
    Tensor,
    parameters,
    result,
)
from weft.compiler.onnx.reorder import to_layout
from weft.compiler.onnx.runs import channel_slice

ELEMENTS = 1 << 16
"""Most elements of a window on the device, which multiplies them with as many weights to add them up."""


def pool_values(context: NodeContext) -> str | None:
    """MaxPool gives values only, no indices."""
    return None if len([name for name in context.node.outputs if name]) == 1 else "it has a second output"


def ceil_average(context: NodeContext) -> str | None:
    """AveragePool with ceil_mode and count_include_pad must not reach past its padding."""
    if not (context.attribute("ceil_mode", 0) and context.attribute("count_include_pad", 0)):
        return None
    for axis in axes(context.shape()[2:], context.node.attributes):
        reach = (axis.count - 1) * axis.stride + axis.span
        if reach > axis.before + axis.size + axis.after:
            return f"the last window ends at {reach}"
    return None


def windows_filled(context: NodeContext) -> str | None:
    """Every window of a pool must hold at least one element of the input."""
    found = axes(context.shape()[2:], context.node.attributes)
    for name, axis in zip(("depth", "height", "width")[-len(found) :], found, strict=True):
        empty = axis.count_inside() == 0
        if empty.any():
            return f"along {name}, output {int(np.argmax(empty))} has none"
    return None


def window_steps(context: NodeContext) -> str | None:
    """Pads must not be negative. Pools with strides or dilations above 127 along an axis must have no padding there."""
    if min(context.ints("pads", (0,))) < 0:
        return f"pads is {context.ints('pads', ())}"
    window = window_of(context, context.ints("kernel_shape", ()))
    good = all(has_coordinates(window, axis) for axis in (0, 1))
    return None if good else f"strides are {window.stride}, dilations {window.dilation}, pads {window.pad}"


def window_size(context: NodeContext) -> str | None:
    """Pools must have inputs of at most 4095 rows and columns, and windows of at most 65536 elements."""
    sides = _sides(context)[1:3]
    kernel = context.ints("kernel_shape", sides)
    if max(sides) > COUNT_MAX or max(kernel) > COUNT_MAX:
        return f"the input has shape {context.shape()}, the window {kernel}"
    return None if math.prod(kernel) <= ELEMENTS else f"the window is {kernel}"


def pooled(context: NodeContext) -> bool:
    """Whether a reduction is over the pixels of (N, C, H, W) or (N, H, W, C), or those of (N, C, W) or (N, W, C).

    Where a kernel can do it, only if pixels already lie so, and if it is not the start of a normalisation.
    """
    axes, rank, symbol = reduced_axes(context), len(context.shape()), context.symbol(0)
    if (
        axes is None
        or axes not in {4: ((2, 3), (1, 2)), 3: ((2,), (1,))}.get(rank, ())
        or not isinstance(symbol, Activation)
    ):
        return False
    if not context.model.config.kernel:
        return True
    if any(user.op in _NORMALISING for user in context.model.users(context.node.outputs[0])):
        return False
    return rank - 1 not in axes or rank == 4 or symbol.tensor.in_layout(_pixels(context)) is not None


_NORMALISING = ("Add", "Clip", "Div", "Expand", "Max", "Mul", "Pow", "Sqrt", "Sub")
"""What computes with a number for each row in float."""


def _pixels(context: NodeContext) -> Layout:
    """The layout in which what a reduction is over are the pixels of images."""
    shape, axes = context.shape(), reduced_axes(context)
    if axes in ((2, 3), (2,)):
        return spatial(shape)
    n, *sides, c = shape
    return Layout(shape, tuple(range(len(shape))), (n, math.prod(sides[:-1]), sides[-1], c))


def mean_order(context: NodeContext) -> str | None:
    """What is reduced over pixels must be in the device's order, or be brought into it by at most 256 copies."""
    good = to_layout(activation(context).tensor, _pixels(context)) is not None
    return None if good else f"input {context.node.inputs[0]!r}"


def reduced_axes(context: NodeContext) -> tuple[int, ...] | None:
    """The constant, non-negative axes of a reduction; None if they are not known."""
    axes = context.node.attributes.get("axes")
    if axes is None and context.node.input(1):
        given = context.model.constants.get(context.node.input(1))
        axes = None if given is None else given.tolist()
    rank = len(context.shape())
    return None if axes is None else tuple(sorted(axis % rank for axis in axes))


def depth_counted(context: NodeContext) -> str | None:
    """Padding along D must not count."""
    kernel = context.ints("kernel_shape", ())
    good = not context.attribute("count_include_pad", 0) or math.prod(kernel[:-2]) == 1
    return None if good or len(kernel) < 3 else f"the window is {kernel}"


def pool(context: NodeContext) -> Symbol:
    """A pool with a window."""
    source, quant = image_operand(context)
    window = window_of(context, context.ints("kernel_shape", ()))
    include_pad = bool(context.attribute("count_include_pad", 0))
    return _pool(context, (source, quant), source.layout.nhwc, spatial(context.output), window, include_pad)


def whole(context: NodeContext) -> Symbol:
    """A pool over all that is behind channels."""
    sides = _sides(context)
    return _pool(context, image_operand(context), sides, spatial(context.output), Window(sides[1:3]), False)


def rows(context: NodeContext) -> Symbol:
    """The mean, sum or maximum over pixels, or over rows of tokens."""
    source = to_layout(activation(context).tensor, _pixels(context))
    assert source is not None
    sides = source.layout.nhwc
    kept = len(context.output) == len(context.shape()) and reduced_axes(context) in ((2, 3), (2,))
    layout = spatial(context.output) if kept else row_major_layout(context.output)
    return _pool(context, (source, activation(context).quant), sides, layout, Window(sides[1:3]), False)


def _sides(context: NodeContext) -> Shape4:
    """The input as images that a pool takes as a whole."""
    shape = context.shape()
    if context.node.op.startswith("Reduce"):
        return _pixels(context).nhwc
    if context.node.op.startswith("Global"):
        return shape[0], math.prod(shape[2:-1]), shape[-1], shape[1]
    return spatial(shape).nhwc


def _pool(
    context: NodeContext,
    given: tuple[Tensor, Quant],
    seen: Shape4,
    layout: Layout,
    window: Window,
    include_pad: bool,
) -> Pending:
    kind = "max" if context.node.op.endswith(("MaxPool", "ReduceMax")) else "average"
    (source, quant), (n, h, w, c) = given, seen
    shape = (n, *window.output(h, w), c)
    layout = dataclasses.replace(layout, nhwc=shape)
    op = Pool(
        context.node.name,
        source.view((n, h, w, c)),
        result(shape),
        kind,
        window,
        quant.scale * (math.prod(window.kernel) if context.node.op == "ReduceSum" else 1),
        quant.zero,
        include_pad=include_pad,
    )
    return Pending((op,), layout, (source,), (context.node.index,))


_WINDOW = (image, input_quantised, image_order, window_steps, windows_filled, window_size, depth_alone)

POOL_OPERATORS = (
    Operator(("AveragePool",), (*_WINDOW, ceil_average, depth_counted), pool),
    Operator(
        ("GlobalAveragePool", "GlobalMaxPool"), (image, input_quantised, image_order, window_size), whole
    ),
    Operator(("MaxPool",), (*_WINDOW, pool_values), pool),
    Operator(("ReduceMax", "ReduceMean", "ReduceSum"), (mean_order, window_size), rows, applies=pooled),
)


def pads_constant(context: NodeContext) -> str | None:
    """Pads must be constant, at most 4095, and not negative but around a constant."""
    pads = constants(context, "pads", 1)
    if pads is not None and max(pads) <= COUNT_MAX and selections(context) is not None:
        return None
    return f"input {context.node.input(1)!r} is not" if pads is None else f"pads are {pads}"


def pad_value(context: NodeContext) -> str | None:
    """What Pad fills with must be constant, and a value of its input, or be quantised at once as that is."""
    value = _value(context)
    if value is None:
        return f"input {context.node.input(2)!r} is not"
    symbol = context.symbol(0)
    if not isinstance(symbol, Activation):
        return None
    if math.isnan(value):
        return "it is not a number"
    quant, model = symbol.quant, context.model
    exact = np.float32((quant.level(value) - quant.zero) * quant.scale) == np.float32(value)
    users = model.users(context.node.outputs[0])
    behind = [parameters(model, node, model.dtypes[node.outputs[0]]) if node.op == "QuantizeLinear" else None
              for node in users]  # fmt: skip
    alike = all(other is not None and other == quant for other in behind)
    if exact or (alike and users and context.node.outputs[0] not in model.outputs):
        return None
    return f"{value:g} is not"


def pad_axes(context: NodeContext) -> str | None:
    """A constant must be around rows and columns, or around channels, but not both."""
    if _outside(context) != (True, True):
        return None
    return f"the input has shape {context.shape()}, the result {context.output}"


def pad_boxes(context: NodeContext) -> str | None:
    """Pads around channels, and of what is there, must be at most 64 boxes, or 1048576 pairs of channels."""
    if _operators(context) is not None:
        return None
    return f"the input has shape {context.shape()}, the result {context.output}"


def pad(context: NodeContext) -> Results:
    """Padding with a byte, or copies of boxes."""
    arrangement, ops = _arrangement(context), _operators(context)
    assert ops is not None
    return results(context, [Movement(arrangement.tensor, ops, arrangement.layout)])


def _value(context: NodeContext) -> float | None:
    """What is filled in."""
    if "value" in context.node.attributes:
        return float(context.node.attributes["value"])
    if not context.node.input(2):
        return 0.0
    given, symbol = context.model.constants.get(context.node.input(2)), context.symbol(2)
    if isinstance(symbol, Constant):
        return float(symbol.floats.reshape(-1)[0])
    return None if given is None else float(given.reshape(-1)[0])


def _fill(context: NodeContext) -> int:
    """The byte of that on the device."""
    symbol, value = context.symbol(0), _value(context)
    assert value is not None
    if isinstance(symbol, Activation):
        return symbol.quant.level(value)
    tensor = tensor_of(symbol)
    assert tensor is not None
    return int(value) - (1 << (15 if tensor.wide else 7)) * tensor.unsigned


def _arrangement(context: NodeContext) -> Arrangement:
    tensor, found = tensor_of(context.symbol(0)), selections(context)
    assert tensor is not None
    assert found is not None
    arrangement = arrange(tensor, found[0].shape, found[0].indices)
    assert arrangement is not None
    return arrangement


def _outside(context: NodeContext) -> tuple[bool, bool]:
    """Whether something is around rows or columns, or channels, that is not of the input."""
    _, rows, columns, channels = _arrangement(context).indices
    return min(rows.min(), columns.min()) < 0, bool(channels.min() < 0)


def _operators(context: NodeContext) -> list[DeviceOp] | None:
    arrangement, fill = _arrangement(context), _fill(context)
    _, rows, columns, channels = arrangement.indices
    if not _outside(context)[0]:
        return copy_ops(arrangement, context.node.name, fill)
    down, across = _around(rows), _around(columns)
    if down is None or across is None or (np.diff(channels) != 1).any():
        return None
    (top, y, bottom), (left, x, right) = down, across
    n, h, w, _ = arrangement.layout.nhwc
    size = (n, h - top - bottom, w - left - right, arrangement.sizes[3])
    whole = arrangement.source
    source = channel_slice(View(whole.buffer, size, y, x), int(channels[0]), len(channels))
    window = Window(pad=(top, left, bottom, right))
    return [Pad(context.node.name, source, arrangement.target, window, fill)]


def _around(indices: np.ndarray) -> tuple[int, int, int] | None:
    """Places ahead of the elements of an axis, the first of these, and places behind them; None if there are places
    between them.
    """
    inside = np.flatnonzero(indices >= 0)
    if not inside.size or (np.diff(inside) != 1).any() or (np.diff(indices[inside]) != 1).any():
        return None
    return int(inside[0]), int(indices[inside[0]]), len(indices) - 1 - int(inside[-1])


PAD_OPERATORS = (
    Operator(("Pad",), (bytes_given, pads_constant, pad_value, rows_order, pad_axes, pad_boxes), pad),
)


OPERATORS = (*PAD_OPERATORS, *POOL_OPERATORS)
