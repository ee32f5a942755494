"""Gather of rows of a constant table by indices that are only known at run time: embeddings."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Buffer, View
from weft.compiler.ir.layout import BITS, Layout, row_major_layout, to_signed
from weft.compiler.ir.products import INDICES, Embedding, RowIndices
from weft.compiler.lower.rows import MAX_OFFSETS
from weft.compiler.onnx.conditions import softmax_unit
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.qdq import Constant, Pending, Quant, Recipe, Tensor, finish, result
from weft.hdl.isa import PAGE_ENTRY

_LARGEST = 1 << 30
"""Largest size of a table, in bytes of the program's constants."""


class _Table(NamedTuple):
    """Table ``values * scale``. With `quant`, the node's result is these integers, with these parameters."""

    values: np.ndarray
    scale: np.ndarray
    quant: Quant | None = None


def rows_constant(context: NodeContext) -> str | None:
    """If its indices are not constant, Gather must take whole rows of a constant table, along axis 0."""
    axis = int(context.node.attributes.get("axis", 0))
    return None if axis in (0, -len(context.shape())) else f"axis is {axis}"


def table_size(context: NodeContext) -> str | None:
    """A table must have between 1 and 1073741824 elements, and Gather must take at most 65536 rows."""
    count, size = math.prod(context.shape(1)), math.prod(context.shape())
    fits = 1 <= size <= _LARGEST and 1 <= count <= MAX_OFFSETS
    return None if fits else f"{count:,} rows of a table of shape {context.shape()}"


def indices_integers(context: NodeContext) -> str | None:
    """Indices of rows must be int32 or int64 values."""
    dtype = context.model.dtypes.get(context.node.inputs[1])
    return None if dtype in INDICES else f"input {context.node.inputs[1]!r} is {dtype}"


def _at_run_time(context: NodeContext) -> bool:
    return context.node.inputs[1] not in context.model.constants and _table(context) is not None


def _table(context: NodeContext) -> _Table | None:
    symbol, name = context.symbol(0), context.node.inputs[0]
    if isinstance(symbol, Constant):
        return _Table(symbol.values, symbol.scale)
    constant = context.model.constants.get(name)
    if constant is None or str(constant.dtype) not in BITS:
        return None
    unsigned = constant.dtype.kind == "u"
    stored = to_signed(constant) if unsigned else constant
    return _Table(stored, np.ones((1,) * stored.ndim), Quant(1.0, 0, unsigned, 8 * constant.dtype.itemsize))


def rows(context: NodeContext) -> Pending | Recipe:
    """Return the device's Embedding."""
    node, table, shape = context.node, _table(context), context.shape()
    assert table is not None
    count, width = math.prod(context.shape(1)), math.prod(shape[1:])
    indices = _indices(context, RowIndices(context.model.dtypes[node.inputs[1]], shape[0], width), count)
    places = View(Buffer(indices.storage, indices.layout.nhwc), indices.layout.nhwc)
    values, scale = table.values.reshape(shape[0], width), table.scale.reshape(-1, 1)
    if scale.size > 1:
        scale = np.broadcast_to(table.scale, shape).reshape(values.shape)
    op = Embedding(node.name, places, result((1, 1, count, width)), values, scale)
    pending = Pending((op,), row_major_layout(context.output), (indices,), (node.index,))
    return pending if table.quant is None else finish(pending, node.outputs[0], table.quant, node)


def _indices(context: NodeContext, rows: RowIndices, count: int) -> Tensor:
    name, shape = context.node.inputs[1], context.shape(1)
    layout = Layout(shape, tuple(range(len(shape))), (1, 1, count, PAGE_ENTRY))
    storage = f"{name}:{rows.rows} rows of {rows.pitch} bytes"
    return Tensor(storage, name, layout, layout, unsigned=False, from_host=True, rows=rows)


OPERATORS = (
    Operator(
        ("Gather",), (softmax_unit, rows_constant, indices_integers, table_size), rows, applies=_at_run_time,
    ),
)  # fmt: skip
