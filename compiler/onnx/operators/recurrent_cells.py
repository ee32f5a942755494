"""LSTM and GRU that were not unrolled (`weft.compiler.onnx.recurrent`)."""

from __future__ import annotations

from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.qdq import Symbol
from weft.compiler.onnx.recurrent import GATES, KERNEL, TABLES


def cell(context: NodeContext) -> str | None:
    """LSTM and GRU need quantised weights, default activations, a kernel engine ('kernel' 32) and 2 look-up tables."""
    config = context.model.config
    if config.kernel < KERNEL or config.lookup_tables < TABLES:
        return f"'kernel' is {config.kernel}, 'lookup_tables' is {config.lookup_tables}"
    return context.model.refused.get(context.node.name, "")


def _unreachable(context: NodeContext) -> Symbol:
    raise AssertionError("nodes that satisfy the constraint have been unrolled")


OPERATORS = (Operator(tuple(GATES), (cell,), _unreachable),)
