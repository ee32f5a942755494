"""PRelu with a slope for each channel: what is above zero, and what is below it times the slopes, added up.

One of the two is zero, so that both can be rounded to the result's scale.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from weft.compiler.ir.graph import Add, DeviceOp
from weft.compiler.onnx.channels import channel_constant, channel_layout, same_order, takes_constants
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.convolutions import convolution, scaled
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Quant, Symbol, quantised, rescale, result_of


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
    below = scaled(context, value, slope.floats)
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
            quantised(op, quant, f"{name}/{part}", clamp).replace(name=f"{op.name}.{part}") for op in ops
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


OPERATORS = (Operator(("PRelu",), (slope_each, slopes_alike, same_order), prelu, applies=_by_channel),)
