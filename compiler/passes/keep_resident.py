"""Results that stay on chip from convolution to convolution: where in the scratchpad, and what is left beside them.

A resident result is, whole, in banks at one end of the scratchpad from the convolution that makes it to the last one
that reads it, if these follow each other; what lies between is left for their weights and other operands. It costs them
room, and saves the bus a STORE and LOADs: the estimate decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Region, View
from weft.compiler.kernel.wide_conv import WideConv
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.limits import STRIDE_MAX
from weft.compiler.operators.record import Cost
from weft.compiler.plan.conv_plan import unit
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config


def keep_resident(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Results stay on chip from convolution to convolution where that saves DRAM and costs no time.

    Both are by estimate, for one result after the other.
    """
    for index in range(len(segment.ops)):
        if segment.ops[index].dst.buffer.name in segment.resident:
            continue
        kept = with_resident(segment, index, planner)
        if kept is not None:
            alive = range(index, index + len(_until_read(segment.ops, index)))
            after, before = (cost_of(item, alive, planner) for item in (kept, segment))
            if after and before and after.cycles <= before.cycles and after.traffic < before.traffic:
                segment = kept
    return segment


def with_resident(segment: DeviceSegment, index: int, planner: Planner) -> DeviceSegment | None:
    """The segment with the result of operator `index` on chip until the last that reads it, whatever that costs; None
    if it cannot stay there.
    """
    convs, config = _until_read(segment.ops, index), planner.config
    if not convs:
        return None
    n, h, w, c = convs[0].dst.shape
    vectors, step = ceil_div(c, config.n), unit(config)
    need = ceil_div(n * h * w * vectors, step) * step
    stop = index + len(convs)
    regions = _regions(segment, config)
    low, high = (
        max(region[0] for region in regions[index:stop]),
        min(region[1] for region in regions[index:stop]),
    )
    if high - low <= need or w * vectors > STRIDE_MAX:
        return None
    # From the end where less is taken, so that results which follow each other lie at opposite ends.
    if low <= config.scratchpad_size - high:
        at, left = low, tuple((low + need, region[1]) for region in regions[index:stop])
    else:
        at, left = high - need, tuple((region[0], high - need) for region in regions[index:stop])
    resident = {**segment.resident, convs[0].dst.buffer.name: at}
    sites = (planner.site(conv, resident, region) for conv, region in zip(convs, left, strict=True))
    if not all(_fits(ConvShape(conv, site)) for conv, site in zip(convs, sites, strict=True)):
        return None
    return dataclasses.replace(segment, resident=resident, regions=regions[:index] + left + regions[stop:])


def _regions(segment: DeviceSegment, config: Config) -> tuple[Region, ...]:
    return segment.regions or ((0, config.scratchpad_size),) * len(segment.ops)


def _until_read(ops: Sequence[DeviceOp], index: int) -> list[Conv]:
    """The operator at `index` and those up to the last that reads its result; none of them if that cannot stay: if it
    is not only convolutions, or if not all of the result is written as one, and read as that or in whole rows."""
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
    convs = [op for op in between if isinstance(op, Conv)]
    return convs if len(convs) == len(between) else []


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


def cost_of(segment: DeviceSegment, part: range, planner: Planner) -> Cost | None:
    """Estimates for some operators of a segment together; None if one of them cannot be planned."""
    regions = _regions(segment, planner.config)
    found = [planner.cost(segment.ops[at], segment.resident, regions[at]) for at in part]
    costs = [cost for cost in found if cost is not None]
    if len(costs) < len(found):
        return None
    return Cost(sum(cost.cycles for cost in costs), sum(cost.traffic for cost in costs))
