"""ArgMax and ArgMin of an activation: the place of an element along an axis."""

from __future__ import annotations

from weft.compiler.ir.layout import Layout
from weft.compiler.kernel.row_operators import RowPlace
from weft.compiler.onnx.conditions import kernel_room
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Recipe, Tensor, result_of
from weft.compiler.onnx.row_forms import Placed, row_fits, rows_of
from weft.compiler.onnx.wide import doubled

_BYTE = 256
"""Places that 8 bits tell apart."""


def place_input(context: NodeContext) -> str | None:
    """ArgMax and ArgMin must be of an int8 or uint8 activation, or of its integers."""
    return None if _source(context) is not None else f"input {context.node.inputs[0]!r} is not"


def place_order(context: NodeContext) -> str | None:
    """The axis of ArgMax and ArgMin must be the channels on the device, or be brought there by at most 256 copies."""
    return None if _placed(context) is not None else f"axis {_axis(context)} of shape {context.shape()}"


def place_length(context: NodeContext) -> str | None:
    """A row of which ArgMax or ArgMin is taken must fit an eighth of the scratchpad."""
    count = context.shape()[_axis(context)]
    return None if row_fits(context.model.config, count) else f"there are {count}"


def _source(context: NodeContext) -> Tensor | None:
    symbol = context.symbol(0)
    tensor = symbol.tensor if isinstance(symbol, Activation) else symbol
    return tensor if isinstance(tensor, Tensor) and context.shape() else None


def _axis(context: NodeContext) -> int:
    return int(context.node.attributes.get("axis", 0)) % len(context.shape())


def _placed(context: NodeContext) -> Placed | None:
    tensor = _source(context)
    assert tensor is not None
    return rows_of(tensor, context.shape(), (_axis(context),))


def place(context: NodeContext) -> Recipe:
    """The device's RowPlace, whose results the host reads as int64."""
    node, found = context.node, _placed(context)
    assert found is not None
    name, tensor = node.outputs[0], found.tensor
    pixels, wide = (*found.layout.nhwc[:3], 1), found.layout.nhwc[3] > _BYTE
    view = result_of(name, pixels)
    op = RowPlace(
        node.name, tensor.view(), doubled(view) if wide else view, node.op == "ArgMin",
        final=bool(context.attribute("select_last_index", 0)), wide=wide,
    )  # fmt: skip
    layout = Layout(context.output, tuple(range(len(context.output))), pixels)
    output = Tensor(name, name, layout, layout, unsigned=True, hosted=False, wide=wide, index=True)
    nodes = tuple(dict.fromkeys((*tensor.via, node.index)))
    return Recipe(output, (op,), (tensor,), nodes, ())


OPERATORS = (Operator(("ArgMax", "ArgMin"), (kernel_room, place_input, place_order, place_length), place),)
