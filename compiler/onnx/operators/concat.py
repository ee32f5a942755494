"""Concat of activations, or of integers."""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.compiler.ir.graph import Buffer, Rescale, View
from weft.compiler.ir.layout import Layout, Shape4, natural, packed, spatial
from weft.compiler.onnx.boxes import tensor_of
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Pending, Recipe, Tensor, finish, integers, result, unfolded
from weft.compiler.onnx.reorder import effort, placed


def inputs_quantised(context: NodeContext) -> str | None:
    """All inputs must be int8 or uint8 activations or constants behind DequantizeLinear, or int8 or uint8 values."""
    kind = Tensor if isinstance(context.symbol(0), Tensor) else Activation
    for name, symbol in zip(context.node.inputs, map(unfolded, context.symbols), strict=True):
        if not isinstance(symbol, kind):
            return f"input {name!r} is not"
    return None


def concat_order(context: NodeContext) -> str | None:
    """Inputs of Concat must have one order of elements, or be brought into it by at most 256 copies each."""
    if _arranged(context) is not None:
        return None
    return f"inputs {context.inputs}"


def concat(context: NodeContext) -> Pending | Recipe:
    """Every input is requantised into its box of the result."""
    found = _arranged(context)
    assert found is not None
    tensors, layout, dim = found
    buffer = Buffer(result(layout.nhwc).buffer.name, layout.nhwc)
    ops, position = [], 0
    for index, (tensor, symbol) in enumerate(zip(tensors, map(unfolded, context.symbols), strict=True)):
        quant = symbol.quant if isinstance(symbol, Activation) else integers(tensor)
        box = list(layout.nhwc)
        box[dim] = math.prod(context.shape(index)) * box[dim] // math.prod(context.output)
        boxed = (box[0], box[1], box[2], box[3])
        at = {dim: position}
        dst = View(buffer, boxed, at.get(1, 0), at.get(2, 0), at.get(3, 0))
        name = f"{context.node.name}.{index}"
        ops.append(Rescale(name, tensor.view(boxed), dst, quant.scale, quant.zero))
        position += box[dim]
    made = Pending(tuple(ops), layout, tensors, (context.node.index,))
    if not isinstance(context.symbol(0), Tensor):
        return made
    return finish(made, context.node.outputs[0], integers(tensors[0]), context.node)


def _arranged(context: NodeContext) -> tuple[tuple[Tensor, ...], Layout, int] | None:
    """The inputs in one order, the layout of the result, and which axis of the device they follow each other on."""
    axis = int(context.node.attributes["axis"]) % len(context.output)
    shapes = [context.shape(index) for index in range(len(context.symbols))]
    tensors = [tensor for symbol in context.symbols if (tensor := tensor_of(unfolded(symbol))) is not None]

    def efforts(kind: Callable[[tuple[int, ...]], Layout]) -> float:
        return sum(effort(tensor, kind(shape)) for tensor, shape in zip(tensors, shapes, strict=True))

    for kind in sorted((natural, spatial, packed), key=efforts):
        arranged = [placed(tensor, kind(shape)) for tensor, shape in zip(tensors, shapes, strict=True)]
        found = tuple(tensor for tensor in arranged if tensor is not None)
        if len(found) == len(shapes):
            layout = kind(context.output)
            nhwc, dim = _nhwc(layout, context.output, axis)
            return found, Layout(layout.shape, layout.perm, nhwc), dim
    return None


def _nhwc(layout: Layout, shape: tuple[int, ...], axis: int) -> tuple[Shape4, int]:
    """The device's shape of the result in which inputs follow each other on one axis that is not images; and that."""
    at = layout.perm.index(axis)
    sizes = [shape[other] for other in layout.perm]
    if len(sizes) == 4 and at:
        return (sizes[0], sizes[1], sizes[2], sizes[3]), at
    before, after = math.prod(sizes[:at]), sizes[at + 1 :]
    if not after:
        return (1, 1, before, sizes[at]), 3
    return (1, before, sizes[at] * math.prod(after[:-1]), after[-1]), 2


OPERATORS = (Operator(("Concat",), (inputs_quantised, concat_order), concat),)
