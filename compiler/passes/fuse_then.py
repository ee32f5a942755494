"""Additions and requantisations of a convolution's result become part of the convolution: the result stays on chip.

Whether that pays is decided for a configuration, in `weft.compiler.backend`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Rescale, View, readers, sources


def fuse_then(segment: DeviceSegment) -> DeviceSegment:
    """Fuse every `Add` and `Rescale` into a `Conv` whose result nobody else reads; of two, into the later one."""
    reads = readers(segment.ops)
    writers = Counter(op.dst.buffer.name for op in segment.ops)
    convs = {op.dst.buffer.name: (index, op) for index, op in enumerate(segment.ops) if isinstance(op, Conv)}
    ops: list[DeviceOp | None] = list(segment.ops)
    for index, op in enumerate(segment.ops):
        if not isinstance(op, Add | Rescale):
            continue
        names = [view.buffer.name for view in sources(op)]
        found = [convs[name] for name in names if name in convs and reads[name] == writers[name] == 1]
        fusible = [(at, conv) for at, conv in found if _fusible(conv, op)]
        if fusible:
            at, conv = max(fusible, key=lambda item: item[0])
            ops[at], ops[index] = None, _merge(conv, op)
    return dataclasses.replace(segment, ops=tuple(op for op in ops if op is not None))


def separate(conv: Conv) -> tuple[Conv, Add | Rescale]:
    """What `fuse_then` made a convolution with something behind it of."""
    then = conv.then
    assert then is not None
    name = conv.name.removesuffix(f"+{then.name}")
    return dataclasses.replace(conv, name=name, dst=sources(then)[0], then=None), then


def _merge(conv: Conv, op: Add | Rescale) -> Conv:
    if isinstance(op, Add) and op.a.buffer.name != conv.dst.buffer.name:
        op = dataclasses.replace(
            op, a=op.b, b=op.a, a_scale=op.b_scale, b_scale=op.a_scale, a_zero=op.b_zero, b_zero=op.a_zero
        )
    return dataclasses.replace(conv, name=f"{conv.name}+{op.name}", dst=op.dst, then=op)


def _fusible(conv: Conv, op: Add | Rescale) -> bool:
    whole = conv.dst.contiguous and View(conv.dst.buffer, conv.dst.shape) in sources(op)
    # A convolution must not write into a buffer that it reads, which the other operators may.
    apart = op.dst.buffer.name not in {view.buffer.name for view in (conv.src, *sources(op))}
    return conv.then is None and conv.dst.buffer.kind == "temp" and whole and apart
