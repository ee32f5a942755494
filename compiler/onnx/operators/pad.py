"""Pad: a constant around rows and columns, and elements of the input repeated around any axis."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.graph import DeviceOp, Pad, View, Window
from weft.compiler.machine.limits import COUNT_MAX
from weft.compiler.onnx.boxes import Arrangement, Moved, arrange, copies, results, tensor_of
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.indices import constants, taken
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.operators.part import bytes_given, rows_order
from weft.compiler.onnx.qdq import Activation, Constant, Results, parameters
from weft.compiler.onnx.runs import of_channels


def pads_constant(context: NodeContext) -> str | None:
    """Pads must be constant, at most 4095, and not negative but around a constant."""
    pads = constants(context, "pads", 1)
    if pads is not None and max(pads) <= COUNT_MAX and taken(context) is not None:
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
    return results(context, [Moved(arrangement.tensor, ops, arrangement.layout)])


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
    tensor, found = tensor_of(context.symbol(0)), taken(context)
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
        return copies(arrangement, context.node.name, fill)
    down, across = _around(rows), _around(columns)
    if down is None or across is None or (np.diff(channels) != 1).any():
        return None
    (top, y, bottom), (left, x, right) = down, across
    n, h, w, _ = arrangement.layout.nhwc
    size = (n, h - top - bottom, w - left - right, arrangement.sizes[3])
    whole = arrangement.source
    source = of_channels(View(whole.buffer, size, y, x), int(channels[0]), len(channels))
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


OPERATORS = (
    Operator(("Pad",), (bytes_given, pads_constant, pad_value, rows_order, pad_axes, pad_boxes), pad),
)
