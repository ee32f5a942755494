"""Add of two activations, or of an activation and a constant for each channel."""

from __future__ import annotations

import math

from weft.compiler.ir.graph import Add
from weft.compiler.onnx.channels import aligned, channel_operands, same_order, summands
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.convolutions import with_constant
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Symbol, result


def addable(context: NodeContext) -> str | None:
    """Add takes two int8 or uint8 activations (one may be constant), or a device value and a constant by channel."""
    kinds = [type(symbol) for symbol in summands(context)]
    if kinds == [Activation, Activation]:
        same = math.prod(context.shape(0)) == math.prod(context.shape(1))
        return None if same else f"shapes are {context.shape(0)} and {context.shape(1)}"
    return channel_operands(context)


def add(context: NodeContext) -> Symbol:
    """The device's Add, or a bias."""
    symbols = summands(context)
    for operand, value in (symbols, symbols[::-1]):
        if isinstance(value, Constant):
            return with_constant(context, operand, value)
    a_quant, b_quant = (symbol.quant for symbol in symbols if isinstance(symbol, Activation))
    tensors = aligned(context)
    assert tensors is not None
    a, b = tensors
    layout = a.layout
    op = Add(
        context.node.name,
        a.view(),
        b.view(),
        result(layout.nhwc),
        a_quant.scale,
        b_quant.scale,
        a_quant.zero,
        b_quant.zero,
    )
    return Pending((op,), layout, (a, b), (context.node.index,))


OPERATORS = (Operator(("Add",), (addable, same_order), add),)
