"""Residency: results that stay in the scratchpad between operators, their addresses, and the room that they leave.

A resident result is whole in the scratchpad from the operator that writes it to its last reader. All operators in
between must be able to use resident operands: convolutions, and vector-unit operators. Results lie in banks at one
end of the scratchpad, or in what other results leave of theirs. The rest is for weights and other operands. Residency
costs these room, and saves the bus a STORE and LOADs; estimates decide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Ops, Region
from weft.compiler.ir.views import View
from weft.compiler.kernel.wide import WideConv
from weft.compiler.machine import target
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import STRIDE_MAX
from weft.compiler.operators.record import Cost, operator_of
from weft.compiler.plan.conv_plan import unit
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config


def keep_resident(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Keep results on chip between operators where that saves traffic and costs no time, by estimate; one after the
    other."""
    chip = Chip(segment, planner)
    for index, op in enumerate(segment.ops):
        alive = chip.live_range(index)
        if op.dst.buffer.name in segment.resident or not alive:
            continue
        before = chip.cost(alive)
        # First place that costs no time wins.
        for place in chip.placements(index) if before else ():
            assert before is not None
            # A result in memory is stored to its end before it is loaded: nothing overlaps there.
            most = Cost(before.cycles + target.RAMP_CYCLES, before.traffic)
            after = chip.cost(alive, place, most)
            if after and after.cycles <= most.cycles and after.traffic < most.traffic:
                chip.put(place)
                break
    return chip.segment()


def with_resident(segment: DeviceSegment, index: int, planner: Planner) -> DeviceSegment | None:
    """Return the segment with operator `index`'s result on chip until its last reader, at any cost; None if it cannot
    stay."""
    return next(placements(segment, index, planner), None)


def placements(segment: DeviceSegment, index: int, planner: Planner) -> Iterator[DeviceSegment]:
    """Yield the segment with operator `index`'s result at each place of `Chip.placements`."""
    for place in Chip(segment, planner).placements(index):
        chip = Chip(segment, planner)
        chip.put(place)
        yield chip.segment()


def cost_of(segment: DeviceSegment, part: range, planner: Planner) -> Cost | None:
    """Return the estimate for some operators of a segment together; None if one of them cannot be planned."""
    return Chip(segment, planner).cost(part)


_ANY = Cost(math.inf, math.inf)


class _Place(NamedTuple):
    """Address of a result while the operators from `first` on run, and the rest of the scratchpad for each of them."""

    first: int
    at: int
    left: tuple[Region, ...]


class ResidentResults:
    """Resident results, indexed by the operators during which they stay."""

    def __init__(self, ops: Ops, resident: Mapping[str, int], config: Config) -> None:
        self.ops, self.config, self.resident = ops, config, dict(resident)
        self._during: dict[int, list[int]] = {}
        for name in resident:
            self._note(name)

    def put(self, name: str, at: int) -> None:
        """Record that a result stays at an address."""
        self.resident[name] = at
        self._note(name)

    def _note(self, name: str) -> None:
        for writer in self.ops.writers.get(name, ()):
            for at in range(writer, self.ops.reads[name][-1][0] + 1):
                self._during.setdefault(at, []).append(writer)

    def occupied_ranges(self, alive: range) -> dict[str, Region]:
        """Return the address ranges of results that are resident while some operators run."""
        ranges: dict[str, Region] = {}
        for writer in sorted({place for at in alive for place in self._during.get(at, ())}):
            view = self.ops[writer].dst
            start = self.resident[view.buffer.name]
            ranges[view.buffer.name] = (start, start + _vectors(view, self.config))
        return ranges


class Chip:
    """Residency of a segment under construction: resident results, and the room left for each operator."""

    def __init__(self, segment: DeviceSegment, planner: Planner) -> None:
        self._segment, self.planner, self.config = segment, planner, planner.config
        self.ops = segment.index
        scratchpad = (0, self.config.scratchpad_size)
        self._regions = list(segment.regions or (scratchpad,) * len(self.ops))
        self.residents = ResidentResults(self.ops, segment.resident, self.config)

    def segment(self) -> DeviceSegment:
        """Return the segment with all results that were put on chip."""
        resident = self.residents.resident
        if len(resident) == len(self._segment.resident):
            return self._segment
        return dataclasses.replace(self._segment, resident=resident, regions=tuple(self._regions))

    def put(self, place: _Place) -> None:
        """Keep the result of a place's first operator there."""
        self.residents.put(self.ops[place.first].dst.buffer.name, place.at)
        self._regions[place.first : place.first + len(place.left)] = place.left

    def placements(self, index: int) -> Iterator[_Place]:
        """Yield the places for operator `index`'s result, best first.

        First come banks of its own, then banks that other results share, and last banks in which array and vector
        unit conflict.
        """
        alive = self.live_range(index)
        if not alive:
            return
        _, _, w, c = self.ops[index].dst.shape
        if w * ceil_div(c, self.config.n) > STRIDE_MAX:
            return
        # Prefer separate banks: array and vector unit then never wait for each other.
        shared = list(self._rest_of_banks(alive))
        own = self._own_banks(alive)
        places = (
            own + [place for place, meet in shared if not meet] + [place for place, meet in shared if meet]
        )
        yield from filter(self._possible, places)

    def _own_banks(self, alive: range) -> list[_Place]:
        """Return the place of a result in banks of its own while some operators run, if there is one."""
        step, config = unit(self.config), self.config
        need = ceil_div(_vectors(self.ops[alive.start].dst, config), step) * step
        regions = self._regions[alive.start : alive.stop]
        low, high = max(region[0] for region in regions), min(region[1] for region in regions)
        if high - low < need + 2 * step:  # weights and parameters need some
            return []
        # Allocate at the emptier end, so that consecutive results lie at opposite ends.
        if low <= config.scratchpad_size - high:
            return [_Place(alive.start, low, tuple((low + need, region[1]) for region in regions))]
        return [_Place(alive.start, high - need, tuple((region[0], high - need) for region in regions))]

    def _rest_of_banks(self, alive: range) -> Iterator[tuple[_Place, bool]]:
        """Yield places in banks that other results partly occupy, and whether array and vector unit conflict there."""
        dst = self.ops[alive.start].dst
        need, name = _vectors(dst, self.config), dst.buffer.name
        step, regions = unit(self.config), self._regions[alive.start : alive.stop]
        occupied = self.residents.occupied_ranges(alive)
        for _, start in occupied.values():
            space, banks = (start, start + need), (start // step * step, ceil_div(start + need, step) * step)
            left = tuple(filter(None, (_without_banks(region, banks) for region in regions)))
            free = all(space[1] <= other[0] or other[1] <= space[0] for other in occupied.values())
            if (
                start == banks[0]
                or banks[1] > self.config.scratchpad_size
                or not free
                or len(left) < len(regions)
            ):
                continue
            beside = [other for other, item in occupied.items() if item[0] < banks[1] and banks[0] < item[1]]
            meet = any(_conflict(self.ops[at], name, other) for at in alive for other in beside)
            yield _Place(alive.start, start, left), meet

    def _possible(self, place: _Place) -> bool:
        """Return whether operators can read or write a result at a place."""
        name = self.ops[place.first].dst.buffer.name
        for at, region in enumerate(place.left, place.first):
            op = self.ops[at]
            if isinstance(op, Conv):
                resident = self._addresses(op) | {name: place.at}
                if not _fits(ConvShape(op, self.planner.site(op, resident, region))):
                    return False
        return True

    def _addresses(self, op: DeviceOp) -> dict[str, int]:
        """Return the addresses of an operator's resident operands and result."""
        names = (view.buffer.name for view in (*op.sources, op.dst))
        resident = self.residents.resident
        return {name: resident[name] for name in names if name in resident}

    def live_range(self, index: int) -> range:
        """Return the operators from `index` to the last reader of its result; none if that cannot stay on chip.

        It cannot if one of these operators can only use memory, or if the result is not written as a whole, or not
        read as a whole or in whole rows.
        """
        dst, nothing = self.ops[index].dst, range(0)
        name = dst.buffer.name
        if dst.buffer.kind != "temp" or not dst.contiguous:
            return nothing
        views = self.ops.reads.get(name, [])
        if not views or len(self.ops.writers[name]) > 1:
            return nothing
        alive = range(index, views[-1][0] + 1)
        by_whole_rows = all(
            view.shape[3] == dst.shape[3] if view.contiguous else _whole_rows(view, dst) for _, view in views
        )
        return alive if by_whole_rows and all(operator_of(self.ops[at]).resident for at in alive) else nothing

    def cost(self, part: range, place: _Place | None = None, most: Cost = _ANY) -> Cost | None:
        """Return the estimate for some operators together, with their first result at a place.

        None if one of them cannot be planned, or as soon as they exceed `most`; then not all have to be planned.
        """
        regions = self._regions[part.start : part.stop] if place is None else place.left
        own = {} if place is None else {self.ops[place.first].dst.buffer.name: place.at}
        total, conflict_cycles = Cost(0, 0), 0
        for at, region in zip(part, regions, strict=True):
            op = self.ops[at]
            resident = self._addresses(op) | own
            cost = self.planner.cost(op, resident, region)
            if cost is None:
                return None
            total = Cost(total.cycles + cost.cycles, total.traffic + cost.traffic)
            if total.cycles > most.cycles or total.traffic > most.traffic:
                return None
            conflict_cycles += _conflict_cycles(op, resident, self.config)
        return Cost(total.cycles + conflict_cycles, total.traffic)


def _vectors(view: View, config: Config) -> int:
    """Return the vectors of a view that is a whole buffer."""
    n, h, w, c = view.shape
    return n * h * w * ceil_div(c, config.n)


def _without_banks(region: Region, banks: Region) -> Region | None:
    """Return a region without some banks; None if that is not one piece."""
    if banks[1] <= region[0] or region[1] <= banks[0]:
        return region
    if banks[0] <= region[0]:
        return (banks[1], region[1]) if banks[1] < region[1] else None
    return (region[0], banks[0]) if region[1] <= banks[1] else None


def _conflict(op: DeviceOp, name: str, other: str) -> bool:
    """Return whether the array reads one of two buffers, and the vector unit the other."""
    if not isinstance(op, Conv):
        return False
    # Of a convolution, the array reads the input; the vector unit reads residuals and writes results.
    read, *others = (view.buffer.name for view in (*op.sources, op.dst))
    return (read == name and other in others) or (read == other and name in others)


def _whole_rows(view: View, dst: View) -> bool:
    """Return whether a view is consecutive rows of an image."""
    n, _, w, c = dst.shape
    shape = (view.shape[0], *view.shape[2:])
    return view.buffer.shape == dst.shape and n == 1 and shape == (n, w, c) and view.step == (1, 1)


def _fits(shape: ConvShape) -> bool:
    """Return whether tiles match resident pixels' vectors one to one, and array and vector unit use different banks.

    A residual that is the convolution's own input would put both into one bank.
    """
    outputs = [item for item in (shape.dst, shape.residual) if item is not None and item.resident is not None]
    if shape.src.resident is None:
        return not outputs or shape.uniform
    apart = shape.residual is None or shape.residual.resident is None or _apart(shape.op)
    return shape.aligned and apart and (not outputs or shape.uniform)


def _apart(op: Conv | WideConv) -> bool:
    """Return whether an operator's residual differs from its input."""
    return op.epilogue is None or op.epilogue.sources[1].buffer.name != op.src.buffer.name


def _conflict_cycles(op: DeviceOp, resident: Mapping[str, int], config: Config) -> int:
    """Return the vector unit's accesses to banks of the array's input; it waits a cycle for each."""
    resident_views = [view for view in (*op.sources, op.dst) if view.buffer.name in resident]
    if len(resident_views) < 2 or resident_views[0] is not op.sources[0] or not isinstance(op, Conv):
        return 0
    step = unit(config)
    ranges = [
        (start // step, (start + _buffer_vectors(view, config) - 1) // step)
        for view in resident_views
        for start in (resident[view.buffer.name],)
    ]
    read, *other_ranges = ranges
    return sum(
        _vectors(view, config)
        for view, other in zip(resident_views[1:], other_ranges, strict=True)
        if other[0] <= read[1] and read[0] <= other[1]
    )


def _buffer_vectors(view: View, config: Config) -> int:
    """Return the vectors of a whole buffer, in a view's shape."""
    return view.buffer.size // view.shape[3] * ceil_div(view.shape[3], config.n)
