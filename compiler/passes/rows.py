"""Rows of an input side by side, for a convolution of few channels.

A pixel of few channels fills a vector badly, and LOAD joins only bytes that follow one another: pixels of a row. As the
host writes the input anyhow, it can put all rows that a row of windows covers side by side, pixel by pixel. The
convolution is then one over a single row of kh * cin channels, with kh * kw * cin bytes of contraction and no gaps. The
input takes up to kh / stride times the memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from weft.compiler.ir.graph import (
    Buffer,
    Conv,
    DeviceOp,
    DeviceSegment,
    Region,
    Strips,
    View,
    Window,
    readers,
)
from weft.compiler.ir.layout import Rows
from weft.compiler.machine.target import PITCH_MAX
from weft.compiler.passes.groups import Group, Groups
from weft.compiler.planner import Planner

_GAIN = 0.9
"""Share of the cycles at which it is worth the memory."""


def gather_rows(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Rows of an input that only a convolution reads lie side by side, where that is a tenth quicker.

    That is by estimate.
    """
    reads, made, rows = readers(segment.ops), list[DeviceOp](segment.ops), dict(segment.rows)
    for index, op in enumerate(segment.ops):
        if isinstance(op, Conv) and reads[op.src.buffer.name] == 1 and (found := _quicker(op, planner)):
            made[index], rows[op.src.buffer.name] = found
    return dataclasses.replace(segment, ops=tuple(made), rows=rows)


def gathered(op: Conv) -> tuple[Conv, Rows]:
    """The same convolution of an input whose rows are side by side, and how they are. It must not have groups."""
    (kh, kw), (sy, sx), (dy, dx) = op.window.kernel, op.window.stride, op.window.dilation
    top, left, _, right = op.window.pad
    n, h, w, c = op.src.shape
    rows = Rows(h, kh, sy, dy, top, op.window.output(h, w)[0], op.x_zero)
    shape = (n, rows.count, w, kh * c)
    src = View(Buffer(op.src.buffer.name, shape, op.src.buffer.kind), shape)
    weight = op.weight.transpose(0, 2, 1, 3).reshape(len(op.weight), 1, kw, kh * c)
    window = Window((1, kw), (1, sx), (1, dx), (0, left, 0, right))
    return dataclasses.replace(op, src=src, weight=weight, window=window), rows


def _quicker(op: Conv, planner: Planner) -> tuple[Conv, Rows] | None:
    kh, channels = op.window.kernel[0], op.src.shape[3]
    if (
        op.src.buffer.kind != "input"
        or not op.src.contiguous
        or op.groups > 1
        or kh == 1
        or kh * channels * op.window.stride[1] > PITCH_MAX
    ):
        return None
    found = gathered(op)
    before, after = planner.cost(op), planner.cost(found[0])
    return found if before and after and after.cycles < _GAIN * before.cycles else None


def overlap_rows(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Operators of the vector unit and a convolution next to them share the scratchpad and run at the same time, row
    by row where one needs the other, where that is quicker.

    That is by estimate; of neighbours those that save most.
    """
    if planner.target.sequential:
        return segment
    groups = best(Groups(segment, planner).found(), len(segment.ops))
    if not groups:
        return segment
    whole = (0, planner.config.scratchpad_size)
    ops, regions, overlapped = list[DeviceOp](), list[Region](), list[int]()
    held, at = segment.regions or (whole,) * len(segment.ops), 0
    dropped: set[str] = set()
    for group in groups:
        ops += segment.ops[at : group.first]
        regions += held[at : group.first]
        overlapped += range(len(ops), len(ops) + len(group.ops) - 1)
        ops += group.ops
        regions += group.regions
        dropped |= group.dropped
        at = group.stop
    return dataclasses.replace(
        segment,
        ops=(*ops, *segment.ops[at:]),
        regions=(*regions, *held[at:]),
        overlapped=tuple(overlapped),
        resident={name: place for name, place in segment.resident.items() if name not in dropped},
        strips=_moved(segment, groups),
    )


def _moved(segment: DeviceSegment, groups: Sequence[Group]) -> tuple[Strips, ...]:
    """Where strips are once groups have fewer operators than those in whose place they are."""

    def less(index: int) -> int:
        return index - sum(
            group.stop - group.first - len(group.ops) for group in groups if group.stop <= index
        )

    return tuple(item._replace(first=less(item.first), stop=less(item.stop)) for item in segment.strips)


def best(found: Sequence[Group], count: int) -> list[Group]:
    """Of groups those that save most together; no operator is in two of them."""
    ending: dict[int, list[Group]] = {}
    for group in found:
        ending.setdefault(group.stop, []).append(group)
    saved, last = [0.0], list[Group | None]([None])
    for stop in range(1, count + 1):
        options: list[tuple[float, Group | None]] = [(saved[-1], None)]
        options += [(saved[group.first] + group.saved, group) for group in ending.get(stop, ())]
        most, chosen = max(options, key=lambda item: item[0])
        saved.append(most)
        last.append(chosen)
    taken, stop = list[Group](), count
    while stop:
        ending_here = last[stop]
        stop = stop - 1 if ending_here is None else ending_here.first
        taken += [] if ending_here is None else [ending_here]
    return taken[::-1]
