"""Operators that move elements: reshapes and transposes without work, copies for Concat, Slice and others, embeddings.

A later operator that cannot read a transposed order gets its bytes reordered (`weft.compiler.onnx.reorder`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import DeviceOp, Rescale
from weft.compiler.ir.layout import BITS, Layout, Shape4, natural, row_major_layout, spatial, to_signed
from weft.compiler.ir.products import INDICES, Embedding, RowIndices
from weft.compiler.ir.views import Buffer, View
from weft.compiler.lower.rows import MAX_OFFSETS
from weft.compiler.onnx.conditions import softmax_unit
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.qdq import (
    Activation,
    Constant,
    Pending,
    Quant,
    Recipe,
    Results,
    Symbol,
    Tensor,
    as_activation,
    finish,
    integers,
    result,
)
from weft.compiler.onnx.reorder import (
    MAX_COPIES,
    MAX_WEIGHTS,
    channel_slice,
    layout_cost,
    order_channels,
    to_layout,
    to_row_major,
)
from weft.compiler.onnx.selections import (
    Arrangement,
    Movement,
    arrange,
    copy_ops,
    results,
    selections,
    tensor_of,
)
from weft.hdl.isa import PAGE_ENTRY


def movable(context: NodeContext) -> str | None:
    """Reshapes and transposes must act on int8 or uint8 activations, or on the result of a device operator."""
    supported = isinstance(context.symbol(0), Activation | Pending | Tensor | Constant)
    return None if supported else f"input {context.node.inputs[0]!r} is not"


def transposable(context: NodeContext) -> str | None:
    """Transpose must lead to an order that the next operators accept, or that at most 256 copies make acceptable."""
    if isinstance(context.symbol(0), Constant) or transpose(context) is not None:
        return None
    return f"perm is {permutation(context)}"


def permutation(context: NodeContext) -> tuple[int, ...]:
    """Return the order of axes of a Transpose node."""
    return context.ints("perm", tuple(reversed(range(len(context.shape())))))


def transpose(context: NodeContext) -> Tensor | Pending | None:
    """Return the transposed value, preferably without work and in an order in which the device computes; None if there
    is no layout.
    """
    symbol, shape, output, perm = context.symbol(0), context.shape(), context.output, permutation(context)
    if isinstance(symbol, Activation):
        symbol = symbol.tensor
    assert isinstance(symbol, Tensor | Pending)
    # The inverse permutation leads from a layout that the device computes in to the present order.
    back = tuple(np.argsort(perm).tolist())
    for layout in (natural(output), row_major_layout(output)):
        before = layout.transpose(output, back)
        assert before is not None
        if isinstance(symbol, Pending):
            if symbol.layout.same(before):
                return dataclasses.replace(symbol, layout=layout)
            continue
        unmoved = symbol.in_layout(before)
        if unmoved is not None:
            return unmoved.transpose(shape, perm, layout)
    moved = symbol.layout.transpose(shape, perm)
    if moved is None and isinstance(symbol, Tensor):
        rows = to_row_major(symbol, shape)
        moved = row_major_layout(shape).transpose(shape, perm)
        return None if rows is None or moved is None else rows.transpose(shape, perm, moved)
    if moved is None:
        return None
    if isinstance(symbol, Pending):
        return dataclasses.replace(symbol, layout=moved)
    return symbol.transpose(shape, perm, moved)


def move(context: NodeContext) -> Symbol:
    """Return the value with another shape and unchanged bytes."""
    source, index = context.symbol(0), context.node.index
    if isinstance(source, Constant):
        return _move_constant(context, source)
    moved = transpose(context) if context.node.op == "Transpose" else source
    if isinstance(moved, Pending):
        return dataclasses.replace(moved, nodes=(*moved.nodes, index))
    if isinstance(moved, Activation):
        moved = moved.tensor
    assert isinstance(moved, Tensor)
    moved = dataclasses.replace(moved, via=(*moved.via, index))
    return Activation(moved, source.quant) if isinstance(source, Activation) else moved


def _move_constant(context: NodeContext, source: Constant) -> Symbol:
    if context.node.op == "Identity":
        return source
    if context.node.op == "Transpose":
        perm = permutation(context)
        values, scale = source.values.transpose(perm), source.scale.transpose(perm)
    elif source.scale.size == 1:
        values, scale = (
            source.values.reshape(context.output),
            source.scale.reshape((1,) * len(context.output)),
        )
    else:
        return None
    return Constant(values, scale, source.exact, _activation_of(context, source))


def _activation_of(context: NodeContext, source: Constant) -> Activation | None:
    """Return a moved constant as an activation; None if it is not one."""
    if source.activation is None:
        return None
    moved = move(dataclasses.replace(context, symbols=(source.activation, *context.symbols[1:])))
    return moved if isinstance(moved, Activation) else None


def _takes_all(context: NodeContext) -> bool:
    """Return whether a selection from a float result, which has no bytes yet, takes all elements in order."""
    selected = (selections(context) or ()) if isinstance(context.symbol(0), Pending) else ()
    return len(selected) == 1 and all(
        np.array_equal(places, np.arange(size))
        for places, size in zip(selected[0].indices, selected[0].shape, strict=True)
    )


MOVE_OPERATORS = (
    Operator(
        ("Expand", "Gather", "Slice", "Tile"),
        (movable,),
        move,
        applies=_takes_all,
        title="Expand, Gather, Slice and Tile that take all elements of a float value",
    ),
    Operator(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"), (movable,), move),
    Operator(("Transpose",), (movable, transposable), move),
)


def inputs_quantised(context: NodeContext) -> str | None:
    """All inputs must be activations or constants quantised to int8 or uint8, or int8 or uint8 values."""
    kind = Tensor if isinstance(context.symbol(0), Tensor) else Activation
    for name, symbol in zip(context.node.inputs, map(as_activation, context.symbols), strict=True):
        if not isinstance(symbol, kind):
            return f"input {name!r} is not"
    return None


def concat_order(context: NodeContext) -> str | None:
    """Inputs of Concat must have one order of elements, or at most 256 copies each must bring them into it."""
    if _concat_layout(context) is not None:
        return None
    return f"inputs {context.inputs}"


def concat(context: NodeContext) -> Pending | Recipe:
    """Return requantisations of all inputs into boxes of the result."""
    arranged = _concat_layout(context)
    assert arranged is not None
    tensors, layout, dim = arranged
    buffer = Buffer(result(layout.nhwc).buffer.name, layout.nhwc)
    ops, position = [], 0
    for index, (tensor, symbol) in enumerate(zip(tensors, map(as_activation, context.symbols), strict=True)):
        quant = symbol.quant if isinstance(symbol, Activation) else integers(tensor)
        box = list(layout.nhwc)
        # The input's share of all elements: the device's axis may join several axes of the model.
        box[dim] = math.prod(context.shape(index)) * box[dim] // math.prod(context.output)
        boxed = (box[0], box[1], box[2], box[3])
        at = {dim: position}
        dst = View(buffer, boxed, at.get(1, 0), at.get(2, 0), at.get(3, 0))
        name = f"{context.node.name}.{index}"
        ops.append(Rescale(name, tensor.view(boxed), dst, quant.scale, quant.zero))
        position += box[dim]
    pending = Pending(tuple(ops), layout, tensors, (context.node.index,))
    if not isinstance(context.symbol(0), Tensor):
        return pending
    return finish(pending, context.node.outputs[0], integers(tensors[0]), context.node)


def _concat_layout(context: NodeContext) -> tuple[tuple[Tensor, ...], Layout, int] | None:
    """Return the inputs in one order, the result's layout, and the device axis of the concatenation; None if it needs
    too many copies.
    """
    axis = int(context.node.attributes["axis"]) % len(context.output)
    shapes = [context.shape(index) for index in range(len(context.symbols))]
    tensors = [
        tensor for symbol in context.symbols if (tensor := tensor_of(as_activation(symbol))) is not None
    ]

    def total_cost(kind: Callable[[tuple[int, ...]], Layout]) -> float:
        return sum(layout_cost(tensor, kind(shape)) for tensor, shape in zip(tensors, shapes, strict=True))

    for kind in sorted((natural, spatial, row_major_layout), key=total_cost):
        attempts = [to_layout(tensor, kind(shape)) for tensor, shape in zip(tensors, shapes, strict=True)]
        in_order = tuple(tensor for tensor in attempts if tensor is not None)
        if len(in_order) == len(shapes):
            layout = kind(context.output)
            nhwc, dim = _nhwc(layout, context.output, axis)
            return in_order, Layout(layout.shape, layout.perm, nhwc), dim
    return None


def _nhwc(layout: Layout, shape: tuple[int, ...], axis: int) -> tuple[Shape4, int]:
    """Return the result's shape on the device with the concatenation along an axis that is not
    images, and that axis.
    """
    at = layout.perm.index(axis)
    sizes = [shape[other] for other in layout.perm]
    if len(sizes) == 4 and at:
        return (sizes[0], sizes[1], sizes[2], sizes[3]), at
    before, after = math.prod(sizes[:at]), sizes[at + 1 :]
    if not after:
        return (1, 1, before, sizes[at]), 3
    return (1, before, sizes[at] * math.prod(after[:-1]), after[-1]), 2


CONCAT_OPERATORS = (Operator(("Concat",), (inputs_quantised, concat_order), concat),)


def bytes_given(context: NodeContext) -> str | None:
    """The input must be an activation quantised to int8 or uint8, or an int8 or uint8 value."""
    return None if tensor_of(context.symbol(0)) is not None else f"input {context.node.inputs[0]!r} is not"


def places_constant(context: NodeContext) -> str | None:
    """Starts, ends, axes and steps of Slice, and indices of Gather, must be constant."""
    if selections(context) is not None:
        return None
    names = [name for name in context.node.inputs[1:] if name and name not in context.model.constants]
    return f"input {names[0]!r} is not"


def resized_nearest(context: NodeContext) -> str | None:
    """Resize and Upsample must have mode nearest or linear, and constant scales or sizes."""
    return None if selections(context) is not None else f"mode is {context.attribute('mode', 'nearest')!r}"


def rows_order(context: NodeContext) -> str | None:
    """Elements must be in the device's or row-major order, if necessary by 256 copies, with at most three axes selected
    in part.
    """
    arranged = _part_arrangements(context)[0]
    return None if arranged is not None else f"input {context.node.inputs[0]!r} of shape {context.shape()}"


def boxes_few(context: NodeContext) -> str | None:
    """The selection must be at most 64 boxes with steps along rows and columns, or 1048576 pairs of channels."""
    few = all(ops is not None for _, ops in _part_copies(context))
    return None if few else f"the input has shape {context.shape()}, the result {context.output}"


def part(context: NodeContext) -> Results:
    """Return a copy of each box. If no byte changes, readers read the source instead (`weft.compiler.passes.views`)."""
    movements = []
    for arrangement, ops in _part_copies(context):
        assert arrangement is not None
        assert ops is not None
        movements.append(Movement(arrangement.tensor, ops, arrangement.layout))
    return results(context, movements)


# Both are cached, as `selections` is: constraints and handler of a node call them in turn.


@functools.lru_cache(maxsize=1)
def _part_arrangements(context: NodeContext) -> list[Arrangement | None]:
    tensor = tensor_of(context.symbol(0))
    assert tensor is not None
    return [arrange(tensor, selection.shape, selection.indices) for selection in selections(context) or ()]


@functools.lru_cache(maxsize=1)
def _part_copies(context: NodeContext) -> list[tuple[Arrangement | None, list[DeviceOp] | None]]:
    return [
        (item, None if item is None else copy_ops(item, context.node.name))
        for item in _part_arrangements(context)
    ]


_BOXES = (rows_order, boxes_few)

PART_OPERATORS = (
    Operator(("Expand", "Split", "Tile"), (bytes_given, *_BOXES), part),
    Operator(("Gather", "Slice"), (bytes_given, places_constant, *_BOXES), part),
    Operator(("Resize", "Upsample"), (bytes_given, resized_nearest, *_BOXES), part),
)


def image_bytes(context: NodeContext) -> str | None:
    """The input's elements must be images on the device, or at most 256 copies must make them images."""
    return None if _images(context) is not None else f"input {context.node.inputs[0]!r}"


def blocks_small(context: NodeContext) -> str | None:
    """Blocks must be at most 8 x 8 pixels, and mode CRD allows at most 1048576 pairs of channels."""
    size, channels = _size(context), context.shape()[1]
    if size * size <= MAX_COPIES and (_rows_first(context) or channels * channels // size**2 <= MAX_WEIGHTS):
        return None
    return f"blocksize is {size}, the input has {channels} channels"


def channels_stay(context: NodeContext) -> str | None:
    """SpaceToDepth must have mode DCR."""
    if context.node.op == "DepthToSpace" or _rows_first(context):
        return None
    return f"mode is {context.attribute('mode')}"


def blocks(context: NodeContext) -> Results:
    """Return a copy for each pixel of a block."""
    source, layout = _images(context), natural(context.output)
    assert source is not None
    size, ops = _size(context), list[DeviceOp]()
    packed, spread = source.view(), result(layout.nhwc)
    narrow, wide = (packed, spread) if context.node.op == "DepthToSpace" else (spread, packed)
    n, h, w, depth = narrow.shape
    channels = np.arange(depth)
    for y, x in itertools.product(range(size), repeat=2):
        pixel = View(wide.buffer, (n, h, w, wide.shape[3]), y, x, step=(size, size))
        first, count = (y * size + x) * wide.shape[3], wide.shape[3]
        if context.node.op == "SpaceToDepth":
            target = channel_slice(narrow, first, count)
            block_ops = order_channels(context.node.name, pixel, target, np.arange(count))
        else:
            selected = (
                channels[first : first + count]
                if _rows_first(context)
                else channels[y * size + x :: size * size]
            )
            block_ops = order_channels(context.node.name, narrow, pixel, selected)
        assert block_ops is not None
        ops += block_ops
    return results(context, [Movement(source, ops, layout)])


def _images(context: NodeContext) -> Tensor | None:
    tensor = tensor_of(context.symbol(0))
    assert tensor is not None
    return to_layout(tensor, natural(context.shape()))


def _size(context: NodeContext) -> int:
    return int(context.node.attributes["blocksize"])


def _rows_first(context: NodeContext) -> bool:
    """Return whether the block's pixels are the outer part of the channels (mode DCR)."""
    return str(context.attribute("mode", "DCR")) == "DCR"


_CONDITIONS = (bytes_given, image_bytes, blocks_small, channels_stay)

DEPTH_TO_SPACE_OPERATORS = (Operator(("DepthToSpace", "SpaceToDepth"), _CONDITIONS, blocks),)


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


EMBEDDING_OPERATORS = (
    Operator(
        ("Gather",), (softmax_unit, rows_constant, indices_integers, table_size), rows, applies=_at_run_time,
    ),
)  # fmt: skip


OPERATORS = (
    *CONCAT_OPERATORS,
    *DEPTH_TO_SPACE_OPERATORS,
    *EMBEDDING_OPERATORS,
    *MOVE_OPERATORS,
    *PART_OPERATORS,
)
