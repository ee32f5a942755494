"""Channels that nothing depends on are not computed: those that are always the same byte, and those nobody reads.

Training leaves such channels behind: filters whose weights are all zero, or that ReLU cuts off for all inputs. What a
constant channel adds to the sums of the next convolution goes into its bias.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pad, Pool, Rescale, View
from weft.compiler.passes.channel_ranges import Ranges, channel_ranges, range_of
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config

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
