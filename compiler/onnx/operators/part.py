"""Operators that take elements of their input along each axis: parts of it, and repetitions."""

from __future__ import annotations

from weft.compiler.onnx.boxes import Moved, arrange, copies, results, tensor_of
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.indices import Taken, taken
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Results, Tensor


def bytes_given(context: NodeContext) -> str | None:
    """The input must be an int8 or uint8 activation behind DequantizeLinear, or an int8 or uint8 value itself."""
    return None if tensor_of(context.symbol(0)) is not None else f"input {context.node.inputs[0]!r} is not"


def places_constant(context: NodeContext) -> str | None:
    """Starts, ends, axes and steps of Slice, and indices of Gather, must be constant."""
    if taken(context) is not None:
        return None
    names = [name for name in context.node.inputs[1:] if name and name not in context.model.constants]
    return f"input {names[0]!r} is not"


def resized_nearest(context: NodeContext) -> str | None:
    """Resize and Upsample must take nearest or linear elements, by constant scales or sizes."""
    return None if taken(context) is not None else f"mode is {context.attribute('mode', 'nearest')!r}"


def rows_order(context: NodeContext) -> str | None:
    """Elements must be in the device's order or row-major, if need be by 256 copies, and at most three axes in part."""
    found = _first(context)
    good = arrange(_tensor(context), found.shape, found.indices) is not None
    return None if good else f"input {context.node.inputs[0]!r} of shape {context.shape()}"


def boxes_few(context: NodeContext) -> str | None:
    """What is taken must be at most 64 boxes with steps between rows and columns, or 1048576 pairs of channels."""
    for found in taken(context) or ():
        arrangement = arrange(_tensor(context), found.shape, found.indices)
        if arrangement is None or copies(arrangement, context.node.name) is None:
            return f"the input has shape {context.shape()}, the result {context.output}"
    return None


def part(context: NodeContext) -> Results:
    """A copy of each box; what only changes no byte, who reads it reads through (`weft.compiler.passes.read_views`)."""
    made = []
    for found in taken(context) or ():
        arrangement = arrange(_tensor(context), found.shape, found.indices)
        assert arrangement is not None
        ops = copies(arrangement, context.node.name)
        assert ops is not None
        made.append(Moved(arrangement.tensor, ops, arrangement.layout))
    return results(context, made)


def _tensor(context: NodeContext) -> Tensor:
    tensor = tensor_of(context.symbol(0))
    assert tensor is not None
    return tensor


def _first(context: NodeContext) -> Taken:
    found = taken(context)
    assert found is not None
    return found[0]


_BOXES = (rows_order, boxes_few)

OPERATORS = (
    Operator(("Expand", "Split", "Tile"), (bytes_given, *_BOXES), part),
    Operator(("Gather", "Slice"), (bytes_given, places_constant, *_BOXES), part),
    Operator(("Resize", "Upsample"), (bytes_given, resized_nearest, *_BOXES), part),
)
