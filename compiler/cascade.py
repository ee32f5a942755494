"""Results that stay on chip from convolution to convolution: where in the scratchpad, and what is left beside them.

A result is held, whole, in banks at one end of the scratchpad from the convolution that makes it to the last one that
reads it, if these follow each other; what lies between is left for their weights and other operands. It costs them
room, and saves the bus a STORE and LOADs: the estimate decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.compiler.conv_plan import ConvPlan, plan, unit
from weft.compiler.conv_shape import ConvShape
from weft.compiler.emit import STRIDE_MAX, ceil_div
from weft.compiler.ir import Conv, DeviceOp, sources
from weft.compiler.memory import Placement
from weft.hdl.config import Config

Room = tuple[int, int]
"""A part of the scratchpad, from address to address."""


@dataclass
class Cascade:
    """Buffers that are held, with their addresses in the scratchpad, and the room of each operator beside them."""

    held: dict[str, int] = field(default_factory=dict)
    rooms: list[Room] = field(default_factory=list)


def cascade(ops: Sequence[DeviceOp], config: Config) -> Cascade:
    """Hold what saves DRAM and costs no time by estimate, one result after the other."""
    found = Cascade({}, [(0, config.scratchpad_size)] * len(ops))
    for index, op in enumerate(ops):
        if last := _last_reader(ops, index, op):
            convs = [conv for conv in ops[index : last + 1] if isinstance(conv, Conv)]
            _hold(found, index, convs, config)
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


def _last_reader(ops: Sequence[DeviceOp], index: int, op: DeviceOp) -> int | None:
    """The last operator that reads the result of `op`, if nothing but convolutions read it, or stand between."""
    buffer, channels = op.dst.buffer, op.dst.shape[3]
    if not isinstance(op, Conv) or buffer.kind != "temp" or not op.dst.contiguous:
        return None
    readers = [
        at for at, other in enumerate(ops) if buffer.name in {view.buffer.name for view in sources(other)}
    ]
    if not readers or readers[0] <= index:
        return None
    if not all(isinstance(other, Conv) for other in ops[index : readers[-1] + 1]):
        return None
    views = [view for at in readers for view in sources(ops[at]) if view.buffer.name == buffer.name]
    whole = all(view.contiguous and view.shape[3] == channels for view in views)
    return readers[-1] if whole else None


def _hold(found: Cascade, index: int, convs: Sequence[Conv], config: Config) -> None:
    """Hold the result of the first of `convs`, which are those from `index` to its last reader, if that is better."""
    n, h, w, c = convs[0].dst.shape
    vectors, name = ceil_div(c, config.n), convs[0].dst.buffer.name
    need = ceil_div(n * h * w * vectors, unit(config)) * unit(config)
    rooms = found.rooms[index : index + len(convs)]
    low, high = max(room[0] for room in rooms), min(room[1] for room in rooms)
    if high - low <= need or w * vectors > STRIDE_MAX:
        return
    # From the end where less is taken, so that results which follow each other lie at opposite ends.
    if low <= config.scratchpad_size - high:
        at, after = low, [(low + need, room[1]) for room in rooms]
    else:
        at, after = high - need, [(room[0], high - need) for room in rooms]
    held = found.held | {name: at}
    shapes = [_shape(conv, config, held, room) for conv, room in zip(convs, after, strict=True)]
    if not all(_fits(shape) for shape in shapes):
        return
    kept = [plan(shape) for shape in shapes]
    moved = [planned(conv, config, found.held, room) for conv, room in zip(convs, rooms, strict=True)]
    if _better(kept, moved):
        found.held = held
        found.rooms[index : index + len(convs)] = after


def _fits(shape: ConvShape) -> bool:
    """Whether pieces of input channels and tiles of outputs are the vectors of pixels that are held, one by one."""
    outputs = [item for item in (shape.dst, shape.residual) if item is not None and item.held is not None]
    return (shape.src.held is None or shape.aligned) and (not outputs or shape.uniform)


def _better(kept: Sequence[ConvPlan | None], moved: Sequence[ConvPlan | None]) -> bool:
    """Whether layers take no longer and move less data, by estimate."""
    a, b = [found for found in kept if found], [found for found in moved if found]
    return (
        len(a) == len(kept)
        and len(b) == len(moved)
        and sum(found.cycles for found in a) <= sum(found.cycles for found in b)
        and sum(found.traffic for found in a) < sum(found.traffic for found in b)
    )
