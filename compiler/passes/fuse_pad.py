"""Padding that is an operator becomes that of the convolutions and pools that read it.

Exporters of TensorFlow pad ahead of convolutions with strides, whose padding is not the same on both sides.
"""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Pad, Pool, Window
from weft.compiler.ir.windows import Axis
from weft.compiler.passes.fusion import keeps_fitting
from weft.compiler.planner import Planner


def fuse_pad(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Padding becomes that of the convolutions and pools behind it, if nobody else reads what is padded."""
    ops: dict[int, DeviceOp] = dict(enumerate(segment.ops))
    readers = {name: {at for at, _ in reads} for name, reads in segment.index.reads.items()}
    for at, pad in enumerate(segment.ops):
        if not isinstance(pad, Pad) or not _plain(pad):
            continue
        found = {place: _padded(pad, ops[place]) for place in readers.get(pad.dst.buffer.name, ())}
        joined = {
            place: op
            for place, op in found.items()
            if op is not None and keeps_fitting(ops[place], op, planner)
        }
        if found and len(joined) == len(found):
            ops |= joined
            readers.setdefault(pad.src.buffer.name, set()).update(joined)
            readers[pad.src.buffer.name].discard(at)
            del ops[at]
    return dataclasses.replace(segment, ops=tuple(ops.values()))


def _plain(pad: Pad) -> bool:
    """Whether it changes no byte of what it pads, in a temporary of its own."""
    return pad.unchanged and pad.dst.contiguous and pad.dst.buffer.kind == "temp"


def _padded(pad: Pad, op: DeviceOp) -> DeviceOp | None:
    """An operator that reads what is padded, with the padding as its own; None if that is not the same."""
    if not isinstance(op, Conv | Pool) or op.src != pad.dst or len(op.sources) > 1:
        return None
    (a, b, c, d), (e, f, g, h) = op.window.pad, pad.window.pad
    window = dataclasses.replace(op.window, pad=(a + e, b + f, c + g, d + h))
    if isinstance(op, Conv):
        return op.replace(src=pad.src, window=window) if pad.fill == op.x_zero else None
    if op.kind == "max":
        # The least byte is never above another: to leave it out is the same.
        return op.replace(src=pad.src, window=window) if pad.fill == -128 and _filled(pad, window) else None
    counted = op.include_pad or not any(op.window.pad)
    return (
        op.replace(src=pad.src, window=window, include_pad=True)
        if counted and pad.fill == op.x_zero
        else None
    )


def _filled(pad: Pad, window: Window) -> bool:
    """Whether every window holds an element of the input."""
    _, h, w, _ = pad.src.shape
    return all(
        Axis(size, count, window.kernel[axis], window.stride[axis], window.dilation[axis], window.pad[axis],
             window.pad[axis + 2]).inside().all()
        for axis, (size, count) in enumerate(zip((h, w), window.output(h, w), strict=True))
    )  # fmt: skip
