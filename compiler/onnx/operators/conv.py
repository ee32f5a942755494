"""Conv of constant weights."""

from __future__ import annotations

from weft.compiler.ir.layout import natural
from weft.compiler.onnx.conditions import (
    arranged,
    bias_constant,
    image,
    image_order,
    input_quantised,
    weights_constant,
    weights_per_output,
    window_steps,
)
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.convolutions import product_of
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Constant, Symbol
from weft.compiler.onnx.windows import window_of


def conv(context: NodeContext) -> Symbol:
    """The device's Conv, with weights as (outputs, rows, columns, inputs)."""
    source, quant = arranged(context)
    weight = context.symbol(1)
    assert isinstance(weight, Constant)
    values = weight.values.transpose(0, 2, 3, 1)
    window = window_of(context, (values.shape[1], values.shape[2]))
    return product_of(context, source, source.view(), quant, values, weight, window, natural(context.output))


OPERATORS = (
    Operator(
        ("Conv",),
        (
            image,
            input_quantised,
            image_order,
            weights_constant,
            weights_per_output,
            bias_constant,
            window_steps,
        ),
        conv,
    ),
)
