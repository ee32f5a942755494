"""BatchNormalization: each channel times a factor plus an offset."""

from __future__ import annotations

import numpy as np

from weft.compiler.onnx.channels import channel_layout, same_order, takes_constants
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.convolutions import ADD_WEIGHT, convolution, scaled, shifted
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Constant, Pending


def batch_norm_operands(context: NodeContext) -> str | None:
    """BatchNormalization takes a device value of two to five dimensions, not reshaped before, and constants."""
    symbol = context.symbol(0)
    if not takes_constants(symbol):
        return f"input {context.node.inputs[0]!r} is not"
    if channel_layout(context, symbol, None) is None:
        return f"input {context.node.inputs[0]!r} has shape {context.shape()}"
    other = next((index for index in range(1, 5) if not isinstance(context.symbol(index), Constant)), None)
    return None if other is None else f"input {context.node.input(other)!r} is not constant"


def batch_norm_inference(context: NodeContext) -> str | None:
    """BatchNormalization must not be in training, and its factors and offsets must be finite."""
    if context.attribute("training_mode", 0) or len([name for name in context.node.outputs if name]) > 1:
        return "it is in training"
    return None if all(np.isfinite(values).all() for values in affine(context)) else "they are not"


def affine(context: NodeContext) -> tuple[np.ndarray, np.ndarray]:
    """Factor and offset of each channel: ``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    S. Ioffe and C. Szegedy, "Batch Normalization" (2015), arXiv:1502.03167.
    """
    values = []
    for index in range(1, 5):
        symbol = context.symbol(index)
        assert isinstance(symbol, Constant)
        values.append(symbol.floats.reshape(-1).astype(np.float64))
    scale, bias, mean, variance = values
    epsilon = context.attribute("epsilon", 1e-5)
    assert isinstance(epsilon, float)
    with np.errstate(all="ignore"):
        factors = scale / np.sqrt(variance + epsilon)
        return factors, bias - mean * factors


def batch_norm(context: NodeContext) -> Pending:
    """Each channel times a factor plus an offset: into the convolution before it, or as one of its own."""
    factors, offsets = affine(context)
    symbol = context.symbol(0)
    layout = channel_layout(context, symbol, None)
    return shifted(
        context, scaled(context, convolution(context, symbol, layout, ADD_WEIGHT), factors), offsets
    )


OPERATORS = (
    Operator(("BatchNormalization",), (batch_norm_operands, batch_norm_inference, same_order), batch_norm),
)
