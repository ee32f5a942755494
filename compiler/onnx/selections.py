"""Selections: the elements of the input that operators without arithmetic take, for each output along each axis.

A selection becomes copies of boxes of the input's buffer. Boxes have steps along rows and columns. Channels are
contiguous bytes: selections that are no range become a product with weights of 0 and 1.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import NamedTuple

import numpy as np

from weft.compiler.errors import EvaluationError
from weft.compiler.host.evaluate import Evaluator
from weft.compiler.ir.graph import DeviceOp
from weft.compiler.ir.layout import (
    Layout,
    Shape4,
    natural,
    refinement,
    row_major_layout,
    slice_indices,
    spatial,
)
from weft.compiler.ir.network import Network, Type
from weft.compiler.ir.views import View
from weft.compiler.onnx.convolutions import pair_operands
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.qdq import Activation, Quant, Recipe, Results, Symbol, Tensor, result
from weft.compiler.onnx.reorder import MAX_COPIES, find_runs, layout_cost, order_channels, to_layout
from weft.compiler.onnx.wide import move_planes

Indices = tuple[np.ndarray, ...]
"""For each axis the selected elements of the input, in order; -1 for elements that are not from the input."""


def takes_all(indices: np.ndarray, size: int) -> bool:
    """Return whether all elements along an axis are selected, in order."""
    return len(indices) == size and bool((indices == np.arange(size)).all())


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Selection of elements on the device: the input with shape `sizes`, the selected images, rows, columns and
    channels, and the layout of the result. All images are selected.
    """

    tensor: Tensor
    sizes: Shape4
    indices: Indices
    layout: Layout

    @property
    def source(self) -> View:
        """View of the whole input."""
        return self.tensor.view(self.sizes)

    @property
    def target(self) -> View:
        """View of the whole result."""
        return result(self.layout.nhwc)


def arrange(tensor: Tensor, shape: tuple[int, ...], indices: Indices) -> Arrangement | None:
    """Return the selection `indices` of a value of `shape` on the device; None if the order of elements does not allow
    it.
    """
    result_shape = tuple(map(len, indices))
    kinds: tuple[Callable[[tuple[int, ...]], Layout], ...] = (
        natural,
        spatial,
        row_major_layout,
        _layouts_like(tensor, shape),
    )
    # The cheapest layout first: unchanged bytes cost nothing.
    for kind in sorted(kinds, key=lambda kind: layout_cost(tensor, kind(shape))):
        arranged, groups = to_layout(tensor, kind(shape)), _groups(kind(shape), shape, indices)
        if arranged is not None and groups is not None:
            n, h, w, c = (math.prod(shape[axis] for axis in group) for group in groups)
            per_axis = tuple(
                _merge_axes([(indices[axis], shape[axis]) for axis in group]) for group in groups
            )
            a, b, d, e = map(len, per_axis)
            return Arrangement(
                arranged, (n, h, w, c), per_axis, dataclasses.replace(kind(result_shape), nhwc=(a, b, d, e))
            )
    return None


def _layouts_like(tensor: Tensor, shape: tuple[int, ...]) -> Callable[[tuple[int, ...]], Layout]:
    """Return a function from shapes to layouts with the axis order of a tensor; row-major order if the tensor's layout
    splits an axis.
    """
    if refinement(tensor.layout.shape, shape) != tuple(size for size in shape if size > 1):
        return row_major_layout
    long = [axis for axis, size in enumerate(shape) if size > 1]
    single = [axis for axis, size in enumerate(shape) if size == 1]
    sizes = tuple(shape[axis] for axis in long)
    perm = (*single, *(long[axis] for axis in tensor.layout.split(sizes).perm))
    return lambda result_shape: Layout(result_shape, perm, row_major_layout(result_shape).nhwc)


def _groups(layout: Layout, shape: tuple[int, ...], indices: Indices) -> list[list[int]] | None:
    """Return the axes that become images, rows, columns and channels; None if there are too many.

    All images must be selected. Otherwise rows take the place of images and rows, or columns of all pixels of an image.
    """
    if not layout.perm:
        return [[], [], [], []]
    *order, last = layout.perm
    all_taken = [takes_all(indices[axis], shape[axis]) for axis in range(len(shape))]
    groups = [[axis] for axis in order]
    if layout.perm != natural(shape).perm or len(groups) != 3 or not all_taken[order[0]]:
        groups = []
        for axis in order:
            # Neighbouring axes that are taken whole count as one.
            if groups and all_taken[axis] and all(all_taken[other] for other in groups[-1]):
                groups[-1].append(axis)
            else:
                groups.append([axis])
        if len(groups) == 3 and not all(all_taken[axis] for axis in groups[0]):
            groups = [groups[0] + groups[1], groups[2]]
    return [*([] for _ in range(3 - len(groups))), *groups, [last]] if len(groups) <= 3 else None


def _merge_axes(axes: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    """Return the indices along several axes as indices along one merged axis."""
    if len(axes) == 1:
        return axes[0][0]
    merged = np.zeros(1, np.int64)
    for indices, size in axes:
        outside = (merged < 0)[:, None] | (indices < 0)[None, :]
        merged = np.where(outside, -1, merged[:, None] * size + indices[None, :]).reshape(-1)
    return merged


def copy_ops(arrangement: Arrangement, name: str, fill: int = 0) -> list[DeviceOp] | None:
    """Return the operators that copy the selected elements; None if they are too many or too large.

    Channels that are not from the input become `fill`.
    """
    _, rows, columns, channels = arrangement.indices
    down, across = find_runs(rows), find_runs(columns)
    if min(rows.min(), columns.min()) < 0 or down is None or across is None:
        return None
    ops: list[DeviceOp] = []
    for y, x in itertools.product(down, across):
        source = _box(arrangement.source, (y.source, x.source), (y.length, x.length), (y.step, x.step))
        target = _box(
            arrangement.target, (y.target, x.target), (y.length, x.length), (y.target_step, x.target_step)
        )
        channel_ops = order_channels(name, source, target, channels, fill)
        if channel_ops is None or len(ops) + len(channel_ops) > MAX_COPIES:
            return None
        ops += channel_ops
    return ops


def _box(view: View, at: tuple[int, int], size: tuple[int, int], step: tuple[int, int]) -> View:
    n, _, _, c = view.shape
    down, across = (by if count > 1 else 1 for by, count in zip(step, size, strict=True))
    return View(view.buffer, (n, *size, c), *at, step=(down, across))


def tensor_of(symbol: Symbol) -> Tensor | None:
    """Return the bytes of an activation, or of an integer value; None for others."""
    symbol = symbol.tensor if isinstance(symbol, Activation) else symbol
    return symbol if isinstance(symbol, Tensor) else None


class Movement(NamedTuple):
    """Result of operators that move the bytes of a tensor; they write it in `layout`."""

    tensor: Tensor
    ops: Sequence[DeviceOp]
    layout: Layout


def results(context: NodeContext, movements: Sequence[Movement]) -> Results:
    """Return the symbols and recipes of a node whose outputs hold bytes of its first input.

    For an activation, the bytes are an additional value that the model does not have.
    """
    symbol, model, node = context.symbol(0), context.model, context.node
    symbols: list[Symbol] = []
    recipes = []
    for output, (source, ops, layout) in zip(node.outputs, movements, strict=True):
        name = f"{output}/bytes" if isinstance(symbol, Activation) else output
        model.shapes[name], model.dtypes[name] = model.shapes[output], source.dtype
        tensor = Tensor(name, name, layout, layout, source.unsigned, False, wide=source.wide)
        nodes = tuple(dict.fromkeys((*source.via, node.index)))
        ops = move_planes(ops) if source.wide else ops
        recipes.append(Recipe(tensor, tuple(_rename(ops, node.name, name)), (source,), nodes, ()))
        symbols.append(Activation(tensor, symbol.quant) if isinstance(symbol, Activation) else tensor)
    return Results(tuple(symbols), tuple(recipes))


def _rename(ops: Sequence[DeviceOp], name: str, buffer: str) -> Iterator[DeviceOp]:
    for index, op in enumerate(ops):
        dst = dataclasses.replace(op.dst, buffer=dataclasses.replace(op.dst.buffer, name=buffer))
        yield op.replace(name=name if len(ops) == 1 else f"{name}.{index}", dst=dst)


MAX_ELEMENTS = 1 << 24
"""Most elements of an input whose coordinates float32 represents exactly."""


class Selection(NamedTuple):
    """Elements that one output takes from the input, seen as a value of `shape`."""

    shape: tuple[int, ...]
    indices: Indices


def constants(context: NodeContext, name: str, index: int) -> tuple[int, ...] | None:
    """Return integers that are an attribute in old versions of an operator, and an input in new versions.

    None if they are not constant, () if they are omitted.
    """
    if name in context.node.attributes:
        return tuple(np.atleast_1d(context.node.attributes[name]).tolist())
    if not context.node.input(index):
        return ()
    values = context.model.constants.get(context.node.input(index))
    return None if values is None else tuple(values.reshape(-1).tolist())


@functools.lru_cache(maxsize=1)
def selections(context: NodeContext) -> tuple[Selection, ...] | None:
    """Return the selection of each output; None if it is only known at run time.

    Cached, because all constraints of a node call this in turn, and Resize must be evaluated.
    """
    return _SELECTIONS[context.node.op](context)


def _all(shape: tuple[int, ...]) -> list[np.ndarray]:
    return [np.arange(size) for size in shape]


def _slice(context: NodeContext) -> tuple[Selection, ...] | None:
    shape = context.shape()
    parameters = [
        constants(context, name, at) for at, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    ]
    starts, ends, axes, steps = (item for item in parameters)
    if starts is None or ends is None or axes is None or steps is None:
        return None
    indices = _all(shape)
    axes, steps = axes or tuple(range(len(starts))), steps or (1,) * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        indices[axis] = slice_indices(shape[axis], start, end, step)
    return (Selection(shape, tuple(indices)),)


def _split(context: NodeContext) -> tuple[Selection, ...]:
    shape, first, parts = context.shape(), 0, []
    axis = int(context.node.attributes.get("axis", 0)) % len(shape)
    for output in context.node.outputs:
        indices = _all(shape)
        indices[axis] = np.arange(first, first + context.model.shapes[output][axis])
        first = int(indices[axis][-1]) + 1
        parts.append(Selection(shape, tuple(indices)))
    return tuple(parts)


def _gather(context: NodeContext) -> tuple[Selection, ...] | None:
    shape, constant = context.shape(), context.model.constants.get(context.node.inputs[1])
    if constant is None:
        return None
    indices, axis = _all(shape), int(context.node.attributes.get("axis", 0)) % len(shape)
    indices[axis] = constant.reshape(-1).astype(np.int64) % shape[axis]
    return (Selection(shape, tuple(indices)),)


def _expand(context: NodeContext) -> tuple[Selection, ...]:
    output = context.output
    shape = (1,) * (len(output) - len(context.shape())) + context.shape()
    pairs = zip(shape, output, strict=True)
    return (Selection(shape, tuple(np.arange(many) % size for size, many in pairs)),)


def _pad(context: NodeContext) -> tuple[Selection, ...] | None:
    shape, pads = context.shape(), constants(context, "pads", 1)
    axes = constants(context, "axes", 3)
    mode = str(context.attribute("mode", "constant"))
    if pads is None or axes is None or (min(pads) < 0 and mode != "constant"):
        return None
    indices = _all(shape)
    axes = axes or tuple(range(len(shape)))
    for at, axis in enumerate(axes):
        before, after = pads[at], pads[at + len(axes)]
        cropped = indices[axis][max(-before, 0) : shape[axis] - max(-after, 0)]
        filling = {"constant_values": -1} if mode == "constant" else {}
        around = (max(before, 0), max(after, 0))
        indices[axis] = np.pad(cropped, around, mode, **filling)  # type: ignore[call-overload]
    return (Selection(shape, tuple(indices)),)


def _resize(context: NodeContext) -> tuple[Selection, ...] | None:
    shape = context.shape()
    lanes = source_coordinates(context) if str(context.attribute("mode", "nearest")) == "nearest" else None
    if lanes is None:
        return None
    indices = [lane[:, 0].astype(np.int64) for lane in lanes]
    for lane, nearest, size in zip(lanes, indices, shape, strict=True):
        # Coordinates must be whole, and equal at all places along the other axes.
        if (lane != nearest[:, None]).any() or nearest.min() < 0 or nearest.max() >= size:
            return None  # elements outside the input are filled
    return (Selection(shape, tuple(indices)),)


def source_coordinates(context: NodeContext) -> list[np.ndarray] | None:
    """Return the source coordinates of a Resize along each axis, (output, others); None if they depend on inputs at run
    time.

    They come from an evaluation of the node on ramps, because ONNX has many coordinate modes.
    """
    shape, output = context.shape(), context.output
    unknown = [name for name in context.node.inputs[1:] if name and name not in context.model.constants]
    if unknown or max(math.prod(shape), math.prod(output)) > MAX_ELEMENTS:
        return None
    try:
        evaluator = Evaluator(_as_network(context))
        lanes = []
        for axis, size in enumerate(shape):
            along = [1] * len(shape)
            along[axis] = size
            # The result of a ramp along one axis is the source coordinate along it.
            ramp = np.broadcast_to(np.arange(size, dtype=np.float32).reshape(along), shape)
            (resized,) = evaluator.run({"x": np.ascontiguousarray(ramp)})
            lanes.append(np.moveaxis(resized, axis, 0).reshape(output[axis], -1))
    except EvaluationError:
        return None
    return lanes


def _as_network(context: NodeContext) -> Network:
    node = dataclasses.replace(context.node, inputs=("x", *context.node.inputs[1:]), outputs=("y",))
    known = context.model.constants
    return Network(
        (node,),
        ("x",),
        ("y",),
        {"x": Type("float32", context.shape()), "y": Type("float32", context.output)},
        {name: known[name] for name in node.inputs[1:] if name},
        context.model.network.opsets,
    )


_SELECTIONS: dict[str, Callable[[NodeContext], tuple[Selection, ...] | None]] = {
    "Expand": _expand,
    "Gather": _gather,
    "Pad": _pad,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Tile": _expand,
    "Upsample": _resize,
}


_OUTER = 3
"""Loops around channels: images, rows, columns."""


@dataclass(frozen=True)
class Operands:
    """Two operands. The first has the result's shape; the second may broadcast one image, row or column.

    `layout` is the result's layout, and `shape` its shape on the device. With `swapped`, the first operand is the
    node's second input.
    """

    tensors: tuple[Tensor, Tensor]
    quants: tuple[Quant, Quant]
    views: tuple[View, View]
    layout: Layout
    shape: Shape4
    swapped: bool


def operands(context: NodeContext) -> Operands | str:
    """Return the operands of a node with two activations, or the reason why the device does not accept them."""
    symbols = pair_operands(context)
    context = dataclasses.replace(context, symbols=symbols)
    if len(symbols) != 2 or not all(isinstance(symbol, Activation) for symbol in symbols):
        return f"inputs are {context.inputs}"
    output, shapes = context.output, (context.shape(0), context.shape(1))
    if prod(shapes[0]) == prod(shapes[1]) == prod(output):
        return _equal_shapes(context)
    full_size = [index for index, shape in enumerate(shapes) if prod(shape) == prod(output)]
    if not full_size:
        return f"shapes are {shapes[0]} and {shapes[1]}: both would have to be broadcast"
    at = full_size[0]
    return _broadcast(context, at, (1,) * (len(output) - len(shapes[1 - at])) + shapes[1 - at])


def _equal_shapes(context: NodeContext) -> Operands | str:
    """Return operands that both have the result's shape, in any order of elements that suits both."""
    a, b = (symbol for symbol in context.symbols if isinstance(symbol, Activation))
    layouts = natural(context.output), a.tensor.layout, b.tensor.layout
    for layout in sorted(
        layouts, key=lambda layout: layout_cost(a.tensor, layout) + layout_cost(b.tensor, layout)
    ):
        first, second = to_layout(a.tensor, layout), to_layout(b.tensor, layout)
        if first is not None and second is not None:
            views = first.view(), second.view(first.layout.nhwc)
            return Operands(
                (first, second), (a.quant, b.quant), views, first.layout, first.layout.nhwc, swapped=False
            )
    return f"inputs {context.inputs} have their elements in different orders"


def _broadcast(context: NodeContext, at: int, shape: tuple[int, ...]) -> Operands | str:
    """Return operands of which only operand `at` has the result's shape; the other has `shape`, of equal rank."""
    full, other = context.symbols[at], context.symbols[1 - at]
    assert isinstance(full, Activation)
    assert isinstance(other, Activation)
    reason = ""
    tensors = (full.tensor, context.output), (other.tensor, shape)
    for kind in sorted(
        (natural, row_major_layout),
        key=lambda kind: sum(layout_cost(tensor, kind(sizes)) for tensor, sizes in tensors),
    ):
        layout = kind(context.output)
        first, second = (to_layout(tensor, kind(sizes)) for tensor, sizes in tensors)
        if first is None or second is None:
            wrong = context.node.inputs[at if first is None else 1 - at]
            reason = reason or f"input {wrong!r} has its elements in another order"
            continue
        seen = _loops(*(tuple(sizes[axis] for axis in layout.perm) for sizes in (context.output, shape)))
        if not isinstance(seen, str):
            return Operands(
                (first, second), (full.quant, other.quant), (first.view(seen[0]), second.view(seen[1])), layout,
                seen[0], swapped=at == 1,
            )  # fmt: skip
        reason = seen
    return reason


def _loops(full: tuple[int, ...], part: tuple[int, ...]) -> tuple[Shape4, Shape4] | str:
    """Return both shapes as (images, rows, columns, channels); along each axis the second has all elements or one.

    Channels are last in both.
    """
    if part[-1] != full[-1]:
        return f"one of {full[-1]} channels would have to be broadcast"
    pairs = [(most, size) for most, size in zip(full[:-1], part[:-1], strict=True) if most > 1]
    # Neighbouring axes that both broadcast, or both do not, are one loop.
    groups = [list(group) for _, group in groupby(pairs, key=lambda pair: pair[0] == pair[1])]
    if len(groups) > _OUTER:
        return f"shapes {full} and {part} broadcast along too many axes"
    loops = [(1, 1)] * (_OUTER - len(groups))
    loops += [(prod(most for most, _ in group), prod(size for _, size in group)) for group in groups]
    (n, m), (h, k), (w, x) = loops
    return (n, h, w, full[-1]), (m, k, x, part[-1])
