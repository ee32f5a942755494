"""Channels that nothing depends on are not computed: those that are always the same byte, and those nobody reads.

Training leaves such channels behind: filters whose weights are all zero, or that ReLU cuts off for all inputs. What a
constant channel adds to the sums of the next convolution goes into its bias.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import (
    Add,
    Buffer,
    Conv,
    DeviceOp,
    DeviceSegment,
    Multiply,
    Pad,
    Pool,
    Rescale,
    View,
    Window,
)
from weft.compiler.ir.microops import Value, requantise
from weft.compiler.operators.record import operator_of
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config

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


_CHANNELWISE = (Add, Multiply, Pad, Pool, Rescale)
_INT32 = 1 << 31

Kept = Mapping[str, np.ndarray]
"""By the names of buffers the channels that stay, in order."""


def drop_channels(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Channels that are the same byte for all inputs, or that no operator depends on, are left out, where fewer vectors
    of channels are left.

    Only convolutions make and take other channels; operators between them that work on each channel by itself keep the
    same ones.
    """
    kept, ranges = _kept(segment.ops, planner.config)
    if not kept:
        return segment
    return dataclasses.replace(segment, ops=tuple(_narrowed(op, kept, ranges) for op in segment.ops))


def channels_left_out(segment: DeviceSegment, config: Config) -> tuple[int, int]:
    """How many channels of convolutions `drop_channels` leaves out, of all that there are."""
    kept, _ = _kept(segment.ops, config)
    made = {op.dst.buffer.name: op.dst.shape[3] for op in segment.ops if isinstance(op, Conv)}
    return sum(size - len(kept[name]) for name, size in made.items() if name in kept), sum(made.values())


def _kept(ops: Sequence[DeviceOp], config: Config) -> tuple[dict[str, np.ndarray], dict[str, Ranges]]:
    """The channels that stay of buffers that lose some: full vectors of N, or all that are needed; and the ranges of
    all."""
    ranges, n = channel_ranges(ops, config.mantissa_bits), config.n
    groups = _Groups(ops)
    for op in ops:
        groups.need(op, ranges)
    kept = {}
    for name, needed in groups.needed():
        most = min(len(needed), -(-max(int(needed.sum()), 1) // n) * n)
        if most < len(needed):
            order = np.argsort(~needed, kind="stable")  # those that are needed come first
            kept[name] = np.sort(order[:most])
    return kept, ranges


class _Groups:
    """Buffers that have to keep the same channels, and which of these are needed.

    All views of such buffers are whole; of other buffers all channels are needed.
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
        """Note what an operator needs."""
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

    def needed(self) -> Iterator[tuple[str, np.ndarray]]:
        """Names of buffers, and which of their channels are needed."""
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


def _folded(op: Conv, given: Ranges, gone: np.ndarray) -> np.ndarray:
    """What channels that are `gone` (channels,) add to each sum of a convolution, unless nothing: int64 (outputs,)."""
    some = gone & given.constant
    values = (given.low - op.x_zero)[some]
    return np.asarray((op.weight[..., some].sum(axis=(1, 2), dtype=np.int64) * values).sum(axis=1))


def _foldable(op: Conv, given: Ranges) -> np.ndarray:
    """Which channels a convolution can do without: bool (channels,).

    Constants add the same to all sums, unless a part of them reads padding, which adds nothing.
    """
    same = given.constant & ((given.low == op.x_zero) | (not any(op.window.pad)))
    found = same | ~op.weight.any(axis=(0, 1, 2))
    fits = (np.abs(op.bias + _folded(op, given, found)) < _INT32).all()
    return np.asarray(found if bool(fits) else np.zeros_like(found))


def _narrowed(op: DeviceOp, kept: Kept, ranges: Mapping[str, Ranges]) -> DeviceOp:
    """An operator on buffers with the channels that stay."""

    def view_of(view: View) -> View:
        if view.buffer.name not in kept:
            return view
        channels = len(kept[view.buffer.name])
        shape, whole = (*view.shape[:3], channels), (*view.buffer.shape[:3], channels)
        return dataclasses.replace(view, shape=shape, buffer=dataclasses.replace(view.buffer, shape=whole))

    if isinstance(op, Conv):
        op = _fewer(op, kept.get(op.src.buffer.name), kept.get(op.dst.buffer.name), range_of(op.src, ranges))
    return op.on(view_of)


def _fewer(op: Conv, inputs: np.ndarray | None, outputs: np.ndarray | None, given: Ranges) -> Conv:
    """The weights of a convolution with fewer inputs or outputs."""
    weight, bias, scale, groups = op.weight, op.bias, op.scale, op.groups
    if inputs is not None and groups == 1:
        gone = np.ones(weight.shape[3], bool)
        gone[inputs] = False
        bias = (bias + _folded(op, given, gone)).astype(np.int32)
        weight = weight[..., inputs]
    if outputs is not None:
        weight, bias, scale = weight[outputs], bias[outputs], scale[outputs]
        groups = groups if groups == 1 else len(outputs)
    return op.replace(weight=weight, bias=bias, scale=scale, groups=groups)
