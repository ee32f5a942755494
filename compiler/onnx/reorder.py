"""Bringing the bytes of a value into another order: what a Transpose costs where an operator cannot read around it.

Between two orders there are axes that both are made of. Those that come in the same order in both are the loops of a
copy, and there is a copy for each place along the others. Where channels trade places with each other it is a product
with weights of 0 and 1, or several (`weft.compiler.onnx.interleave`).
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

from weft.compiler.ir.graph import DeviceOp, View
from weft.compiler.ir.layout import Layout, packed
from weft.compiler.onnx.interleave import Interleaving, interleavings
from weft.compiler.onnx.places import LOOPS, Axis, copy_cycles, places, product_cycles, view_of
from weft.compiler.onnx.qdq import Recipe, Tensor
from weft.compiler.onnx.runs import WEIGHTS, ordered
from weft.compiler.onnx.wide import moved

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
            yield from ordered(f"{target}.{index}", src, dst, self.channels + before % self.block) or ()


def placed(tensor: Tensor, layout: Layout) -> Tensor | None:
    """A value in a layout: as it is, or by another transfer from the host, or else brought into it by copies.

    None if that would be more than `COPIES`. The result then has the recipe of the copies in `made`.
    """
    found = tensor.arranged(layout)
    return _moved(tensor, layout) if found is None else found


def effort(tensor: Tensor, layout: Layout) -> float:
    """What `placed` costs in cycles of a device of middle size: nothing for a value that is in the layout or comes from
    the host; infinite if it cannot be."""
    if tensor.arranged(layout) is not None:
        return 0.0
    way = cheapest(tensor.layout.canonical, layout.canonical)
    return math.inf if way is None else way.cost


def row_major(tensor: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """A value of `shape` in row-major order, if need be by copies."""
    found = placed(tensor, packed(tensor.layout.shape))
    return None if found is None else dataclasses.replace(found, layout=packed(shape))


def _moved(tensor: Tensor, layout: Layout) -> Tensor | None:
    way = cheapest(tensor.layout.canonical, layout.canonical)
    if way is None:
        return None
    order = "x".join(f"{size}by{stride}" for size, stride in layout.canonical)
    name = f"{tensor.storage}:{order}"
    ops = tuple(way.ops(prod(layout.shape), tensor.storage, name))
    ops = moved(ops) if tensor.wide else ops
    output = Tensor(name, name, layout, layout, tensor.unsigned, hosted=False, wide=tensor.wide)
    return dataclasses.replace(output, made=Recipe(output, ops, (tensor,), tensor.via, ()))


@functools.lru_cache(maxsize=256)
def cheapest(
    before: tuple[tuple[int, int], ...], behind: tuple[tuple[int, int], ...]
) -> Way | Interleaving | None:
    """The cheapest way from one order to another, both as `Layout.canonical` has them; None if there is none."""
    axes = common(before, behind)
    if axes is None:
        return None
    total = prod(axis.size for axis in axes)
    found: Iterator[Way | Interleaving] = itertools.chain(_ways(axes), interleavings(axes, total, COPIES))
    return min(found, key=lambda way: way.cost, default=None)


def common(before: Sequence[tuple[int, int]], behind: Sequence[tuple[int, int]]) -> list[Axis] | None:
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
        if depth and (not target or ((len(target) > 1 or len(block) > 1) and size * len(channels) > WEIGHTS)):
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
