"""Ranges of channels by abstract interpretation: the least and the greatest byte that each channel can hold.

Ranges are intervals (P. Cousot and R. Cousot, 1977, doi:10.1145/512950.512973). Sums of products are bounded by their
positive and their negative weights; requantisation and clamps keep the order of numbers, so they take ends to ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Add, Buffer, Conv, DeviceOp, Multiply, Pad, Pool, Rescale, View, Window
from weft.compiler.ir.microops import Value, requantise
from weft.compiler.operators.record import operator_of

_LARGEST = (1 << 31) - 1
_CHUNK = 1 << 18
"""Weights at a time."""


class Ranges(NamedTuple):
    """The least and the greatest byte of each channel: int64 (channels,)."""

    low: np.ndarray
    high: np.ndarray

    @property
    def constant(self) -> np.ndarray:
        """Which channels hold the same byte everywhere, whatever the inputs are: bool (channels,)."""
        return np.asarray(self.low == self.high)


def channel_ranges(ops: Sequence[DeviceOp], bits: int) -> dict[str, Ranges]:
    """The ranges of buffers by name, as far as they are less than all bytes, with mantissas of so many `bits`.

    Of buffers that several operators write, or of which one writes a part, nothing is known.
    """
    writers = Counter(op.dst.buffer.name for op in ops)
    found: dict[str, Ranges] = {}
    for op in ops:
        made = _made(op, found, bits)
        if made is not None and op.dst.contiguous and writers[op.dst.buffer.name] == 1:
            found[op.dst.buffer.name] = made
    return found


def range_of(view: View, known: Mapping[str, Ranges]) -> Ranges:
    """The ranges of the channels of a view."""
    found, channels = known.get(view.buffer.name), view.shape[3]
    if found is None or len(found.low) != view.buffer.shape[3]:
        return Ranges(np.full(channels, -128, np.int64), np.full(channels, 127, np.int64))
    part = slice(view.c, view.c + channels)
    return Ranges(found.low[part], found.high[part])


def _made(op: DeviceOp, known: Mapping[str, Ranges], bits: int) -> Ranges | None:
    """The ranges of an operator's results; None if it does not matter what it reads."""
    if isinstance(op, Conv):
        return _of_conv(op, range_of(op.src, known), bits)
    if isinstance(op, Add | Multiply):
        return _of_pair(op, range_of(op.a, known), range_of(op.b, known), bits)
    if isinstance(op, Pool):
        return _of_pool(op, range_of(op.src, known), bits)
    if isinstance(op, Rescale | Pad):
        given = range_of(op.src, known)
        if isinstance(op, Rescale) and op.unchanged:
            return given
        if isinstance(op, Pad):
            given = Ranges(np.minimum(given.low, op.fill), np.maximum(given.high, op.fill))
        return _requantised(op, given.low - op.x_zero, given.high - op.x_zero, op.scale, bits)
    return None


def _of_conv(op: Conv, given: Ranges, bits: int) -> Ranges | None:
    if op.pool is not None or op.epilogue is not None:
        return None
    low, high = given.low - op.x_zero, given.high - op.x_zero
    if any(op.window.pad):  # a product with padding is 0
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    least, most = _sums(op, low, high)
    return _requantised(op, least, most, op.scale, bits)


def _sums(op: Conv, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest sum of products, with the bias, for inputs between two ends (channels,).

    Both are sums of products with the middle of the ends, less and plus those of absolute values with half of what is
    between them. float64 has these integers exactly.
    """
    out, inner = len(op.weight), op.weight.shape[3]
    weight = op.weight.reshape(op.groups, out // op.groups, -1)
    ends = np.stack([low + high, high - low], axis=1).astype(np.float64).reshape(op.groups, inner, 2)
    ends = np.tile(ends, (1, weight.shape[2] // inner, 1))
    twice = np.empty((out, 2))
    rows = max(1, _CHUNK // weight[:, 0].size)
    for first in range(0, weight.shape[1], rows):
        numbers = weight[:, first : first + rows].astype(np.float64)
        middle = numbers @ ends[..., :1]
        spread = np.abs(numbers, out=numbers) @ ends[..., 1:]
        part = np.concatenate([middle - spread, middle + spread], axis=-1)
        twice.reshape(op.groups, -1, 2)[:, first : first + rows] = part
    least, most = (twice / 2).astype(np.int64).T + op.bias
    return least, most


def _of_pool(op: Pool, given: Ranges, bits: int) -> Ranges | None:
    if op.kind == "max":
        if not _reaches(op.window):
            return None
        return _requantised(op, given.low - op.x_zero, given.high - op.x_zero, op.scale, bits)
    zero = given.constant & (given.low == op.x_zero)  # whatever the divisor is
    end = np.where(zero, 0, _LARGEST)
    return _requantised(op, -end, end, op.scale, bits)


def _reaches(window: Window) -> bool:
    """Whether each window has an element that is not padding."""
    inside = all(pad < kernel for pad, kernel in zip(window.pad, window.kernel * 2, strict=True))
    return not any(window.pad) or (inside and window.dilation == (1, 1))


def _of_pair(op: Add | Multiply, a: Ranges, b: Ranges, bits: int) -> Ranges:
    """Results of two constants, by the operator itself; others are anything in its clamp."""
    shape = (1, 1, 1, len(a.low))
    pixel = View(Buffer("pixel", shape), shape)
    given = tuple(item.low.astype(np.int8).reshape(shape) for item in (a, b))
    made = operator_of(op).evaluate(op.on(lambda _: pixel), given, bits).reshape(-1).astype(np.int64)
    fixed = a.constant & b.constant
    low, high = _ends(op)
    return Ranges(np.where(fixed, made, low), np.where(fixed, made, high))


def _ends(op: DeviceOp) -> tuple[int, int]:
    """The least and the greatest result that an operator can have at all."""
    if op.lookup is None:
        return op.low, op.high
    entries = op.lookup[op.low + 128 : op.high + 129]
    return int(entries.min()), int(entries.max())


def _requantised(
    op: DeviceOp, least: np.ndarray, most: np.ndarray, scale: np.ndarray | float, bits: int
) -> Ranges | None:
    """Sums between two ends (channels,), requantised as the operator does it."""
    if np.any(np.asarray(scale) <= 0):
        return None
    axes = "c" if np.ndim(scale) else ""
    known = (least >= -_LARGEST) & (most <= _LARGEST)
    least, most = (np.where(known, end, 0) for end in (least, most))
    low, high = (requantise(Value(end, "c"), scale, axes, op, bits).array for end in (least, most))
    low, high = np.where(known, low, op.low), np.where(known, high, op.high)
    if op.lookup is not None:
        parts = [op.lookup[a + 128 : b + 129] for a, b in zip(low.tolist(), high.tolist(), strict=True)]
        low, high = (np.array([end(part) for part in parts], np.int64) for end in (np.min, np.max))
    return Ranges(low, high)
