"""Values whose elements are those of another one, taken along each axis: copies of boxes of its buffer.

Along rows and columns boxes have steps. Channels lie byte by byte: what is no range of them is a product with weights
of 0 and 1.
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
"""For each axis the elements of the input that are taken, in order; -1 for what is not of the input."""


def takes_all(indices: np.ndarray, size: int) -> bool:
    """Whether all elements along an axis are taken, in order."""
    return len(indices) == size and bool((indices == np.arange(size)).all())


@dataclass(frozen=True, eq=False)
class Arrangement:
    """An input of the device's shape `sizes`, what is taken of its images, rows, columns and channels, and the layout
    of that. Images are all taken.
    """

    tensor: Tensor
    sizes: Shape4
    indices: Indices
    layout: Layout

    @property
    def source(self) -> View:
        """All of the input."""
        return self.tensor.view(self.sizes)

    @property
    def target(self) -> View:
        """All of the result."""
        return result(self.layout.nhwc)


def arrange(tensor: Tensor, shape: tuple[int, ...], indices: Indices) -> Arrangement | None:
    """How a value of `shape` and what is taken of it lie on the device; None if its elements have another order."""
    taken = tuple(map(len, indices))
    kinds: tuple[Callable[[tuple[int, ...]], Layout], ...] = (
        natural,
        spatial,
        row_major_layout,
        _like(tensor, shape),
    )
    for kind in sorted(kinds, key=lambda kind: layout_cost(tensor, kind(shape))):
        found, groups = to_layout(tensor, kind(shape)), _groups(kind(shape), shape, indices)
        if found is not None and groups is not None:
            n, h, w, c = (math.prod(shape[axis] for axis in group) for group in groups)
            merged = tuple(_merged([(indices[axis], shape[axis]) for axis in group]) for group in groups)
            a, b, d, e = map(len, merged)
            return Arrangement(
                found, (n, h, w, c), merged, dataclasses.replace(kind(taken), nhwc=(a, b, d, e))
            )
    return None


def _like(tensor: Tensor, shape: tuple[int, ...]) -> Callable[[tuple[int, ...]], Layout]:
    """Layouts of values with as many axes as `shape` in the order in which a tensor has them; row-major order if its
    layout cuts one of them."""
    if refinement(tensor.layout.shape, shape) != tuple(size for size in shape if size > 1):
        return row_major_layout
    long = [axis for axis, size in enumerate(shape) if size > 1]
    single = [axis for axis, size in enumerate(shape) if size == 1]
    sizes = tuple(shape[axis] for axis in long)
    perm = (*single, *(long[axis] for axis in tensor.layout.split(sizes).perm))
    return lambda given: Layout(given, perm, row_major_layout(given).nhwc)


def _groups(layout: Layout, shape: tuple[int, ...], indices: Indices) -> list[list[int]] | None:
    """Axes of a value that are images, rows, columns and channels; None if they are too many.

    Images are all taken: if they are not, rows are those of all images, or columns all pixels of an image.
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


def _merged(axes: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    """Elements along several axes as those along a single one."""
    if len(axes) == 1:
        return axes[0][0]
    merged = np.zeros(1, np.int64)
    for indices, size in axes:
        outside = (merged < 0)[:, None] | (indices < 0)[None, :]
        merged = np.where(outside, -1, merged[:, None] * size + indices[None, :]).reshape(-1)
    return merged


def copy_ops(arrangement: Arrangement, name: str, fill: int = 0) -> list[DeviceOp] | None:
    """The operators that take the elements; None if they are too many, or too large.

    Channels may be none of the input's: they are `fill`.
    """
    _, rows, columns, channels = arrangement.indices
    down, across = find_runs(rows), find_runs(columns)
    if min(rows.min(), columns.min()) < 0 or down is None or across is None:
        return None
    ops: list[DeviceOp] = []
    for y, x in itertools.product(down, across):
        source = _box(arrangement.source, (y.source, x.source), (y.many, x.many), (y.by, x.by))
        target = _box(arrangement.target, (y.target, x.target), (y.many, x.many), (y.apart, x.apart))
        made = order_channels(name, source, target, channels, fill)
        if made is None or len(ops) + len(made) > MAX_COPIES:
            return None
        ops += made
    return ops


def _box(view: View, at: tuple[int, int], size: tuple[int, int], step: tuple[int, int]) -> View:
    n, _, _, c = view.shape
    down, across = (by if count > 1 else 1 for by, count in zip(step, size, strict=True))
    return View(view.buffer, (n, *size, c), *at, step=(down, across))


def tensor_of(symbol: Symbol) -> Tensor | None:
    """The bytes of an activation, or of a value of integers."""
    symbol = symbol.tensor if isinstance(symbol, Activation) else symbol
    return symbol if isinstance(symbol, Tensor) else None


class Movement(NamedTuple):
    """A result that operators make of the bytes of a tensor, which they write as `layout` says."""

    tensor: Tensor
    ops: Sequence[DeviceOp]
    layout: Layout


def results(context: NodeContext, made: Sequence[Movement]) -> Results:
    """What the outputs of a node are that has the bytes of its first input in them.

    Those of an activation are another one: its bytes are a value that the model has not.
    """
    symbol, model, node = context.symbol(0), context.model, context.node
    symbols: list[Symbol] = []
    recipes = []
    for output, (source, ops, layout) in zip(node.outputs, made, strict=True):
        name = f"{output}/bytes" if isinstance(symbol, Activation) else output
        model.shapes[name], model.dtypes[name] = model.shapes[output], source.dtype
        tensor = Tensor(name, name, layout, layout, source.unsigned, False, wide=source.wide)
        nodes = tuple(dict.fromkeys((*source.via, node.index)))
        ops = move_planes(ops) if source.wide else ops
        recipes.append(Recipe(tensor, tuple(_named(ops, node.name, name)), (source,), nodes, ()))
        symbols.append(Activation(tensor, symbol.quant) if isinstance(symbol, Activation) else tensor)
    return Results(tuple(symbols), tuple(recipes))


def _named(ops: Sequence[DeviceOp], name: str, buffer: str) -> Iterator[DeviceOp]:
    """Operators with names that differ, and the buffer that they write."""
    for index, op in enumerate(ops):
        dst = dataclasses.replace(op.dst, buffer=dataclasses.replace(op.dst.buffer, name=buffer))
        yield op.replace(name=name if len(ops) == 1 else f"{name}.{index}", dst=dst)
