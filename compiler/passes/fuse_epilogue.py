"""Sums, products and requantisations of a convolution's result become its epilogue: the result stays on chip."""

from __future__ import annotations

import dataclasses
from collections import Counter

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Rescale, View, readers
from weft.compiler.passes.fusion import fused_or_apart
from weft.compiler.planner import Planner


def fuse_epilogue(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Sums, products and requantisations become part of a convolution before them, where that takes no longer and
    moves no more data.

    Nobody else may read the convolution's result; of two convolutions it is the later one. Where they stay apart, one
    follows the other.
    """
    reads = readers(segment.ops)
    writers = Counter(op.dst.buffer.name for op in segment.ops)
    convs = {op.dst.buffer.name: (index, op) for index, op in enumerate(segment.ops) if isinstance(op, Conv)}
    made: list[tuple[DeviceOp, ...]] = [(op,) for op in segment.ops]
    for index, op in enumerate(segment.ops):
        if not isinstance(op, Add | Multiply | Rescale):
            continue
        names = [view.buffer.name for view in op.sources]
        found = [convs[name] for name in names if name in convs and reads[name] == writers[name] == 1]
        fusible = [(at, conv) for at, conv in found if _fusible(conv, op)]
        if fusible:
            at, conv = max(fusible, key=lambda item: item[0])
            made[at], made[index] = (), _joined(conv, op, planner)
    return dataclasses.replace(segment, ops=tuple(op for part in made for op in part))


def _joined(conv: Conv, op: Add | Multiply | Rescale, planner: Planner) -> tuple[DeviceOp, ...]:
    """Both as one operator or as two; the convolution's result is the first operand."""
    if not isinstance(op, Rescale) and op.a.buffer.name != conv.dst.buffer.name:
        scales = {"a_scale": op.b_scale, "b_scale": op.a_scale} if isinstance(op, Add) else {}
        op = op.replace(a=op.b, b=op.a, a_zero=op.b_zero, b_zero=op.a_zero, **scales)
    fused = dataclasses.replace(conv, name=f"{conv.name}+{op.name}", dst=op.dst, epilogue=op)
    return fused_or_apart(fused, conv, op, planner, traffic=True)


def _fusible(conv: Conv, op: Add | Multiply | Rescale) -> bool:
    whole = conv.dst.contiguous and View(conv.dst.buffer, conv.dst.shape) in op.sources
    # A convolution must not write into a buffer that it reads, which the other operators may.
    apart = op.dst.buffer.name not in {view.buffer.name for view in (conv.src, *op.sources)}
    if len({view.shape for view in op.sources}) > 1:
        return False  # one image, row or column for all
    if isinstance(op, Add) and op.b_scale < 0 and op.a.buffer.name != conv.dst.buffer.name:
        return False  # only the second operand can be subtracted
    return conv.epilogue is None and conv.dst.buffer.kind == "temp" and whole and apart
