"""Layout of a model's values in device buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

Shape4 = tuple[int, int, int, int]
# Layouts to cache: networks have few distinct ones.
_CACHE_SIZE = 1 << 12


@dataclass(frozen=True)
class Layout:
    """Order of elements: a value, reshaped to `shape` and transposed by `perm`, is the buffer of shape `nhwc`.

    Reshaping a value never changes its layout, because `shape` only refines the row-major order of its elements.
    """

    shape: tuple[int, ...]
    perm: tuple[int, ...]
    nhwc: Shape4

    @cached_property
    def canonical(self) -> tuple[tuple[int, int], ...]:
        """(size, stride in the value) of the buffer's axes, without unit axes and with mergeable axes merged.

        Two layouts place all elements alike if and only if these are equal.
        """
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        merged: list[tuple[int, int]] = []
        for axis in self.perm:
            size, stride = self.shape[axis], strides[axis]
            if size == 1:
                continue
            # The previous axis steps over exactly this one: both are one axis.
            if merged and merged[-1][1] == size * stride:
                merged[-1] = (merged[-1][0] * size, stride)
            else:
                merged.append((size, stride))
        return tuple(merged)

    def same(self, other: Layout) -> bool:
        return self.canonical == other.canonical

    def split(self, sizes: tuple[int, ...]) -> Layout:
        """Return this layout with `shape` refined to `sizes` (see `refinement`)."""
        groups = _groups(sizes, self.shape)
        return Layout(sizes, tuple(part for axis in self.perm for part in groups[axis]), self.nhwc)

    def transpose(self, shape: tuple[int, ...], perm: tuple[int, ...]) -> Layout | None:
        """Return the layout after a transpose of the value of `shape` by `perm`; None if there is no such layout."""
        sizes = refinement(self.shape, shape)
        if sizes is None:
            return (
                row_major_layout(shape).transpose(shape, perm) if self.same(row_major_layout(shape)) else None
            )
        groups = _groups(sizes, shape)
        order = [part for axis in perm for part in groups[axis]]
        before = self.split(sizes)
        moved = tuple(sizes[part] for part in order)
        return Layout(moved, tuple(order.index(part) for part in before.perm), self.nhwc)

    def in_order_of(self, order: Layout) -> Layout | None:
        """Return this layout for another value: the one whose row-major order is the buffer of `order`."""
        sizes = refinement(self.shape, order.shape)
        if sizes is None:
            return None
        axes = order.split(sizes).perm
        shape = tuple(sizes[axis] for axis in axes)
        return Layout(shape, tuple(axes.index(axis) for axis in self.split(sizes).perm), self.nhwc)

    def row_order(self, rows: int) -> np.ndarray | None:
        """Return the permutation of each row, if the buffer is `rows` rows of one permutation; else None.

        Element i of a row in the buffer is element ``order[i]`` of the value's row.
        """
        order = np.arange(math.prod(self.shape)).reshape(self.shape).transpose(self.perm).reshape(rows, -1)
        width = order.shape[1]
        # Each row must hold one row of the value, permuted alike.
        if (order - order[:1] != width * np.arange(rows)[:, None]).any():
            return None
        return order[0]


def refinement(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the coarsest shape, without units, that both shapes reshape to by splitting axes; None if there is
    none."""
    steps = sorted(
        {math.prod(shape[axis:]) for shape in (a, b) for axis in range(len(shape) + 1)}, reverse=True
    )
    # The sizes of all suffixes must divide one another; the quotients are the common refinement.
    if any(outer % inner for outer, inner in pairwise(steps)):
        return None
    return tuple(outer // inner for outer, inner in pairwise(steps))


def _groups(sizes: tuple[int, ...], shape: tuple[int, ...]) -> list[list[int]]:
    """Return, for each axis of `shape`, the axes of its refinement `sizes` that make it up."""
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
    """Return the buffer shape of a row-major value: the last axis is channels, all others are pixels of one row."""
    return (1, 1, math.prod(shape[:-1]), shape[-1]) if shape else (1, 1, 1, 1)


@lru_cache(_CACHE_SIZE)
def row_major_layout(shape: tuple[int, ...]) -> Layout:
    """Return the layout of row-major order."""
    return Layout(shape, tuple(range(len(shape))), rows(shape))


@lru_cache(_CACHE_SIZE)
def spatial(shape: tuple[int, ...]) -> Layout:
    """Return the channels-last layout of images with one to three spatial dimensions.

    One dimension is a row; three are an image for each depth.
    """
    if len(shape) == 3:
        n, c, w = shape
        return Layout(shape, (0, 2, 1), (n, 1, w, c))
    if len(shape) == 5:
        n, c, d, h, w = shape
        return Layout(shape, (0, 2, 3, 4, 1), (n * d, h, w, c))
    return natural(shape)


@lru_cache(_CACHE_SIZE)
def natural(shape: tuple[int, ...]) -> Layout:
    """Return the layout that device operators use: NHWC for values of rank 4, else row-major."""
    if len(shape) != 4:
        return row_major_layout(shape)
    n, c, h, w = shape
    return Layout(shape, (0, 2, 3, 1), (n, h, w, c))


BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}
"""Bits of the element types that the device supports."""
PACKED = ("int4", "uint4")
"""Types with two values per byte in files; on the device only weights have them."""


def to_signed(values: np.ndarray) -> np.ndarray:
    """Return unsigned integers minus half their range."""
    size = values.dtype.itemsize
    return (values ^ np.array(1 << 8 * size - 1, values.dtype)).view(f"i{size}")


def to_unsigned(values: np.ndarray) -> np.ndarray:
    """Return the inverse of `to_signed`."""
    size = values.dtype.itemsize
    return values.view(f"u{size}") ^ np.array(1 << 8 * size - 1, f"u{size}")


def split_planes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int16 values as int8 planes: upper bytes, and lower bytes less 128."""
    return (values >> 8).astype(np.int8), ((values & 255) - 128).astype(np.int8)


def fill_planes(value: int) -> tuple[int, int]:
    """Return one number's upper byte, and lower byte less 128."""
    return value >> 8, (value & 255) - 128


def join_planes(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Return the integers of two planes, int32."""
    return np.asarray(upper.astype(np.int32) * 256 + lower + 128)


@dataclass(frozen=True)
class Rows:
    """Interleaving of an image's rows: each buffer row holds all rows of the input that a kernel reads.

    Row y of the buffer's `count` rows holds row ``y * stride - pad + k * dilation`` of the input's `height`, for all
    k below `kernel`. Channel ``k * c + i`` of a pixel is channel i (of c) of row k. Rows outside the input are
    `fill`, an int8 as stored.
    """

    height: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    count: int
    fill: int

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Return the buffer, (n, count, w, kernel * c), of an input (n, height, w, c)."""
        n, h, w, c = array.shape
        assert h == self.height
        rows = (
            self.stride * np.arange(self.count)[:, None]
            - self.pad
            + self.dilation * np.arange(self.kernel)[None, :]
        )
        gathered = array[:, np.clip(rows, 0, h - 1)]
        gathered[:, (rows < 0) | (rows >= h)] = self.fill
        return gathered.transpose(0, 1, 3, 2, 4).reshape(n, self.count, w, self.kernel * c)


def slice_indices(size: int, start: int, end: int, step: int) -> np.ndarray:
    """Return the indices that a slice selects from an axis of `size` elements, int64.

    Negative ends count from the back, then both are clamped. With a negative step ONNX clamps a start before the
    first element to that element, unlike Python.
    """
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first, last = (at + size if at < 0 else at for at in (int(start), int(end)))
    first, last = min(max(first, 0), high), min(max(last, low), high)
    return np.arange(first, last, step, dtype=np.int64)
