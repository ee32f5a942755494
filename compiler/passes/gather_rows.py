"""Interleaving of input rows for convolutions of few channels.

Pixels of few channels fill vectors badly, and LOAD joins only bytes that are adjacent in memory: pixels of a row.
Because the host writes the input anyway, it can interleave all rows that a row of windows covers, pixel by pixel. The
convolution then reads a single row of kh * cin channels, with kh * kw * cin bytes of contraction and no gaps. The
input takes up to kh / stride times the memory.
"""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, readers
from weft.compiler.ir.layout import Rows
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import PITCH_MAX
from weft.compiler.planner import Planner

_GAIN = 0.9
"""Most cycles with interleaved rows, as a fraction of the cycles without, to justify the memory."""


def gather_rows(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Interleave the rows of inputs that only one convolution reads, where that is a tenth faster by estimate."""
    reads, ops, rows = readers(segment.ops), list[DeviceOp](segment.ops), dict(segment.rows)
    for index, op in enumerate(segment.ops):
        if isinstance(op, Conv) and reads[op.src.buffer.name] == 1 and (change := _quicker(op, planner)):
            ops[index], rows[op.src.buffer.name] = change
    return dataclasses.replace(segment, ops=tuple(ops), rows=rows)


def gather_kernel_rows(op: Conv) -> tuple[Conv, Rows]:
    """Return a convolution, without groups, for an input with interleaved rows, and the interleaving."""
    (kh, kw), (sy, sx), (dy, dx) = op.window.kernel, op.window.stride, op.window.dilation
    top, left, _, right = op.window.pad
    n, h, w, c = op.src.shape
    rows = Rows(h, kh, sy, dy, top, op.window.output(h, w)[0], op.x_zero)
    shape = (n, rows.count, w, kh * c)
    src = View(Buffer(op.src.buffer.name, shape, op.src.buffer.kind), shape)
    # (out, kh, kw, c) to (out, 1, kw, kh * c): kernel rows become channels.
    weight = op.weight.transpose(0, 2, 1, 3).reshape(len(op.weight), 1, kw, kh * c)
    window = Window((1, kw), (1, sx), (1, dx), (0, left, 0, right))
    return dataclasses.replace(op, src=src, weight=weight, window=window), rows


def _quicker(op: Conv, planner: Planner) -> tuple[Conv, Rows] | None:
    kh, channels = op.window.kernel[0], op.src.shape[3]
    if (
        op.src.buffer.kind != "input"
        or not op.src.contiguous
        or op.groups > 1
        or kh == 1
        or kh * channels * op.window.stride[1] > PITCH_MAX
    ):
        return None
    changed = gather_kernel_rows(op)
    before, after = planner.cost(op), planner.cost(changed[0])
    return changed if before and after and after.cycles < _GAIN * before.cycles else None
