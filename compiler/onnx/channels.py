"""Constants with one value per channel next to a device value: Add, Mul, Div and BatchNormalization."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.layout import Layout, row_major_layout, spatial
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Symbol, is_conv
from weft.compiler.onnx.reorder import to_layout


def pair_operands(context: NodeContext) -> tuple[Symbol, ...]:
    """Return the operands of Add, Sub or Mul.

    An 8-bit constant counts as an activation, unless it is a scalar or has one value per channel.
    """
    for index in range(2):
        one, other = context.symbol(index), context.symbol(1 - index)
        if not (isinstance(one, Activation) and isinstance(other, Constant)) or other.activation is None:
            continue
        if channel_constant(context, one, other) is not None:
            return (one, other.activation) if index == 0 else (other.activation, one)
    return context.symbols


def constant_factor(context: NodeContext) -> float | None:
    """Return the positive scalar constant by which a Mul or Div node scales an activation; None if there is none."""
    for index in {"Div": (1,), "Mul": (1, 0)}.get(context.node.op, ()):
        one, constant = context.symbol(1 - index), context.symbol(index)
        if isinstance(one, Activation) and isinstance(constant, Constant) and constant.values.size == 1:
            factor = float(constant.floats.reshape(-1)[0])
            if factor > 0 and math.isfinite(factor) and context.shape(1 - index) == context.output:
                return 1 / factor if context.node.op == "Div" else factor
    return None


def same_order(context: NodeContext) -> str | None:
    """Next to a constant, the input's elements must be in the device's order, or at most 256 copies must bring them
    into it.
    """
    if constant_factor(context) is not None:
        return None
    constants = [symbol for symbol in context.symbols if isinstance(symbol, Constant)]
    value = None if context.node.op == "BatchNormalization" else constants[0]
    for symbol in context.symbols:
        layout = channel_layout(context, symbol, value) if isinstance(symbol, Activation) else None
        if layout is not None and isinstance(symbol, Activation) and to_layout(symbol.tensor, layout) is None:
            return f"inputs {context.inputs}"
    return None


def channel_operands(context: NodeContext) -> str | None:
    """Return None for a device value and a constant with one value per channel, else the violation."""
    for one, other in (context.symbols, context.symbols[::-1]):
        if takes_constants(one) and isinstance(other, Constant):
            return channel_constant(context, one, other)
    return f"inputs are {context.inputs}"


def takes_constants(symbol: Symbol) -> bool:
    """Return whether a convolution, existing or new, can apply a constant per channel to a value."""
    return isinstance(symbol, Activation) or (isinstance(symbol, Pending) and is_conv(symbol))


def channel_constant(context: NodeContext, operand: Symbol, value: Constant) -> str | None:
    """Return None for a constant with one value per channel of an operand, else the violation."""
    shape = context.output
    if not np.isfinite(value.floats).all():
        return "the constant is not finite"
    if shape not in (context.shape(0), context.shape(1)):
        return f"the result has shape {shape}"
    if isinstance(operand, Activation) and math.prod(operand.tensor.layout.shape) != math.prod(shape):
        return f"the activation would have to be broadcast to shape {shape}"
    if not layouts(shape, operand):
        return "the result was reshaped before"
    matches = channel_layout(context, operand, value) is not None
    return None if matches else f"the constant has shape {value.values.shape}"


def channel_layout(context: NodeContext, operand: Symbol, value: Constant | None) -> Layout | None:
    """Return a layout of an operand whose channels match a constant, or without `value` axis 1; None if there is none.

    The operand's present layout comes first.
    """
    shape = context.output
    candidates = layouts(shape, operand)
    if isinstance(operand, Activation):
        tensor = operand.tensor
        candidates = dict(sorted(candidates.items(), key=lambda item: tensor.in_layout(item[1]) is None))
    if value is None:
        return candidates.get(1)
    full = (1,) * (len(shape) - value.values.ndim) + value.values.shape
    for axis, layout in candidates.items():
        expected = [shape[axis] if other == axis else 1 for other in range(len(shape))]
        if len(full) == len(shape) and all(
            size in (1, most) for size, most in zip(full, expected, strict=True)
        ):
            return layout
    return None


def layouts(shape: tuple[int, ...], operand: Symbol) -> dict[int, Layout]:
    """Return the possible layouts of a value of `shape`, by the axis that becomes channels on the device."""
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
