"""What a part of a segment takes by estimate, once later passes have made theirs of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, View, readers


def part_of(inside: Sequence[DeviceOp], segment: DeviceSegment) -> DeviceSegment:
    """Some of the operators of a segment, in an order of theirs, as a segment: what others read of their results are
    outputs there, which can be no part of another operator, and stay on chip for none."""
    reads, own = segment.index.reads, readers(inside)

    def seen(view: View) -> View:
        buffer = view.buffer
        outside = buffer.kind == "temp" and len(reads.get(buffer.name, ())) > own[buffer.name]
        return (
            dataclasses.replace(view, buffer=dataclasses.replace(buffer, kind="output")) if outside else view
        )

    made = []
    for op in inside:
        epilogue = getattr(op, "epilogue", None)
        made.append(op.on(seen) if epilogue is None else op.on(seen).replace(epilogue=epilogue.on(seen)))
    return DeviceSegment(segment.name, tuple(made))
