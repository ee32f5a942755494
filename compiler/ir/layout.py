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


BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}
"""Types of the values that the device has, and their bits."""
PACKED = ("int4", "uint4")
"""Types of which files have two values in a byte: of the device's values, only weights have them."""


def signed(values: np.ndarray) -> np.ndarray:
    """Unsigned integers less half of their range."""
    size = values.dtype.itemsize
    return (values ^ np.array(1 << 8 * size - 1, values.dtype)).view(f"i{size}")


def unsigned(values: np.ndarray) -> np.ndarray:
    """The inverse of `signed`."""
    size = values.dtype.itemsize
    return values.view(f"u{size}") ^ np.array(1 << 8 * size - 1, f"u{size}")


def split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers from -32768 to 32767 as int8 planes: upper bytes, and lower bytes less 128."""
    return (values >> 8).astype(np.int8), ((values & 255) - 128).astype(np.int8)


def fills(value: int) -> tuple[int, int]:
    """The same of one number."""
    return value >> 8, (value & 255) - 128


def joined(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """The integers of two planes, int32."""
    return np.asarray(upper.astype(np.int32) * 256 + lower + 128)


@dataclass(frozen=True)
class Rows:
    """Of `count` rows in the buffer, row y holds ``y * stride - pad + k * dilation`` of the input's `height`, for all k
    below `kernel`.

    Channel ``k * c + i`` of a pixel is channel i (of c) of row k; rows that the input has not are `fill`, int8 as it is
    stored.
    """

    height: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    count: int
    fill: int

    def gather(self, array: np.ndarray) -> np.ndarray:
        """The buffer, (n, count, w, kernel * c), of an input (n, height, w, c)."""
        n, h, w, c = array.shape
        assert h == self.height
        rows = (
            self.stride * np.arange(self.count)[:, None]
            - self.pad
            + self.dilation * np.arange(self.kernel)[None, :]
        )
        taken = array[:, np.clip(rows, 0, h - 1)]
        taken[:, (rows < 0) | (rows >= h)] = self.fill
        return taken.transpose(0, 1, 3, 2, 4).reshape(n, self.count, w, self.kernel * c)


def slice_indices(size: int, start: int, end: int, step: int) -> np.ndarray:
    """Indices along an axis of `size` elements (int64), from `start` to `end` by `step`.

    Both ends count from the back if they are negative, and are then clamped. Python clamps a start ahead of the first
    element to nothing if the step is negative, ONNX to the first element.
    """
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first, last = (at + size if at < 0 else at for at in (int(start), int(end)))
    first, last = min(max(first, 0), high), min(max(last, low), high)
    return np.arange(first, last, step, dtype=np.int64)
