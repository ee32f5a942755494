"""LRN: channels normalised by the squares of their neighbours.

Squares have 16 bits, a convolution with weights of 0 and 1 adds up those of neighbours, and a kernel takes the power.
"""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.graph import DeviceOp
from weft.compiler.kernel.int16 import LIMITS, WideElements
from weft.compiler.kernel.row_response import FLAT, WHOLE, RowResponse, tables
from weft.compiler.kernel.wide_conv import WideConv
from weft.compiler.onnx.conditions import activation, input_quantised, kernel_room
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Pending, Quant, quantised, result
from weft.compiler.onnx.row_forms import Placed, row_fits, rows_of
from weft.compiler.onnx.wide import between


def response_order(context: NodeContext) -> str | None:
    """LRN's input must have its channels last on the device, or be brought into this order by at most 256 copies."""
    return None if _placed(context) is not None else f"input {context.node.inputs[0]!r}"


def response_length(context: NodeContext) -> str | None:
    """The channels of LRN must fit an eighth of the scratchpad."""
    count = context.shape()[1]
    return None if row_fits(context.model.config, count) else f"there are {count}"


def response_power(context: NodeContext) -> str | None:
    """LRN must have a beta from 0 to 1, a bias above 0 and an alpha of at least 0."""
    alpha, beta, bias = _constants(context)
    good = 0 <= beta <= 1 and bias > 0 and alpha >= 0 and math.isfinite(alpha + bias)
    return None if good else f"beta is {beta:g}, bias {bias:g}, alpha {alpha:g}"


def response_range(context: NodeContext) -> str | None:
    """In LRN alpha times the mean square may be 256 times the bias at most."""
    ratio = _ratio(context)
    return None if ratio <= FLAT**2 else f"it may be {ratio:.4g} times that"


def response_tables(context: NodeContext) -> str | None:
    """LRN takes two look-up tables, and four where alpha times the mean square may be above 16 times the bias."""
    count = context.model.config.lookup_tables
    return None if count >= tables(_ratio(context)) else f"there are {count}"


def _constants(context: NodeContext) -> tuple[float, float, float]:
    """Alpha, beta and the bias."""
    named = context.node.attributes
    return float(named.get("alpha", 1e-4)), float(named.get("beta", 0.75)), float(named.get("bias", 1.0))


def _size(context: NodeContext) -> int:
    return int(context.node.attributes["size"])


def _placed(context: NodeContext) -> Placed | None:
    return rows_of(activation(context).tensor, context.shape(), (1,)) if len(context.shape()) > 1 else None


def _largest(context: NodeContext) -> tuple[int, int]:
    """The largest square of an element, in steps squared, and how many are added up at most."""
    zero = activation(context).quant.zero
    return max(128 + zero, 127 - zero) ** 2, min(_size(context), context.shape()[1])


def _ratio(context: NodeContext) -> float:
    """What of the sum of squares is added to the bias at most, in biases."""
    (square, count), (alpha, _, bias) = _largest(context), _constants(context)
    return alpha / _size(context) * square * count * activation(context).quant.scale ** 2 / bias


def response(context: NodeContext) -> Pending:
    """Squares, their sums, and the device's RowResponse."""
    found, quant, name = _placed(context), activation(context).quant, context.node.name
    assert found is not None
    (square, count), (_, beta, bias) = _largest(context), _constants(context)
    shape = found.layout.nhwc
    src, sums = found.tensor.view(), between("sums", shape)
    op = RowResponse(
        name, src, sums, result(shape), bias, _ratio(context) * bias / WHOLE, beta, quant.scale, quant.zero
    )

    def join(to: Quant, value: str, bounds: tuple[int, int]) -> tuple[DeviceOp, ...]:
        squares, sums = (between(f"{value}/{part}", shape) for part in ("squares", "sums"))
        zero = LIMITS[0]
        return (
            WideElements(
                name=f"{name}/squares", a=src, b=src, dst=squares, kind="product", a_zero=quant.zero, b_zero=quant.zero,
                y_zero=zero, wide=True,
            ),
            WideConv(
                name=f"{name}/sums", src=squares, dst=sums, weight=_band(shape[3], _size(context)),
                bias=np.zeros(shape[3], np.int64), scale=np.full(shape[3], WHOLE / (square * count)), x_zero=zero,
                y_zero=zero, x_wide=True, wide=True,
            ),
            quantised(op.replace(sums=sums), to, value, bounds),
        )  # fmt: skip

    return Pending((op,), found.layout, (found.tensor,), (context.node.index,), join=join)


def _band(channels: int, size: int) -> np.ndarray:
    """Weights that add up `size` channels around each, the one behind it first."""
    at = np.arange(channels)
    distance = at[None] - at[:, None]
    near = (distance >= -((size - 1) // 2)) & (distance <= size // 2)
    return near.astype(np.int16)[:, None, None, :]


OPERATORS = (
    Operator(
        ("LRN",),
        (
            kernel_room,
            input_quantised,
            response_power,
            response_range,
            response_tables,
            response_order,
            response_length,
        ),
        response,
    ),
)
