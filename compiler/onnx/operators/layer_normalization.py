"""LayerNormalization and RMSNormalization of an activation."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.layout import Layout
from weft.compiler.kernel.operators import LayerNorm
from weft.compiler.lower.rows import BYTES
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.limits import PITCH_MAX
from weft.compiler.onnx.conditions import activation, input_quantised, kernel_engine
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Pending, Tensor, result
from weft.compiler.onnx.reorder import placed

_EPSILON = 1e-5
"""What ONNX takes for epsilon if a node has none."""


def normal_constants(context: NodeContext) -> str | None:
    """Scale and bias of a normalisation must be constant and finite, with a value for each normalised element."""
    count = _elements(context)
    for index in (1, 2):
        values = context.floats(index)
        if not context.node.input(index):
            continue
        if values is None or not np.isfinite(values).all():
            return f"input {context.node.inputs[index]!r} is not"
        if values.size not in (1, count):
            return f"input {context.node.inputs[index]!r} has {values.size} values for {count}"
    return None


def normal_room(context: NodeContext) -> str | None:
    """Normalisation of values of 16 bits needs a kernel engine with room for it ('kernel' 128)."""
    size = context.model.config.kernel
    return None if not activation(context).tensor.wide or size >= 128 else f"'kernel' is {size}"


def normal_results(context: NodeContext) -> str | None:
    """Mean and deviation, as further results of a normalisation, must not be read."""
    model = context.model
    read = [
        name for name in context.node.outputs[1:] if name and (model.users(name) or name in model.outputs)
    ]
    return f"{read[0]!r} is" if read else None


def normal_axes(context: NodeContext) -> str | None:
    """What is normalised must be the last axes, whose elements are the channels on the device, if need be by copies."""
    return None if _rows(context) is not None else f"axis is {_axis(context)} of shape {context.shape()}"


def normal_length(context: NodeContext) -> str | None:
    """A row to normalise, its result and the constants must fit the scratchpad, and the row 65535 bytes."""
    config, count = context.model.config, _elements(context)
    vectors = ceil_div(count, config.n)
    fits = (
        2 + activation(context).tensor.wide + 2 * BYTES
    ) * vectors <= config.scratchpad_size and count <= PITCH_MAX
    return None if fits else f"there are {count} elements"


def _axis(context: NodeContext) -> int:
    rank = len(context.shape())
    return int(context.node.attributes.get("axis", -1)) % max(rank, 1)


def _elements(context: NodeContext) -> int:
    return math.prod(context.shape()[_axis(context) :])


def _rows(context: NodeContext) -> tuple[Tensor, Layout] | None:
    """The input with the normalised elements as channels, all others as pixels."""
    shape, count = context.shape(), _elements(context)
    layout = Layout(shape, tuple(range(len(shape))), (1, 1, math.prod(shape) // count, count))
    tensor = placed(activation(context).tensor, layout)
    return None if tensor is None else (tensor, layout)


def layer_norm(context: NodeContext) -> Pending:
    """The device's LayerNorm."""
    quant, found = activation(context).quant, _rows(context)
    assert found is not None
    tensor, layout = found
    count = _elements(context)
    weight, bias = (context.floats(index) if context.node.input(index) else None for index in (1, 2))
    epsilon = float(context.node.attributes.get("epsilon", _EPSILON))
    op = LayerNorm(
        context.node.name,
        tensor.view(),
        result(layout.nhwc),
        np.broadcast_to(np.ones(1) if weight is None else weight.reshape(-1), count).astype(np.float64),
        np.broadcast_to(np.zeros(1) if bias is None else bias.reshape(-1), count).astype(np.float64),
        epsilon / quant.scale**2,
        x_zero=quant.zero,
        centre=context.node.operator == "LayerNormalization",
    )
    return Pending((op,), layout, (tensor,), (context.node.index,))


OPERATORS = (
    Operator(
        ("LayerNormalization", "RMSNormalization"),
        (
            kernel_engine,
            input_quantised,
            normal_room,
            normal_results,
            normal_constants,
            normal_axes,
            normal_length,
        ),
        layer_norm,
    ),
)
