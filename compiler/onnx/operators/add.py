"""Add of two activations, or of an activation and a constant for each channel; Sub of two activations."""

from __future__ import annotations

from weft.compiler.ir.graph import Add
from weft.compiler.onnx.channels import channel_operands, paired, same_order
from weft.compiler.onnx.conditions import multipliers
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.convolutions import with_constant
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Symbol, result
from weft.compiler.onnx.repeats import Operands, operands


def _two(context: NodeContext) -> bool:
    return all(isinstance(symbol, Activation) for symbol in paired(context))


def addable(context: NodeContext) -> str | None:
    """Add takes two int8 or uint8 activations, of which one may repeat, or a device value and a constant by channel."""
    if _two(context):
        found = operands(context)
        return found if isinstance(found, str) else None
    return channel_operands(context)


def in_order(context: NodeContext) -> str | None:
    """The device value must have its elements in the order the device computes in."""
    return None if _two(context) else same_order(context)


def subtractable(context: NodeContext) -> str | None:
    """Sub takes two int8 or uint8 activations, of which the second may repeat."""
    found = operands(context)
    if isinstance(found, str):
        return found
    return "the first would have to be repeated" if found.swapped else None


def add(context: NodeContext) -> Symbol:
    """The device's Add, or a bias."""
    symbols = paired(context)
    for operand, value in (symbols, symbols[::-1]):
        if isinstance(value, Constant):
            return with_constant(context, operand, value)
    found = operands(context)
    assert isinstance(found, Operands)
    return _sum(context, found, 1)


def subtract(context: NodeContext) -> Symbol:
    """An Add whose second operand counts negative."""
    found = operands(context)
    assert isinstance(found, Operands)
    return _sum(context, found, -1)


def _sum(context: NodeContext, found: Operands, sign: int) -> Pending:
    a, b = found.quants
    op = Add(context.node.name, *found.views, result(found.shape), a.scale, sign * b.scale, a.zero, b.zero)
    return Pending((op,), found.layout, found.tensors, (context.node.index,))


OPERATORS = (
    Operator(("Add",), (addable, in_order), add),
    Operator(("Sub",), (subtractable, multipliers), subtract),
)
