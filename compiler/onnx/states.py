"""What is kept from run to run: memory of the device where one of its programs reads and makes it."""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import Buffer, DeviceOp, DeviceSegment, View
from weft.compiler.ir.layout import Layout
from weft.compiler.ir.model import Graph, HostSegment, Transfer
from weft.compiler.ir.network import State


def keep_on_device(graph: Graph) -> Graph:
    """The graph with buffers of kind "state" for states that only one device segment reads, and makes in the same order
    of bytes. All others pass the host: they are inputs and outputs of the segments that read and make them."""
    for state in graph.states:
        found = _places(graph, state)
        if found is not None:
            graph = _kept(graph, *found)
    return graph


def _places(graph: Graph, state: State) -> tuple[DeviceSegment, Transfer, Transfer] | None:
    """The segment that reads a state and makes its next value, and how they enter and leave it."""
    entering = [item for item in graph.to_device if item.value == state.source]
    leaving = [item for item in graph.from_device if item.value == state.target]
    on_host = any(isinstance(item, HostSegment) and state.source in item.inputs for item in graph.segments)
    if len(entering) != 1 or len(leaving) != 1 or on_host:
        return None
    (source,), (target,) = entering, leaving
    for segment in graph.segments:
        if isinstance(segment, DeviceSegment) and _alike(source, target):
            read = {view.buffer.name for op in segment.ops for view in op.sources}
            made = {op.dst.buffer.name for op in segment.ops}
            if (
                source.buffer.name in read
                and {target.buffer.name, segment.states.get(target.buffer.name)} & made
            ):
                return segment, source, target
    return None


def _alike(source: Transfer, target: Transfer) -> bool:
    """Whether the bytes of two values mean the same in their buffers."""
    layouts = [
        Layout(item.shape, item.perm or tuple(range(len(item.shape))), item.nhwc) for item in (source, target)
    ]
    return layouts[0].same(layouts[1]) and (source.dtype, source.stored) == (target.dtype, target.stored)


def _kept(graph: Graph, segment: DeviceSegment, source: Transfer, target: Transfer) -> Graph:
    """The graph in which the buffer of `source` is a state of a segment. The host reads what it becomes from there: all
    values that are in the buffer of `target`."""
    state = dataclasses.replace(source.buffer, kind="state")
    made = segment.states.get(target.buffer.name, target.buffer.name)

    def placed(view: View) -> View:
        if view.buffer.name != state.name:
            return view
        return dataclasses.replace(view, buffer=Buffer(state.name, view.buffer.shape, "state"))

    ops: tuple[DeviceOp, ...] = tuple(op.on(placed) for op in segment.ops)
    changed = dataclasses.replace(segment, ops=ops, states={**segment.states, state.name: made})
    entering = (
        dataclasses.replace(item, buffer=state) if item is source else item for item in graph.to_device
    )
    leaving = (
        dataclasses.replace(item, buffer=Buffer(state.name, item.buffer.shape, "state"))
        if item.buffer.name == made
        else item
        for item in graph.from_device
    )
    return dataclasses.replace(
        graph,
        segments=tuple(changed if item is segment else item for item in graph.segments),
        to_device=tuple(entering),
        from_device=tuple(leaving),
    )
