"""Results that stay on chip from operator to operator: where in the scratchpad, and what is left beside them.

A resident result is, whole, in the scratchpad from the operator that makes it to the last one that reads it, if these
follow each other and use what is on chip: convolutions, and operators of the vector unit. It is in banks at one end, or
in what others leave of theirs; what lies between is left for weights and other operands. It costs these room, and saves
the bus a STORE and LOADs: the estimate decides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Ops, Region, View
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
    """Results stay on chip from operator to operator where that saves DRAM and costs no time.

    Both are by estimate, for one result after the other.
    """
    chip = Chip(segment, planner)
    for index, op in enumerate(segment.ops):
        alive = chip.until_read(index)
        if op.dst.buffer.name in segment.resident or not alive:
            continue
        before = chip.cost(alive)
        for place in chip.placements(index) if before else ():
            assert before is not None
            # In memory, a result is stored to its end and loaded from its start: nothing overlaps there.
            most = Cost(before.cycles + target.ENDS, before.traffic)
            after = chip.cost(alive, place, most)
            if after and after.cycles <= most.cycles and after.traffic < most.traffic:
                chip.put(place)
                break
    return chip.segment()


def with_resident(segment: DeviceSegment, index: int, planner: Planner) -> DeviceSegment | None:
    """The segment with the result of operator `index` on chip until the last that reads it, whatever that costs; None
    if it cannot stay there.
    """
    return next(placements(segment, index, planner), None)


def placements(segment: DeviceSegment, index: int, planner: Planner) -> Iterator[DeviceSegment]:
    """The segment with the result of operator `index` at each place on chip that `Chip.placements` finds."""
    for place in Chip(segment, planner).placements(index):
        chip = Chip(segment, planner)
        chip.put(place)
        yield chip.segment()


def cost_of(segment: DeviceSegment, part: range, planner: Planner) -> Cost | None:
    """Estimates for some operators of a segment together; None if one of them cannot be planned."""
    return Chip(segment, planner).cost(part)


_ANY = Cost(math.inf, math.inf)


class _Place(NamedTuple):
    """Where a result stays while the operators from `first` on run: its address, and what that leaves of the
    scratchpad for each of them."""

    first: int
    at: int
    left: tuple[Region, ...]


class Held:
    """The results of operators that stay on chip, by the operators during which they do."""

    def __init__(self, ops: Ops, resident: Mapping[str, int], config: Config) -> None:
        self.ops, self.config, self.resident = ops, config, dict(resident)
        self._during: dict[int, list[int]] = {}
        for name in resident:
            self._note(name)

    def put(self, name: str, at: int) -> None:
        """Note that a result stays at an address."""
        self.resident[name] = at
        self._note(name)

    def _note(self, name: str) -> None:
        for writer in self.ops.writers.get(name, ()):
            for at in range(writer, self.ops.reads[name][-1][0] + 1):
                self._during.setdefault(at, []).append(writer)

    def taken(self, alive: range) -> dict[str, Region]:
        """Where results are that stay on chip while some operators run."""
        found: dict[str, Region] = {}
        for writer in sorted({place for at in alive for place in self._during.get(at, ())}):
            view = self.ops[writer].dst
            start = self.resident[view.buffer.name]
            found[view.buffer.name] = (start, start + _size(view, self.config))
        return found


class Chip:
    """What of a segment is on chip, and what that leaves for each operator: changed result by result."""

    def __init__(self, segment: DeviceSegment, planner: Planner) -> None:
        self._segment, self.planner, self.config = segment, planner, planner.config
        self.ops = segment.index
        whole = (0, self.config.scratchpad_size)
        self._regions = list(segment.regions or (whole,) * len(self.ops))
        self.held = Held(self.ops, segment.resident, self.config)

    def segment(self) -> DeviceSegment:
        """The segment with all that was put on chip."""
        resident = self.held.resident
        if len(resident) == len(self._segment.resident):
            return self._segment
        return dataclasses.replace(self._segment, resident=resident, regions=tuple(self._regions))

    def put(self, place: _Place) -> None:
        """Keep the result of the first operator of a place there."""
        self.held.put(self.ops[place.first].dst.buffer.name, place.at)
        self._regions[place.first : place.first + len(place.left)] = place.left

    def placements(self, index: int) -> Iterator[_Place]:
        """The places for the result of operator `index`: in banks of its own, in banks that others have a part of, and
        where array and vector unit meet in a bank."""
        alive = self.until_read(index)
        if not alive:
            return
        _, _, w, c = self.ops[index].dst.shape
        if w * ceil_div(c, self.config.n) > STRIDE_MAX:
            return
        shared = list(self._rest_of_banks(alive))
        own = self._own_banks(alive)
        places = (
            own + [place for place, meet in shared if not meet] + [place for place, meet in shared if meet]
        )
        yield from filter(self._possible, places)

    def _own_banks(self, alive: range) -> list[_Place]:
        """The place of a result in banks of its own while some operators run, if there is one."""
        step, config = unit(self.config), self.config
        need = ceil_div(_size(self.ops[alive.start].dst, config), step) * step
        regions = self._regions[alive.start : alive.stop]
        low, high = max(region[0] for region in regions), min(region[1] for region in regions)
        if high - low < need + 2 * step:  # weights and parameters need some
            return []
        # From the end where less is taken, so that results which follow each other lie at opposite ends.
        if low <= config.scratchpad_size - high:
            return [_Place(alive.start, low, tuple((low + need, region[1]) for region in regions))]
        return [_Place(alive.start, high - need, tuple((region[0], high - need) for region in regions))]

    def _rest_of_banks(self, alive: range) -> Iterator[tuple[_Place, bool]]:
        """Where a result has room, while some operators run, in banks that other results have parts of, and whether
        array and vector unit meet there."""
        dst = self.ops[alive.start].dst
        need, name = _size(dst, self.config), dst.buffer.name
        step, regions = unit(self.config), self._regions[alive.start : alive.stop]
        held = self.held.taken(alive)
        for _, start in held.values():
            space, banks = (start, start + need), (start // step * step, ceil_div(start + need, step) * step)
            left = tuple(filter(None, (_beside(region, banks) for region in regions)))
            free = all(space[1] <= other[0] or other[1] <= space[0] for other in held.values())
            if (
                start == banks[0]
                or banks[1] > self.config.scratchpad_size
                or not free
                or len(left) < len(regions)
            ):
                continue
            beside = [other for other, item in held.items() if item[0] < banks[1] and banks[0] < item[1]]
            meet = any(_meet(self.ops[at], name, other) for at in alive for other in beside)
            yield _Place(alive.start, start, left), meet

    def _possible(self, place: _Place) -> bool:
        """Whether operators can read or write a result at a place."""
        name = self.ops[place.first].dst.buffer.name
        for at, region in enumerate(place.left, place.first):
            op = self.ops[at]
            if isinstance(op, Conv):
                resident = self._used(op) | {name: place.at}
                if not _fits(ConvShape(op, self.planner.site(op, resident, region))):
                    return False
        return True

    def _used(self, op: DeviceOp) -> dict[str, int]:
        """The addresses of what an operator uses on chip."""
        names = (view.buffer.name for view in (*op.sources, op.dst))
        resident = self.held.resident
        return {name: resident[name] for name in names if name in resident}

    def until_read(self, index: int) -> range:
        """The operator at `index` and those up to the last that reads its result; none of them if that cannot stay: if
        one of them can only use memory, or if not all of the result is written as one, and read as that or in whole
        rows."""
        dst, nothing = self.ops[index].dst, range(0)
        name = dst.buffer.name
        if dst.buffer.kind != "temp" or not dst.contiguous:
            return nothing
        views = self.ops.reads.get(name, [])
        if not views or len(self.ops.writers[name]) > 1:
            return nothing
        alive = range(index, views[-1][0] + 1)
        whole = all(
            view.shape[3] == dst.shape[3] if view.contiguous else _whole_rows(view, dst) for _, view in views
        )
        return alive if whole and all(operator_of(self.ops[at]).resident for at in alive) else nothing

    def cost(self, part: range, place: _Place | None = None, most: Cost = _ANY) -> Cost | None:
        """Estimates for some operators together, if their first result is at a place; None if one of them cannot be
        planned, or as soon as they are above `most`, so that not all have to be planned then."""
        regions = self._regions[part.start : part.stop] if place is None else place.left
        own = {} if place is None else {self.ops[place.first].dst.buffer.name: place.at}
        total, met = Cost(0, 0), 0
        for at, region in zip(part, regions, strict=True):
            op = self.ops[at]
            resident = self._used(op) | own
            cost = self.planner.cost(op, resident, region)
            if cost is None:
                return None
            total = Cost(total.cycles + cost.cycles, total.traffic + cost.traffic)
            if total.cycles > most.cycles or total.traffic > most.traffic:
                return None
            met += _met(op, resident, self.config)
        return Cost(total.cycles + met, total.traffic)


def _size(view: View, config: Config) -> int:
    """Vectors of all that is in a buffer."""
    n, h, w, c = view.shape
    return n * h * w * ceil_div(c, config.n)


def _beside(region: Region, banks: Region) -> Region | None:
    """What is left of a region without some banks; None if that is not one piece."""
    if banks[1] <= region[0] or region[1] <= banks[0]:
        return region
    if banks[0] <= region[0]:
        return (banks[1], region[1]) if banks[1] < region[1] else None
    return (region[0], banks[0]) if region[1] <= banks[1] else None


def _meet(op: DeviceOp, name: str, other: str) -> bool:
    """Whether the array reads one of two buffers, and the vector unit the other."""
    if not isinstance(op, Conv):
        return False
    read, *rest = (view.buffer.name for view in (*op.sources, op.dst))
    return (read == name and other in rest) or (read == other and name in rest)


def _whole_rows(view: View, dst: View) -> bool:
    """Whether a view is rows, one after the other, of an image."""
    n, _, w, c = dst.shape
    shape = (view.shape[0], *view.shape[2:])
    return view.buffer.shape == dst.shape and n == 1 and shape == (n, w, c) and view.step == (1, 1)


def _fits(shape: ConvShape) -> bool:
    """Whether pieces of input channels and tiles of outputs are the vectors of resident pixels, one by one; and whether
    array and vector unit read different banks: a sum of a result and what is made of it keeps both there."""
    outputs = [item for item in (shape.dst, shape.residual) if item is not None and item.resident is not None]
    if shape.src.resident is None:
        return not outputs or shape.uniform
    apart = shape.residual is None or shape.residual.resident is None or _apart(shape.op)
    return shape.aligned and apart and (not outputs or shape.uniform)


def _apart(op: Conv | WideConv) -> bool:
    """Whether an operator adds something else to its result than what it reads."""
    return op.epilogue is None or op.epilogue.sources[1].buffer.name != op.src.buffer.name


def _met(op: DeviceOp, resident: Mapping[str, int], config: Config) -> int:
    """Accesses of the vector unit to banks that the array reads its inputs from: it waits a cycle for each."""
    held = [view for view in (*op.sources, op.dst) if view.buffer.name in resident]
    if len(held) < 2 or held[0] is not op.sources[0] or not isinstance(op, Conv):
        return 0
    step = unit(config)
    ranges = [
        (start // step, (start + _whole(view, config) - 1) // step)
        for view in held
        for start in (resident[view.buffer.name],)
    ]
    read, *rest = ranges
    return sum(
        _size(view, config)
        for view, other in zip(held[1:], rest, strict=True)
        if other[0] <= read[1] and read[0] <= other[1]
    )


def _whole(view: View, config: Config) -> int:
    """Vectors of all of a buffer, seen as a view has it."""
    return view.buffer.size // view.shape[3] * ceil_div(view.shape[3], config.n)
