"""Max pooling of a convolution's result becomes part of the convolution.

Requantisation is monotone, so the maximum commutes with it: the device reduces while it drains the accumulator.
Windows that overlap then cost products twice, where tiles are small: the back end may `separate` them again.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from weft.compiler.ir.graph import Buffer, Conv, DeviceSegment, Pool, View, readers


def fuse_pool(segment: DeviceSegment) -> DeviceSegment:
    """Fuse every max `Pool` into the `Conv` before it, if nobody else reads the convolution's result."""
    reads = readers(segment.ops)
    writers = {op.dst.buffer.name: op for op in segment.ops}
    fused: dict[int, Conv] = {}
    dropped: set[int] = set()
    for op in segment.ops:
        conv = writers.get(op.src.buffer.name) if isinstance(op, Pool) else None
        if isinstance(conv, Conv) and isinstance(op, Pool) and _fusible(conv, op, reads):
            fused[id(conv)] = _merge(conv, op)
            dropped.add(id(op))
    return dataclasses.replace(
        segment, ops=tuple(fused.get(id(op), op) for op in segment.ops if id(op) not in dropped)
    )


def separate(conv: Conv) -> tuple[Conv, Pool]:
    """A convolution and its pooling, one after the other, with a buffer between them. Both clamp to what is left."""
    window, (n, h, w, _) = conv.pool, conv.src.shape
    assert window is not None
    between = Buffer(f"{conv.name}/unpooled", (n, *conv.window.output(h, w), conv.dst.shape[3]))
    view = View(between, between.shape)
    pool = Pool(
        f"{conv.name}/pool", view, conv.dst, "max", window, 1.0, conv.y_zero, conv.y_zero, conv.low, conv.high
    )
    return dataclasses.replace(conv, dst=view, pool=None), pool


def _merge(conv: Conv, pool: Pool) -> Conv:
    return dataclasses.replace(
        conv,
        name=f"{conv.name}+{pool.name}",
        dst=pool.dst,
        pool=pool.window,
        low=max(conv.low, pool.low),
        high=min(conv.high, pool.high),
    )


def _fusible(conv: Conv, pool: Pool, reads: Counter[str]) -> bool:
    if conv.pool is not None or conv.then is not None:
        return False
    if pool.kind != "max" or pool.scale != 1.0 or pool.x_zero != pool.y_zero:
        return False
    if max(conv.low, pool.low) > min(conv.high, pool.high):
        return False
    name = conv.dst.buffer.name
    whole = conv.dst.contiguous and pool.src == View(conv.dst.buffer, conv.dst.shape)
    alone = conv.dst.buffer.kind == "temp" and reads[name] == 1
    return whole and alone
