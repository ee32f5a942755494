"""Concat of activations."""

from __future__ import annotations

import math

from weft.compiler.ir.graph import Buffer, Rescale, View
from weft.compiler.ir.layout import natural
from weft.compiler.onnx.conditions import arranged
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Pending, Symbol, result


def inputs_quantised(context: NodeContext) -> str | None:
    """All inputs must be int8 or uint8 activations behind DequantizeLinear."""
    for name, symbol in zip(context.node.inputs, context.symbols, strict=True):
        if not isinstance(symbol, Activation):
            return f"input {name!r} is not"
    return None


def concat_axis(context: NodeContext) -> str | None:
    """Concat works along any axis of an image, and along the first or last axis of a matrix."""
    rank = len(context.output)
    axis = int(context.node.attributes["axis"]) % rank
    outer = math.prod(context.output[:axis])
    return None if rank == 4 or axis == rank - 1 or outer == 1 else f"axis {axis} of {rank}"


def concat_order(context: NodeContext) -> str | None:
    """Inputs of Concat must have their elements in the order the device computes in."""
    for index, symbol in enumerate(context.symbols):
        assert isinstance(symbol, Activation)
        if symbol.tensor.arranged(natural(context.shape(index))) is None:
            return f"input {context.node.inputs[index]!r}"
    return None


def concat(context: NodeContext) -> Symbol:
    """Every input is requantised into its box of the result."""
    rank = len(context.output)
    axis = context.node.attributes["axis"] % rank
    layout = natural(context.output)
    n, h, w, c = layout.nhwc
    dim = {0: 1, 1: 3, 2: 1, 3: 2}[axis] if rank == 4 else (3 if axis == rank - 1 else 2)
    shape = (1, n * h, w, c) if rank == 4 and axis == 0 else layout.nhwc
    buffer = Buffer(result(shape).buffer.name, shape)
    ops, inputs, position = [], [], 0
    for index in range(len(context.symbols)):
        source, quant = arranged(context, index)
        box = list(source.layout.nhwc)
        if rank == 4 and axis == 0:
            box = [1, box[0] * box[1], *box[2:]]
        boxed = (box[0], box[1], box[2], box[3])
        at = {dim: position}
        dst = View(buffer, boxed, at.get(1, 0), at.get(2, 0), at.get(3, 0))
        ops.append(Rescale(f"{context.node.name}.{index}", source.view(boxed), dst, quant.scale, quant.zero))
        inputs.append(source)
        position += box[dim]
    return Pending(tuple(ops), layout, tuple(inputs), (context.node.index,))


OPERATORS = (Operator(("Concat",), (inputs_quantised, concat_axis, concat_order), concat),)
