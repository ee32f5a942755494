"""Results that stay on chip from convolution to convolution: where in the scratchpad, and what is left beside them.

A result is held, whole, in banks at one end of the scratchpad from the convolution that makes it to the last one that
reads it, if these follow each other; what lies between is left for their weights and other operands. It costs them
room, and saves the bus a STORE and LOADs: the estimate decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.compiler.ir.graph import Conv, DeviceOp, sources
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.limits import STRIDE_MAX
from weft.compiler.machine.memory import Placement
from weft.compiler.plan.conv_plan import ConvPlan, plan, unit
from weft.compiler.plan.conv_shape import ConvShape, Room
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class Cascade:
    """Buffers that are held, with their addresses in the scratchpad, and the room of each operator beside them."""

    held: Mapping[str, int] = field(default_factory=dict)
    rooms: tuple[Room, ...] = ()


def cascade(ops: Sequence[DeviceOp], config: Config) -> Cascade:
    """Hold what saves DRAM and costs no time by estimate, one result after the other."""
    found = Cascade({}, ((0, config.scratchpad_size),) * len(ops))
    for index in range(len(ops)):
        if convs := _until_read(ops, index):
            found = _holding(found, index, convs, config)
    return found


def planned(
    op: Conv, config: Config, held: Mapping[str, int] | None = None, room: Room | None = None
) -> ConvPlan | None:
    """The best plan by estimate for a convolution, with operands that are `held` on chip and what `room` is left."""
    return plan(_shape(op, config, held or {}, room))


def _shape(op: Conv, config: Config, held: Mapping[str, int], room: Room | None) -> ConvShape:
    placement = Placement((op,), held=held)
    read = [placement.source(view) for view in sources(op)]
    return ConvShape(op, read, placement.source(op.dst), config, room)


def _until_read(ops: Sequence[DeviceOp], index: int) -> list[Conv]:
    """The operator at `index` and those up to the last that reads its result; none of them if that cannot be held: if
    it is not only convolutions, or if not all of the result is written and read as one."""
    dst = ops[index].dst
    name = dst.buffer.name
    if dst.buffer.kind != "temp" or not dst.contiguous:
        return []
    views = [(at, view) for at, op in enumerate(ops) for view in sources(op) if view.buffer.name == name]
    whole = all(view.contiguous and view.shape[3] == dst.shape[3] for _, view in views)
    if not views or not whole or sum(op.dst.buffer.name == name for op in ops) > 1:
        return []
    between = ops[index : views[-1][0] + 1]
    convs = [op for op in between if isinstance(op, Conv)]
    return convs if len(convs) == len(between) else []


def _holding(found: Cascade, index: int, convs: Sequence[Conv], config: Config) -> Cascade:
    """With the result of the first of `convs` held until the last, if they take no longer for that and keep the bus
    less busy, by estimate; they begin at `index`."""
    n, h, w, c = convs[0].dst.shape
    vectors, name = ceil_div(c, config.n), convs[0].dst.buffer.name
    need = ceil_div(n * h * w * vectors, unit(config)) * unit(config)
    rooms = found.rooms[index : index + len(convs)]
    low, high = max(room[0] for room in rooms), min(room[1] for room in rooms)
    if high - low <= need or w * vectors > STRIDE_MAX:
        return found
    # From the end where less is taken, so that results which follow each other lie at opposite ends.
    if low <= config.scratchpad_size - high:
        at, left = low, tuple((low + need, room[1]) for room in rooms)
    else:
        at, left = high - need, tuple((room[0], high - need) for room in rooms)
    held = {**found.held, name: at}
    shapes = [_shape(conv, config, held, room) for conv, room in zip(convs, left, strict=True)]
    if not all(_fits(shape) for shape in shapes):
        return found
    kept = _cost([plan(shape) for shape in shapes])
    moved = _cost([planned(conv, config, found.held, room) for conv, room in zip(convs, rooms, strict=True)])
    if kept is None or moved is None or kept[0] > moved[0] or kept[1] >= moved[1]:
        return found
    return Cascade(held, found.rooms[:index] + left + found.rooms[index + len(convs) :])


def _fits(shape: ConvShape) -> bool:
    """Whether pieces of input channels and tiles of outputs are the vectors of pixels that are held, one by one; and
    whether array and vector unit read different banks: a sum of a result and what is made of it keeps both there."""
    outputs = [item for item in (shape.dst, shape.residual) if item is not None and item.held is not None]
    if shape.src.held is None:
        return not outputs or shape.uniform
    apart = shape.residual is None or shape.residual.held != shape.src.held
    return shape.aligned and apart and (not outputs or shape.uniform)


def _cost(plans: Sequence[ConvPlan | None]) -> tuple[float, float] | None:
    """Cycles of layers and those of the bus for their data, by estimate; None if one of them cannot be planned."""
    found = [item for item in plans if item is not None]
    if len(found) < len(plans):
        return None
    return sum(item.cycles for item in found), sum(item.traffic for item in found)
