"""Softmax and LogSoftmax of an activation."""

from __future__ import annotations

import dataclasses
import math

from weft.compiler.ir.graph import Softmax
from weft.compiler.ir.layout import Layout
from weft.compiler.ir.scales import LOGIT_OCTAVES
from weft.compiler.kernel.rows import LOGARITHM_TABLES, WHOLE_LOGARITHMS, RowLogSoftmax
from weft.compiler.machine.target import PITCH_MAX
from weft.compiler.onnx.conditions import (
    activation,
    input_quantised,
    kernel_room,
    normalised_axis,
    softmax_unit,
)
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.qdq import Activation, Pending, Tensor, result
from weft.compiler.onnx.reorder import to_layout
from weft.compiler.onnx.row_forms import row_fits


def softmax_input(context: NodeContext) -> str | None:
    """The input of Softmax must be an activation quantised to int8 or uint8, or scores of attention."""
    return None if isinstance(context.symbol(0), Activation) else f"input {context.node.inputs[0]!r} is not"


def softmax_axis(context: NodeContext) -> str | None:
    """The axes of Softmax must be channels on the device, or at most 256 copies must make them channels."""
    return (
        None if softmax_rows(context) is not None else f"axis is {context.attribute('axis', 'the default')}"
    )


def softmax_length(context: NodeContext) -> str | None:
    """Softmax must be over at most 65535 elements, so that a row's pitch and sum of probabilities fit."""
    length = math.prod(context.shape()[axis] for axis in _axes(context))
    return None if length <= PITCH_MAX else f"there are {length}"


def softmax_range(context: NodeContext) -> str | None:
    """The scale of Softmax's input must be at most 1.386, so that -128 to 127 times it covers the device's logits."""
    return None if softmax_zero(context) is not None else f"it is {activation(context).quant.scale:.4g}"


def softmax_zero(context: NodeContext) -> int | None:
    """Return a number to subtract from Softmax's int8 input so that no logit is clamped; None if there is none.

    It is the zero point if possible; every number gives equal probabilities.
    """
    quant = activation(context).quant
    octaves = quant.scale * math.log2(math.e)
    return next((zero for zero in (quant.zero, 0) if (128 + abs(zero)) * octaves <= LOGIT_OCTAVES), None)


def softmax_rows(context: NodeContext) -> tuple[Tensor, Layout] | None:
    """Return the input with the axes of a Softmax as channels and all others as pixels; None if it needs too many
    copies.
    """
    symbol, shape, axes = context.symbol(0), context.shape(), _axes(context)
    assert isinstance(symbol, Activation)
    own, length = symbol.tensor.layout, math.prod(shape[axis] for axis in axes)
    others = tuple(other for other in range(len(shape)) if other not in axes)
    layouts = [Layout(shape, (*others, *axes), (1, 1, math.prod(shape) // length, length))]
    if own.shape == shape and set(own.perm[len(others) :]) == set(axes):
        nhwc = own.nhwc if own.nhwc[3] == length else layouts[0].nhwc  # channels may include further axes
        layouts.insert(0, dataclasses.replace(own, nhwc=nhwc))
    unmoved = next(((symbol.tensor, layout) for layout in layouts if symbol.tensor.in_layout(layout)), None)
    tensor, layout = unmoved or (symbol.tensor, layouts[-1])
    moved = to_layout(tensor, layout)
    return None if moved is None else (moved, layout)


def _axes(context: NodeContext) -> tuple[int, ...]:
    """Return the axes over which a Softmax normalises: before opset 13, all from `axis` on."""
    shape, single = context.shape(), normalised_axis(context)
    if single is not None:
        return (single,)
    return tuple(range(int(context.node.attributes.get("axis", 1)) % max(len(shape), 1), len(shape)))


def softmax(context: NodeContext) -> Pending:
    source, rows = context.symbol(0), softmax_rows(context)
    assert isinstance(source, Activation)
    zero = softmax_zero(context)
    assert rows is not None
    assert zero is not None
    tensor, layout = rows
    op = Softmax(context.node.name, tensor.view(), result(layout.nhwc), source.quant.scale, x_zero=zero)
    return Pending((op,), layout, (tensor,), (context.node.index,))


SOFTMAX_OPERATORS = (
    Operator(
        ("Softmax",), (softmax_unit, softmax_input, softmax_axis, softmax_length, softmax_range), softmax
    ),
)


def log_tables(context: NodeContext) -> str | None:
    """LogSoftmax needs three look-up tables ('lookup_tables' 4 or more)."""
    count = context.model.config.lookup_tables
    return None if count >= LOGARITHM_TABLES else f"there are {count}"


def log_axis(context: NodeContext) -> str | None:
    """The axes of LogSoftmax must be channels on the device, or at most 256 copies must make them channels."""
    if softmax_rows(context) is not None:
        return None
    return f"axis is {context.attribute('axis', 'the default')}"


def log_length(context: NodeContext) -> str | None:
    """Rows of LogSoftmax must fit an eighth of the scratchpad; above 2048 elements, 'n' above 32 needs 'kernel' 128."""
    rows, config = softmax_rows(context), context.model.config
    assert rows is not None
    count = rows[1].nhwc[3]
    room = count <= WHOLE_LOGARITHMS or config.n <= 32 or config.kernel >= 128
    return None if room and row_fits(config, count) else f"there are {count}"


def log_softmax(context: NodeContext) -> Pending:
    """Return the device's RowLogSoftmax."""
    rows = softmax_rows(context)
    assert rows is not None
    tensor, layout = rows
    scale = activation(context).quant.scale
    op = RowLogSoftmax(context.node.name, tensor.view(), result(layout.nhwc), scale)
    return Pending((op,), layout, (tensor,), (context.node.index,))


LOG_SOFTMAX_OPERATORS = (
    Operator(("LogSoftmax",), (kernel_room, log_tables, input_quantised, log_axis, log_length), log_softmax),
)


OPERATORS = (*LOG_SOFTMAX_OPERATORS, *SOFTMAX_OPERATORS)
