"""Operators that take elements of their input along each axis: parts of it, and repetitions."""

from __future__ import annotations

import functools

from weft.compiler.ir.graph import DeviceOp
from weft.compiler.onnx.boxes import Arrangement, Moved, arrange, copies, results, tensor_of
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.indices import taken
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Results


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
    good = _arranged(context)[0] is not None
    return None if good else f"input {context.node.inputs[0]!r} of shape {context.shape()}"


def boxes_few(context: NodeContext) -> str | None:
    """What is taken must be at most 64 boxes with steps between rows and columns, or 1048576 pairs of channels."""
    few = all(ops is not None for _, ops in _copied(context))
    return None if few else f"the input has shape {context.shape()}, the result {context.output}"


def part(context: NodeContext) -> Results:
    """A copy of each box; what only changes no byte, who reads it reads through (`weft.compiler.passes.read_views`)."""
    made = []
    for arrangement, ops in _copied(context):
        assert arrangement is not None
        assert ops is not None
        made.append(Moved(arrangement.tensor, ops, arrangement.layout))
    return results(context, made)


# As `taken`: conditions and the handler of a node ask for these one after the other.


@functools.lru_cache(maxsize=1)
def _arranged(context: NodeContext) -> list[Arrangement | None]:
    """How the input and each output lie on the device."""
    tensor = tensor_of(context.symbol(0))
    assert tensor is not None
    return [arrange(tensor, found.shape, found.indices) for found in taken(context) or ()]


@functools.lru_cache(maxsize=1)
def _copied(context: NodeContext) -> list[tuple[Arrangement | None, list[DeviceOp] | None]]:
    """The copies that make each output, and how it lies on the device."""
    return [(item, None if item is None else copies(item, context.node.name)) for item in _arranged(context)]


_BOXES = (rows_order, boxes_few)

OPERATORS = (
    Operator(("Expand", "Split", "Tile"), (bytes_given, *_BOXES), part),
    Operator(("Gather", "Slice"), (bytes_given, places_constant, *_BOXES), part),
    Operator(("Resize", "Upsample"), (bytes_given, resized_nearest, *_BOXES), part),
)
