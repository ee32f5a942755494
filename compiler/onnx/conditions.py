"""Constraints that several operators share. A constraint is a function; see `weft.compiler.onnx.operator`."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.layout import spatial
from weft.compiler.onnx.convolutions import RANKS, depth_tap
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Quant, Tensor
from weft.compiler.onnx.reorder import to_layout


def input_quantised(context: NodeContext) -> str | None:
    """The input must be an activation quantised to int8 or uint8."""
    return None if isinstance(context.symbol(0), Activation) else f"input {context.node.inputs[0]!r} is not"


def input_quantisable(context: NodeContext) -> str | None:
    """The input must be an activation quantised to int8 or uint8, or the result of a device operator."""
    return (
        None
        if isinstance(context.symbol(0), Activation | Pending)
        else f"input {context.node.inputs[0]!r} is not"
    )


def image(context: NodeContext) -> str | None:
    """The input of a convolution or pool must have 3 to 5 dimensions."""
    return None if len(context.shape()) in RANKS else f"the input has shape {context.shape()}"


def depth_alone(context: NodeContext) -> str | None:
    """With an input of shape (N, C, D, H, W), each window must take one element along D."""
    kernel = context.ints("kernel_shape", context.shape(1)[2:] if context.node.op == "Conv" else ())
    return None if depth_tap(context, kernel) is not None else f"the window is {kernel}"


def image_order(context: NodeContext) -> str | None:
    """The input's elements must be in the device's order, or at most 256 copies must bring them into it."""
    symbol = context.symbol(0)
    assert isinstance(symbol, Activation)
    image = to_layout(symbol.tensor, spatial(context.shape())) is not None
    return None if image else f"input {context.node.inputs[0]!r}"


def weights_constant(context: NodeContext) -> str | None:
    """Weights must be constants quantised to 4 or 8 bits, without block-wise scales."""
    symbol, name = context.symbol(1), context.node.inputs[1]
    if isinstance(symbol, Constant) and not symbol.exact and np.abs(symbol.values).max(initial=0) <= 255:
        return None
    quantisation = context.model.quantisation(context.node, name)
    block = 0 if quantisation is None else quantisation.block
    return f"input {name!r} has a scale for every {block} values" if block else f"input {name!r} is not"


def weights_per_output(context: NodeContext) -> str | None:
    """Weight scales must be per tensor or per output channel."""
    symbol = context.symbol(1)
    assert isinstance(symbol, Constant)
    axis = {"Conv": 0, "ConvTranspose": 1}.get(context.node.op, symbol.values.ndim - 1)
    axis = 0 if context.attribute("transB", 0) else axis
    inner = [size for index, size in enumerate(symbol.scale.shape) if index != axis]
    return None if math.prod(inner) == 1 else f"scales have shape {symbol.scale.shape}"


def bias_constant(context: NodeContext) -> str | None:
    """The bias must be constant, with one value per output channel."""
    if not context.node.input(2):
        return None
    symbol = context.symbol(2)
    if not isinstance(symbol, Constant):
        return f"input {context.node.input(2)!r} is not"
    channels = context.output[1] if context.node.op.startswith("Conv") else context.output[-1]
    size, last = symbol.values.size, symbol.values.shape[-1:]
    return None if size == 1 or (size,) == last == (channels,) else f"it has shape {symbol.values.shape}"


def softmax_unit(context: NodeContext) -> str | None:
    """The configuration must have a softmax unit ('probability_bits' 7 or 8)."""
    return None if context.model.config.softmax else ""


def multipliers(context: NodeContext) -> str | None:
    """The configuration must multiply and subtract elements ('multiply' 1)."""
    return None if context.model.config.multiply else ""


def kernel_engine(context: NodeContext) -> str | None:
    """The configuration must have a kernel engine ('kernel' 32 or more)."""
    size = context.model.config.kernel
    return None if size >= 32 else f"'kernel' is {size}"


def kernel_room(context: NodeContext) -> str | None:
    """The configuration must have a kernel engine with room for this operator ('kernel' 64 or more)."""
    size = context.model.config.kernel
    return None if size >= 64 else f"'kernel' is {size}"


def normalised_axis(context: NodeContext) -> int | None:
    """Return the single axis that a Softmax normalises over; None if there are several.

    Before opset 13 it normalises over all axes from `axis` on.
    """
    shape = context.shape()
    if context.model.network.opset >= 13:
        return int(context.node.attributes.get("axis", -1)) % len(shape) if shape else None
    axis = int(context.node.attributes.get("axis", 1))
    axes = [other for other in range(axis % len(shape), len(shape)) if shape[other] > 1]
    return (axes or [len(shape) - 1])[0] if len(axes) <= 1 else None


def activation(context: NodeContext, index: int = 0) -> Activation:
    symbol = context.symbol(index)
    assert isinstance(symbol, Activation)
    return symbol


def image_operand(context: NodeContext, index: int = 0) -> tuple[Tensor, Quant]:
    """Return an input as images; the constraints have checked that its layout allows this."""
    source = activation(context, index)
    tensor = to_layout(source.tensor, spatial(context.shape(index)))
    assert tensor is not None
    return tensor, source.quant
