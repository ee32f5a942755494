"""Groups of operators that can run at the same time: one convolution, and operators of the vector unit around it.

Both kinds have a part of the scratchpad of their own, of what results that stay on chip leave them. Operators of the
vector unit follow each other in their part. Whatever depends on another is kept in order by
`weft.compiler.machine.schedule`; here is decided what is worth it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Pool, Region, View, Window
from weft.compiler.ir.views import overlapping
from weft.compiler.machine import target
from weft.compiler.machine.emit import ceil_div
from weft.compiler.operators.record import Cost, operator_of
from weft.compiler.passes.keep_resident import Held
from weft.compiler.plan.conv_plan import boxes, unit
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.plan.vector_plan import VectorPlan, channelwise
from weft.compiler.planner import Planner

_TILES = (8, 4, 2)
"""Parts of a convolution's pixels, at least, one behind the other: what of an operator that depends on it lies behind,
or ahead of, all of the convolution is one of them."""
_GAIN = 0.98
"""Share of the cycles at which it is done."""
_LEAST = 1000
"""Cycles that must be saved: what units wait for each other at the ends is not in the estimate."""
_MOST = 4
"""Operators of the vector unit on each side of a convolution."""


class Group(NamedTuple):
    """Operators with plans for disjoint regions in the place of those from `first` to `stop`, the cycles that this
    saves by estimate, and buffers that no operator uses any more."""

    first: int
    stop: int
    ops: tuple[DeviceOp, ...]
    regions: tuple[Region, ...]
    saved: float
    dropped: frozenset[str] = frozenset()


def partner(op: DeviceOp, planner: Planner) -> bool:
    """Whether an operator may run beside a convolution."""
    return operator_of(op).beside is not None and (
        not isinstance(op, Conv) or channelwise(op, planner.config)
    )


def vector_cycles(conv: DeviceOp, planner: Planner) -> float:
    """What the vector unit takes for the results of a convolution."""
    n, h, w, c = conv.dst.shape
    return n * h * w * ceil_div(c, planner.config.n) * planner.config.groups


def joined(ops: Sequence[DeviceOp]) -> list[DeviceOp]:
    """The same with maxima over both axes where there are those over columns and then over rows: it takes longer, and
    nothing lies between."""
    found: list[DeviceOp] = []
    for op in ops:
        before = found[-1] if found else None
        if isinstance(op, Pool) and isinstance(before, Pool) and halves(before, op):
            columns, rows = before.window, op.window
            (top, _, bottom, _), (_, left, _, right) = rows.pad, columns.pad
            window = Window(
                (rows.kernel[0], columns.kernel[1]), (rows.stride[0], columns.stride[1]),
                (rows.dilation[0], columns.dilation[1]), (top, left, bottom, right),
            )  # fmt: skip
            found[-1] = op.replace(src=before.src, window=window, plan=None)
        else:
            found.append(op)
    return found


def halves(columns: Pool, rows: Pool) -> bool:
    """Whether two maxima are what `weft.compiler.passes.split_pool` makes of one."""
    return (
        columns.kind == rows.kind == "max"
        and columns.name == f"{rows.name}/columns"
        and columns.dst == rows.src
        and (columns.window.kernel[0], rows.window.kernel[1]) == (1, 1)
    )


class Groups:
    """The groups that there may be in a segment whose operators have plans. If `names` are given, only those that have
    an operator of these, and with fewer plans to choose from: it is quicker to tell."""

    def __init__(
        self, segment: DeviceSegment, planner: Planner, names: Collection[str] | None = None
    ) -> None:
        self.tiles = _TILES if names is None else _TILES[:1]
        self.wanted = {at for at, op in enumerate(segment.ops) if names is None or op.name in names}
        self.segment, self.planner, self.config = segment, planner, planner.config
        self.strips = {index for item in segment.strips for index in range(item.first, item.stop)}
        self.costs: dict[int, Cost] = {}
        self.held = Held(segment.index, segment.resident, planner.config)

    def found(self) -> list[Group]:
        """Those that save something by estimate."""
        return [group for item in self._places() for group in self._groups(*item)]

    def _cost(self, index: int) -> Cost:
        if index not in self.costs:
            op = self.segment.ops[index]
            self.costs[index] = operator_of(op).cost(op, op.plan, self.planner.target)
        return self.costs[index]

    def _work(self, index: int) -> Cost:
        """The same without the ends of an operator of the vector unit, where the next one's loads begin as well."""
        cost = self._cost(index)
        ends = target.ALONE if isinstance(self.segment.ops[index].plan, VectorPlan) else 0
        return Cost(cost.cycles - ends, cost.traffic)

    def _ranges(self, index: int) -> Iterator[tuple[int, int]]:
        """Where groups around a convolution may begin and end."""
        ops = self.segment.ops
        first, stop = index, index + 1
        while first > max(0, index - _MOST) and self._beside(first - 1):
            first -= 1
        while stop < min(len(ops), index + 1 + _MOST) and self._beside(stop):
            stop += 1
        for start in range(first, index + 1):
            for end in range(index + 1, stop + 1):
                some = end - start > 1 and not self.wanted.isdisjoint(range(start, end))
                if some and self._worth(index, start, end):
                    yield start, end

    def _beside(self, index: int) -> bool:
        return index not in self.strips and partner(self.segment.ops[index], self.planner)

    def _worth(self, index: int, first: int, stop: int) -> bool:
        """Whether a group could save enough, if both units were busy all the time."""
        total = sum(self._work(at).cycles for at in range(first, stop))
        return self._most(index, first, stop) > (1 - _GAIN) * total + _LEAST

    def _most(self, index: int, first: int, stop: int) -> float:
        """What a group would save then."""
        costs = [self._work(at) for at in range(first, stop)]
        own = self._cost(index)
        total = sum(cost.cycles for cost in costs)
        vector = total - own.cycles + vector_cycles(self.segment.ops[index], self.planner)
        return total - max(own.cycles, vector, sum(cost.traffic for cost in costs))

    def bound(self) -> float:
        """What no group saves more than."""
        return max((self._most(*item) for item in self._places()), default=0.0)

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """Each convolution, and where a group around it begins and ends."""
        for index, op in enumerate(self.segment.ops):
            if isinstance(op, Conv) and index not in self.strips and not channelwise(op, self.config):
                for first, stop in self._ranges(index):
                    yield index, first, stop

    def _groups(self, index: int, first: int, stop: int) -> Iterator[Group]:
        """The groups of some operators: as they are, and with pools in one piece."""
        ops = self.segment.ops[first:stop]
        whole = joined(ops)
        conv = self.segment.ops[index]
        for chosen in [ops] if len(whole) == len(ops) else [ops, whole]:
            left = {view.buffer.name for op in chosen for view in (*op.sources, op.dst)}
            dropped = frozenset(
                view.buffer.name for op in ops for view in (*op.sources, op.dst)
            ) - left  # fmt: skip
            group = self._group(tuple(chosen), chosen.index(conv), (first, stop), dropped)
            if group is not None:
                yield group

    def _group(
        self, ops: tuple[DeviceOp, ...], at: int, place: tuple[int, int], dropped: frozenset[str]
    ) -> Group | None:
        """The best plans of a group whose convolution is operator `at` of it; None if it saves too little."""
        first, stop = place
        room = self._room(range(first, stop), dropped)
        if room is None or not apart(ops) or self._meet(ops, at, dropped):
            return None
        alone = sum(self._work(index).cycles for index in range(first, stop))
        traffic = sum(self._cost(index).traffic for index in range(first, stop))
        conv, others = ops[at], [op for index, op in enumerate(ops) if index != at]
        planned = self._others(others, room)
        if planned is None:
            return None
        made, region = planned
        rest = (room[0], region[0])
        costs = [_in_tiles(op, self.planner) for op in made]
        best: Group | None = None
        for own, tiles in self._convolutions(conv, rest, depend(ops, at)):
            busy = sum(cost.cycles for cost in costs) + vector_cycles(conv, self.planner)
            bus = own.plan.traffic + sum(cost.traffic for cost in costs)
            waits = _waits([cost.cycles for cost in costs[:at]], others[:at], conv, tiles)
            waits += _waits([cost.cycles for cost in reversed(costs[at:])], others[at:][::-1], conv, tiles)
            together = max(own.plan.cycles, busy, bus) + (waits or target.ENDS)
            if self.planner.target.beat > 1.0:  # what moves more there keeps others waiting
                together += max(0.0, bus - traffic)
            if together < _GAIN * alone - _LEAST and (best is None or alone - together > best.saved):
                new = (*made[:at], own, *made[at:])
                regions = (*(region,) * at, rest, *(region,) * (len(made) - at))
                best = Group(first, stop, new, regions, alone - together, dropped)
        return best

    def _room(self, alive: range, dropped: frozenset[str]) -> Region | None:
        """The largest part of the scratchpad that no result has that stays on chip while operators run; None if some of
        these results share a place, so that they would wait for each other."""
        step, size = unit(self.config), self.config.scratchpad_size
        held = self.held.taken(alive)
        places = sorted(place for name, place in held.items() if name not in dropped)
        if any(one[1] > other[0] for one, other in pairwise(places)):
            return None
        ends = [0, *(ceil_div(stop, step) * step for _, stop in places)]
        starts = [*(start // step * step for start, _ in places), size]
        gaps = [(low, high) for low, high in zip(ends, starts, strict=True) if high - low >= 3 * step]
        return max(gaps, key=lambda gap: gap[1] - gap[0], default=None)

    def _meet(self, ops: Sequence[DeviceOp], at: int, dropped: frozenset[str]) -> bool:
        """Whether the vector unit would read for others from banks that the array reads its input from: the array goes
        first, all the time."""
        read = self._banks([ops[at].sources[0]], dropped)
        others = [view for index, op in enumerate(ops) if index != at for view in op.sources]
        return bool(read & self._banks(others, dropped))

    def _banks(self, views: Sequence[View], dropped: frozenset[str]) -> set[int]:
        """The banks of those that stay on chip."""
        depth = self.config.scratchpad_depth
        found: set[int] = set()
        for view in views:
            start = self.segment.resident.get(view.buffer.name)
            if start is not None and view.buffer.name not in dropped:
                vectors = view.buffer.size // view.shape[3] * ceil_div(view.shape[3], self.config.n)
                found |= set(range(start // depth, (start + vectors - 1) // depth + 1))
        return found

    def _others(self, ops: Sequence[DeviceOp], room: Region) -> tuple[list[DeviceOp], Region] | None:
        """Operators of the vector unit with plans for a region at the end of what there is, as small as possible."""
        step, resident = unit(self.config), self.segment.resident
        for banks in range(1, (room[1] - room[0]) // step - 1):
            region = (room[1] - banks * step, room[1])
            plans = []
            for op in ops:
                beside = operator_of(op).beside
                assert beside is not None
                plan = beside(op, self.planner.site(op, resident, region))
                if plan is None:
                    break
                plans.append(plan)
            else:
                return [op.replace(plan=plan) for op, plan in zip(ops, plans, strict=True)], region
        return None

    def _convolutions(self, conv: DeviceOp, region: Region, depends: bool) -> Iterator[tuple[DeviceOp, int]]:
        """A convolution with plans for a region, and how many parts of its pixels each has."""
        assert isinstance(conv, Conv)
        for least in self.tiles if depends else (1,):
            shape = ConvShape(conv, self.planner.site(conv, self.segment.resident, region), tiles_least=least)
            chosen = self.planner.convolution(shape)
            if chosen is not None:
                yield conv.replace(plan=chosen), len(boxes(shape, chosen.tile)) * shape.src.n


def _in_tiles(op: DeviceOp, planner: Planner) -> Cost:
    """What an operator of the vector unit takes in the tiles of its plan."""
    cost, plan = operator_of(op).cost(op, op.plan, planner.target), op.plan
    if not isinstance(plan, VectorPlan):
        return cost
    n, h, w, c = op.dst.shape
    tiles = n * h * w * ceil_div(c, plan.channels) / (plan.h * plan.w)
    return Cost(cost.cycles - target.ALONE + tiles * planner.target.vec_start(), cost.traffic)


def _waits(cycles: Sequence[float], ops: Sequence[DeviceOp], conv: DeviceOp, tiles: int) -> float:
    """What of operators that follow each other, and take so many cycles, lies ahead of or behind all of a convolution
    in so many tiles: those before the last that depends on it, and a tile of that."""
    last = max((index for index, op in enumerate(ops) if linked(op, conv)), default=None)
    return 0.0 if last is None else sum(cycles[:last]) + cycles[last] / tiles


def linked(op: DeviceOp, other: DeviceOp) -> bool:
    """Whether one of two operators reads what the other one writes."""
    return any(
        overlapping(view, made.dst) for reader, made in ((op, other), (other, op)) for view in reader.sources
    )


def depend(ops: Sequence[DeviceOp], at: int) -> bool:
    """Whether any of the others depends on operator `at`, or it on them."""
    return any(linked(op, ops[at]) for index, op in enumerate(ops) if index != at)


def apart(ops: Sequence[DeviceOp]) -> bool:
    """Whether no two of the operators write the same bytes."""
    return all(not overlapping(one.dst, other.dst) for one, other in combinations(ops, 2))
