"""Results that stay on chip from operator to operator: where in the scratchpad, and what is left beside them.

A resident result is, whole, in the scratchpad from the operator that makes it to the last one that reads it, if these
follow each other and use what is on chip: convolutions, and operators of the vector unit. It is in banks at one end, or
in what others leave of theirs; what lies between is left for weights and other operands. It costs these room, and saves
the bus a STORE and LOADs: the estimate decides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Region, View
from weft.compiler.kernel.wide_conv import WideConv
from weft.compiler.machine import overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.limits import STRIDE_MAX
from weft.compiler.operators.record import Cost, operator_of
from weft.compiler.plan.conv_plan import unit
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config


def keep_resident(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Results stay on chip from operator to operator where that saves DRAM and costs no time.

    Both are by estimate, for one result after the other.
    """
    for index in range(len(segment.ops)):
        if segment.ops[index].dst.buffer.name in segment.resident:
            continue
        alive = range(index, index + len(_until_read(segment.ops, index)))
        before = cost_of(segment, alive, planner) if alive else None
        for kept in placements(segment, index, planner) if before else ():
            assert before is not None
            # In memory, a result is stored to its end and loaded from its start: nothing overlaps there.
            most = Cost(before.cycles + overheads.ENDS, before.traffic)
            after = cost_of(kept, alive, planner, most)
            if after and after.cycles <= most.cycles and after.traffic < most.traffic:
                segment = kept
                break
    return segment


def with_resident(segment: DeviceSegment, index: int, planner: Planner) -> DeviceSegment | None:
    """The segment with the result of operator `index` on chip until the last that reads it, whatever that costs; None
    if it cannot stay there.
    """
    return next(placements(segment, index, planner), None)


def placements(segment: DeviceSegment, index: int, planner: Planner) -> Iterator[DeviceSegment]:
    """The segment with the result of operator `index` in banks of its own, in banks that others have a part of, and
    where array and vector unit meet in a bank."""
    ops, config = _until_read(segment.ops, index), planner.config
    if not ops:
        return
    _, _, w, c = ops[0].dst.shape
    if w * ceil_div(c, config.n) > STRIDE_MAX:
        return
    alive = range(index, index + len(ops))
    shared = list(_rest_of_banks(segment, alive, config))
    own = _own_banks(segment, alive, config)
    places = own + [place for place, meet in shared if not meet] + [place for place, meet in shared if meet]
    for at, left in places:
        kept = _placed(segment, index, at, left, planner)
        if kept is not None:
            yield kept


_Place = tuple[int, tuple[Region, ...]]
"""An address of a result, and what that leaves of the scratchpad for each operator while it is there."""


def _own_banks(segment: DeviceSegment, alive: range, config: Config) -> list[_Place]:
    """The place of a result in banks of its own while some operators run, if there is one."""
    step = unit(config)
    need = ceil_div(_size(segment.ops[alive.start].dst, config), step) * step
    regions = _regions(segment, config)[alive.start : alive.stop]
    low, high = max(region[0] for region in regions), min(region[1] for region in regions)
    if high - low < need + 2 * step:  # weights and parameters need some
        return []
    # From the end where less is taken, so that results which follow each other lie at opposite ends.
    if low <= config.scratchpad_size - high:
        return [(low, tuple((low + need, region[1]) for region in regions))]
    return [(high - need, tuple((region[0], high - need) for region in regions))]


def _placed(
    segment: DeviceSegment, index: int, at: int, left: tuple[Region, ...], planner: Planner
) -> DeviceSegment | None:
    """The segment with the result of operator `index` at an address on chip, and what that leaves of the scratchpad
    from there on; None if operators cannot read or write it there."""
    stop, regions = index + len(left), _regions(segment, planner.config)
    ops = segment.ops[index:stop]
    resident = {**segment.resident, ops[0].dst.buffer.name: at}
    for op, region in zip(ops, left, strict=True):
        if isinstance(op, Conv) and not _fits(ConvShape(op, planner.site(op, resident, region))):
            return None
    return dataclasses.replace(segment, resident=resident, regions=regions[:index] + left + regions[stop:])


def _size(view: View, config: Config) -> int:
    """Vectors of all that is in a buffer."""
    n, h, w, c = view.shape
    return n * h * w * ceil_div(c, config.n)


def _rest_of_banks(segment: DeviceSegment, alive: range, config: Config) -> Iterator[tuple[_Place, bool]]:
    """Where a result has room, while some operators run, in banks that other results have parts of, and whether array
    and vector unit meet there."""
    need, name = _size(segment.ops[alive.start].dst, config), segment.ops[alive.start].dst.buffer.name
    step, regions = unit(config), _regions(segment, config)[alive.start : alive.stop]
    held = taken(segment, alive, config)
    for _, start in held.values():
        space, banks = (start, start + need), (start // step * step, ceil_div(start + need, step) * step)
        left = tuple(filter(None, (_beside(region, banks) for region in regions)))
        free = all(space[1] <= other[0] or other[1] <= space[0] for other in held.values())
        if start == banks[0] or banks[1] > config.scratchpad_size or not free or len(left) < len(regions):
            continue
        beside = [other for other, item in held.items() if item[0] < banks[1] and banks[0] < item[1]]
        yield (start, left), any(_meet(segment.ops[at], name, other) for at in alive for other in beside)


def _beside(region: Region, banks: Region) -> Region | None:
    """What is left of a region without some banks; None if that is not one piece."""
    if banks[1] <= region[0] or region[1] <= banks[0]:
        return region
    if banks[0] <= region[0]:
        return (banks[1], region[1]) if banks[1] < region[1] else None
    return (region[0], banks[0]) if region[1] <= banks[1] else None


def taken(segment: DeviceSegment, alive: range, config: Config) -> dict[str, Region]:
    """Where results are that stay on chip while some operators run."""
    found: dict[str, Region] = {}
    last = {view.buffer.name: at for at, op in enumerate(segment.ops) for view in op.sources}
    for op in segment.ops[: alive.stop]:
        name = op.dst.buffer.name
        if name in segment.resident and last[name] >= alive.start:
            start = segment.resident[name]
            found[name] = (start, start + _size(op.dst, config))
    return found


def _meet(op: DeviceOp, name: str, other: str) -> bool:
    """Whether the array reads one of two buffers, and the vector unit the other."""
    if not isinstance(op, Conv):
        return False
    read, *rest = (view.buffer.name for view in (*op.sources, op.dst))
    return (read == name and other in rest) or (read == other and name in rest)


def _regions(segment: DeviceSegment, config: Config) -> tuple[Region, ...]:
    return segment.regions or ((0, config.scratchpad_size),) * len(segment.ops)


def _until_read(ops: Sequence[DeviceOp], index: int) -> Sequence[DeviceOp]:
    """The operator at `index` and those up to the last that reads its result; none of them if that cannot stay: if one
    of them can only use memory, or if not all of the result is written as one, and read as that or in whole rows."""
    dst = ops[index].dst
    name = dst.buffer.name
    if dst.buffer.kind != "temp" or not dst.contiguous:
        return []
    views = [(at, view) for at, op in enumerate(ops) for view in op.sources if view.buffer.name == name]
    whole = all(
        view.shape[3] == dst.shape[3] if view.contiguous else _whole_rows(view, dst) for _, view in views
    )
    if not views or not whole or sum(op.dst.buffer.name == name for op in ops) > 1:
        return []
    between = ops[index : views[-1][0] + 1]
    return between if all(operator_of(op).resident for op in between) else []


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


_ANY = Cost(math.inf, math.inf)


def cost_of(segment: DeviceSegment, part: range, planner: Planner, most: Cost = _ANY) -> Cost | None:
    """Estimates for some operators of a segment together; None if one of them cannot be planned, or as soon as they are
    above `most`, so that not all have to be planned then."""
    regions = _regions(segment, planner.config)
    total = Cost(0, 0)
    for at in part:
        cost = planner.cost(segment.ops[at], segment.resident, regions[at])
        if cost is None:
            return None
        total = Cost(total.cycles + cost.cycles, total.traffic + cost.traffic)
        if total.cycles > most.cycles or total.traffic > most.traffic:
            return None
    met = sum(_met(segment.ops[at], segment, planner.config) for at in part)
    return Cost(total.cycles + met, total.traffic)


def _met(op: DeviceOp, segment: DeviceSegment, config: Config) -> int:
    """Accesses of the vector unit to banks that the array reads its inputs from: it waits a cycle for each."""
    held = [view for view in (*op.sources, op.dst) if view.buffer.name in segment.resident]
    if len(held) < 2 or held[0] is not op.sources[0] or not isinstance(op, Conv):
        return 0
    step = unit(config)
    ranges = [
        (segment.resident[view.buffer.name] // step, _last(view, segment, config) // step) for view in held
    ]
    read, *rest = ranges
    return sum(
        _size(view, config)
        for view, other in zip(held[1:], rest, strict=True)
        if other[0] <= read[1] and read[0] <= other[1]
    )


def _last(view: View, segment: DeviceSegment, config: Config) -> int:
    """The last vector of what stays on chip."""
    return segment.resident[view.buffer.name] + _whole(view, config) - 1


def _whole(view: View, config: Config) -> int:
    """Vectors of all of a buffer, seen as a view has it."""
    return view.buffer.size // view.shape[3] * ceil_div(view.shape[3], config.n)
