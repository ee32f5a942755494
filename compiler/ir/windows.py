"""Sliding windows as ONNX defines them, axis by axis: how many there are, and what of the input they meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


def span(kernel: int, dilation: int) -> int:
    """Elements from the first to the last that a window reads along an axis."""
    return (kernel - 1) * dilation + 1


@dataclass(frozen=True)
class Axis:
    """Windows along one spatial axis: `count` of them, the first starting `before` elements ahead of the input.

    `after` is the padding behind the input that was given; windows may reach past it with ceil_mode.
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
        """Elements from the first to the last that a window reads."""
        return span(self.kernel, self.dilation)

    @property
    def behind(self) -> int:
        """The padding behind the input with which there are `count` windows if none is cut off: `after`, or less or
        more where ceil_mode adds a window."""
        if (self.size + self.before + self.after - self.span) // self.stride + 1 == self.count:
            return self.after
        return (self.count - 1) * self.stride + self.span - self.size - self.before

    def tap(self, offset: int) -> tuple[int, int, int]:
        """Of element `offset` of the kernel: the windows [first, stop) that have it inside the input, and the input
        that it is in the first of them."""
        at = offset * self.dilation - self.before
        first = max(0, -(at // self.stride))
        stop = min(self.count, (self.size - 1 - at) // self.stride + 1)
        return first, stop, at + first * self.stride

    def inside(self, size: int | None = None) -> np.ndarray:
        """For each window the number of its elements that lie in the input (int64), or ahead of element `size`."""
        starts = np.arange(self.count) * self.stride - self.before
        stop = np.clip(-((starts - (self.size if size is None else size)) // self.dilation), 0, self.kernel)
        return stop if size is not None else np.maximum(stop - self._ahead(starts), 0)

    def padded(self) -> np.ndarray:
        """For each window the number of its elements that lie in the input or in the padding given (int64)."""
        return self.inside(self.size + self.after)

    def _ahead(self, starts: np.ndarray) -> np.ndarray:
        """For each window the number of its elements ahead of the input."""
        return np.clip(-(starts // self.dilation), 0, self.kernel)


def axes(sizes: Sequence[int], attributes: Mapping[str, Any]) -> tuple[Axis, ...]:
    """The windows of a pool over an input of spatial `sizes`, by its attributes (None, or missing: the default)."""
    rank = len(sizes)
    kernel = attributes["kernel_shape"]
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = attributes.get("pads") or [0] * 2 * rank
    auto = attributes.get("auto_pad") or "NOTSET"
    return tuple(
        _axis(sizes[at], kernel[at], strides[at], dilations[at], (pads[at], pads[rank + at]), auto,
              bool(attributes.get("ceil_mode")))
        for at in range(rank)
    )  # fmt: skip


def _axis(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], auto: str, up: bool
) -> Axis:
    reach = span(kernel, dilation)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        count = -(-size // stride)
        total = max((count - 1) * stride + reach - size, 0)
        before = total // 2 if auto == "SAME_UPPER" else (total + 1) // 2
        return Axis(size, count, kernel, stride, dilation, before, total - before)
    before, after = (0, 0) if auto == "VALID" else pads
    room = size + before + after - reach
    if room < 0:
        return Axis(size, 0, kernel, stride, dilation, before, after)
    count = (-(-room // stride) if up else room // stride) + 1
    if up and (count - 1) * stride >= size + before:  # a window that starts behind the input is none
        count -= 1
    return Axis(size, count, kernel, stride, dilation, before, after)
