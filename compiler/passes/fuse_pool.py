"""Max pooling of a convolution's result becomes part of the convolution.

Requantisation is monotone, so the maximum commutes with it: the device reduces while it drains the accumulator.
Windows that overlap then cost products twice, where tiles are small.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Pool, View, readers
from weft.compiler.machine.coordinates import is_far
from weft.compiler.passes.fuse_lookup import composed, rising
from weft.compiler.passes.fusion import fused_or_apart
from weft.compiler.planner import Planner


def fuse_pool(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Max pooling becomes part of the convolution before it, where that takes no longer.

    Nobody else may read the convolution's result. Where they stay apart, one follows the other.
    """
    reads = readers(segment.ops)
    writers = {op.dst.buffer.name: op for op in segment.ops}
    made: dict[int, tuple[DeviceOp, ...]] = {}
    for op in segment.ops:
        conv = writers.get(op.src.buffer.name) if isinstance(op, Pool) else None
        if isinstance(conv, Conv) and isinstance(op, Pool) and _fusible(conv, op, reads):
            made |= {id(conv): _joined(conv, op, planner), id(op): ()}
    return dataclasses.replace(
        segment, ops=tuple(part for op in segment.ops for part in made.get(id(op), (op,)))
    )


def _joined(conv: Conv, pool: Pool, planner: Planner) -> tuple[DeviceOp, ...]:
    """Both as one operator or, with the same clamp and a buffer between them, as two."""
    name, low, high = f"{conv.name}+{pool.name}", max(conv.low, pool.low), min(conv.high, pool.high)
    between = View(dataclasses.replace(conv.dst.buffer, name=f"{name}/unpooled"), conv.dst.shape)
    alone = dataclasses.replace(conv, name=name, dst=between, low=low, high=high)
    fused = dataclasses.replace(
        alone, dst=pool.dst, pool=pool.window, lookup=composed(conv.lookup, pool.lookup)
    )
    behind = dataclasses.replace(pool, name=f"{name}/pool", src=between, low=low, high=high)
    return fused_or_apart(fused, alone, behind, planner, traffic=False)


def _fusible(conv: Conv, pool: Pool, reads: Counter[str]) -> bool:
    if conv.pool is not None or conv.epilogue is not None:
        return False
    if pool.kind != "max" or pool.scale != 1.0 or pool.x_zero != pool.y_zero:
        return False
    if max(conv.low, pool.low) > min(conv.high, pool.high):
        return False
    if conv.lookup is not None and ((pool.low, pool.high) != (-128, 127) or not rising(conv.lookup)):
        return False
    if is_far(pool.window, 0) or is_far(pool.window, 1):
        return False
    name = conv.dst.buffer.name
    whole = conv.dst.contiguous and pool.src == View(conv.dst.buffer, conv.dst.shape)
    return conv.dst.buffer.kind == "temp" and reads[name] == 1 and whole
