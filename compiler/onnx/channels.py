"""Constants with a value for each channel, next to a value of the device: Add, Mul, Div and BatchNormalization."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.layout import Layout, row_major_layout, spatial
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Symbol, is_conv
from weft.compiler.onnx.reorder import placed


def paired(context: NodeContext) -> tuple[Symbol, ...]:
    """The operands of Add, Sub or Mul; a constant of 8 bits counts as an activation, unless it has a value for each
    channel, or but one."""
    for index in range(2):
        one, other = context.symbol(index), context.symbol(1 - index)
        if not (isinstance(one, Activation) and isinstance(other, Constant)) or other.activation is None:
            continue
        if channel_constant(context, one, other) is not None:
            return (one, other.activation) if index == 0 else (other.activation, one)
    return context.symbols


def scaling(context: NodeContext) -> float | None:
    """The positive constant that a Mul or Div node multiplies a whole activation by, if that is what it does."""
    for index in {"Div": (1,), "Mul": (1, 0)}.get(context.node.op, ()):
        one, constant = context.symbol(1 - index), context.symbol(index)
        if isinstance(one, Activation) and isinstance(constant, Constant) and constant.values.size == 1:
            factor = float(constant.floats.reshape(-1)[0])
            if factor > 0 and math.isfinite(factor) and context.shape(1 - index) == context.output:
                return 1 / factor if context.node.op == "Div" else factor
    return None


def same_order(context: NodeContext) -> str | None:
    """Next to a constant elements must be in the device's order, or be brought into it by at most 256 copies."""
    if scaling(context) is not None:
        return None
    constants = [symbol for symbol in context.symbols if isinstance(symbol, Constant)]
    value = None if context.node.op == "BatchNormalization" else constants[0]
    for symbol in context.symbols:
        layout = channel_layout(context, symbol, value) if isinstance(symbol, Activation) else None
        if layout is not None and isinstance(symbol, Activation) and placed(symbol.tensor, layout) is None:
            return f"inputs {context.inputs}"
    return None


def channel_operands(context: NodeContext) -> str | None:
    """For conditions: None for a device value and a constant for each channel, else what is not like that."""
    for one, other in (context.symbols, context.symbols[::-1]):
        if takes_constants(one) and isinstance(other, Constant):
            return channel_constant(context, one, other)
    return f"inputs are {context.inputs}"


def takes_constants(symbol: Symbol) -> bool:
    """Whether a constant for each channel can go into the convolution that made a value, or into one of its own."""
    return isinstance(symbol, Activation) or (isinstance(symbol, Pending) and is_conv(symbol))


def channel_constant(context: NodeContext, operand: Symbol, value: Constant) -> str | None:
    """None for a constant with a value for each channel of an operand, else what is not like that."""
    shape = context.output
    if not np.isfinite(value.floats).all():
        return "the constant is not finite"
    if shape not in (context.shape(0), context.shape(1)):
        return f"the result has shape {shape}"
    if isinstance(operand, Activation) and math.prod(operand.tensor.layout.shape) != math.prod(shape):
        return f"the activation would have to be repeated to shape {shape}"
    if not layouts(shape, operand):
        return "the result was reshaped before"
    fits = channel_layout(context, operand, value) is not None
    return None if fits else f"the constant has shape {value.values.shape}"


def channel_layout(context: NodeContext, operand: Symbol, value: Constant | None) -> Layout | None:
    """A layout of an operand in whose channels a constant has one value for each, or, with None, in which axis 1 is
    channels; None if there is none. One that the operand has already comes first."""
    shape = context.output
    found = layouts(shape, operand)
    if isinstance(operand, Activation):
        tensor = operand.tensor
        found = dict(sorted(found.items(), key=lambda item: tensor.arranged(item[1]) is None))
    if value is None:
        return found.get(1)
    full = (1,) * (len(shape) - value.values.ndim) + value.values.shape
    for axis, layout in found.items():
        wanted = [shape[axis] if other == axis else 1 for other in range(len(shape))]
        if len(full) == len(shape) and all(
            size in (1, most) for size, most in zip(full, wanted, strict=True)
        ):
            return layout
    return None


def layouts(shape: tuple[int, ...], operand: Symbol) -> dict[int, Layout]:
    """The layouts of a value of `shape`, by the axis that is then channels on the device."""
    last = len(shape) - 1
    known = (
        {1: spatial(shape), last: row_major_layout(shape)}
        if len(shape) == 4
        else {last: row_major_layout(shape)}
    )
    if len(shape) in (3, 5):
        known.setdefault(1, spatial(shape))
    if not isinstance(operand, Pending):
        return known
    known = {last: row_major_layout(shape)} | known
    return {
        axis: layout
        for axis, layout in known.items()
        if operand.layout == layout and operand.ops[0].dst.shape[3] == shape[axis]
    }
