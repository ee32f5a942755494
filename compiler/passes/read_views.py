"""Copies of views disappear: who reads a copy of a part of a buffer reads that part itself."""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import Buffer, DeviceOp, DeviceSegment, Rescale, View
from weft.compiler.planner import Planner


def read_views(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Who reads a copy of unchanged bytes reads the view that was copied, where that takes no longer.

    The copy disappears, if all who read it can do that.
    """
    ops, at = list(segment.ops), 0
    while at < len(ops):
        copy = ops[at]
        reading = _reading(ops, copy) if isinstance(copy, Rescale) and _removable(ops, at) else {}
        if reading and _no_longer(copy, [(ops[index], op) for index, op in reading.items()], planner):
            ops = [reading.get(index, op) for index, op in enumerate(ops) if index != at]
        else:
            at += 1
    return dataclasses.replace(segment, ops=tuple(ops))


def _removable(ops: list[DeviceOp], at: int) -> bool:
    """Whether an operator is a copy, of what nobody writes later, to where nobody else writes."""
    copy = ops[at]
    if not isinstance(copy, Rescale) or not copy.unchanged or copy.dst.buffer.kind != "temp":
        return False
    written = [op.dst for op in ops if op is not copy and _meet(op.dst, copy.dst)]
    written += [op.dst for op in ops[at:] if _meet(op.dst, copy.src)]
    whole = all(view.shape[0] == view.buffer.shape[0] for view in (copy.src, copy.dst))
    return not written and whole and copy.dst.step == (1, 1) and all(copy.src.step)


def _reading(ops: list[DeviceOp], copy: DeviceOp) -> dict[int, DeviceOp]:
    """The operators that read what is copied, by their place, as they are without the copy; none if one of them needs
    it.
    """
    assert isinstance(copy, Rescale)
    found: dict[int, DeviceOp] = {}
    for index, op in enumerate(ops):
        if not any(_meet(view, copy.dst) for view in op.sources):
            continue
        views = [view for view in op.sources if view.buffer.name == copy.dst.buffer.name]
        # Only some operators may write into a buffer that they read.
        if getattr(op, "epilogue", None) is not None or op.dst.buffer.name == copy.src.buffer.name:
            return {}
        through = {view: _through(copy, view) for view in views}
        if None in through.values():
            return {}
        found[index] = op.on(lambda view, through=through: through.get(view) or view)  # type: ignore[misc]
    return found


def _no_longer(copy: DeviceOp, changes: list[tuple[DeviceOp, DeviceOp]], planner: Planner) -> bool:
    """Whether operators that read the view take no longer, by estimate, than the copy and what they were before.

    What some of them take may not be known, as that of attention.
    """
    apart = [planner.cost(op) for op in (copy, *(before for before, _ in changes))]
    joined = [planner.cost(after) for _, after in changes]
    if any(cost is None for cost in (*apart, *joined)):
        return all(planner.plan(after) is not None for _, after in changes)
    return sum(cost.cycles for cost in joined if cost) <= sum(cost.cycles for cost in apart if cost)


def _meet(view: View, box: View) -> bool:
    """Whether views are of one buffer and have bytes in common, as far as their outlines tell."""
    if view.buffer.name != box.buffer.name:
        return False
    if view.buffer.shape != box.buffer.shape:
        return True
    starts, others = (view.image, view.y, view.x, view.c), (box.image, box.y, box.x, box.c)
    return all(
        a < end and b < stop for a, b, end, stop in zip(starts, others, box.ends, view.ends, strict=True)
    )


def _through(copy: Rescale, view: View) -> View | None:
    """What a view of the copy is of the copied buffer; None if it is no view of that."""
    src, dst = copy.src, copy.dst
    if view.buffer.shape != dst.buffer.shape:
        reshaped = _reshaped(src, view.buffer.shape) if dst.contiguous else None
        if reshaped is None:
            return None
        src, dst = reshaped, View(view.buffer, view.buffer.shape)
    y, x, c = view.y - dst.y, view.x - dst.x, view.c - dst.c
    if min(y, x, c) < 0 or any(end > most for end, most in zip(view.ends, dst.ends, strict=True)):
        return None
    step = (view.step[0] * src.step[0], view.step[1] * src.step[1])
    at = (src.y + y * src.step[0], src.x + x * src.step[1], src.c + c)
    return View(src.buffer, view.shape, *at, step)


def _reshaped(src: View, shape: tuple[int, int, int, int]) -> View | None:
    """A view in another shape of as many channels; None unless its pixels are equally far from each other."""
    n, h, w, c = src.shape
    even = (h == 1 or src.row_pitch == w * src.pixel_pitch) and (
        n == 1 or src.image_pitch == h * w * src.pixel_pitch
    )
    size, channels = src.buffer.size, src.buffer.shape[3]
    pixels, step = shape[0] * shape[1] * shape[2], src.step[1] if w > 1 else src.row_pitch // channels
    if not even or shape[3] != c or pixels * step * channels != size:
        return None
    buffer = Buffer(src.buffer.name, (shape[0], shape[1], shape[2] * step, channels), src.buffer.kind)
    return View(buffer, shape, x=src.offset // channels, c=src.c, step=(1, step))
