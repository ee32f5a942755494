"""Two axes that trade places in the channels of pixels: ShuffleNet's shuffles, or what sub-pixel convolutions make.

One product with weights of 0 and 1 would multiply all channels by all. But a channel of the result depends on few of
them: a slice of some places along one axis, with all places along the other, is a product of its own, whose size is
that of the slice. Of M x B channels it takes M / `SLICE` products of (`SLICE` B) x (`SLICE` B) instead of one of
(M B) x (M B).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceOp, View, Window
from weft.compiler.onnx.places import LANES, LOOPS, Axis, places, product_cycles, view_of
from weft.compiler.onnx.runs import WEIGHTS, of_channels

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
                of_channels(read, first, many),
                of_channels(written, first * b, many * b),
                weight.reshape(many * b, 1, b, many),
            )
            return
        a = self.inner.size
        for place in range(a):
            written = self._written(total, target, behind + place * self.inner.behind)
            assert written is not None
            weight = np.zeros((many, 1, 1, many * a), np.int16)
            weight[np.arange(many), 0, 0, np.arange(many) * a + place] = 1
            yield of_channels(read, first * a, many * a), of_channels(written, first, many), weight


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
                if way.operators <= most and way.weights <= WEIGHTS and way.possible(total):
                    yield way
