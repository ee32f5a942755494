"""Softmax of an activation."""

from __future__ import annotations

import math

from weft.compiler.ir.graph import Softmax
from weft.compiler.ir.layout import Layout
from weft.compiler.ir.score_pairs import OCTAVES
from weft.compiler.machine.limits import PITCH_MAX
from weft.compiler.onnx.conditions import activation, normalised_axis, softmax_unit
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Pending, Tensor, result
from weft.compiler.onnx.reorder import placed


def softmax_input(context: NodeContext) -> str | None:
    """The input of Softmax must be an int8 or uint8 activation behind DequantizeLinear, or scores of attention."""
    return None if isinstance(context.symbol(0), Activation) else f"input {context.node.inputs[0]!r} is not"


def softmax_axis(context: NodeContext) -> str | None:
    """Softmax must be over one axis, whose elements are the channels on the device."""
    return (
        None if softmax_rows(context) is not None else f"axis is {context.attribute('axis', 'the default')}"
    )


def softmax_length(context: NodeContext) -> str | None:
    """Softmax takes at most 65535 elements: a row's pitch and the sum of its probabilities have no more bits."""
    axis = normalised_axis(context)
    assert axis is not None
    return None if context.shape()[axis] <= PITCH_MAX else f"there are {context.shape()[axis]}"


def softmax_range(context: NodeContext) -> str | None:
    """The scale of Softmax's input must be at most 1.386: -128 to 127 times that are all logits that the device has."""
    return None if softmax_zero(context) is not None else f"it is {activation(context).quant.scale:.4g}"


def softmax_zero(context: NodeContext) -> int | None:
    """The number to subtract from Softmax's int8 input so that no logit is clamped, None if there is none.

    It is the zero point if possible; any number gives the same probabilities.
    """
    quant = activation(context).quant
    octaves = quant.scale * math.log2(math.e)
    return next((zero for zero in (quant.zero, 0) if (128 + abs(zero)) * octaves <= OCTAVES), None)


def softmax_rows(context: NodeContext) -> tuple[Tensor, Layout] | None:
    """The input with the axis of a Softmax as channels, all others as pixels."""
    symbol, shape, axis = context.symbol(0), context.shape(), normalised_axis(context)
    if axis is None:
        return None
    assert isinstance(symbol, Activation)
    others = tuple(other for other in range(len(shape)) if other != axis)
    layouts = [Layout(shape, (*others, axis), (1, 1, math.prod(shape) // shape[axis], shape[axis]))]
    if symbol.tensor.layout.perm[-1:] == (axis,) and symbol.tensor.layout.shape == shape:
        layouts.insert(0, symbol.tensor.layout)
    found = next(((symbol.tensor, layout) for layout in layouts if symbol.tensor.arranged(layout)), None)
    tensor, layout = found or (symbol.tensor, layouts[-1])
    moved = placed(tensor, layout)
    return None if moved is None else (moved, layout)


def softmax(context: NodeContext) -> Pending:
    source, found = context.symbol(0), softmax_rows(context)
    assert isinstance(source, Activation)
    zero = softmax_zero(context)
    assert found is not None
    assert zero is not None
    tensor, layout = found
    op = Softmax(context.node.name, tensor.view(), result(layout.nhwc), source.quant.scale, x_zero=zero)
    return Pending((op,), layout, (tensor,), (context.node.index,))


OPERATORS = (
    Operator(
        ("Softmax",), (softmax_unit, softmax_input, softmax_axis, softmax_length, softmax_range), softmax
    ),
)
