"""Additions and requantisations of a convolution's result become part of the convolution: the result stays on chip.

Whether that pays is decided for a configuration, in `weft.compiler.backend`.
"""

from __future__ import annotations

import dataclasses

from weft.compiler.ir import Add, Conv, DeviceOp, DeviceSegment, Rescale, View, sources


def fuse_then(segment: DeviceSegment) -> DeviceSegment:
    """Fuse every `Add` and `Rescale` into a `Conv` whose result nobody else reads; of two, into the later one."""
    ops: list[DeviceOp] = list(segment.ops)
    for op in segment.ops:
        if not isinstance(op, Add | Rescale):
            continue
        fusible = [conv for conv in ops if isinstance(conv, Conv) and _fusible(ops, conv, op)]
        if fusible:
            ops[ops.index(op)] = _merge(fusible[-1], op)
            ops.remove(fusible[-1])
    return dataclasses.replace(segment, ops=tuple(ops))


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


def _fusible(ops: list[DeviceOp], conv: Conv, op: Add | Rescale) -> bool:
    name = conv.dst.buffer.name
    if conv.then is not None or conv.dst.buffer.kind != "temp":
        return False
    writers = sum(item.dst.buffer.name == name for item in ops)
    readers = sum(view.buffer.name == name for item in ops for view in sources(item))
    whole = conv.dst.contiguous and View(conv.dst.buffer, conv.dst.shape) in sources(op)
    # A convolution must not write into a buffer that it reads, which the other operators may.
    apart = op.dst.buffer.name not in {view.buffer.name for view in (conv.src, *sources(op))}
    return writers == readers == 1 and whole and apart
