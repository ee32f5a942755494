"""Clip and Relu."""

from __future__ import annotations

import dataclasses
import math

from weft.compiler.onnx.conditions import input_quantisable
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Pending, Symbol, rescale


def bounds_constant(context: NodeContext) -> str | None:
    """The bounds of Clip must be constant."""
    for name in context.node.inputs[1:]:
        if name and name not in context.model.constants:
            return f"input {name!r} is not"
    return None


def clamp(context: NodeContext) -> Symbol:
    """Relu or Clip: tightens the clamp of a pending result; on an activation it becomes a requantisation."""
    source = context.symbol(0)
    if isinstance(source, Activation):
        source = rescale(source, context.node.name)
    assert isinstance(source, Pending)
    low, high = (0.0, math.inf) if context.node.op == "Relu" else _bounds(context)
    return dataclasses.replace(
        source,
        nodes=(*source.nodes, context.node.index),
        low=min(max(source.low, low), high),
        high=min(max(source.high, low), high),
    )


def _bounds(context: NodeContext) -> tuple[float, float]:
    bounds = [
        float(context.node.attributes.get("min", -math.inf)),
        float(context.node.attributes.get("max", math.inf)),
    ]
    for index in range(2):
        name = context.node.input(1 + index)
        if name:
            bounds[index] = float(context.model.constants[name].reshape(-1)[0])
    return bounds[0], bounds[1]


OPERATORS = (
    Operator(("Clip",), (bounds_constant, input_quantisable), clamp),
    Operator(("Relu",), (input_quantisable,), clamp),
)
