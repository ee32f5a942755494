"""Additions of a convolution's result become part of the convolution: the result stays on chip in between.

Whether a fused addition pays is decided for a configuration, in `weft.compiler.backend`.
"""

from __future__ import annotations

import dataclasses

from weft.compiler.ir import Add, Conv, DeviceOp, DeviceSegment, View, sources


def fuse_add(segment: DeviceSegment) -> DeviceSegment:
    """Fuse every `Add` into a `Conv` of which nobody else reads the result; of two, into the later one."""
    ops: list[DeviceOp] = list(segment.ops)
    for op in segment.ops:
        if not isinstance(op, Add):
            continue
        fusible = [conv for conv in ops if isinstance(conv, Conv) and _fusible(ops, conv, op)]
        if fusible:
            ops[ops.index(op)] = _merge(fusible[-1], op)
            ops.remove(fusible[-1])
    return dataclasses.replace(segment, ops=tuple(ops))


def separate(conv: Conv) -> tuple[Conv, Add]:
    """What `fuse_add` made a convolution with a residual of."""
    add = conv.residual
    assert add is not None
    name = conv.name.removesuffix(f"+{add.name}")
    return dataclasses.replace(conv, name=name, dst=add.a, residual=None), add


def _merge(conv: Conv, add: Add) -> Conv:
    if add.a.buffer.name != conv.dst.buffer.name:
        add = dataclasses.replace(
            add,
            a=add.b,
            b=add.a,
            a_scale=add.b_scale,
            b_scale=add.a_scale,
            a_zero=add.b_zero,
            b_zero=add.a_zero,
        )
    return dataclasses.replace(conv, name=f"{conv.name}+{add.name}", dst=add.dst, residual=add)


def _fusible(ops: list[DeviceOp], conv: Conv, add: Add) -> bool:
    name = conv.dst.buffer.name
    if conv.residual is not None or conv.dst.buffer.kind != "temp":
        return False
    writers = sum(op.dst.buffer.name == name for op in ops)
    readers = sum(view.buffer.name == name for op in ops for view in sources(op))
    whole = conv.dst.contiguous and View(conv.dst.buffer, conv.dst.shape) in (add.a, add.b)
    # A convolution must not write into a buffer that it reads, which the addition may.
    apart = add.dst.buffer.name not in (conv.src.buffer.name, add.a.buffer.name, add.b.buffer.name)
    return writers == readers == 1 and whole and apart
