"""Values that select elements of another value along each axis, as copies of boxes of its buffer.

Boxes have steps along rows and columns. Channels are contiguous bytes: selections that are no range become a product
with weights of 0 and 1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import DeviceOp, View
from weft.compiler.ir.layout import Layout, Shape4, natural, refinement, row_major_layout, spatial
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.qdq import Activation, Recipe, Results, Symbol, Tensor, result
from weft.compiler.onnx.reorder import layout_cost, to_layout
from weft.compiler.onnx.runs import MAX_COPIES, find_runs, order_channels
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
