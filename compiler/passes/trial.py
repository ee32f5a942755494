"""Parts of a segment for trial estimates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, View, readers


def part_of(inside: Sequence[DeviceOp], segment: DeviceSegment) -> DeviceSegment:
    """Return some operators of a segment, in an order of their own, as a segment.

    Results that other operators read become outputs: they then cannot be fused, nor stay on chip.
    """
    reads, own = segment.index.reads, readers(inside)

    def outside_as_output(view: View) -> View:
        buffer = view.buffer
        outside = buffer.kind == "temp" and len(reads.get(buffer.name, ())) > own[buffer.name]
        return (
            dataclasses.replace(view, buffer=dataclasses.replace(buffer, kind="output")) if outside else view
        )

    ops = []
    for op in inside:
        epilogue = getattr(op, "epilogue", None)
        ops.append(
            op.map_views(outside_as_output)
            if epilogue is None
            else op.map_views(outside_as_output).replace(epilogue=epilogue.map_views(outside_as_output))
        )
    return DeviceSegment(segment.name, tuple(ops))
