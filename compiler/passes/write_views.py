"""Copies into views disappear: an operator whose result is only copied writes the copy's destination itself."""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Rescale
from weft.compiler.passes.fusion import keeps_fitting
from weft.compiler.planner import Planner


def write_views(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Copies of unchanged bytes disappear: who writes the source, and no other reads, writes the copy."""
    ops = list(segment.ops)
    for copy in segment.ops:
        if not isinstance(copy, Rescale) or not copy.unchanged:
            continue
        name = copy.src.buffer.name
        writers = [op for op in ops if op.dst.buffer.name == name]
        readers = [op for op in ops for view in op.sources if view.buffer.name == name]
        if len(writers) != 1 or len(readers) != 1 or copy.src.buffer.kind != "temp":
            continue
        writer = writers[0]
        plain = writer.dst == copy.src and writer.dst.contiguous and not _reads_destination(writer, copy)
        moved = writer.replace(dst=copy.dst)
        if plain and keeps_fitting(writer, moved, planner):
            ops[ops.index(writer)] = moved
            ops.remove(copy)
    return dataclasses.replace(segment, ops=tuple(ops))


def _reads_destination(writer: DeviceOp, copy: Rescale) -> bool:
    """A writer must not write into the buffer it reads."""
    return any(view.buffer.name == copy.dst.buffer.name for view in writer.sources)
