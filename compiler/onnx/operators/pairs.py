"""Add, Sub, Min, Max, Div and Pow of two activations, one of which may broadcast, and PRelu."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Add, DeviceOp
from weft.compiler.ir.layout import Layout
from weft.compiler.ir.views import View
from weft.compiler.kernel.rows import LARGEST_LOGARITHM, POWER_TABLES, RowPair, RowPower
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import PITCH_MAX
from weft.compiler.onnx.conditions import kernel_room, multipliers
from weft.compiler.onnx.convolutions import (
    channel_constant,
    channel_layout,
    channel_operands,
    convolution,
    pair_operands,
    same_order,
    scale_channels,
    takes_constants,
    with_constant,
)
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
from weft.compiler.onnx.selections import Operands, operands


def _both_activations(context: NodeContext) -> bool:
    return all(isinstance(symbol, Activation) for symbol in pair_operands(context))


def addable(context: NodeContext) -> str | None:
    """Add needs two int8 or uint8 activations, one of which may broadcast, or a device value and one constant per
    channel.
    """
    if _both_activations(context):
        pair = operands(context)
        return pair if isinstance(pair, str) else None
    return channel_operands(context)


def in_order(context: NodeContext) -> str | None:
    """The device value must have its elements in the device's order."""
    return None if _both_activations(context) else same_order(context)


def subtractable(context: NodeContext) -> str | None:
    """Sub needs two int8 or uint8 activations; the second may broadcast."""
    pair = operands(context)
    if isinstance(pair, str):
        return pair
    return "the first would have to be broadcast" if pair.swapped else None


def add(context: NodeContext) -> Symbol:
    """Return the device's Add, or a bias."""
    symbols = pair_operands(context)
    for operand, value in (symbols, symbols[::-1]):
        if isinstance(value, Constant):
            return with_constant(context, operand, value)
    pair = operands(context)
    assert isinstance(pair, Operands)
    return _sum(context, pair, 1)


def subtract(context: NodeContext) -> Symbol:
    """Return an Add with a negative second scale."""
    pair = operands(context)
    assert isinstance(pair, Operands)
    return _sum(context, pair, -1)


def _sum(context: NodeContext, pair: Operands, sign: int) -> Pending:
    a, b = pair.quants
    op = Add(context.node.name, *pair.views, result(pair.shape), a.scale, sign * b.scale, a.zero, b.zero)
    return Pending((op,), pair.layout, pair.tensors, (context.node.index,))


ADD_OPERATORS = (
    Operator(("Add",), (addable, in_order), add),
    Operator(("Sub",), (subtractable, multipliers), subtract),
)


class _Pair(NamedTuple):
    """Two operands on the device, the first with the result's shape; `swapped` if that is the second input."""

    tensors: tuple[Tensor, Tensor]
    quants: tuple[Quant, Quant]
    views: tuple[View, View]
    layout: Layout
    swapped: bool

    @property
    def input_quants(self) -> tuple[Quant, Quant]:
        """Parameters of the node's inputs, in their order."""
        first, second = self.quants
        return (second, first) if self.swapped else (first, second)


def element_pairs(context: NodeContext) -> str | None:
    """One of the two int8 or uint8 activations of Min, Max, Div or Pow may broadcast."""
    pair = _pair(context)
    return pair if isinstance(pair, str) else None


def pair_length(context: NodeContext) -> str | None:
    """Pixels of both operands and the result of Min, Max, Div and Pow must fit the scratchpad, with at most 65535 bytes
    each.
    """
    pair, config = _pair(context), context.model.config
    assert not isinstance(pair, str)
    count = pair.views[0].shape[3]
    fits = count <= PITCH_MAX and 3 * ceil_div(count, config.n) <= config.scratchpad_size
    return None if fits else f"there are {count} channels"


def _pair(context: NodeContext) -> _Pair | str:
    equal = operands(context)
    if isinstance(equal, Operands):
        return _Pair(equal.tensors, equal.quants, equal.views, equal.layout, equal.swapped)
    numbers = (_row_pair(context, at) for at in (0, 1)) if len(context.symbols) == 2 else ()
    return next((pair for pair in numbers if pair is not None), equal)


def _row_pair(context: NodeContext, at: int) -> _Pair | None:
    """Return input `at` with the result's shape and the other with one number per row; None for other inputs."""
    full, other = context.symbol(at), context.symbol(1 - at)
    shape, part = context.shape(at), context.shape(1 - at)
    if not (isinstance(full, Activation) and isinstance(other, Activation)) or shape != context.output:
        return None
    padded = (1,) * (len(shape) - len(part)) + part
    axes = tuple(axis for axis, size in enumerate(padded) if size == 1 < shape[axis])
    rows_of_full = rows_of(full.tensor, shape, axes) if axes and repeats(part, shape, axes) else None
    if rows_of_full is None:
        return None
    number_layout = Layout(padded, tuple(range(len(padded))), (*rows_of_full.layout.nhwc[:3], 1))
    number = to_layout(other.tensor, number_layout)
    if number is None:
        return None
    views = rows_of_full.tensor.view(), number.view()
    return _Pair(
        (rows_of_full.tensor, number), (full.quant, other.quant), views, rows_of_full.layout, at == 1
    )


def power_base(context: NodeContext) -> str | None:
    """The base of Pow must not be negative for any integer: its zero point must be the least integer."""
    base, _ = _base_and_exponent(context)
    zero = base.zero + 128 * base.unsigned
    return None if base.zero == -128 else f"the zero point of {context.node.inputs[0]!r} is {zero}"


def power_range(context: NodeContext) -> str | None:
    """Exponents of Pow, times logarithms of the base, must be at most 100."""
    base, exponent = _base_and_exponent(context)
    levels = math.log(base.scale), math.log(255 * base.scale)
    steps = max(abs(-128 - exponent.zero), 127 - exponent.zero)
    most = steps * exponent.scale * max(map(abs, levels))
    return None if most <= LARGEST_LOGARITHM else f"they are up to {most:.4g}"


def power_tables(context: NodeContext) -> str | None:
    """Pow of two activations needs four look-up tables."""
    count = context.model.config.lookup_tables
    return None if count >= POWER_TABLES else f"there are {count}"


def _base_and_exponent(context: NodeContext) -> tuple[Quant, Quant]:
    pair = _pair(context)
    assert not isinstance(pair, str)
    return pair.input_quants


def power(context: NodeContext) -> Pending:
    """Return the device's RowPower."""
    pair = _pair(context)
    assert not isinstance(pair, str)
    base, exponent = pair.input_quants
    op = RowPower(
        context.node.name, *pair.views, result(pair.views[0].shape), base.scale, exponent.scale, exponent.zero,
        swapped=pair.swapped,
    )  # fmt: skip
    return Pending((op,), pair.layout, pair.tensors, (context.node.index,))


def combine(context: NodeContext) -> Pending:
    """Return the device's RowPair."""
    pair, op = _pair(context), context.node.op
    assert not isinstance(pair, str)
    a, b = pair.quants
    kind = {"Min": "minimum", "Max": "maximum"}.get(op, "ratio" if pair.swapped else "quotient")
    scales = (a.scale, b.scale)
    if op == "Div":
        first, second = pair.input_quants
        scales = (first.scale / second.scale, 1.0)
    row_pair = RowPair(
        context.node.name, *pair.views, result(pair.views[0].shape), kind, *scales, a.zero, b.zero
    )
    return Pending((row_pair,), pair.layout, pair.tensors, (context.node.index,))


def _pairs_two(context: NodeContext) -> bool:
    """Return whether both inputs are activations, and not functions of one root."""
    kinds = [type(symbol) for symbol in context.symbols]
    return kinds == [Activation, Activation] and not context.functions and not scales_rows(context)


PAIRS_OPERATORS = (
    Operator(
        ("Div", "Max", "Min"),
        (kernel_room, element_pairs, pair_length),
        combine,
        applies=_pairs_two,
        title="Div, Max, Min of two activations",
    ),
    Operator(
        ("Pow",),
        (kernel_room, element_pairs, pair_length, power_base, power_range, power_tables),
        power,
        applies=_pairs_two,
        title="Pow of two activations",
    ),
)


def slope_each(context: NodeContext) -> str | None:
    """PRelu needs a device value and a constant slope, or one constant slope per channel."""
    value, slope = context.symbol(0), context.symbol(1)
    if not takes_constants(value) or not isinstance(slope, Constant):
        return f"inputs are {context.inputs}"
    return channel_constant(context, value, slope)


def slopes_alike(context: NodeContext) -> str | None:
    """Slopes of PRelu must all be at least 0, or all be at most 0."""
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
    """Return the sum of two operators that clamp at zero from either side."""
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
        return _sum_of_parts(above, below.ops, quant, name, bounds, rising=rising)

    nodes = tuple(dict.fromkeys((*value.nodes, context.node.index)))
    return Pending((*above, *below.ops), value.layout, value.inputs, nodes, notes=value.notes, join=join)


def _sum_of_parts(
    above: tuple[DeviceOp, ...],
    below: tuple[DeviceOp, ...],
    quant: Quant,
    name: str,
    bounds: tuple[int, int],
    *,
    rising: bool,
) -> tuple[DeviceOp, ...]:
    """Return both parts with the result's parameters, and their sum.

    With `rising`, the part for negative inputs is negative.
    """
    # For every input, one of the two parts is at the zero point, so that their sum is exact.
    zero, parts, shape = quant.zero, list[DeviceOp](), above[0].dst.buffer.shape
    for part, ops, clamp in (
        ("above", above, (zero, 127)),
        ("below", below, (-128, zero) if rising else (zero, 127)),
    ):
        parts += [
            finish_op(op, quant, f"{name}/{part}", clamp).replace(name=f"{op.name}.{part}") for op in ops
        ]
    a, b = (result_of(f"{name}/{part}", shape) for part in ("above", "below"))
    total = Add(
        f"{above[0].name}.sum", a, b, result_of(name, shape), 1.0, 1.0, zero, zero, zero, bounds[0], bounds[1]
    )
    return (*parts, total)


def _by_channel(context: NodeContext) -> bool:
    """Return whether slopes vary by channel, or no look-up table computes the node."""
    slope, tables = context.symbol(1), context.model.config.lookup_tables
    return isinstance(slope, Constant) and (slope.values.size > 1 or not (context.functions and tables))


PRELU_OPERATORS = (Operator(("PRelu",), (slope_each, slopes_alike, same_order), prelu, applies=_by_channel),)


OPERATORS = (*ADD_OPERATORS, *PAIRS_OPERATORS, *PRELU_OPERATORS)
