"""Interleaving of input rows for convolutions of few channels, and overlap of operators.

Pixels of few channels fill vectors badly, and LOAD joins only bytes that are adjacent in memory: pixels of a row.
Because the host writes the input anyway, it can interleave all rows that a row of windows covers, pixel by pixel. The
convolution then reads a single row of kh * cin channels, with kh * kw * cin bytes of contraction and no gaps. The
input takes up to kh / stride times the memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Region, Strips, readers
from weft.compiler.ir.layout import Rows
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import PITCH_MAX
from weft.compiler.passes.groups import Group, Groups
from weft.compiler.planner import Planner

_GAIN = 0.9
"""Most cycles with interleaved rows, as a fraction of the cycles without, to justify the memory."""


def gather_rows(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Interleave the rows of inputs that only one convolution reads, where that is a tenth faster by estimate."""
    reads, ops, rows = readers(segment.ops), list[DeviceOp](segment.ops), dict(segment.rows)
    for index, op in enumerate(segment.ops):
        if isinstance(op, Conv) and reads[op.src.buffer.name] == 1 and (change := _quicker(op, planner)):
            ops[index], rows[op.src.buffer.name] = change
    return dataclasses.replace(segment, ops=tuple(ops), rows=rows)


def gather_kernel_rows(op: Conv) -> tuple[Conv, Rows]:
    """Return a convolution, without groups, for an input with interleaved rows, and the interleaving."""
    (kh, kw), (sy, sx), (dy, dx) = op.window.kernel, op.window.stride, op.window.dilation
    top, left, _, right = op.window.pad
    n, h, w, c = op.src.shape
    rows = Rows(h, kh, sy, dy, top, op.window.output(h, w)[0], op.x_zero)
    shape = (n, rows.count, w, kh * c)
    src = View(Buffer(op.src.buffer.name, shape, op.src.buffer.kind), shape)
    # (out, kh, kw, c) to (out, 1, kw, kh * c): kernel rows become channels.
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
    changed = gather_kernel_rows(op)
    before, after = planner.cost(op), planner.cost(changed[0])
    return changed if before and after and after.cycles < _GAIN * before.cycles else None


def overlap_rows(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Run vector-unit operators at the same time as a convolution next to them, where that is faster by estimate.

    They share the scratchpad, and proceed row by row where one depends on the other. Among conflicting groups those
    that save most win.
    """
    if planner.target.sequential:
        return segment
    groups = best_disjoint(Groups(segment, planner).list_groups(), len(segment.ops))
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
        strips=_renumber_strips(segment, groups),
    )


def _renumber_strips(segment: DeviceSegment, groups: Sequence[Group]) -> tuple[Strips, ...]:
    """Return the strips' positions after groups merged some operators."""

    def less(index: int) -> int:
        return index - sum(
            group.stop - group.first - len(group.ops) for group in groups if group.stop <= index
        )

    return tuple(item._replace(first=less(item.first), stop=less(item.stop)) for item in segment.strips)


def best_disjoint(groups: Sequence[Group], count: int) -> list[Group]:
    """Return the disjoint groups that together save most."""
    ending: dict[int, list[Group]] = {}
    for group in groups:
        ending.setdefault(group.stop, []).append(group)
    saved, last = [0.0], list[Group | None]([None])
    for stop in range(1, count + 1):
        # Dynamic programming over stop indices: skip an operator, or end a group here.
        options: list[tuple[float, Group | None]] = [(saved[-1], None)]
        options += [(saved[group.first] + group.saved, group) for group in ending.get(stop, ())]
        most, chosen = max(options, key=lambda item: item[0])
        saved.append(most)
        last.append(chosen)
    chosen_groups, stop = list[Group](), count
    while stop:
        ending_here = last[stop]
        stop = stop - 1 if ending_here is None else ending_here.first
        chosen_groups += [] if ending_here is None else [ending_here]
    return chosen_groups[::-1]
