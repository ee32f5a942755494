"""Reductions of rows (sums, means, extremes, norms, ArgMax), with the float operators up to the next QuantizeLinear."""

from __future__ import annotations

import dataclasses
import math

from weft.compiler.ir.layout import Layout
from weft.compiler.kernel.products import LARGEST_OFFSET
from weft.compiler.kernel.rows import RowPlace, RowTotal
from weft.compiler.onnx.conditions import kernel_room
from weft.compiler.onnx.operator import QUANTISE, NodeContext, Operator
from weft.compiler.onnx.operators.lookup import per_tensor
from weft.compiler.onnx.qdq import (
    Activation,
    Pending,
    Recipe,
    RowElements,
    RowNumber,
    Tensor,
    finish,
    result,
    result_of,
)
from weft.compiler.onnx.row_forms import Rows, form_of, repeats, row_fits, rows_of
from weft.compiler.onnx.wide import upper_plane

SQUARES = 1 << 15
"""Most elements of a row whose squares have a 31-bit sum."""
_TOTALS = {
    ("values", "Mean"): "sum", ("values", "Sum"): "sum", ("values", "SumSquare"): "squares",
    ("values", "L1"): "magnitudes", ("values", "L2"): "squares", ("values", "Max"): "largest",
    ("values", "Min"): "smallest", ("squares", "Mean"): "squares", ("squares", "Sum"): "squares",
    ("magnitudes", "Mean"): "magnitudes", ("magnitudes", "Sum"): "magnitudes", ("magnitudes", "L1"): "magnitudes",
    ("spread", "Mean"): "spread", ("spread", "Sum"): "spread", ("centred", "SumSquare"): "spread",
    ("centred", "L2"): "spread",
}  # fmt: skip
"""Total of a reduction, by the form of its input and the end of its name."""


def reduction_input(context: NodeContext) -> str | None:
    """The input of a reduction must be an int8 or uint8 activation, its squares or magnitudes, or distances from its
    mean.
    """
    return None if _total(context) is not None else f"input {context.node.inputs[0]!r} is not"


def reduction_axes(context: NodeContext) -> str | None:
    """The axes of a reduction must be constant, and at least one."""
    if _axes(context):
        return None
    return f"input {context.node.input(1)!r} is not" if context.node.input(1) else "there are none"


def reduction_order(context: NodeContext) -> str | None:
    """The reduced axes must be channels on the device, or at most 256 copies must make them channels."""
    return None if _rows(context) is not None else f"axes {_axes(context)} of shape {context.shape()}"


def reduction_length(context: NodeContext) -> str | None:
    """A row to reduce must have at most 32768 elements, and fit an eighth of the scratchpad."""
    rows = _rows(context)
    assert rows is not None
    count = rows.layout.nhwc[3]
    return None if count <= SQUARES and row_fits(context.model.config, count) else f"there are {count}"


def _axes(context: NodeContext) -> tuple[int, ...] | None:
    """Return the non-negative axes of a reduction; None if they are not constant, () if nothing is reduced."""
    rank = len(context.shape())
    axes = context.node.attributes.get("axes")
    if axes is None and context.node.input(1):
        constant = context.model.constants.get(context.node.input(1))
        if constant is None:
            return None
        axes = constant.reshape(-1).tolist()
    if not axes:
        axes = () if context.attribute("noop_with_empty_axes", 0) else range(rank)
    return tuple(sorted(axis % rank for axis in axes))


def _total(context: NodeContext) -> tuple[str, Activation, tuple[int, ...]] | None:
    """Return the total that a reduction computes, its activation, and the nodes in between; None for other inputs."""
    name, symbol = context.node.op.removeprefix("Reduce"), context.symbol(0)
    if isinstance(symbol, RowElements):
        kind = _TOTALS.get(("spread" if symbol.squared else "centred", name))
        supported = kind is not None and symbol.axes == _axes(context)
        return (kind, symbol.source, symbol.nodes) if kind is not None and supported else None
    form = form_of(context, 0)
    kind = None if form is None else _TOTALS.get((form.kind, name))
    return None if form is None or kind is None else (kind, form.source, form.nodes)


def _rows(context: NodeContext) -> Rows | None:
    axes, total = _axes(context), _total(context)
    assert axes is not None
    assert total is not None
    return rows_of(total[1].tensor, context.shape(), axes)


def reduce(context: NodeContext) -> RowNumber:
    """Return the number for each row."""
    axes, known = _axes(context), _total(context)
    assert axes is not None
    assert known is not None
    total, source, nodes = known
    power = 2 if total in ("squares", "spread") else 1
    factor = source.quant.scale**power
    if context.node.op == "ReduceMean":
        factor /= math.prod(context.shape()[axis] for axis in axes)
    root = "root" if context.node.op == "ReduceL2" else ""
    nodes = (*nodes, context.node.index)
    return RowNumber(source, context.shape(), axes, nodes, total, factor, root=root)


def number_steps(context: NodeContext) -> str | None:
    """After a reduction there may be sums and products with constants, and roots, in the order of a normalisation."""
    return None if _next(context) is not None else f"inputs are {context.inputs}"


def _next(context: NodeContext) -> RowNumber | None:
    """Return the number that a node computes from a number per row; None if the device does not compute it."""
    at = next(index for index, symbol in enumerate(context.symbols) if isinstance(symbol, RowNumber))
    number, node = context.symbols[at], context.node
    assert isinstance(number, RowNumber)
    next_number: RowNumber | None = None
    if at and node.op not in ("Add", "Div", "Max", "Mul"):
        return None
    if node.op in _MOVES:
        next_number = number if _moves(context, number) else None
    elif node.op in ("Sqrt", "Reciprocal", "Pow"):
        next_number = _power(
            number, {"Sqrt": 0.5, "Reciprocal": -1.0}.get(node.op) or _scalar(context, 1 - at)
        )
    elif node.op == "Clip":
        high = _scalar(context, 2) if node.input(2) else node.attributes.get("max")
        low = _scalar(context, 1) if node.input(1) else node.attributes.get("min")
        next_number = _at_least(number, low) if high is None or high > _ENDLESS else None
    else:
        next_number = _combine(context, number, at)
    return (
        None if next_number is None else dataclasses.replace(next_number, nodes=(*number.nodes, node.index))
    )


_ENDLESS = 1e30
"""Upper bounds from here on mean none."""
_MOVES = ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def _moves(context: NodeContext, number: RowNumber) -> bool:
    """Return whether a node leaves a number per row unchanged, or broadcasts it to the row's elements."""
    if context.node.op == "Cast":
        return (context.result_dtype() or "").startswith("float")
    if math.prod(context.output) == math.prod(context.shape()):
        return True
    return context.output == number.shape and repeats(context.shape(), number.shape, number.axes)


def _scalar(context: NodeContext, index: int) -> float | None:
    name = context.node.input(index)
    floats = context.floats(index)
    if floats is None and name in context.model.constants:
        floats = context.model.constants[name]
    if floats is None or floats.size != 1 or not math.isfinite(float(floats.reshape(-1)[0])):
        return None
    return float(floats.reshape(-1)[0])


def _combine(context: NodeContext, number: RowNumber, at: int) -> RowNumber | None:
    """Return the result of an operator on a number and a constant; None if the device does not compute it."""
    value, op = _scalar(context, 1 - at), context.node.op
    if (
        value is None
        or len(context.symbols) != 2
        or math.prod(context.output) != math.prod(context.shape(at))
    ):
        return None
    if op in ("Add", "Sub"):
        return _plus(number, value if op == "Add" else -value)
    if op == "Max":
        return _at_least(number, value)
    if op == "Div" and at == 1:
        inverse = _power(number, -1.0)
        return None if inverse is None or not value else _times(inverse, value)
    if not value:
        return None
    return _times(number, 1 / value if op == "Div" else value)


def _plus(number: RowNumber, value: float) -> RowNumber | None:
    if number.root or number.least:
        return None
    return dataclasses.replace(number, offset=number.offset + value)


def _times(number: RowNumber, value: float) -> RowNumber | None:
    if number.root or number.least:
        return dataclasses.replace(number, gain=number.gain * value)
    return dataclasses.replace(number, factor=number.factor * value, offset=number.offset * value)


def _at_least(number: RowNumber, value: float | None) -> RowNumber | None:
    """Return a number with a constant as its lower bound; None if the device does not compute it."""
    if value is None or value <= 0 or number.gain <= 0 or number.root == "inverse" or not positive(number):
        return number if value == 0 and positive(number) and number.gain > 0 else None
    least = (value / number.gain) ** (2 if number.root else 1)
    return dataclasses.replace(number, least=max(number.least, least))


def positive(number: RowNumber) -> bool:
    """Return whether a number is at least 0 for every input."""
    total = number.total in ("squares", "spread", "magnitudes") or number.source.quant.zero == -128
    return total and number.factor > 0 and number.offset >= 0


def _power(number: RowNumber, power: float | None) -> RowNumber | None:
    """Return a number to the power of 1/2, -1/2, or -1 after a root; None for other powers."""
    if power in (0.5, -0.5) and not number.root and number.gain == 1 and positive(number):
        return dataclasses.replace(number, root="root" if power == 0.5 else "inverse")
    if power == -1 and number.root:
        other = "inverse" if number.root == "root" else "root"
        return dataclasses.replace(number, root=other, gain=1 / number.gain)
    return None


def step(context: NodeContext) -> RowNumber:
    """Return the number after one more node."""
    number = _next(context)
    assert number is not None
    return number


def number_shape(context: NodeContext) -> str | None:
    """The quantised result of a reduction must be one number per row."""
    number = _number(context)
    rows = math.prod(size for axis, size in enumerate(number.shape) if axis not in number.axes)
    return None if math.prod(context.shape()) == rows else f"it has shape {context.shape()}"


def number_range(context: NodeContext) -> str | None:
    """The constant that is added to a reduction must be at most 4096 steps of the result."""
    number = _number(context)
    steps = abs(number.offset * number.gain) / _scale(context)
    return None if number.root or steps <= LARGEST_OFFSET else f"it is {steps:.6g}"


def _number(context: NodeContext) -> RowNumber:
    number = context.symbol(0)
    assert isinstance(number, RowNumber)
    return number


def _scale(context: NodeContext) -> float:
    return context.quant.scale


def quantise(context: NodeContext) -> Recipe:
    """Return the device's RowTotal."""
    number, node = _number(context), context.node
    rows = rows_of(number.source.tensor, number.shape, number.axes)
    assert rows is not None
    pixels = (*rows.layout.nhwc[:3], 1)
    op = RowTotal(
        node.name, rows.tensor.view(), result(pixels), number.total, number.factor, number.offset, number.root,
        number.least, number.gain, number.source.quant.zero,
    )  # fmt: skip
    layout = Layout(context.shape(), tuple(range(len(context.shape()))), pixels)
    pending = Pending((op,), layout, (rows.tensor,), number.nodes)
    return finish(pending, node.outputs[0], context.quant, node)


def has_number(context: NodeContext) -> bool:
    """Return whether one input is a number per row, and all others are constants."""
    return any(isinstance(symbol, RowNumber) for symbol in context.symbols) and not any(
        isinstance(symbol, Activation | RowElements | Tensor | Pending) for symbol in context.symbols
    )


REDUCTIONS_OPERATORS = (
    Operator(
        ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"),
        (kernel_room, reduction_axes, reduction_input, reduction_order, reduction_length),
        reduce,
    ),
    Operator(
        ("Add", "Sub", "Mul", "Div", "Max", "Clip", "Sqrt", "Reciprocal", "Pow", *_MOVES),
        (number_steps,),
        step,
        applies=has_number,
        title="Numbers of rows",
    ),
    Operator((QUANTISE,), (per_tensor, number_shape, number_range), quantise, applies=has_number),
)


_BYTE = 256
"""Number of positions that 8 bits distinguish."""


def place_input(context: NodeContext) -> str | None:
    """The input of ArgMax and ArgMin must be an int8 or uint8 activation, or its integers."""
    return None if _source(context) is not None else f"input {context.node.inputs[0]!r} is not"


def place_order(context: NodeContext) -> str | None:
    """The axis of ArgMax and ArgMin must be channels on the device, or at most 256 copies must make it channels."""
    return None if _arg_rows(context) is not None else f"axis {_axis(context)} of shape {context.shape()}"


def place_length(context: NodeContext) -> str | None:
    """A row of ArgMax or ArgMin must fit an eighth of the scratchpad."""
    count = context.shape()[_axis(context)]
    return None if row_fits(context.model.config, count) else f"there are {count}"


def _source(context: NodeContext) -> Tensor | None:
    symbol = context.symbol(0)
    tensor = symbol.tensor if isinstance(symbol, Activation) else symbol
    return tensor if isinstance(tensor, Tensor) and context.shape() else None


def _axis(context: NodeContext) -> int:
    return int(context.node.attributes.get("axis", 0)) % len(context.shape())


def _arg_rows(context: NodeContext) -> Rows | None:
    tensor = _source(context)
    assert tensor is not None
    return rows_of(tensor, context.shape(), (_axis(context),))


def place(context: NodeContext) -> Recipe:
    """Return the device's RowPlace, whose results the host reads as int64."""
    node, rows = context.node, _arg_rows(context)
    assert rows is not None
    name, tensor = node.outputs[0], rows.tensor
    pixels, wide = (*rows.layout.nhwc[:3], 1), rows.layout.nhwc[3] > _BYTE
    view = result_of(name, pixels)
    op = RowPlace(
        node.name, tensor.view(), upper_plane(view) if wide else view, node.op == "ArgMin",
        final=bool(context.attribute("select_last_index", 0)), wide=wide,
    )  # fmt: skip
    layout = Layout(context.output, tuple(range(len(context.output))), pixels)
    output = Tensor(name, name, layout, layout, unsigned=True, from_host=False, wide=wide, index=True)
    nodes = tuple(dict.fromkeys((*tensor.via, node.index)))
    return Recipe(output, (op,), (tensor,), nodes, ())


ARG_EXTREME_OPERATORS = (
    Operator(("ArgMax", "ArgMin"), (kernel_room, place_input, place_order, place_length), place),
)


OPERATORS = (*ARG_EXTREME_OPERATORS, *REDUCTIONS_OPERATORS)
