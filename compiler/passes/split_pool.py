"""Splitting of pools that are too large for the scratchpad, or faster in two steps, and merging of the steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Pool
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.planner import Planner

_GAIN = 0.9
"""Most cycles of a maximum in two steps, as a fraction of one step's: the buffer between them may go to memory."""


def split_pool(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Split pools that do not fit the scratchpad: averages become sums on the array, maxima one pool per axis.

    Maxima over overlapping windows are also split where that is faster. Averages with room for one window at a time
    stay if that is no slower by estimate.
    """
    parts = (_split(op, planner) if isinstance(op, Pool) else (op,) for op in segment.ops)
    return dataclasses.replace(segment, ops=tuple(op for part in parts for op in part))


def fits(op: DeviceOp, planner: Planner) -> bool:
    """Return whether an operator has a plan after this pass."""
    parts = _split(op, planner) if isinstance(op, Pool) else (op,)
    return all(planner.plan(part) is not None for part in parts)


def _split(op: Pool, planner: Planner) -> tuple[DeviceOp, ...]:
    kh, kw = op.window.kernel
    # Pixels under one window; two of them and parameters must fit the scratchpad.
    spans = [(k - 1) * d + 1 for k, d in zip(op.window.kernel, op.window.dilation, strict=True)]
    window_pixels = min(spans[0], op.src.shape[1]) * min(spans[1], op.src.shape[2])
    if window_pixels * 2 + 64 * 8 <= planner.config.scratchpad_size or kh * kw == 1:
        return _quicker(op, planner)
    if op.kind == "average" and op.window.pad == (0, 0, 0, 0):
        sums = _sums(op)
        return (op,) if _cycles(op, planner) < _cycles(sums, planner) else (sums,)
    return _maxima(op) if op.kind == "max" and kh > 1 and kw > 1 else (op,)


def _quicker(op: Pool, planner: Planner) -> tuple[DeviceOp, ...]:
    """Split a maximum into columns, then rows, if that is faster: with overlapping windows it reads fewer elements."""
    if op.kind != "max" or 1 in op.window.kernel:
        return (op,)
    parts = _maxima(op)
    quicker = sum(_cycles(part, planner) for part in parts) < _GAIN * _cycles(op, planner)
    return parts if quicker else (op,)


def _cycles(op: DeviceOp, planner: Planner) -> float:
    cost = planner.cost(op)
    return math.inf if cost is None else cost.cycles


def _sums(op: Pool) -> Conv:
    """Return an average without padding as a depthwise convolution with weights of one."""
    (kh, kw), channels = op.window.kernel, op.src.shape[3]
    return Conv(
        op.name, op.src, op.dst, np.ones((channels, kh, kw, 1), np.int16), np.zeros(channels, np.int32),
        np.full(channels, op.scale / (kh * kw)), op.window, channels, op.x_zero, op.y_zero, op.low, op.high,
        lookup=op.lookup,
    )  # fmt: skip


def _maxima(op: Pool) -> tuple[Pool, Pool]:
    """Return the maximum over columns, and the maximum over rows of its result."""
    (kh, kw), (sy, sx), (dy, dx) = op.window.kernel, op.window.stride, op.window.dilation
    top, left, bottom, right = op.window.pad
    n, h, _, c = op.src.shape
    between = Buffer(f"{op.name}/columns", (n, h, op.dst.shape[2], c))
    view = View(between, between.shape)
    columns = Window((1, kw), (1, sx), (1, dx), (0, left, 0, right))
    rows = Window((kh, 1), (sy, 1), (dy, 1), (top, 0, bottom, 0))
    return (
        Pool(f"{op.name}/columns", op.src, view, "max", columns),
        op.replace(src=view, window=rows),
    )


def merge_split_pools(ops: Sequence[DeviceOp]) -> list[DeviceOp]:
    """Return the operators with maxima over columns and then rows merged into maxima over both axes.

    That takes longer, but needs no buffer between the two.
    """
    merged: list[DeviceOp] = []
    for op in ops:
        before = merged[-1] if merged else None
        if isinstance(op, Pool) and isinstance(before, Pool) and are_split_pool(before, op):
            columns, rows = before.window, op.window
            (top, _, bottom, _), (_, left, _, right) = rows.pad, columns.pad
            window = Window(
                (rows.kernel[0], columns.kernel[1]),
                (rows.stride[0], columns.stride[1]),
                (rows.dilation[0], columns.dilation[1]),
                (top, left, bottom, right),
            )
            merged[-1] = op.replace(src=before.src, window=window, plan=None)
        else:
            merged.append(op)
    return merged


def are_split_pool(columns: Pool, rows: Pool) -> bool:
    """Return whether two maxima are the two steps that `split_pool` makes of one."""
    return (
        columns.kind == rows.kind == "max"
        and columns.name == f"{rows.name}/columns"
        and columns.dst == rows.src
        and (columns.window.kernel[0], rows.window.kernel[1]) == (1, 1)
    )
