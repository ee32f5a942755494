"""Gemm and MatMul of an activation and a constant matrix."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.graph import Window
from weft.compiler.ir.layout import packed
from weft.compiler.onnx.conditions import (
    activation,
    bias_constant,
    input_quantised,
    weights_constant,
    weights_per_output,
)
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.convolutions import product_of
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Constant, Symbol, Tensor
from weft.compiler.onnx.reorder import row_major


def product_input(context: NodeContext) -> str | None:
    """The first operand of a matrix product must have two dimensions or more."""
    return None if len(context.shape()) >= 2 else f"it has shape {context.shape()}"


def weights_matrix(context: NodeContext) -> str | None:
    """The second operand of a matrix product must be a matrix."""
    return None if len(context.shape(1)) == 2 else f"it has shape {context.shape(1)}"


def row_order(context: NodeContext) -> str | None:
    """Rows of a matrix product's input must be contiguous and in one order, or become so by at most 256 copies."""
    return None if product_rows(context) is not None else f"input {context.node.inputs[0]!r}"


def product_rows(context: NodeContext) -> tuple[Tensor, np.ndarray] | None:
    """The first operand of a matrix product as rows, and the order of their elements (`Layout.row_order`)."""
    symbol = context.symbol(0)
    assert isinstance(symbol, Activation)
    for tensor in (symbol.tensor, row_major(symbol.tensor, context.shape())):
        order = None if tensor is None else tensor.layout.row_order(math.prod(context.shape()[:-1]))
        if tensor is not None and order is not None:
            return tensor, order
    return None


def plain_product(context: NodeContext) -> str | None:
    """Gemm needs transA = 0, alpha = 1 and beta = 1."""
    for key, value in (("transA", 0), ("alpha", 1.0), ("beta", 1.0)):
        if context.attribute(key, value) != value:
            return f"{key} is {context.attribute(key)}"
    return None


def product(context: NodeContext) -> Symbol:
    """Gemm or MatMul with a constant matrix: a 1x1 convolution over the rows, its columns in the input's order."""
    source = activation(context)
    weight = context.symbol(1)
    assert isinstance(weight, Constant)
    found = product_rows(context)
    assert found is not None
    tensor, order = found
    # In order first, and transposed then: much quicker than both at once.
    rows = weight.values[:, order] if context.attribute("transB", 0) else weight.values[order].T
    values = np.ascontiguousarray(rows)[:, None, None, :]
    view = tensor.view((1, 1, math.prod(context.shape()[:-1]), context.shape()[-1]))
    return product_of(context, tensor, view, source.quant, values, weight, Window(), packed(context.output))


_MATRIX = (product_input, input_quantised, weights_constant, weights_matrix, weights_per_output, row_order)

OPERATORS = (
    Operator(("Gemm",), (*_MATRIX, plain_product, bias_constant), product),
    Operator(("MatMul",), _MATRIX, product),
)
