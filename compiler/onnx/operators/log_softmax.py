"""LogSoftmax of an activation."""

from __future__ import annotations

from weft.compiler.kernel.row_logarithms import TABLES, WHOLE, RowLogSoftmax
from weft.compiler.onnx.conditions import activation, input_quantised, kernel_room
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.operators.softmax import softmax_rows
from weft.compiler.onnx.qdq import Pending, result
from weft.compiler.onnx.row_forms import row_fits


def log_tables(context: NodeContext) -> str | None:
    """LogSoftmax takes three look-up tables ('lookup_tables' 4 or more)."""
    count = context.model.config.lookup_tables
    return None if count >= TABLES else f"there are {count}"


def log_axis(context: NodeContext) -> str | None:
    """The axes that LogSoftmax is over must be channels on the device, or be made these by at most 256 copies."""
    if softmax_rows(context) is not None:
        return None
    return f"axis is {context.attribute('axis', 'the default')}"


def log_length(context: NodeContext) -> str | None:
    """Rows of LogSoftmax must fit an eighth of the scratchpad; above 2048 elements 'kernel' is 128 if 'n' > 32."""
    found, config = softmax_rows(context), context.model.config
    assert found is not None
    count = found[1].nhwc[3]
    room = count <= WHOLE or config.n <= 32 or config.kernel >= 128
    return None if room and row_fits(config, count) else f"there are {count}"


def log_softmax(context: NodeContext) -> Pending:
    """The device's RowLogSoftmax."""
    found = softmax_rows(context)
    assert found is not None
    tensor, layout = found
    scale = activation(context).quant.scale
    op = RowLogSoftmax(context.node.name, tensor.view(), result(layout.nhwc), scale)
    return Pending((op,), layout, (tensor,), (context.node.index,))


OPERATORS = (
    Operator(("LogSoftmax",), (kernel_room, log_tables, input_quantised, log_axis, log_length), log_softmax),
)
