"""Operators of the vector unit run beside the convolutions next to them: the array works while that unit does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Region, Strips
from weft.compiler.passes.groups import Group, Groups
from weft.compiler.planner import Planner


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
