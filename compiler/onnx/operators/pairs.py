"""Min, Max, Div and Pow of two activations, of which one may repeat or have one number for each row."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Add, DeviceOp, View
from weft.compiler.ir.layout import Layout
from weft.compiler.kernel.rows import LARGEST_LOGARITHM, POWER_TABLES, RowPair, RowPower
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import PITCH_MAX
from weft.compiler.onnx.channels import (
    channel_constant,
    channel_layout,
    channel_operands,
    pair_operands,
    same_order,
    takes_constants,
)
from weft.compiler.onnx.conditions import kernel_room, multipliers
from weft.compiler.onnx.convolutions import convolution, scale_channels, with_constant
from weft.compiler.onnx.indices import Operands, operands
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.operators.normalised_rows import scales_rows
from weft.compiler.onnx.qdq import (
    Activation,
    Constant,
    Pending,
    Quant,
    Symbol,
    Tensor,
    finish_op,
    rescale,
    result,
    result_of,
)
from weft.compiler.onnx.reorder import to_layout
from weft.compiler.onnx.row_forms import repeats, rows_of


def _two(context: NodeContext) -> bool:
    return all(isinstance(symbol, Activation) for symbol in pair_operands(context))


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
    symbols = pair_operands(context)
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


ADD_OPERATORS = (
    Operator(("Add",), (addable, in_order), add),
    Operator(("Sub",), (subtractable, multipliers), subtract),
)


class _Pair(NamedTuple):
    """Two operands as the device sees them, the first of the result's shape; `swapped` if it is the second input."""

    tensors: tuple[Tensor, Tensor]
    quants: tuple[Quant, Quant]
    views: tuple[View, View]
    layout: Layout
    swapped: bool

    @property
    def given(self) -> tuple[Quant, Quant]:
        """Parameters of the node's inputs, in their order."""
        first, second = self.quants
        return (second, first) if self.swapped else (first, second)


def element_pairs(context: NodeContext) -> str | None:
    """Of two int8 or uint8 activations that Min, Max, Div and Pow take, one may repeat."""
    found = _pair(context)
    return found if isinstance(found, str) else None


def pair_length(context: NodeContext) -> str | None:
    """Pixels of Min, Max, Div and Pow, of operands and result, must fit the scratchpad, and each 65535 bytes."""
    found, config = _pair(context), context.model.config
    assert not isinstance(found, str)
    count = found.views[0].shape[3]
    fits = count <= PITCH_MAX and 3 * ceil_div(count, config.n) <= config.scratchpad_size
    return None if fits else f"there are {count} channels"


def _pair(context: NodeContext) -> _Pair | str:
    found = operands(context)
    if isinstance(found, Operands):
        return _Pair(found.tensors, found.quants, found.views, found.layout, found.swapped)
    numbers = (_number(context, at) for at in (0, 1)) if len(context.symbols) == 2 else ()
    return next((pair for pair in numbers if pair is not None), found)


def _number(context: NodeContext, at: int) -> _Pair | None:
    """Input `at` with the result's shape, and the other with one number for each row of it."""
    whole, other = context.symbol(at), context.symbol(1 - at)
    shape, part = context.shape(at), context.shape(1 - at)
    if not (isinstance(whole, Activation) and isinstance(other, Activation)) or shape != context.output:
        return None
    padded = (1,) * (len(shape) - len(part)) + part
    axes = tuple(axis for axis, size in enumerate(padded) if size == 1 < shape[axis])
    found = rows_of(whole.tensor, shape, axes) if axes and repeats(part, shape, axes) else None
    if found is None:
        return None
    rows = Layout(padded, tuple(range(len(padded))), (*found.layout.nhwc[:3], 1))
    number = to_layout(other.tensor, rows)
    if number is None:
        return None
    views = found.tensor.view(), number.view()
    return _Pair((found.tensor, number), (whole.quant, other.quant), views, found.layout, at == 1)


def power_base(context: NodeContext) -> str | None:
    """The base of Pow must not be negative for any value there can be: its zero point must be the least."""
    base, _ = _power(context)
    zero = base.zero + 128 * base.unsigned
    return None if base.zero == -128 else f"the zero point of {context.node.inputs[0]!r} is {zero}"


def power_range(context: NodeContext) -> str | None:
    """Exponents of Pow, times logarithms of what is raised to them, must be at most 100."""
    base, exponent = _power(context)
    levels = math.log(base.scale), math.log(255 * base.scale)
    steps = max(abs(-128 - exponent.zero), 127 - exponent.zero)
    most = steps * exponent.scale * max(map(abs, levels))
    return None if most <= LARGEST_LOGARITHM else f"they are up to {most:.4g}"


def power_tables(context: NodeContext) -> str | None:
    """Pow of two activations takes four look-up tables."""
    count = context.model.config.lookup_tables
    return None if count >= POWER_TABLES else f"there are {count}"


def _power(context: NodeContext) -> tuple[Quant, Quant]:
    """Of base and exponent."""
    found = _pair(context)
    assert not isinstance(found, str)
    return found.given


def raised(context: NodeContext) -> Pending:
    """The device's RowPower."""
    found = _pair(context)
    assert not isinstance(found, str)
    base, exponent = found.given
    made = RowPower(
        context.node.name, *found.views, result(found.views[0].shape), base.scale, exponent.scale, exponent.zero,
        swapped=found.swapped,
    )  # fmt: skip
    return Pending((made,), found.layout, found.tensors, (context.node.index,))


def combined(context: NodeContext) -> Pending:
    """The device's RowPair."""
    found, op = _pair(context), context.node.op
    assert not isinstance(found, str)
    a, b = found.quants
    kind = {"Min": "minimum", "Max": "maximum"}.get(op, "ratio" if found.swapped else "quotient")
    scales = (a.scale, b.scale)
    if op == "Div":
        first, second = found.given
        scales = (first.scale / second.scale, 1.0)
    made = RowPair(
        context.node.name, *found.views, result(found.views[0].shape), kind, *scales, a.zero, b.zero
    )
    return Pending((made,), found.layout, found.tensors, (context.node.index,))


def _pairs_two(context: NodeContext) -> bool:
    """Whether a node has two activations, which are no functions of the same one."""
    kinds = [type(symbol) for symbol in context.symbols]
    return kinds == [Activation, Activation] and not context.functions and not scales_rows(context)


PAIRS_OPERATORS = (
    Operator(
        ("Div", "Max", "Min"),
        (kernel_room, element_pairs, pair_length),
        combined,
        applies=_pairs_two,
        title="Div, Max, Min of two activations",
    ),
    Operator(
        ("Pow",),
        (kernel_room, element_pairs, pair_length, power_base, power_range, power_tables),
        raised,
        applies=_pairs_two,
        title="Pow of two activations",
    ),
)


def slope_each(context: NodeContext) -> str | None:
    """PRelu takes a device value and a constant slope, or one for each channel."""
    value, slope = context.symbol(0), context.symbol(1)
    if not takes_constants(value) or not isinstance(slope, Constant):
        return f"inputs are {context.inputs}"
    return channel_constant(context, value, slope)


def slopes_alike(context: NodeContext) -> str | None:
    """Slopes of PRelu must all be positive or zero, or all be negative or zero."""
    slopes = _slopes(context)
    return (
        None
        if (slopes >= 0).all() or (slopes <= 0).all()
        else f"they are {slopes.min():g} to {slopes.max():g}"
    )


def _slopes(context: NodeContext) -> np.ndarray:
    slopes = context.floats(1)
    assert slopes is not None
    return slopes


def prelu(context: NodeContext) -> Symbol:
    """An addition of two operators that each clamp at zero."""
    symbol, slope = context.symbol(0), context.symbol(1)
    assert isinstance(slope, Constant)
    layout = channel_layout(context, symbol, slope)
    value = convolution(context, symbol, layout, 1)
    below = scale_channels(context, value, slope.floats)
    above = value.ops
    if isinstance(symbol, Activation):
        (tensor,) = value.inputs
        above = rescale(dataclasses.replace(symbol, tensor=tensor), context.node.name).ops
    rising = bool((slope.floats >= 0).all())

    def join(quant: Quant, name: str, bounds: tuple[int, int]) -> tuple[DeviceOp, ...]:
        return _joined(above, below.ops, quant, name, bounds, rising=rising)

    nodes = tuple(dict.fromkeys((*value.nodes, context.node.index)))
    return Pending((*above, *below.ops), value.layout, value.inputs, nodes, notes=value.notes, join=join)


def _joined(
    above: tuple[DeviceOp, ...],
    below: tuple[DeviceOp, ...],
    quant: Quant,
    name: str,
    bounds: tuple[int, int],
    *,
    rising: bool,
) -> tuple[DeviceOp, ...]:
    """Both with the result's parameters, and their sum; `rising` tells that what is below zero stays there."""
    zero, made, shape = quant.zero, list[DeviceOp](), above[0].dst.buffer.shape
    for part, ops, clamp in (
        ("above", above, (zero, 127)),
        ("below", below, (-128, zero) if rising else (zero, 127)),
    ):
        made += [
            finish_op(op, quant, f"{name}/{part}", clamp).replace(name=f"{op.name}.{part}") for op in ops
        ]
    a, b = (result_of(f"{name}/{part}", shape) for part in ("above", "below"))
    total = Add(
        f"{above[0].name}.sum", a, b, result_of(name, shape), 1.0, 1.0, zero, zero, zero, bounds[0], bounds[1]
    )
    return (*made, total)


def _by_channel(context: NodeContext) -> bool:
    """Whether no table does it."""
    slope, tables = context.symbol(1), context.model.config.lookup_tables
    return isinstance(slope, Constant) and (slope.values.size > 1 or not (context.functions and tables))


PRELU_OPERATORS = (Operator(("PRelu",), (slope_each, slopes_alike, same_order), prelu, applies=_by_channel),)


OPERATORS = (*ADD_OPERATORS, *PAIRS_OPERATORS, *PRELU_OPERATORS)
