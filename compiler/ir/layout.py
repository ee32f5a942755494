"""How the elements of a model's value lie in a device buffer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

Shape4 = tuple[int, int, int, int]
_KEPT = 1 << 12
"""Layouts that are kept: networks have few that differ."""


@dataclass(frozen=True)
class Layout:
    """A value, reshaped to `shape` and transposed by `perm`, is the buffer of shape `nhwc`.

    Reshaping a value never changes its layout, because `shape` only refines the row-major order of its elements.
    """

    shape: tuple[int, ...]
    perm: tuple[int, ...]
    nhwc: Shape4

    @cached_property
    def canonical(self) -> tuple[tuple[int, int], ...]:
        """(size, stride in the value) of the buffer's axes, with unit axes dropped and mergeable ones merged.

        Two layouts place all elements alike exactly if these are equal.
        """
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        merged: list[tuple[int, int]] = []
        for axis in self.perm:
            size, stride = self.shape[axis], strides[axis]
            if size == 1:
                continue
            if merged and merged[-1][1] == size * stride:
                merged[-1] = (merged[-1][0] * size, stride)
            else:
                merged.append((size, stride))
        return tuple(merged)

    def same(self, other: Layout) -> bool:
        return self.canonical == other.canonical

    def split(self, sizes: tuple[int, ...]) -> Layout:
        """The same layout with `shape` refined to `sizes`, as `refinement` gives them."""
        groups = _groups(sizes, self.shape)
        return Layout(sizes, tuple(part for axis in self.perm for part in groups[axis]), self.nhwc)

    def transposed(self, shape: tuple[int, ...], perm: tuple[int, ...]) -> Layout | None:
        """The layout after transposing the value of `shape` by `perm`; None if no such layout exists."""
        sizes = refinement(self.shape, shape)
        if sizes is None:
            return packed(shape).transposed(shape, perm) if self.same(packed(shape)) else None
        groups = _groups(sizes, shape)
        order = [part for axis in perm for part in groups[axis]]
        before = self.split(sizes)
        moved = tuple(sizes[part] for part in order)
        return Layout(moved, tuple(order.index(part) for part in before.perm), self.nhwc)

    def over(self, order: Layout) -> Layout | None:
        """The same bytes as a layout of another value: the one whose row-major order is the buffer of `order`."""
        sizes = refinement(self.shape, order.shape)
        if sizes is None:
            return None
        axes = order.split(sizes).perm
        shape = tuple(sizes[axis] for axis in axes)
        return Layout(shape, tuple(axes.index(axis) for axis in self.split(sizes).perm), self.nhwc)

    def row_order(self, rows: int) -> np.ndarray | None:
        """If the buffer is `rows` rows that all hold the same permutation of the value's row, that permutation.

        Element i of a row in the buffer is element ``order[i]`` of the value's row.
        """
        order = np.arange(math.prod(self.shape)).reshape(self.shape).transpose(self.perm).reshape(rows, -1)
        width = order.shape[1]
        if (order - order[:1] != width * np.arange(rows)[:, None]).any():
            return None
        return order[0]


def refinement(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The coarsest shape, without units, that both shapes reshape to by splitting axes; None if there is none."""
    steps = sorted(
        {math.prod(shape[axis:]) for shape in (a, b) for axis in range(len(shape) + 1)}, reverse=True
    )
    if any(outer % inner for outer, inner in pairwise(steps)):
        return None
    return tuple(outer // inner for outer, inner in pairwise(steps))


def _groups(sizes: tuple[int, ...], shape: tuple[int, ...]) -> list[list[int]]:
    """For each axis of `shape`, the axes of its refinement `sizes` that it consists of."""
    groups: list[list[int]] = []
    position = 0
    for size in shape:
        group: list[int] = []
        while math.prod(sizes[part] for part in group) < size:
            group.append(position)
            position += 1
        groups.append(group)
    return groups


def rows(shape: tuple[int, ...]) -> Shape4:
    """The buffer shape of a value in row-major order: the last axis is channels, all others are pixels of one row."""
    return (1, 1, math.prod(shape[:-1]), shape[-1]) if shape else (1, 1, 1, 1)


@lru_cache(_KEPT)
def packed(shape: tuple[int, ...]) -> Layout:
    """Row-major order."""
    return Layout(shape, tuple(range(len(shape))), rows(shape))


@lru_cache(_KEPT)
def spatial(shape: tuple[int, ...]) -> Layout:
    """The layout of images with one to three dimensions behind channels: a row, rows, or rows for each depth."""
    if len(shape) == 3:
        n, c, w = shape
        return Layout(shape, (0, 2, 1), (n, 1, w, c))
    if len(shape) == 5:
        n, c, d, h, w = shape
        return Layout(shape, (0, 2, 3, 4, 1), (n * d, h, w, c))
    return natural(shape)


@lru_cache(_KEPT)
def natural(shape: tuple[int, ...]) -> Layout:
    """The layout device operators use: NCHW values of rank 4 become NHWC, all others are row-major."""
    if len(shape) != 4:
        return packed(shape)
    n, c, h, w = shape
    return Layout(shape, (0, 2, 3, 1), (n, h, w, c))
