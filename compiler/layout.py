"""How the elements of a model's value lie in a device buffer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Shape4 = tuple[int, int, int, int]


@dataclass(frozen=True)
class Layout:
    """A value, reshaped to `shape` and transposed by `perm`, is the buffer of shape `nhwc`.

    Reshaping a value never changes its layout, because `shape` only refines the row-major order of its elements.
    """

    shape: tuple[int, ...]
    perm: tuple[int, ...]
    nhwc: Shape4

    @property
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

    def transposed(self, shape: tuple[int, ...], perm: tuple[int, ...]) -> Layout | None:
        """The layout after transposing the value of `shape` by `perm`; None if it cannot be told from this one."""
        if self.shape != shape:
            if not self.same(packed(shape)):
                return None
            return packed(shape).transposed(shape, perm)
        moved = tuple(shape[axis] for axis in perm)
        return Layout(moved, tuple(perm.index(axis) for axis in self.perm), self.nhwc)

    def row_order(self, rows: int) -> np.ndarray | None:
        """If the buffer is `rows` rows that all hold the same permutation of the value's row, that permutation.

        Element i of a row in the buffer is element ``order[i]`` of the value's row.
        """
        order = np.arange(math.prod(self.shape)).reshape(self.shape).transpose(self.perm).reshape(rows, -1)
        width = order.shape[1]
        if (order - order[:1] != width * np.arange(rows)[:, None]).any():
            return None
        return order[0]


def rows(shape: tuple[int, ...]) -> Shape4:
    """The buffer shape of a value in row-major order: the last axis is channels, all others are pixels of one row."""
    return (1, 1, math.prod(shape[:-1]), shape[-1]) if shape else (1, 1, 1, 1)


def packed(shape: tuple[int, ...]) -> Layout:
    """Row-major order."""
    return Layout(shape, tuple(range(len(shape))), rows(shape))


def natural(shape: tuple[int, ...]) -> Layout:
    """The layout device operators use: NCHW values of rank 4 become NHWC, all others are row-major."""
    if len(shape) != 4:
        return packed(shape)
    n, c, h, w = shape
    return Layout(shape, (0, 2, 3, 1), (n, h, w, c))
