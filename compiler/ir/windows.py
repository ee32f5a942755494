"""Sliding windows: as device operators have them, and as ONNX defines them axis by axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


def span(kernel: int, dilation: int) -> int:
    """Return the elements from a window's first to its last along an axis."""
    return (kernel - 1) * dilation + 1


@dataclass(frozen=True)
class Window:
    """Sliding window: kernel (h, w), strides, dilations, and padding (top, left, bottom, right)."""

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)

    def reach(self, axis: int, first: int, count: int, size: int) -> tuple[int, int]:
        """Return the first element, and the number of elements, that a range of outputs reads along an axis.

        Parameters
        ----------
        axis : int
            0 for rows, 1 for columns.
        first, count : int
            Outputs ``[first, first + count)``.
        size : int
            Elements of the input along the axis.

        Returns
        -------
        tuple of int
            Outputs that lie entirely in the padding count as one element, which no coordinate selects.
        """
        start = first * self.stride[axis] - self.pad[axis]
        stop = start + (count - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1
        # All in the padding: read one element, which no coordinate selects.
        start = min(max(start, 0), size - 1)
        return start, max(min(stop, size) - start, 1)

    def output(self, h: int, w: int) -> tuple[int, int]:
        """Return the output height and width for an input of h x w, rounded down."""
        sizes = []
        for axis, size in enumerate((h, w)):
            span = (self.kernel[axis] - 1) * self.dilation[axis] + 1
            sizes.append((size + self.pad[axis] + self.pad[axis + 2] - span) // self.stride[axis] + 1)
        return sizes[0], sizes[1]


ONE = Window()
"""1x1 window: each output is one element of the input."""


@dataclass(frozen=True)
class Axis:
    """Windows along one spatial axis: `count` windows, the first starting `before` elements before the input.

    `after` is the given padding after the input; with ceil_mode windows may reach past it.
    """

    size: int
    count: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def span(self) -> int:
        """Elements from a window's first to its last."""
        return span(self.kernel, self.dilation)

    @property
    def padding_after(self) -> int:
        """Padding after the input at which exactly `count` windows fit: `after`, unless ceil_mode adds a window."""
        if (self.size + self.before + self.after - self.span) // self.stride + 1 == self.count:
            return self.after
        return (self.count - 1) * self.stride + self.span - self.size - self.before

    def tap(self, offset: int) -> tuple[int, int, int]:
        """Return where kernel element `offset` meets the input.

        Returns
        -------
        tuple of int
            First window with the element inside the input, end of these windows, and the input's element in the first
            of them.
        """
        at = offset * self.dilation - self.before
        first = max(0, -(at // self.stride))
        stop = min(self.count, (self.size - 1 - at) // self.stride + 1)
        return first, stop, at + first * self.stride

    def count_inside(self, size: int | None = None) -> np.ndarray:
        """Return how many elements of each window lie in the input, or before element `size` (int64)."""
        starts = np.arange(self.count) * self.stride - self.before
        # Index of the first kernel element at or after the end: a division that rounds up.
        stop = np.clip(-((starts - (self.size if size is None else size)) // self.dilation), 0, self.kernel)
        return stop if size is not None else np.maximum(stop - self._ahead(starts), 0)

    def count_padded(self) -> np.ndarray:
        """Return how many elements of each window lie in the input or in the given padding (int64)."""
        return self.count_inside(self.size + self.after)

    def _ahead(self, starts: np.ndarray) -> np.ndarray:
        """Return how many elements of each window lie before the input."""
        return np.clip(-(starts // self.dilation), 0, self.kernel)


def axes(sizes: Sequence[int], attributes: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Return the windows of a pool over an input of spatial `sizes`, by its ONNX attributes; None or missing is the
    default."""
    rank = len(sizes)
    kernel = attributes["kernel_shape"]
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = attributes.get("pads") or [0] * 2 * rank
    auto = attributes.get("auto_pad") or "NOTSET"
    return tuple(
        _axis(
            sizes[at],
            kernel[at],
            strides[at],
            dilations[at],
            (pads[at], pads[rank + at]),
            auto,
            bool(attributes.get("ceil_mode")),
        )
        for at in range(rank)
    )


def _axis(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], auto: str, up: bool
) -> Axis:
    reach = span(kernel, dilation)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        count = -(-size // stride)
        # SAME_UPPER puts the odd element of padding at the end, SAME_LOWER at the start.
        total = max((count - 1) * stride + reach - size, 0)
        before = total // 2 if auto == "SAME_UPPER" else (total + 1) // 2
        return Axis(size, count, kernel, stride, dilation, before, total - before)
    before, after = (0, 0) if auto == "VALID" else pads
    room = size + before + after - reach
    if room < 0:
        return Axis(size, 0, kernel, stride, dilation, before, after)
    count = (-(-room // stride) if up else room // stride) + 1
    if up and (count - 1) * stride >= size + before:  # ONNX drops a window that starts after the input
        count -= 1
    return Axis(size, count, kernel, stride, dilation, before, after)
