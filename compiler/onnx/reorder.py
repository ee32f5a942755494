"""Reordering of a value's bytes: the cost of a Transpose where an operator cannot read the transposed order.

Two orders have common axes. Axes in equal sequence in both become the loops of a copy; each place along the other axes
needs its own copy. Channels are contiguous bytes: those that change places need products with weights of 0 and 1.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceOp, Rescale
from weft.compiler.ir.layout import Layout, row_major_layout
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.onnx.qdq import Recipe, Tensor
from weft.compiler.onnx.wide import move_planes

MAX_COPIES = 64
"""Most copies per node."""
MAX_WEIGHTS = 1 << 20
"""Most weights of a product that reorders channels."""
MAX_RANGES = 4
"""Most ranges of channels that are copied one by one."""


class Run(NamedTuple):
    """Elements from `source` on with distance `step`, and their places from `target` on with distance `target_step`."""

    source: int
    target: int
    length: int
    step: int
    target_step: int


def find_runs(indices: np.ndarray, most: int = MAX_COPIES, unit: int = 1) -> list[Run] | None:
    """Return as few runs as possible for elements along rows or columns; None for more than `most`.

    With `unit`, indices are in 1 / `unit` elements, and steps are whole elements.
    """
    # Results whose places are `target_step` apart form separate sequences, as in an upsampling by that factor.
    best: list[Run] | None = None
    target_step = 1
    while target_step <= min(len(indices), most):
        candidate = [
            run
            for first in range(target_step)
            for run in itertools.islice(rising_runs(indices, first, target_step, unit), most + 1)
        ]
        if len(candidate) <= most:
            best, most = candidate, len(candidate) - 1
        target_step += 1
    return best


def rising_runs(indices: np.ndarray, first: int = 0, target_step: int = 1, unit: int = 1) -> Iterator[Run]:
    """Yield runs of constant, non-negative step for every `target_step`-th place from `first` on.

    With `unit`, steps are multiples of it, and no place between two elements is repeated.
    """
    selected, at = indices[first::target_step], 0
    steps = np.diff(selected)
    while at < len(selected):
        step, count = 1, 1
        if (
            at < len(steps)
            and steps[at] >= 0
            and not steps[at] % unit
            and (steps[at] or not selected[at] % unit)
        ):
            step = int(steps[at])
            other = np.flatnonzero(steps[at:] != step)
            count += int(other[0]) if other.size else len(steps) - at
        yield Run(int(selected[at]), first + at * target_step, count, step, target_step)
        at += count


def order_channels(
    name: str, source: View, target: View, channels: np.ndarray, fill: int = 0
) -> list[DeviceOp] | None:
    """Return operators that copy some channels of `source` to `target`; None if that needs too large a product."""
    ranges = list(itertools.islice(rising_runs(channels), MAX_RANGES + 1))
    if channels.min() >= 0 and len(ranges) <= MAX_RANGES and all(run.step == 1 for run in ranges):
        return [
            Rescale(
                name,
                channel_slice(source, run.source, run.length),
                channel_slice(target, run.target, run.length),
            )
            for run in ranges
        ]
    if source.shape[3] * len(channels) > MAX_WEIGHTS:
        return None
    # Channel -1 has only zero weights, so the zero point `fill` is its result.
    weight = (channels[:, None] == np.arange(source.shape[3])).astype(np.int16)[:, None, None, :]
    bias, scale = np.zeros(len(channels), np.int32), np.ones(len(channels))
    return [Conv(name, source, target, weight, bias, scale, x_zero=fill, y_zero=fill)]


def channel_slice(view: View, first: int, count: int) -> View:
    """Return `count` channels of a view, from `first` on."""
    return dataclasses.replace(view, shape=(*view.shape[:3], count), c=view.c + first)


LOOPS = 3
"""Loops around channels: images, rows, columns."""
LANES = 16
"""Channels per cycle, and `SETUP` cycles per operator, of the medium-sized device by which
alternatives are compared.
"""
SETUP = 300
_PASSES = 2
"""Cycles of the vector unit for `LANES` channels."""


class Axis(NamedTuple):
    """Axis that two orders of elements have in common, with its pitch in bytes before and after."""

    size: int
    before: int
    after: int


def view_of(name: str, total: int, loops: Sequence[tuple[int, int]], block: int, offset: int) -> View | None:
    """Return a view of a buffer of `total` bytes: `block` bytes at each place along loops of (count, pitch).

    It starts at the block with byte `offset`. None if no view has this form.
    """
    around: list[tuple[int, int]] = [(1, total)] * (LOOPS - len(loops))
    (n, images), (h, rows), (w, columns) = [*around, *loops]
    # A single column needs no pitch, so rows can be whole blocks side by side.
    columns = block if w == 1 else columns
    buffer = Buffer(name, (total // images, images // rows, rows // block, block))
    y, x = offset // rows, offset % rows // block
    view = View(buffer, (n, h, w, block), y, x, step=(1, columns // block))
    fits = all(end <= most for end, most in zip(view.ends, buffer.shape, strict=True))
    return view if fits and buffer.size == total else None


def places(axes: Sequence[Axis], pitch: str) -> np.ndarray:
    """Return the offsets of all places along some axes, the last axis innermost."""
    offsets = np.zeros(1, np.int64)
    for axis in axes:
        offsets = (offsets[:, None] + np.arange(axis.size) * getattr(axis, pitch)).reshape(-1)
    return offsets


def product_cycles(pixels: int, outputs: int, inputs: int) -> int:
    """Return the cycles of a product of (pixels, inputs) with (inputs, outputs) on a medium-sized device.

    With few pixels it takes as long as the transfer of its weights.
    """
    across, deep = -(-outputs // LANES), -(-inputs // LANES)
    return SETUP + across * max(deep * max(pixels, LANES), _PASSES * pixels)


def copy_cycles(pixels: int, channels: int) -> int:
    """Return the cycles of a copy of `pixels` with `channels` each on a medium-sized device."""
    return SETUP + _PASSES * pixels * -(-channels // LANES)


SLICE = 16
"""Places along the longer axis per product."""


class Interleaving(NamedTuple):
    """Reordering that interleaves two axes by products.

    Elements along `inner` are contiguous before, and elements along `outer` after, for each place along `loops`. All of
    this repeats for each place along `rest`. With `spread`, contiguous bytes after are places along `inner` times
    places along `outer`: windows over `outer` read a slice of `inner`. Without, contiguous bytes before are places
    along `outer` times places along `inner`: a slice of `outer` is read once per place along `inner`.
    """

    inner: Axis
    outer: Axis
    loops: tuple[Axis, ...]
    rest: tuple[Axis, ...]
    spread: bool

    @property
    def slices(self) -> list[tuple[int, int]]:
        """First place and size of each slice."""
        size = self.inner.size if self.spread else self.outer.size
        return [(first, min(SLICE, size - first)) for first in range(0, size, SLICE)]

    @property
    def operators(self) -> int:
        return (
            prod(axis.size for axis in self.rest) * len(self.slices) * (1 if self.spread else self.inner.size)
        )

    @property
    def weights(self) -> int:
        """Weights of the largest product."""
        many = min(SLICE, self.inner.size if self.spread else self.outer.size)
        other = self.outer.size if self.spread else self.inner.size
        return many * many * other * (other if self.spread else 1)

    @property
    def cost(self) -> float:
        """Cycles on a medium-sized device."""
        pixels, total = prod(axis.size for axis in self.loops), 0
        for _, many in self.slices:
            if self.spread:  # each place along `outer` begins a vector
                inputs = self.outer.size * -(-many // LANES) * LANES
                total += product_cycles(pixels, many * self.outer.size, inputs)
            else:
                total += self.inner.size * product_cycles(pixels, many, many * self.inner.size)
        return float(total * prod(axis.size for axis in self.rest))

    def ops(self, total: int, source: str, target: str) -> Iterator[DeviceOp]:
        """Yield the products that reorder buffer `source` of `total` bytes into buffer `target`."""
        count = itertools.count()
        for at in zip(places(self.rest, "before").tolist(), places(self.rest, "after").tolist(), strict=True):
            for first, many in self.slices:
                for src, dst, weight in self._products(total, source, target, at, first, many):
                    name = f"{target}.{next(count)}"
                    yield _product(name, src, dst, weight)

    def is_possible(self, total: int) -> bool:
        """Return whether views of the device have these loops.

        The loops must be in equal sequence before and after, and start at the first image.
        """
        before = [axis.before for axis in self.loops]  # they are in order after
        if before != sorted(before, reverse=True):
            return False
        # The last place has the largest offset: if its views fit their buffers, all do.
        last = [sum((axis.size - 1) * axis[at] for axis in self.rest) for at in (1, 2)]
        if self.spread:
            views = [self._read_view(total, "", last[0]), self._written_view(total, "", last[1])]
        else:
            last_written = last[1] + (self.inner.size - 1) * self.inner.after
            views = [self._read_view(total, "", last[0]), self._written_view(total, "", last_written)]
        return None not in views

    def _read_view(self, total: int, name: str, at: int) -> View | None:
        """Return all channels that are read at one place of `rest`."""
        loops = [(axis.size, axis.before) for axis in self.loops]
        if not self.spread:
            return view_of(name, total, loops, self.inner.size * self.outer.size, at)
        return view_of(name, total, [*loops, (self.outer.size, self.outer.before)], self.inner.size, at)

    def _written_view(self, total: int, name: str, at: int) -> View | None:
        loops = [(axis.size, axis.after) for axis in self.loops]
        if not self.spread:
            return view_of(name, total, loops, self.outer.size, at)
        block = self.inner.size * self.outer.size
        return view_of(name, total, [*loops, (1, block)], block, at)

    def _products(
        self, total: int, source: str, target: str, at: tuple[int, int], first: int, many: int
    ) -> Iterator[tuple[View, View, np.ndarray]]:
        """Yield the views that a slice reads and writes, with weights int16 (out, 1, kw, in)."""
        before, after = at
        read = self._read_view(total, source, before)
        assert read is not None
        if self.spread:
            written, b = self._written_view(total, target, after), self.outer.size
            assert written is not None
            weight = np.zeros((many, b, 1, b, many), np.int16)
            here, there = np.meshgrid(np.arange(many), np.arange(b), indexing="ij")
            weight[here, there, 0, there, here] = 1
            yield (
                channel_slice(read, first, many),
                channel_slice(written, first * b, many * b),
                weight.reshape(many * b, 1, b, many),
            )
            return
        a = self.inner.size
        for place in range(a):
            written = self._written_view(total, target, after + place * self.inner.after)
            assert written is not None
            weight = np.zeros((many, 1, 1, many * a), np.int16)
            weight[np.arange(many), 0, 0, np.arange(many) * a + place] = 1
            yield channel_slice(read, first * a, many * a), channel_slice(written, first, many), weight


def _product(name: str, src: View, dst: View, weight: np.ndarray) -> Conv:
    """Return a product with weights of 0 and 1, in windows along a row."""
    # The stride is the window's length, so that each place is read once.
    window = Window((1, weight.shape[2]), (1, weight.shape[2]))
    outputs = len(weight)
    return Conv(name, src, dst, weight, np.zeros(outputs, np.int32), np.ones(outputs), window)


def interleavings(axes: Sequence[Axis], total: int, most: int) -> Iterator[Interleaving]:
    """Yield the interleavings that reorder `axes`, of `total` bytes, with at most `most` products."""
    inner = next((axis for axis in axes if axis.before == 1), None)
    outer = next((axis for axis in axes if axis.after == 1), None)
    if inner is None or outer is None or inner is outer:
        return
    others = [axis for axis in axes if axis not in (inner, outer)]
    for spread in (True, False):
        if (inner.after != outer.size) if spread else (outer.before != inner.size):
            continue
        for count in range(min(LOOPS - spread, len(others)) + 1):
            for loops in itertools.combinations(others, count):
                repeated = tuple(axis for axis in others if axis not in loops)
                way = Interleaving(inner, outer, loops, repeated, spread)
                if way.operators <= most and way.weights <= MAX_WEIGHTS and way.is_possible(total):
                    yield way


COPIES = 256
"""Most copies or products per reordering."""


class CopyOrder(NamedTuple):
    """Reordering by copies, or by products.

    From each block of `block` contiguous bytes, the bytes at `channels` become contiguous, for each place along
    `loops`. All of this repeats for each place along `rest`.
    """

    block: int
    channels: np.ndarray
    loops: tuple[Axis, ...]
    rest: tuple[Axis, ...]

    @property
    def cost(self) -> float:
        """Cycles on a medium-sized device."""
        count, pixels = prod(axis.size for axis in self.rest), prod(axis.size for axis in self.loops)
        channels = len(self.channels)
        if self.plain:
            return count * copy_cycles(pixels, channels)
        return count * product_cycles(pixels, channels, self.block)

    @property
    def plain(self) -> bool:
        """True if contiguous bytes stay contiguous and in order."""
        return len(self.channels) == self.block and bool((np.diff(self.channels) == 1).all())

    def ops(self, total: int, source: str, target: str) -> Iterator[DeviceOp]:
        """Yield the copies or products that reorder buffer `source` of `total` bytes into buffer `target`."""
        pairs = zip(places(self.rest, "before").tolist(), places(self.rest, "after").tolist(), strict=True)
        for index, (before, after) in enumerate(pairs):
            src, dst = _views(self, total, source, target, Axis(1, before, after))
            assert src is not None
            assert dst is not None
            yield from (
                order_channels(f"{target}.{index}", src, dst, self.channels + before % self.block) or ()
            )


def to_layout(tensor: Tensor, layout: Layout) -> Tensor | None:
    """Return a value in a layout: unchanged, by another transfer from the host, or by copies.

    None if that needs more than `COPIES` copies. `recipe` of the result holds the copies.
    """
    unmoved = tensor.in_layout(layout)
    return _copy_to(tensor, layout) if unmoved is None else unmoved


def layout_cost(tensor: Tensor, layout: Layout) -> float:
    """Return the cost of `to_layout` in cycles of a medium-sized device; infinite if it is impossible.

    Values in the layout, and values from the host, cost nothing.
    """
    if tensor.in_layout(layout) is not None:
        return 0.0
    way = cheapest(tensor.layout.canonical, layout.canonical)
    return math.inf if way is None else way.cost


def to_row_major(tensor: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Return a value of `shape` in row-major order, by copies if necessary; None if that needs too many."""
    moved = to_layout(tensor, row_major_layout(tensor.layout.shape))
    return None if moved is None else dataclasses.replace(moved, layout=row_major_layout(shape))


def _copy_to(tensor: Tensor, layout: Layout) -> Tensor | None:
    way = cheapest(tensor.layout.canonical, layout.canonical)
    if way is None:
        return None
    order = "x".join(f"{size}by{stride}" for size, stride in layout.canonical)
    name = f"{tensor.storage}:{order}"
    ops = tuple(way.ops(prod(layout.shape), tensor.storage, name))
    ops = move_planes(ops) if tensor.wide else ops
    output = Tensor(name, name, layout, layout, tensor.unsigned, from_host=False, wide=tensor.wide)
    return dataclasses.replace(output, recipe=Recipe(output, ops, (tensor,), tensor.via, ()))


@functools.lru_cache(maxsize=256)
def cheapest(
    before: tuple[tuple[int, int], ...], after: tuple[tuple[int, int], ...]
) -> CopyOrder | Interleaving | None:
    """Return the cheapest reordering between two orders in the form of `Layout.canonical`; None if there is none."""
    axes = common_axes(before, after)
    if axes is None:
        return None
    total = prod(axis.size for axis in axes)
    candidates: Iterator[CopyOrder | Interleaving] = itertools.chain(
        _copy_orders(axes), interleavings(axes, total, COPIES)
    )
    return min(candidates, key=lambda way: way.cost, default=None)


def common_axes(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> list[Axis] | None:
    """Return the axes that two orders have in common, in the order after; None if one axis splits another."""
    # Boundaries of all axes, as strides in row-major order; neighbouring boundaries delimit a common axis.
    marks = sorted({mark for size, stride in (*before, *after) for mark in (stride, size * stride)})
    if any(outer % inner for inner, outer in itertools.pairwise(marks)):
        return None
    sizes = {inner: outer // inner for inner, outer in itertools.pairwise(marks)}
    pitches = []
    for order in (before, after):
        strides = [mark for size, stride in order for mark in marks[::-1] if stride <= mark < size * stride]
        pitches.append(
            {mark: prod(sizes[inner] for inner in strides[at + 1 :]) for at, mark in enumerate(strides)}
        )
    return _merge_neighbours(
        [Axis(sizes[mark], pitches[0][mark], pitch) for mark, pitch in pitches[1].items()]
    )


def _merge_neighbours(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes with pairs merged that are neighbours before and after."""
    merged: list[Axis] = []
    for axis in axes:
        outer = merged[-1] if merged else None
        if outer is not None and outer.before == axis.size * axis.before:
            merged[-1] = Axis(outer.size * axis.size, axis.before, axis.after)
        else:
            merged.append(axis)
    return merged


def _copy_orders(axes: list[Axis]) -> Iterator[CopyOrder]:
    """Yield reorderings with blocks of one byte, and with blocks of all bytes of the innermost axes before."""
    inner, total = sorted(axes, key=lambda axis: axis.before), prod(axis.size for axis in axes)
    for depth in range(len(axes) + 1):
        block, outer = inner[:depth], [axis for axis in axes if axis not in inner[:depth]]
        target = [*itertools.takewhile(block.__contains__, axes[::-1])][::-1]
        size, channels = prod(axis.size for axis in block), places(target, "before")
        if depth and (
            not target or ((len(target) > 1 or len(block) > 1) and size * len(channels) > MAX_WEIGHTS)
        ):
            continue
        other = [axis for axis in block if axis not in target]
        for count in range(min(LOOPS, len(outer)) + 1):
            for loops in itertools.combinations(outer, count):
                repeated = (*(axis for axis in outer if axis not in loops), *other)
                way = CopyOrder(size, channels, loops, repeated)
                if prod(axis.size for axis in repeated) <= COPIES and _is_expressible(way, total):
                    yield way


def _is_expressible(way: CopyOrder, total: int) -> bool:
    """Return whether views of the device have these loops.

    The loops must be in equal sequence before and after, and start at the first image.
    """
    before = [axis.before for axis in way.loops]  # they are in order after
    if before != sorted(before, reverse=True):
        return False
    # The last place has the largest offset: if its views fit their buffers, all do.
    last = Axis(1, *(sum((axis.size - 1) * axis[at] for axis in way.rest) for at in (1, 2)))
    return None not in _views(way, total, "", "", last)


def _views(way: CopyOrder, total: int, source: str, target: str, at: Axis) -> tuple[View | None, View | None]:
    """Return the views that are read and written at one place along the axes of `way.rest`."""
    before = view_of(source, total, [(axis.size, axis.before) for axis in way.loops], way.block, at.before)
    after = [(axis.size, axis.after) for axis in way.loops]
    return before, view_of(target, total, after, len(way.channels), at.after)
