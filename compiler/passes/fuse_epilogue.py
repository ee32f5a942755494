"""Sums, products and requantisations of a convolution's result become its epilogue: the result stays on chip."""

from __future__ import annotations

import dataclasses
from collections import Counter

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Rescale, View, readers
from weft.compiler.passes.fusion import fused_or_apart
from weft.compiler.planner import Planner


def fuse_epilogue(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Sums, products and requantisations become part of a convolution before them, where that takes no longer and
    moves no more data, or where memory is short.

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
            continue
        for view in op.sources:
            if reads[view.buffer.name] > 1:
                continue
            parts = {at: segment.ops[at] for at in segment.index.writers.get(view.buffer.name, ())}
            joined = _in_parts([*parts.values()], view, op, planner)
            if joined and all(made[at] == (item,) for at, item in parts.items()):
                for at in parts:
                    made[at] = ()
                made[index] = joined
                break
    return dataclasses.replace(segment, ops=tuple(op for part in made for op in part))


_Epilogue = Add | Multiply | Rescale


def _joined(conv: Conv, op: _Epilogue, planner: Planner) -> tuple[DeviceOp, ...]:
    """Both as one operator or as two; the convolution's result is the first operand."""
    op = _own_first(op, conv.dst.buffer.name)
    fused = dataclasses.replace(conv, name=f"{conv.name}+{op.name}", dst=op.dst, epilogue=op)
    if planner.tight and planner.plan(fused) is not None:
        return (fused,)  # the convolution's own result takes no memory
    return fused_or_apart(fused, conv, op, planner, traffic=True)


def _own_first(op: _Epilogue, name: str) -> _Epilogue:
    """The same with buffer `name` as its first operand."""
    if isinstance(op, Rescale) or op.a.buffer.name == name:
        return op
    scales = {"a_scale": op.b_scale, "b_scale": op.a_scale} if isinstance(op, Add) else {}
    return op.replace(a=op.b, b=op.a, a_zero=op.b_zero, b_zero=op.a_zero, **scales)


def _in_parts(convs: list[DeviceOp], own: View, op: _Epilogue, planner: Planner) -> tuple[DeviceOp, ...]:
    """Convolutions that write `own` in parts, as those of ConvTranspose do, each with its part of an operator behind
    them; none if they are better apart.
    """
    views = {*op.sources, op.dst}
    alike = own.contiguous and len({(view.shape, view.buffer.shape, view.step) for view in views}) == 1
    if (
        not alike
        or len(convs) < 2
        or not all(isinstance(conv, Conv) and _fusible_part(conv, op) for conv in convs)
    ):
        return ()
    if isinstance(op, Add) and op.b_scale < 0 and op.a != own:
        return ()
    op, made = _own_first(op, own.buffer.name), list[DeviceOp]()
    for index, conv in enumerate(convs):
        box = conv.dst
        place = View(
            dataclasses.replace(own.buffer, name=f"{own.buffer.name}/{index}", shape=box.shape), box.shape
        )
        part = op.on(
            lambda view, box=box, place=place: (  # type: ignore[misc]
                # Parts may be written in another shape of the buffer than it is read in.
                place
                if view == own
                else dataclasses.replace(box, buffer=dataclasses.replace(view.buffer, shape=box.buffer.shape))
            )
        ).replace(name=f"{op.name}.{index}")
        made.append(conv.replace(name=f"{conv.name}+{op.name}", dst=part.dst, epilogue=part))
    joined, apart = ([planner.cost(item) for item in items] for items in (made, [*convs, op]))
    if None in joined or None in apart:
        return ()
    slower = any(
        sum(cost[at] for cost in joined if cost) > sum(cost[at] for cost in apart if cost) for at in range(2)
    )
    return () if slower else tuple(made)


def _fusible_part(conv: Conv, op: _Epilogue) -> bool:
    apart = op.dst.buffer.name not in {view.buffer.name for view in (conv.src, *op.sources)}
    return conv.epilogue is None and conv.dst.buffer.kind == "temp" and apart


def _fusible(conv: Conv, op: _Epilogue) -> bool:
    whole = conv.dst.contiguous and View(conv.dst.buffer, conv.dst.shape) in op.sources
    # A convolution must not write into a buffer that it reads, which the other operators may.
    apart = op.dst.buffer.name not in {view.buffer.name for view in (conv.src, *op.sources)}
    if len({view.shape for view in op.sources}) > 1:
        return False  # one image, row or column for all
    if isinstance(op, Add) and op.b_scale < 0 and op.a.buffer.name != conv.dst.buffer.name:
        return False  # only the second operand can be subtracted
    return conv.epilogue is None and conv.dst.buffer.kind == "temp" and whole and apart
