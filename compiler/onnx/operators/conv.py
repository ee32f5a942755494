"""Conv of constant weights."""

from __future__ import annotations

import numpy as np

from weft.compiler.ir.layout import spatial
from weft.compiler.machine.coordinates import has_coordinates
from weft.compiler.machine.limits import COUNT_MAX
from weft.compiler.onnx.conditions import (
    arranged,
    bias_constant,
    depth_alone,
    image,
    image_order,
    input_quantised,
    weights_constant,
    weights_per_output,
)
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.convolutions import pad_apart, product_of
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Constant, Symbol
from weft.compiler.onnx.windows import depth_tap, window_of


def pads_fit(context: NodeContext) -> str | None:
    """Pads must not be negative, and at most 4095 along axes with strides or dilations above 127."""
    if min(context.ints("pads", (0,))) < 0:
        return f"pads is {context.ints('pads', ())}"
    window = window_of(context, context.shape(1)[2:])
    far = [axis for axis in (0, 1) if not has_coordinates(window, axis)]
    most = max((max(window.pad[axis], window.pad[axis + 2]) for axis in far), default=0)
    return None if most <= COUNT_MAX else f"pads are {window.pad}"


def conv(context: NodeContext) -> Symbol:
    """The device's Conv, with weights as (outputs, rows, columns, inputs)."""
    source, quant = arranged(context)
    weight = context.symbol(1)
    assert isinstance(weight, Constant)
    kernel = weight.values.shape[2:]
    values = np.moveaxis(weight.values, 1, -1)
    if len(kernel) == 3:
        tap = depth_tap(context, kernel)
        assert tap is not None
        values = values[:, tap]
    elif len(kernel) == 1:
        values = values[:, None]
    source, window = pad_apart(source, quant, window_of(context, kernel))
    return product_of(context, source, source.view(), quant, values, weight, window, spatial(context.output))


OPERATORS = (
    Operator(
        ("Conv",),
        (
            image,
            depth_alone,
            input_quantised,
            image_order,
            weights_constant,
            weights_per_output,
            bias_constant,
            pads_fit,
        ),
        conv,
    ),
)
