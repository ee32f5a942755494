"""What is kept from run to run is written where the next run reads it."""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import Buffer, DeviceOp, DeviceSegment, Ops, Rescale, View
from weft.compiler.planner import Planner

_CHANNELS = 1024
"""Most channels of what is copied."""


def store_states(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """New values of states take the place of old ones.

    That is at once where the old one is not read any more then, and else by a copy at the end.
    """
    if not segment.states:
        return segment
    copied: list[tuple[str, str]] = []
    placed: dict[str, str] = {}
    for state, made in segment.states.items():
        if made not in placed and _in_place(segment.index, state, made):
            placed[made] = state
        else:
            copied.append((state, made))
    buffers = {made: (state, "state") for made, state in placed.items()}
    buffers |= {made: (made, "temp") for _, made in copied if made not in placed}
    copies = [_copy(segment.index, state, made) for state, made in copied]
    every = tuple(_renamed(op, buffers) for op in (*segment.ops, *copies))
    whole = (0, planner.config.scratchpad_size)
    regions = segment.regions and (*segment.regions, *(whole for _ in copies))
    return dataclasses.replace(segment, ops=every, regions=regions, states={})


def _in_place(ops: Ops, state: str, made: str) -> bool:
    """Whether the first operator that writes the new value is behind all that read the old one."""
    return all(at < ops.writers[made][0] for at, _ in ops.reads.get(state, ()))


def _copy(ops: Ops, state: str, made: str) -> Rescale:
    """What copies the new value, all of it, to the state: as pixels of many channels, which are quick to move."""
    size = ops[ops.writers[made][0]].dst.buffer.size
    channels = max(count for count in range(1, min(size, _CHANNELS) + 1) if size % count == 0)
    shape = (1, 1, size // channels, channels)
    source, target = (
        View(Buffer(name, shape, kind), shape) for name, kind in ((made, "output"), (state, "state"))
    )
    return Rescale(f"{state}:kept", source, target)


def _renamed(op: DeviceOp, buffers: dict[str, tuple[str, str]]) -> DeviceOp:
    """The same with other names and kinds of some buffers."""

    def view(old: View) -> View:
        name, kind = buffers.get(old.buffer.name, (old.buffer.name, old.buffer.kind))
        return dataclasses.replace(old, buffer=Buffer(name, old.buffer.shape, kind))

    epilogue = getattr(op, "epilogue", None)
    return op.on(view) if epilogue is None else op.on(view).replace(epilogue=_renamed(epilogue, buffers))
