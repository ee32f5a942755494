"""Copies into views disappear: an operator whose result is only copied writes the copy's destination itself."""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Rescale, sources


def write_views(segment: DeviceSegment) -> DeviceSegment:
    """Drop every `Rescale` that copies unchanged bytes, if its source has no other reader and a single writer."""
    ops = list(segment.ops)
    for copy in segment.ops:
        if not isinstance(copy, Rescale) or not _plain(copy):
            continue
        name = copy.src.buffer.name
        writers = [op for op in ops if op.dst.buffer.name == name]
        readers = [op for op in ops for view in sources(op) if view.buffer.name == name]
        if len(writers) != 1 or len(readers) != 1 or copy.src.buffer.kind != "temp":
            continue
        writer = writers[0]
        if writer.dst == copy.src and writer.dst.contiguous and not _reads_destination(writer, copy):
            ops[ops.index(writer)] = dataclasses.replace(writer, dst=copy.dst)
            ops.remove(copy)
    return dataclasses.replace(segment, ops=tuple(ops))


def _plain(op: Rescale) -> bool:
    return op.scale == 1.0 and op.x_zero == op.y_zero and (op.low, op.high) == (-128, 127)


def _reads_destination(writer: DeviceOp, copy: Rescale) -> bool:
    """A writer must not write into the buffer it reads."""
    return any(view.buffer.name == copy.dst.buffer.name for view in sources(writer))
