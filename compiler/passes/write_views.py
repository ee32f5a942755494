"""Copies into views disappear: an operator whose result is only copied writes the copy's destination itself."""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Rescale, readers
from weft.compiler.passes.fusion import keeps_fitting
from weft.compiler.planner import Planner


def write_views(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Copies of unchanged bytes disappear: who writes the source, and no other reads, writes the copy."""
    ops: list[DeviceOp | None] = list(segment.ops)
    reads = readers(segment.ops)
    written = {name: set(places) for name, places in segment.index.writers.items()}
    for at, copy in enumerate(segment.ops):
        if not isinstance(copy, Rescale) or not copy.unchanged or copy.src.buffer.kind != "temp":
            continue
        source, target = copy.src.buffer.name, copy.dst.buffer.name
        if len(written.get(source, ())) != 1 or reads[source] != 1:
            continue
        (place,) = written[source]
        writer = ops[place]
        assert writer is not None
        moved = writer.replace(dst=copy.dst)
        plain = writer.dst == copy.src and writer.dst.contiguous and not _reads_destination(writer, copy)
        if plain and keeps_fitting(writer, moved, planner):
            ops[place], ops[at] = moved, None
            del written[source]
            written[target] ^= {at, place}
    return dataclasses.replace(segment, ops=tuple(op for op in ops if op is not None))


def _reads_destination(writer: DeviceOp, copy: Rescale) -> bool:
    """A writer must not write into the buffer it reads."""
    return any(view.buffer.name == copy.dst.buffer.name for view in writer.sources)
