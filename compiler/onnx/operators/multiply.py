"""Mul of two activations; Mul and Div of an activation and a constant for each channel."""

from __future__ import annotations

import dataclasses

import numpy as np

from weft.compiler.ir.graph import Multiply
from weft.compiler.onnx.channels import channel_operands, paired, same_order, scaling
from weft.compiler.onnx.conditions import multipliers
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.convolutions import with_constant
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.operators.normalised_rows import scales_rows
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Symbol, result
from weft.compiler.onnx.repeats import Operands, operands


def multipliable(context: NodeContext) -> str | None:
    """Mul and Div take a device value and one constant for each channel."""
    return None if scaling(context) is not None else channel_operands(context)


def _two(context: NodeContext) -> bool:
    return all(isinstance(symbol, Activation) for symbol in paired(context)) and not scales_rows(context)


def pairs(context: NodeContext) -> str | None:
    """Of two int8 or uint8 activations that Mul takes, one may repeat."""
    found = operands(context)
    return found if isinstance(found, str) else None


def product(context: NodeContext) -> Symbol:
    """The device's Multiply."""
    found = operands(context)
    assert isinstance(found, Operands)
    a, b = found.quants
    op = Multiply(context.node.name, *found.views, result(found.shape), a.scale * b.scale, a.zero, b.zero)
    return Pending((op,), found.layout, found.tensors, (context.node.index,))


def divisible(context: NodeContext) -> str | None:
    """Div takes a device value and divides it by one constant for each channel, none of them zero."""
    divisor = context.symbol(1)
    if isinstance(divisor, Constant) and not divisor.floats.all():
        return f"input {context.node.inputs[1]!r} has zeros"
    if not isinstance(divisor, Constant):
        return f"input {context.node.inputs[1]!r} is not constant"
    return multipliable(context)


def multiply(context: NodeContext) -> Symbol:
    """Mul or Div; by one number it is only another scale."""
    factor = scaling(context)
    for operand, value in (context.symbols, context.symbols[::-1]):
        if factor is not None and isinstance(operand, Activation):
            tensor = dataclasses.replace(operand.tensor, via=(*operand.tensor.via, context.node.index))
            return Activation(tensor, dataclasses.replace(operand.quant, scale=operand.quant.scale * factor))
        if isinstance(value, Constant):
            inverse = (
                Constant(1 / value.floats, np.ones(1), exact=True) if context.node.op == "Div" else value
            )
            return with_constant(context, operand, inverse)
    raise AssertionError("the constraints let no other product pass")


OPERATORS = (
    Operator(("Mul",), (pairs, multipliers), product, applies=_two),
    Operator(("Div",), (divisible, same_order), multiply),
    Operator(("Mul",), (multipliable, same_order), multiply),
)
