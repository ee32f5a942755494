"""Removal of channels that are constant, or that nothing reads.

Training leaves such channels behind: filters whose weights are all zero, or that ReLU cuts off for all inputs. The
contribution of a constant channel to the next convolution's sums goes into its bias.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pad, Pool, Rescale
from weft.compiler.ir.microops import Value, requantise
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.operators.record import operator_of
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config

_LARGEST = (1 << 31) - 1
_CHUNK = 1 << 18
"""Weights to process at a time."""


class Ranges(NamedTuple):
    """Least and greatest byte of each channel: int64 (channels,)."""

    low: np.ndarray
    high: np.ndarray

    @property
    def constant(self) -> np.ndarray:
        """Channels that are constant for all inputs: bool (channels,)."""
        return np.asarray(self.low == self.high)


def channel_ranges(ops: Sequence[DeviceOp], bits: int) -> dict[str, Ranges]:
    """Return the known ranges of buffers by name, for mantissas of `bits` bits.

    Buffers that several operators write, or that an operator writes in part, are unknown.
    """
    writers = Counter(op.dst.buffer.name for op in ops)
    ranges: dict[str, Ranges] = {}
    for op in ops:
        produced = _result_ranges(op, ranges, bits)
        if produced is not None and op.dst.contiguous and writers[op.dst.buffer.name] == 1:
            ranges[op.dst.buffer.name] = produced
    return ranges


def range_of(view: View, known: Mapping[str, Ranges]) -> Ranges:
    """Return the ranges of a view's channels."""
    ranges, channels = known.get(view.buffer.name), view.shape[3]
    if ranges is None or len(ranges.low) != view.buffer.shape[3]:
        return Ranges(np.full(channels, -128, np.int64), np.full(channels, 127, np.int64))
    part = slice(view.c, view.c + channels)
    return Ranges(ranges.low[part], ranges.high[part])


def _result_ranges(op: DeviceOp, known: Mapping[str, Ranges], bits: int) -> Ranges | None:
    """Return the ranges of an operator's results; None if they do not depend on its inputs' ranges."""
    if isinstance(op, Conv):
        return _of_conv(op, range_of(op.src, known), bits)
    if isinstance(op, Add | Multiply):
        return _of_pair(op, range_of(op.a, known), range_of(op.b, known), bits)
    if isinstance(op, Pool):
        return _of_pool(op, range_of(op.src, known), bits)
    if isinstance(op, Rescale | Pad):
        source = range_of(op.src, known)
        if isinstance(op, Rescale) and op.is_identity:
            return source
        if isinstance(op, Pad):
            source = Ranges(np.minimum(source.low, op.fill), np.maximum(source.high, op.fill))
        return _requantised_ranges(op, source.low - op.x_zero, source.high - op.x_zero, op.scale, bits)
    return None


def _of_conv(op: Conv, source: Ranges, bits: int) -> Ranges | None:
    if op.pool is not None or op.epilogue is not None:
        return None
    low, high = source.low - op.x_zero, source.high - op.x_zero
    if any(op.window.pad):  # a product with padding is 0
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    least, most = _sums(op, low, high)
    return _requantised_ranges(op, least, most, op.scale, bits)


def _sums(op: Conv, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and greatest sum of products, with bias, for inputs between `low` and `high` (channels,).

    Both are the sum for the middle of the range, minus and plus the sum of absolute weights times half the range.
    float64 represents these integers exactly.
    """
    out, inner = len(op.weight), op.weight.shape[3]
    weight = op.weight.reshape(op.groups, out // op.groups, -1)
    # Twice the middle and twice half the range: integers, halved at the end.
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


def _of_pool(op: Pool, source: Ranges, bits: int) -> Ranges | None:
    if op.kind == "max":
        if not _reaches(op.window):
            return None
        return _requantised_ranges(op, source.low - op.x_zero, source.high - op.x_zero, op.scale, bits)
    zero = source.constant & (source.low == op.x_zero)  # then the average is zero, whatever the divisor
    end = np.where(zero, 0, _LARGEST)
    return _requantised_ranges(op, -end, end, op.scale, bits)


def _reaches(window: Window) -> bool:
    """Return whether each window covers an element that is not padding."""
    inside = all(pad < kernel for pad, kernel in zip(window.pad, window.kernel * 2, strict=True))
    return not any(window.pad) or (inside and window.dilation == (1, 1))


def _of_pair(op: Add | Multiply, a: Ranges, b: Ranges, bits: int) -> Ranges:
    """Return the ranges of an addition or product: exact for two constants, else the operator's clamp."""
    shape = (1, 1, 1, len(a.low))
    pixel = View(Buffer("pixel", shape), shape)
    values = tuple(item.low.astype(np.int8).reshape(shape) for item in (a, b))
    results = (
        operator_of(op).evaluate(op.map_views(lambda _: pixel), values, bits).reshape(-1).astype(np.int64)
    )
    fixed = a.constant & b.constant
    low, high = _ends(op)
    return Ranges(np.where(fixed, results, low), np.where(fixed, results, high))


def _ends(op: DeviceOp) -> tuple[int, int]:
    """Return the least and greatest result that an operator can have at all."""
    if op.lookup is None:
        return op.low, op.high
    entries = op.lookup[op.low + 128 : op.high + 129]
    return int(entries.min()), int(entries.max())


def _requantised_ranges(
    op: DeviceOp, least: np.ndarray, most: np.ndarray, scale: np.ndarray | float, bits: int
) -> Ranges | None:
    """Return the ranges of sums from `least` to `most` (channels,) after the operator's requantisation."""
    if np.any(np.asarray(scale) <= 0):
        return None
    axes = "c" if np.ndim(scale) else ""
    # Sums beyond 32 bits wrap on the device, so nothing is known about them.
    known = (least >= -_LARGEST) & (most <= _LARGEST)
    least, most = (np.where(known, end, 0) for end in (least, most))
    low, high = (requantise(Value(end, "c"), scale, axes, op, bits).array for end in (least, most))
    low, high = np.where(known, low, op.low), np.where(known, high, op.high)
    if op.lookup is not None:
        parts = [op.lookup[a + 128 : b + 129] for a, b in zip(low.tolist(), high.tolist(), strict=True)]
        low, high = (np.array([end(part) for part in parts], np.int64) for end in (np.min, np.max))
    return Ranges(low, high)


_CHANNELWISE = (Add, Multiply, Pad, Pool, Rescale)
_INT32 = 1 << 31

Kept = Mapping[str, np.ndarray]
"""Channels to keep, in order, by buffer name."""


def drop_channels(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Remove channels that are constant or that nothing depends on, where that leaves fewer vectors of channels.

    Only convolutions can change channels; elementwise operators between them keep the channels of their operands.
    """
    kept_channels, ranges = _channels_to_keep(segment.ops, planner.config)
    if not kept_channels:
        return segment
    return dataclasses.replace(segment, ops=tuple(_narrow(op, kept_channels, ranges) for op in segment.ops))


def channels_left_out(segment: DeviceSegment, config: Config) -> tuple[int, int]:
    """Return the number of convolution channels that `drop_channels` removes, and the total."""
    kept_channels, _ = _channels_to_keep(segment.ops, config)
    sizes = {op.dst.buffer.name: op.dst.shape[3] for op in segment.ops if isinstance(op, Conv)}
    return sum(size - len(kept_channels[name]) for name, size in sizes.items() if name in kept_channels), sum(
        sizes.values()
    )


def _channels_to_keep(
    ops: Sequence[DeviceOp], config: Config
) -> tuple[dict[str, np.ndarray], dict[str, Ranges]]:
    """Return the channels to keep, for buffers that lose some, and the ranges of all buffers.

    Kept channels fill whole vectors of N, or are all that are needed.
    """
    ranges, n = channel_ranges(ops, config.mantissa_bits), config.n
    groups = _Groups(ops)
    for op in ops:
        groups.need(op, ranges)
    kept_channels = {}
    for name, needed in groups.needed_channels():
        most = min(len(needed), -(-max(int(needed.sum()), 1) // n) * n)
        if most < len(needed):
            # Fill the last vector with channels that are not needed: that costs nothing.
            order = np.argsort(~needed, kind="stable")  # needed channels first
            kept_channels[name] = np.sort(order[:most])
    return kept_channels, ranges


class _Groups:
    """Union-find of buffers that must keep the same channels, with the channels that each group needs.

    All views of such buffers are whole; other buffers need all channels.
    """

    def __init__(self, ops: Sequence[DeviceOp]) -> None:
        self._parent: dict[str, str] = {}
        self._needed: dict[str, np.ndarray] = {}
        for view in (view for op in ops for view in (*op.sources, op.dst)):
            name, channels = view.buffer.name, view.shape[3]
            root = self._parent.setdefault(name, name)
            needed = self._needed.setdefault(root, np.zeros(channels, bool))
            plain = view.contiguous and len(needed) == channels
            if not plain or view.buffer.kind != "temp":
                needed[:] = True

    def need(self, op: DeviceOp, ranges: Mapping[str, Ranges]) -> None:
        """Record the channels that an operator needs."""
        if isinstance(op, Conv) and op.pool is None and op.epilogue is None:
            if op.groups == 1:
                self._add(op.src, ~_foldable(op, range_of(op.src, ranges)))
                return
            if op.groups == op.src.shape[3] == len(op.weight):
                self._join(op.src, op.dst)
                return
        if isinstance(op, _CHANNELWISE):
            for view in op.sources:
                self._join(view, op.dst)
            return
        for view in (*op.sources, op.dst):
            self._add(view, np.ones(view.shape[3], bool))

    def needed_channels(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield buffer names and their needed channels."""
        for name in self._parent:
            yield name, self._needed[self._root(name)]

    def _root(self, name: str) -> str:
        while self._parent[name] != name:
            self._parent[name] = self._parent[self._parent[name]]  # paths stay short
            name = self._parent[name]
        return name

    def _add(self, view: View, needed: np.ndarray) -> None:
        known = self._needed[self._root(view.buffer.name)]
        if len(known) == len(needed):
            known |= needed
        else:
            known[:] = True

    def _join(self, one: View, other: View) -> None:
        a, b = (self._root(view.buffer.name) for view in (one, other))
        if a == b:
            return
        if len(self._needed[a]) != len(self._needed[b]):
            self._needed[a][:] = self._needed[b][:] = True
            return
        self._parent[b] = a
        self._needed[a] |= self._needed.pop(b)


def _folded_bias(op: Conv, source: Ranges, gone: np.ndarray) -> np.ndarray:
    """Return the contribution of the removed channels `gone` (channels,) to each sum of a convolution: int64
    (outputs,)."""
    # Removed channels that are not constant have zero weights.
    some = gone & source.constant
    values = (source.low - op.x_zero)[some]
    return np.asarray((op.weight[..., some].sum(axis=(1, 2), dtype=np.int64) * values).sum(axis=1))


def _foldable(op: Conv, source: Ranges) -> np.ndarray:
    """Return the input channels that a convolution can do without: bool (channels,).

    A constant channel adds the same to all sums, unless some windows read padding, which adds nothing.
    """
    # A constant that equals the padding adds nothing anywhere.
    same = source.constant & ((source.low == op.x_zero) | (not any(op.window.pad)))
    removable = same | ~op.weight.any(axis=(0, 1, 2))
    fits = (np.abs(op.bias + _folded_bias(op, source, removable)) < _INT32).all()
    return np.asarray(removable if bool(fits) else np.zeros_like(removable))


def _narrow(op: DeviceOp, kept_channels: Kept, ranges: Mapping[str, Ranges]) -> DeviceOp:
    """Return an operator on buffers with fewer channels."""

    def view_of(view: View) -> View:
        if view.buffer.name not in kept_channels:
            return view
        channels = len(kept_channels[view.buffer.name])
        shape, buffer_shape = (*view.shape[:3], channels), (*view.buffer.shape[:3], channels)
        return dataclasses.replace(
            view, shape=shape, buffer=dataclasses.replace(view.buffer, shape=buffer_shape)
        )

    if isinstance(op, Conv):
        op = _select_channels(
            op,
            kept_channels.get(op.src.buffer.name),
            kept_channels.get(op.dst.buffer.name),
            range_of(op.src, ranges),
        )
    return op.map_views(view_of)


def _select_channels(op: Conv, inputs: np.ndarray | None, outputs: np.ndarray | None, source: Ranges) -> Conv:
    """Return a convolution with fewer input or output channels."""
    weight, bias, scale, groups = op.weight, op.bias, op.scale, op.groups
    if inputs is not None and groups == 1:
        gone = np.ones(weight.shape[3], bool)
        gone[inputs] = False
        bias = (bias + _folded_bias(op, source, gone)).astype(np.int32)
        weight = weight[..., inputs]
    if outputs is not None:
        weight, bias, scale = weight[outputs], bias[outputs], scale[outputs]
        groups = groups if groups == 1 else len(outputs)
    return op.replace(weight=weight, bias=bias, scale=scale, groups=groups)
