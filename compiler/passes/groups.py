"""Overlap of operators: groups of a convolution and vector-unit operators around it that run at the same time.

The convolution and the others each get a part of the scratchpad that resident results leave free; vector-unit
operators follow one another in theirs. `weft.compiler.machine.schedule` keeps dependencies in order; this module
decides what is worthwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple, Protocol, TypeVar

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Region, Strips
from weft.compiler.ir.views import View, may_overlap
from weft.compiler.machine import target
from weft.compiler.machine.emit import ceil_div
from weft.compiler.operators.record import Cost, operator_of
from weft.compiler.passes.keep_resident import ResidentResults
from weft.compiler.passes.split_pool import merge_split_pools
from weft.compiler.plan.conv_plan import boxes, unit
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.plan.vector_plan import VectorPlan, channelwise
from weft.compiler.planner import Planner

_TILES = (8, 4, 2)
"""Least numbers of tiles of a convolution's pixels. With a dependency, one tile's time of the dependent operator cannot
overlap the convolution."""
_GAIN = 0.98
"""Most cycles of a group, as a fraction of its operators' cycles one after the other."""
_LEAST = 1000
"""Least cycles to save: the estimate leaves out waits between units at the ends."""
_MOST = 4
"""Most vector-unit operators on each side of a convolution."""


class Range(Protocol):
    """Operators from `first` to before `stop`, with the cycles that a change of them saves."""

    @property
    def first(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def saved(self) -> float: ...


RangeT = TypeVar("RangeT", bound=Range)


class Group(NamedTuple):
    """Operators with plans for disjoint regions that replace those from `first` to `stop`.

    `saved` are the cycles that this saves by estimate; `dropped` are buffers that no operator uses any more.
    """

    first: int
    stop: int
    ops: tuple[DeviceOp, ...]
    regions: tuple[Region, ...]
    saved: float
    dropped: frozenset[str] = frozenset()


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
    ops, regions, overlapped = list[DeviceOp](), list[Region](), list[int]()
    scratchpad = (0, planner.config.scratchpad_size)
    regions_before, at = segment.regions or (scratchpad,) * len(segment.ops), 0
    dropped: set[str] = set()
    for group in groups:
        ops += segment.ops[at : group.first]
        regions += regions_before[at : group.first]
        overlapped += range(len(ops), len(ops) + len(group.ops) - 1)
        ops += group.ops
        regions += group.regions
        dropped |= group.dropped
        at = group.stop
    return dataclasses.replace(
        segment,
        ops=(*ops, *segment.ops[at:]),
        regions=(*regions, *regions_before[at:]),
        overlapped=tuple(overlapped),
        resident={name: place for name, place in segment.resident.items() if name not in dropped},
        strips=_renumber_strips(segment, groups),
    )


def _renumber_strips(segment: DeviceSegment, groups: Sequence[Group]) -> tuple[Strips, ...]:
    """Return the strips' positions after groups merged some operators."""

    def renumber(index: int) -> int:
        return index - sum(
            group.stop - group.first - len(group.ops) for group in groups if group.stop <= index
        )

    return tuple(
        item._replace(first=renumber(item.first), stop=renumber(item.stop)) for item in segment.strips
    )


def best_disjoint(ranges: Sequence[RangeT], count: int) -> list[RangeT]:
    """Return the disjoint ranges among `count` operators that together save most."""
    ending: dict[int, list[RangeT]] = {}
    for item in ranges:
        ending.setdefault(item.stop, []).append(item)
    saved, last = [0.0], list[RangeT | None]([None])
    for stop in range(1, count + 1):
        # Dynamic programming over stop indices: skip an operator, or end a range here.
        options: list[tuple[float, RangeT | None]] = [(saved[-1], None)]
        options += [(saved[item.first] + item.saved, item) for item in ending.get(stop, ())]
        most, chosen = max(options, key=lambda option: option[0])
        saved.append(most)
        last.append(chosen)
    best, stop = list[RangeT](), count
    while stop:
        item_here = last[stop]
        stop = stop - 1 if item_here is None else item_here.first
        best += [] if item_here is None else [item_here]
    return best[::-1]


def can_run_beside(op: DeviceOp, planner: Planner) -> bool:
    """Return whether an operator may run beside a convolution."""
    return operator_of(op).plan_beside is not None and (
        not isinstance(op, Conv) or channelwise(op, planner.config)
    )


def vector_cycles(conv: DeviceOp, planner: Planner) -> float:
    """Return the vector unit's cycles for a convolution's results."""
    n, h, w, c = conv.dst.shape
    return n * h * w * ceil_div(c, planner.config.n) * planner.config.groups


class Groups:
    """Possible groups in a segment whose operators have plans.

    With `names` only groups with an operator of these names are listed, from fewer plans, which is faster.
    """

    def __init__(
        self, segment: DeviceSegment, planner: Planner, names: Collection[str] | None = None
    ) -> None:
        self.tiles = _TILES if names is None else _TILES[:1]
        self.wanted = {at for at, op in enumerate(segment.ops) if names is None or op.name in names}
        self.segment, self.planner, self.config = segment, planner, planner.config
        self.strips = {index for item in segment.strips for index in range(item.first, item.stop)}
        self.costs: dict[int, Cost] = {}
        self.residents = ResidentResults(segment.index, segment.resident, planner.config)

    def list_groups(self) -> list[Group]:
        """Return the groups that save cycles by estimate."""
        return [group for item in self._places() for group in self._groups(*item)]

    def _cost(self, index: int) -> Cost:
        if index not in self.costs:
            op = self.segment.ops[index]
            self.costs[index] = operator_of(op).cost(op, op.plan, self.planner.target)
        return self.costs[index]

    def _work(self, index: int) -> Cost:
        """Return an operator's cost without its ends, during which the next vector-unit operator's loads begin."""
        cost = self._cost(index)
        ends = target.STANDALONE_CYCLES if isinstance(self.segment.ops[index].plan, VectorPlan) else 0
        return Cost(cost.cycles - ends, cost.traffic)

    def _ranges(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield the first and stop indices of possible groups around a convolution."""
        ops = self.segment.ops
        first, stop = index, index + 1
        while first > max(0, index - _MOST) and self._can_join(first - 1):
            first -= 1
        while stop < min(len(ops), index + 1 + _MOST) and self._can_join(stop):
            stop += 1
        for start in range(first, index + 1):
            for end in range(index + 1, stop + 1):
                some = end - start > 1 and not self.wanted.isdisjoint(range(start, end))
                if some and self._worth(index, start, end):
                    yield start, end

    def _can_join(self, index: int) -> bool:
        return index not in self.strips and can_run_beside(self.segment.ops[index], self.planner)

    def _worth(self, index: int, first: int, stop: int) -> bool:
        """Return whether a group could save enough if both units were always busy."""
        total = sum(self._work(at).cycles for at in range(first, stop))
        return self._most(index, first, stop) > (1 - _GAIN) * total + _LEAST

    def _most(self, index: int, first: int, stop: int) -> float:
        """Return the cycles that a group would save if both units were always busy."""
        costs = [self._work(at) for at in range(first, stop)]
        own = self._cost(index)
        total = sum(cost.cycles for cost in costs)
        vector = total - own.cycles + vector_cycles(self.segment.ops[index], self.planner)
        return total - max(own.cycles, vector, sum(cost.traffic for cost in costs))

    def bound(self) -> float:
        """Return an upper bound of what any group saves."""
        return max((self._most(*item) for item in self._places()), default=0.0)

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """Yield each convolution, and the first and stop indices of a group around it."""
        for index, op in enumerate(self.segment.ops):
            if isinstance(op, Conv) and index not in self.strips and not channelwise(op, self.config):
                for first, stop in self._ranges(index):
                    yield index, first, stop

    def _groups(self, index: int, first: int, stop: int) -> Iterator[Group]:
        """Yield the groups of some operators: as they are, and with split pools merged."""
        ops = self.segment.ops[first:stop]
        merged = merge_split_pools(ops)
        conv = self.segment.ops[index]
        for chosen in [ops] if len(merged) == len(ops) else [ops, merged]:
            left = {view.buffer.name for op in chosen for view in (*op.sources, op.dst)}
            dropped = frozenset(view.buffer.name for op in ops for view in (*op.sources, op.dst)) - left
            group = self._group(tuple(chosen), chosen.index(conv), (first, stop), dropped)
            if group is not None:
                yield group

    def _group(
        self, ops: tuple[DeviceOp, ...], at: int, place: tuple[int, int], dropped: frozenset[str]
    ) -> Group | None:
        """Return the best plans of a group whose convolution is its operator `at`; None if it saves too little."""
        first, stop = place
        room = self._room(range(first, stop), dropped)
        if room is None or not write_disjoint(ops) or self._bank_conflict(ops, at, dropped):
            return None
        alone = sum(self._work(index).cycles for index in range(first, stop))
        traffic = sum(self._cost(index).traffic for index in range(first, stop))
        conv, others = ops[at], [op for index, op in enumerate(ops) if index != at]
        planned = self._others(others, room)
        if planned is None:
            return None
        placed, region = planned
        conv_region = (room[0], region[0])
        costs = [_in_tiles(op, self.planner) for op in placed]
        best: Group | None = None
        # The group takes as long as its busiest unit, plus what the dependencies keep from overlapping.
        for own, tiles in self._convolutions(conv, conv_region, has_dependency(ops, at)):
            busy = sum(cost.cycles for cost in costs) + vector_cycles(conv, self.planner)
            bus = own.plan.traffic + sum(cost.traffic for cost in costs)
            waits = _waits([cost.cycles for cost in costs[:at]], others[:at], conv, tiles)
            waits += _waits([cost.cycles for cost in reversed(costs[at:])], others[at:][::-1], conv, tiles)
            together = max(own.plan.cycles, busy, bus) + (waits or target.RAMP_CYCLES)
            if self.planner.target.beat > 1.0:  # extra traffic then delays other operators
                together += max(0.0, bus - traffic)
            if together < _GAIN * alone - _LEAST and (best is None or alone - together > best.saved):
                new = (*placed[:at], own, *placed[at:])
                regions = (*(region,) * at, conv_region, *(region,) * (len(placed) - at))
                best = Group(first, stop, new, regions, alone - together, dropped)
        return best

    def _room(self, alive: range, dropped: frozenset[str]) -> Region | None:
        """Return the largest part of the scratchpad that no resident result occupies while operators run.

        None if some of these results share addresses, and would wait for each other.
        """
        step, size = unit(self.config), self.config.scratchpad_size
        occupied = self.residents.occupied_ranges(alive)
        places = sorted(place for name, place in occupied.items() if name not in dropped)
        if any(one[1] > other[0] for one, other in pairwise(places)):
            return None
        ends = [0, *(ceil_div(stop, step) * step for _, stop in places)]
        starts = [*(start // step * step for start, _ in places), size]
        # A convolution and its partners need at least three units.
        gaps = [(low, high) for low, high in zip(ends, starts, strict=True) if high - low >= 3 * step]
        return max(gaps, key=lambda gap: gap[1] - gap[0], default=None)

    def _bank_conflict(self, ops: Sequence[DeviceOp], at: int, dropped: frozenset[str]) -> bool:
        """True if the vector unit would read operands from banks of the array's input: the array then always goes
        first."""
        read = self._banks([ops[at].sources[0]], dropped)
        others = [view for index, op in enumerate(ops) if index != at for view in op.sources]
        return bool(read & self._banks(others, dropped))

    def _banks(self, views: Sequence[View], dropped: frozenset[str]) -> set[int]:
        """Return the banks of the views that are resident."""
        depth = self.config.scratchpad_depth
        banks: set[int] = set()
        for view in views:
            start = self.segment.resident.get(view.buffer.name)
            if start is not None and view.buffer.name not in dropped:
                vectors = view.buffer.size // view.shape[3] * ceil_div(view.shape[3], self.config.n)
                banks |= set(range(start // depth, (start + vectors - 1) // depth + 1))
        return banks

    def _others(self, ops: Sequence[DeviceOp], room: Region) -> tuple[list[DeviceOp], Region] | None:
        """Plan vector-unit operators for the smallest region at the end of `room`."""
        step, resident = unit(self.config), self.segment.resident
        # Smallest region first: the convolution uses the rest well.
        for banks in range(1, (room[1] - room[0]) // step - 1):
            region = (room[1] - banks * step, room[1])
            plans = []
            for op in ops:
                beside = operator_of(op).plan_beside
                assert beside is not None
                plan = beside(op, self.planner.site(op, resident, region))
                if plan is None:
                    break
                plans.append(plan)
            else:
                return [op.replace(plan=plan) for op, plan in zip(ops, plans, strict=True)], region
        return None

    def _convolutions(self, conv: DeviceOp, region: Region, depends: bool) -> Iterator[tuple[DeviceOp, int]]:
        """Yield a convolution with plans for a region, and each plan's number of tiles."""
        assert isinstance(conv, Conv)
        for least in self.tiles if depends else (1,):
            shape = ConvShape(conv, self.planner.site(conv, self.segment.resident, region), tiles_least=least)
            chosen = self.planner.convolution(shape)
            if chosen is not None:
                yield conv.replace(plan=chosen), len(boxes(shape, chosen.tile)) * shape.src.n


def _in_tiles(op: DeviceOp, planner: Planner) -> Cost:
    """Return the cost of a vector-unit operator in the tiles of its plan."""
    cost, plan = operator_of(op).cost(op, op.plan, planner.target), op.plan
    if not isinstance(plan, VectorPlan):
        return cost
    n, h, w, c = op.dst.shape
    tiles = n * h * w * ceil_div(c, plan.channels) / (plan.h * plan.w)
    return Cost(cost.cycles - target.STANDALONE_CYCLES + tiles * planner.target.vec_start(), cost.traffic)


def _waits(cycles: Sequence[float], ops: Sequence[DeviceOp], conv: DeviceOp, tiles: int) -> float:
    """Return the cycles of consecutive operators that cannot overlap a convolution of `tiles` tiles.

    These are the operators before the last one that depends on the convolution, and a tile's share of that one.
    """
    last = max((index for index, op in enumerate(ops) if is_dependent(op, conv)), default=None)
    return 0.0 if last is None else sum(cycles[:last]) + cycles[last] / tiles


def is_dependent(op: DeviceOp, other: DeviceOp) -> bool:
    """Return whether one of two operators reads what the other writes."""
    return any(
        may_overlap(view, writer.dst)
        for reader, writer in ((op, other), (other, op))
        for view in reader.sources
    )


def has_dependency(ops: Sequence[DeviceOp], at: int) -> bool:
    """Return whether any other operator depends on operator `at`, or the reverse."""
    return any(is_dependent(op, ops[at]) for index, op in enumerate(ops) if index != at)


def write_disjoint(ops: Sequence[DeviceOp]) -> bool:
    """Return whether no two of the operators write the same bytes."""
    return all(not may_overlap(one.dst, other.dst) for one, other in combinations(ops, 2))
