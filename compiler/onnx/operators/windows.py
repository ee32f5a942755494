"""Pools with a window or over the whole image, reductions over the whole image, and Pad."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from weft.compiler.ir.graph import DeviceOp, Pad, Pool
from weft.compiler.ir.layout import Layout, Shape4, row_major_layout, spatial
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window, axes
from weft.compiler.machine.target import COUNT_MAX, has_coordinates
from weft.compiler.onnx.conditions import (
    activation,
    depth_alone,
    image,
    image_operand,
    image_order,
    input_quantised,
)
from weft.compiler.onnx.convolutions import window_of
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
    quant_of,
    result,
)
from weft.compiler.onnx.reorder import channel_slice, to_layout
from weft.compiler.onnx.selections import (
    Arrangement,
    Movement,
    arrange,
    constants,
    copy_ops,
    results,
    selections,
    tensor_of,
)

ELEMENTS = 1 << 16
"""Most elements of a window: the device adds them with that many weights."""


def pool_values(context: NodeContext) -> str | None:
    """MaxPool must have no output of indices."""
    return None if len([name for name in context.node.outputs if name]) == 1 else "it has a second output"


def ceil_average(context: NodeContext) -> str | None:
    """AveragePool with ceil_mode and count_include_pad must not reach beyond its padding."""
    if not (context.attribute("ceil_mode", 0) and context.attribute("count_include_pad", 0)):
        return None
    for axis in axes(context.shape()[2:], context.node.attributes):
        reach = (axis.count - 1) * axis.stride + axis.span
        if reach > axis.before + axis.size + axis.after:
            return f"the last window ends at {reach}"
    return None


def windows_filled(context: NodeContext) -> str | None:
    """Every window of a pool must hold at least one element of the input."""
    per_axis = axes(context.shape()[2:], context.node.attributes)
    for name, axis in zip(("depth", "height", "width")[-len(per_axis) :], per_axis, strict=True):
        empty = axis.count_inside() == 0
        if empty.any():
            return f"along {name}, output {int(np.argmax(empty))} has none"
    return None


def window_steps(context: NodeContext) -> str | None:
    """Pads must not be negative, and pools must have no padding along axes with strides or dilations above 127."""
    if min(context.ints("pads", (0,))) < 0:
        return f"pads is {context.ints('pads', ())}"
    window = window_of(context, context.ints("kernel_shape", ()))
    supported = all(has_coordinates(window, axis) for axis in (0, 1))
    return (
        None if supported else f"strides are {window.stride}, dilations {window.dilation}, pads {window.pad}"
    )


def window_size(context: NodeContext) -> str | None:
    """Pools must have inputs of at most 4095 rows and columns, and windows of at most 65536 elements."""
    sides = _sides(context)[1:3]
    kernel = context.ints("kernel_shape", sides)
    if max(sides) > COUNT_MAX or max(kernel) > COUNT_MAX:
        return f"the input has shape {context.shape()}, the window {kernel}"
    return None if math.prod(kernel) <= ELEMENTS else f"the window is {kernel}"


def is_pool(context: NodeContext) -> bool:
    """Return whether a reduction is over all pixels of a value (N, C, H, W), (N, H, W, C), (N, C, W) or (N, W, C).

    If kernels could compute it too, pixels must already be in order, and no normalisation may start here.
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
"""Operators that continue in float with a number per row."""


def _pixels(context: NodeContext) -> Layout:
    """Return the layout in which a reduction's axes are the pixels of images."""
    shape, axes = context.shape(), reduced_axes(context)
    if axes in ((2, 3), (2,)):
        return spatial(shape)
    n, *sides, c = shape
    return Layout(shape, tuple(range(len(shape))), (n, math.prod(sides[:-1]), sides[-1], c))


def mean_order(context: NodeContext) -> str | None:
    """The input of a reduction over pixels must be in the device's order, or at most 256 copies
    must bring it into it.
    """
    tensor = to_layout(activation(context).tensor, _pixels(context))
    return None if tensor is not None else f"input {context.node.inputs[0]!r}"


def reduced_axes(context: NodeContext) -> tuple[int, ...] | None:
    """Return the constant axes of a reduction, from 0 on; None if they are not constant."""
    axes = context.node.attributes.get("axes")
    if axes is None and context.node.input(1):
        constant = context.model.constants.get(context.node.input(1))
        axes = None if constant is None else constant.tolist()
    rank = len(context.shape())
    return None if axes is None else tuple(sorted(axis % rank for axis in axes))


def depth_counted(context: NodeContext) -> str | None:
    """Padding along D must not count."""
    kernel = context.ints("kernel_shape", ())
    excluded = not context.attribute("count_include_pad", 0) or math.prod(kernel[:-2]) == 1
    return None if excluded or len(kernel) < 3 else f"the window is {kernel}"


def pool(context: NodeContext) -> Symbol:
    """Return a pool with a window."""
    source, quant = image_operand(context)
    window = window_of(context, context.ints("kernel_shape", ()))
    include_pad = bool(context.attribute("count_include_pad", 0))
    return _pool(context, (source, quant), source.layout.nhwc, spatial(context.output), window, include_pad)


def global_pool(context: NodeContext) -> Symbol:
    """Return a pool over all axes after the channels."""
    sides = _sides(context)
    return _pool(context, image_operand(context), sides, spatial(context.output), Window(sides[1:3]), False)


def rows(context: NodeContext) -> Symbol:
    """Return the mean, sum or maximum over pixels, or over rows of tokens."""
    source = to_layout(activation(context).tensor, _pixels(context))
    assert source is not None
    sides = source.layout.nhwc
    keeps_order = len(context.output) == len(context.shape()) and reduced_axes(context) in ((2, 3), (2,))
    layout = spatial(context.output) if keeps_order else row_major_layout(context.output)
    return _pool(context, (source, activation(context).quant), sides, layout, Window(sides[1:3]), False)


def _sides(context: NodeContext) -> Shape4:
    """Return the shape of the input as images for `Pool`."""
    shape = context.shape()
    if context.node.op.startswith("Reduce"):
        return _pixels(context).nhwc
    if context.node.op.startswith("Global"):
        return shape[0], math.prod(shape[2:-1]), shape[-1], shape[1]
    return spatial(shape).nhwc


def _pool(
    context: NodeContext,
    operand: tuple[Tensor, Quant],
    image_shape: Shape4,
    layout: Layout,
    window: Window,
    include_pad: bool,
) -> Pending:
    kind = "max" if context.node.op.endswith(("MaxPool", "ReduceMax")) else "average"
    (source, quant), (n, h, w, c) = operand, image_shape
    pooled = (n, *window.output(h, w), c)
    layout = dataclasses.replace(layout, nhwc=pooled)
    op = Pool(
        context.node.name,
        source.view((n, h, w, c)),
        result(pooled),
        kind,
        window,
        # A sum is an average times the number of elements.
        quant.scale * (math.prod(window.kernel) if context.node.op == "ReduceSum" else 1),
        quant.zero,
        include_pad=include_pad,
    )
    return Pending((op,), layout, (source,), (context.node.index,))


_WINDOW = (image, input_quantised, image_order, window_steps, windows_filled, window_size, depth_alone)

POOL_OPERATORS = (
    Operator(("AveragePool",), (*_WINDOW, ceil_average, depth_counted), pool),
    Operator(
        ("GlobalAveragePool", "GlobalMaxPool"),
        (image, input_quantised, image_order, window_size),
        global_pool,
    ),
    Operator(("MaxPool",), (*_WINDOW, pool_values), pool),
    Operator(("ReduceMax", "ReduceMean", "ReduceSum"), (mean_order, window_size), rows, applies=is_pool),
)


def pads_constant(context: NodeContext) -> str | None:
    """Pads must be constant, at most 4095, and negative only in mode constant."""
    pads = constants(context, "pads", 1)
    if pads is not None and max(pads) <= COUNT_MAX and selections(context) is not None:
        return None
    return f"input {context.node.input(1)!r} is not" if pads is None else f"pads are {pads}"


def pad_value(context: NodeContext) -> str | None:
    """The fill value of Pad must be constant, and a value of its input, or be quantised next with the input's
    parameters.
    """
    value = _fill_value(context)
    if value is None:
        return f"input {context.node.input(2)!r} is not"
    symbol = context.symbol(0)
    if not isinstance(symbol, Activation):
        return None
    if math.isnan(value):
        return "it is NaN"
    quant = symbol.quant
    # A fill value that the scale cannot represent is still exact if only quantised values are read.
    exact = np.float32((quant.level(value) - quant.zero) * quant.scale) == np.float32(value)
    equal = quant_of(context.model.quantisation(context.node, context.node.outputs[0])) == quant
    if exact or equal:
        return None
    return f"{value:g} is not"


def pad_axes(context: NodeContext) -> str | None:
    """A constant may surround rows and columns, or channels, but not both."""
    if _outside(context) != (True, True):
        return None
    return f"the input has shape {context.shape()}, the result {context.output}"


def pad_boxes(context: NodeContext) -> str | None:
    """Pads around channels, and crops, must need at most 64 boxes, or 1048576 pairs of channels."""
    if _operators(context) is not None:
        return None
    return f"the input has shape {context.shape()}, the result {context.output}"


def pad(context: NodeContext) -> Results:
    """Return padding with a byte, or copies of boxes."""
    arrangement, ops = _arrangement(context), _operators(context)
    assert ops is not None
    return results(context, [Movement(arrangement.tensor, ops, arrangement.layout)])


def _fill_value(context: NodeContext) -> float | None:
    if "value" in context.node.attributes:
        return float(context.node.attributes["value"])
    if not context.node.input(2):
        return 0.0
    constant, symbol = context.model.constants.get(context.node.input(2)), context.symbol(2)
    if isinstance(symbol, Constant):
        return float(symbol.floats.reshape(-1)[0])
    return None if constant is None else float(constant.reshape(-1)[0])


def _fill_byte(context: NodeContext) -> int:
    symbol, value = context.symbol(0), _fill_value(context)
    assert value is not None
    if isinstance(symbol, Activation):
        return symbol.quant.level(value)
    tensor = tensor_of(symbol)
    assert tensor is not None
    # Unsigned integers are stored as signed ones, less half their range.
    return int(value) - (1 << (15 if tensor.wide else 7)) * tensor.unsigned


def _arrangement(context: NodeContext) -> Arrangement:
    tensor, selected = tensor_of(context.symbol(0)), selections(context)
    assert tensor is not None
    assert selected is not None
    arrangement = arrange(tensor, selected[0].shape, selected[0].indices)
    assert arrangement is not None
    return arrangement


def _outside(context: NodeContext) -> tuple[bool, bool]:
    """Return whether elements outside the input surround rows or columns, and whether they surround channels."""
    _, rows, columns, channels = _arrangement(context).indices
    return min(rows.min(), columns.min()) < 0, bool(channels.min() < 0)


def _operators(context: NodeContext) -> list[DeviceOp] | None:
    arrangement, fill = _arrangement(context), _fill_byte(context)
    _, rows, columns, channels = arrangement.indices
    if not _outside(context)[0]:
        return copy_ops(arrangement, context.node.name, fill)
    down, across = _around(rows), _around(columns)
    if down is None or across is None or (np.diff(channels) != 1).any():
        return None
    (top, y, bottom), (left, x, right) = down, across
    n, h, w, _ = arrangement.layout.nhwc
    size = (n, h - top - bottom, w - left - right, arrangement.sizes[3])
    full = arrangement.source
    source = channel_slice(View(full.buffer, size, y, x), int(channels[0]), len(channels))
    window = Window(pad=(top, left, bottom, right))
    return [Pad(context.node.name, source, arrangement.target, window, fill)]


def _around(indices: np.ndarray) -> tuple[int, int, int] | None:
    """Return the number of indices before the input's elements, the first element, and the number of indices after
    them.

    None if the elements have gaps.
    """
    inside = np.flatnonzero(indices >= 0)
    if not inside.size or (np.diff(inside) != 1).any() or (np.diff(indices[inside]) != 1).any():
        return None
    return int(inside[0]), int(indices[inside[0]]), len(indices) - 1 - int(inside[-1])


PAD_OPERATORS = (
    Operator(("Pad",), (bytes_given, pads_constant, pad_value, rows_order, pad_axes, pad_boxes), pad),
)


OPERATORS = (*PAD_OPERATORS, *POOL_OPERATORS)
