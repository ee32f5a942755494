"""Bringing the bytes of a value into another order: what a Transpose costs where an operator cannot read around it.

Between two orders there are axes that both are made of. Those that come in the same order in both are the loops of a
copy, and there is a copy for each place along the others. Where channels trade places with each other it is a product
with weights of 0 and 1, or several (`weft.compiler.onnx.reorder`).
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

from weft.compiler.ir.graph import Buffer, Conv, DeviceOp, View, Window
from weft.compiler.ir.layout import Layout, row_major_layout
from weft.compiler.onnx.qdq import Recipe, Tensor
from weft.compiler.onnx.runs import MAX_WEIGHTS, channel_slice, order_channels
from weft.compiler.onnx.wide import move_planes

LOOPS = 3
"""Loops around channels: images, rows, columns."""
LANES = 16
"""Channels at a time, and `SETUP` cycles of an operator, by which ways are compared."""
SETUP = 300
_PASSES = 2
"""Cycles of the vector unit for so many channels, whatever it does with them."""


class Axis(NamedTuple):
    """An axis that two orders of the same elements have in common, and the bytes from one place to the next in both."""

    size: int
    before: int
    behind: int


def view_of(name: str, total: int, loops: Sequence[tuple[int, int]], block: int, offset: int) -> View | None:
    """A view of a buffer of `total` bytes: `block` bytes at each place along loops of (count, pitch), from the block
    on that has byte `offset`; None if there is none."""
    around: list[tuple[int, int]] = [(1, total)] * (LOOPS - len(loops))
    (n, images), (h, rows), (w, columns) = [*around, *loops]
    columns = block if w == 1 else columns
    buffer = Buffer(name, (total // images, images // rows, rows // block, block))
    y, x = offset // rows, offset % rows // block
    view = View(buffer, (n, h, w, block), y, x, step=(1, columns // block))
    fits = all(end <= most for end, most in zip(view.ends, buffer.shape, strict=True))
    return view if fits and buffer.size == total else None


def places(axes: Sequence[Axis], pitch: str) -> np.ndarray:
    """The offsets of all places along some axes, the last of which is innermost."""
    found = np.zeros(1, np.int64)
    for axis in axes:
        found = (found[:, None] + np.arange(axis.size) * getattr(axis, pitch)).reshape(-1)
    return found


def product_cycles(pixels: int, outputs: int, inputs: int) -> int:
    """Cycles of a device of middle size for a product of `pixels` by `inputs` with so many `outputs`.

    Of few pixels it takes as long as its weights take to come.
    """
    across, deep = -(-outputs // LANES), -(-inputs // LANES)
    return SETUP + across * max(deep * max(pixels, LANES), _PASSES * pixels)


def copy_cycles(pixels: int, channels: int) -> int:
    """The same for copies of so many `channels` of pixels."""
    return SETUP + _PASSES * pixels * -(-channels // LANES)


SLICE = 16
"""Places along the longer axis that a product is of."""


class Interleaving(NamedTuple):
    """One way of bringing elements into another order.

    For each place along `loops`, and for all of these at each place along `rest`, elements along `inner` lie together
    before and those along `outer` behind. Where `spread`, bytes behind are places along `inner` times places along
    `outer`: a slice of `inner` is read by windows over `outer`. Where not, bytes before are places along `outer` times
    places along `inner`: a slice of `outer` is read once for each place along `inner`.
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
        """Most weights of a product."""
        many = min(SLICE, self.inner.size if self.spread else self.outer.size)
        other = self.outer.size if self.spread else self.inner.size
        return many * many * other * (other if self.spread else 1)

    @property
    def cost(self) -> float:
        """Cycles of a device of middle size."""
        pixels, total = prod(axis.size for axis in self.loops), 0
        for _, many in self.slices:
            if self.spread:  # each place along `outer` begins a vector
                inputs = self.outer.size * -(-many // LANES) * LANES
                total += product_cycles(pixels, many * self.outer.size, inputs)
            else:
                total += self.inner.size * product_cycles(pixels, many, many * self.inner.size)
        return float(total * prod(axis.size for axis in self.rest))

    def ops(self, total: int, source: str, target: str) -> Iterator[DeviceOp]:
        """The products that bring buffer `source` of `total` bytes into buffer `target`."""
        count = itertools.count()
        for at in zip(
            places(self.rest, "before").tolist(), places(self.rest, "behind").tolist(), strict=True
        ):
            for first, many in self.slices:
                for src, dst, weight in self._products(total, source, target, at, first, many):
                    name = f"{target}.{next(count)}"
                    yield _product(name, src, dst, weight)

    def possible(self, total: int) -> bool:
        """Whether the device's views have such loops: in one order before and behind, and images from the first one
        on."""
        before = [axis.before for axis in self.loops]  # behind, they are in order
        if before != sorted(before, reverse=True):
            return False
        last = [sum((axis.size - 1) * axis[at] for axis in self.rest) for at in (1, 2)]
        if self.spread:
            views = [self._read(total, "", last[0]), self._written(total, "", last[1])]
        else:
            behind = last[1] + (self.inner.size - 1) * self.inner.behind
            views = [self._read(total, "", last[0]), self._written(total, "", behind)]
        return None not in views

    def _read(self, total: int, name: str, at: int) -> View | None:
        """All channels that are read at one place of `rest`."""
        loops = [(axis.size, axis.before) for axis in self.loops]
        if not self.spread:
            return view_of(name, total, loops, self.inner.size * self.outer.size, at)
        return view_of(name, total, [*loops, (self.outer.size, self.outer.before)], self.inner.size, at)

    def _written(self, total: int, name: str, at: int) -> View | None:
        loops = [(axis.size, axis.behind) for axis in self.loops]
        if not self.spread:
            return view_of(name, total, loops, self.outer.size, at)
        block = self.inner.size * self.outer.size
        return view_of(name, total, [*loops, (1, block)], block, at)

    def _products(
        self, total: int, source: str, target: str, at: tuple[int, int], first: int, many: int
    ) -> Iterator[tuple[View, View, np.ndarray]]:
        """What is read and written for a slice, and weights: int16 (out, 1, kw, in)."""
        before, behind = at
        read = self._read(total, source, before)
        assert read is not None
        if self.spread:
            written, b = self._written(total, target, behind), self.outer.size
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
            written = self._written(total, target, behind + place * self.inner.behind)
            assert written is not None
            weight = np.zeros((many, 1, 1, many * a), np.int16)
            weight[np.arange(many), 0, 0, np.arange(many) * a + place] = 1
            yield channel_slice(read, first * a, many * a), channel_slice(written, first, many), weight


def _product(name: str, src: View, dst: View, weight: np.ndarray) -> Conv:
    """A product of bytes with weights of 0 and 1, in windows along a row."""
    window = Window((1, weight.shape[2]), (1, weight.shape[2]))
    outputs = len(weight)
    return Conv(name, src, dst, weight, np.zeros(outputs, np.int32), np.ones(outputs), window)


def interleavings(axes: Sequence[Axis], total: int, most: int) -> Iterator[Interleaving]:
    """The ways of bringing `axes`, of `total` bytes, into order by at most so many products."""
    inner = next((axis for axis in axes if axis.before == 1), None)
    outer = next((axis for axis in axes if axis.behind == 1), None)
    if inner is None or outer is None or inner is outer:
        return
    others = [axis for axis in axes if axis not in (inner, outer)]
    for spread in (True, False):
        if (inner.behind != outer.size) if spread else (outer.before != inner.size):
            continue
        for count in range(min(LOOPS - spread, len(others)) + 1):
            for loops in itertools.combinations(others, count):
                rest = tuple(axis for axis in others if axis not in loops)
                way = Interleaving(inner, outer, loops, rest, spread)
                if way.operators <= most and way.weights <= MAX_WEIGHTS and way.possible(total):
                    yield way


COPIES = 256
"""Most copies, or products, that bring a value into another order."""


class Way(NamedTuple):
    """One way of bringing elements into another order.

    Of `block` bytes that lie together before, those at `channels` go to as many that lie together behind, for each
    place along `loops`; and this for each place along `rest`.
    """

    block: int
    channels: np.ndarray
    loops: tuple[Axis, ...]
    rest: tuple[Axis, ...]

    @property
    def cost(self) -> float:
        """Cycles of a device of middle size."""
        count, pixels = prod(axis.size for axis in self.rest), prod(axis.size for axis in self.loops)
        channels = len(self.channels)
        if self.plain:
            return count * copy_cycles(pixels, channels)
        return count * product_cycles(pixels, channels, self.block)

    @property
    def plain(self) -> bool:
        """Whether bytes that lie together do so in the same order behind."""
        return len(self.channels) == self.block and bool((np.diff(self.channels) == 1).all())

    def ops(self, total: int, source: str, target: str) -> Iterator[DeviceOp]:
        """The copies, or products, that bring buffer `source` of `total` bytes into buffer `target`."""
        pairs = zip(places(self.rest, "before").tolist(), places(self.rest, "behind").tolist(), strict=True)
        for index, (before, behind) in enumerate(pairs):
            src, dst = _views(self, total, source, target, Axis(1, before, behind))
            assert src is not None
            assert dst is not None
            yield from (
                order_channels(f"{target}.{index}", src, dst, self.channels + before % self.block) or ()
            )


def to_layout(tensor: Tensor, layout: Layout) -> Tensor | None:
    """A value in a layout: as it is, or by another transfer from the host, or else brought into it by copies.

    None if that would be more than `COPIES`. The result then has the recipe of the copies in `made`.
    """
    found = tensor.in_layout(layout)
    return _moved(tensor, layout) if found is None else found


def layout_cost(tensor: Tensor, layout: Layout) -> float:
    """What `to_layout` costs in cycles of a device of middle size: nothing for a value that is in the layout or comes from
    the host; infinite if it cannot be."""
    if tensor.in_layout(layout) is not None:
        return 0.0
    way = cheapest(tensor.layout.canonical, layout.canonical)
    return math.inf if way is None else way.cost


def to_row_major(tensor: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """A value of `shape` in row-major order, if need be by copies."""
    found = to_layout(tensor, row_major_layout(tensor.layout.shape))
    return None if found is None else dataclasses.replace(found, layout=row_major_layout(shape))


def _moved(tensor: Tensor, layout: Layout) -> Tensor | None:
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
    before: tuple[tuple[int, int], ...], behind: tuple[tuple[int, int], ...]
) -> Way | Interleaving | None:
    """The cheapest way from one order to another, both as `Layout.canonical` has them; None if there is none."""
    axes = common_axes(before, behind)
    if axes is None:
        return None
    total = prod(axis.size for axis in axes)
    found: Iterator[Way | Interleaving] = itertools.chain(_ways(axes), interleavings(axes, total, COPIES))
    return min(found, key=lambda way: way.cost, default=None)


def common_axes(before: Sequence[tuple[int, int]], behind: Sequence[tuple[int, int]]) -> list[Axis] | None:
    """The axes that two orders have in common, in the order they have behind; None if one axis cuts across another."""
    marks = sorted({mark for size, stride in (*before, *behind) for mark in (stride, size * stride)})
    if any(outer % inner for inner, outer in itertools.pairwise(marks)):
        return None
    sizes = {inner: outer // inner for inner, outer in itertools.pairwise(marks)}
    pitches = []
    for order in (before, behind):
        strides = [mark for size, stride in order for mark in marks[::-1] if stride <= mark < size * stride]
        pitches.append(
            {mark: prod(sizes[inner] for inner in strides[at + 1 :]) for at, mark in enumerate(strides)}
        )
    return _joined([Axis(sizes[mark], pitches[0][mark], pitch) for mark, pitch in pitches[1].items()])


def _joined(axes: Sequence[Axis]) -> list[Axis]:
    """The same with neighbours that are neighbours before and behind as one."""
    made: list[Axis] = []
    for axis in axes:
        outer = made[-1] if made else None
        if outer is not None and outer.before == axis.size * axis.before:
            made[-1] = Axis(outer.size * axis.size, axis.before, axis.behind)
        else:
            made.append(axis)
    return made


def _ways(axes: list[Axis]) -> Iterator[Way]:
    """Ways with blocks of one byte, and of all bytes of some of the innermost axes before."""
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
                rest = (*(axis for axis in outer if axis not in loops), *other)
                way = Way(size, channels, loops, rest)
                if prod(axis.size for axis in rest) <= COPIES and _expressible(way, total):
                    yield way


def _expressible(way: Way, total: int) -> bool:
    """Whether the device's views have such loops: in one order before and behind, and images from the first one on."""
    before = [axis.before for axis in way.loops]  # behind, they are in order
    if before != sorted(before, reverse=True):
        return False
    last = Axis(1, *(sum((axis.size - 1) * axis[at] for axis in way.rest) for at in (1, 2)))
    return None not in _views(way, total, "", "", last)


def _views(way: Way, total: int, source: str, target: str, at: Axis) -> tuple[View | None, View | None]:
    """What is read and written at one place along the axes of `way.rest`."""
    before = view_of(source, total, [(axis.size, axis.before) for axis in way.loops], way.block, at.before)
    behind = [(axis.size, axis.behind) for axis in way.loops]
    return before, view_of(target, total, behind, len(way.channels), at.behind)
