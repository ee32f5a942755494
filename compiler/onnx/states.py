"""States between runs: they stay in device memory if one program reads them and computes their next value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import DeviceOp, DeviceSegment
from weft.compiler.ir.layout import Layout
from weft.compiler.ir.model import Graph, HostSegment, Transfer
from weft.compiler.ir.network import Network, Node, State, dtype_of, producer, type_of
from weft.compiler.ir.views import Buffer, View


def keep_on_device(graph: Graph) -> Graph:
    """Return the graph with buffers of kind "state" for states that can stay on the device.

    Exactly one device segment must read the state and compute its next value, in equal byte order. All other states
    pass through the host as inputs and outputs of segments.
    """
    for state in graph.states:
        place = _find_place(graph, state)
        if place is not None:
            graph = _keep(graph, *place)
    return graph


def _find_place(graph: Graph, state: State) -> tuple[DeviceSegment, Transfer, Transfer] | None:
    """Return the segment that can keep a state, and the state's transfers into and out of it; None if there is none."""
    entering = [item for item in graph.to_device if item.value == state.source]
    leaving = [item for item in graph.from_device if item.value == state.target]
    on_host = any(isinstance(item, HostSegment) and state.source in item.inputs for item in graph.segments)
    if len(entering) != 1 or len(leaving) != 1 or on_host:
        return None
    (source,), (target,) = entering, leaving
    for segment in graph.segments:
        if isinstance(segment, DeviceSegment) and _equal_format(source, target):
            read = {view.buffer.name for op in segment.ops for view in op.sources}
            written = {op.dst.buffer.name for op in segment.ops}
            if (
                source.buffer.name in read
                and {target.buffer.name, segment.states.get(target.buffer.name)} & written
            ):
                return segment, source, target
    return None


def _equal_format(source: Transfer, target: Transfer) -> bool:
    layouts = [
        Layout(item.shape, item.perm or tuple(range(len(item.shape))), item.nhwc) for item in (source, target)
    ]
    return layouts[0].same(layouts[1]) and (source.dtype, source.stored_dtype) == (
        target.dtype,
        target.stored_dtype,
    )


def _keep(graph: Graph, segment: DeviceSegment, source: Transfer, target: Transfer) -> Graph:
    """Return the graph with the buffer of `source` as state of a segment.

    The host reads all values in the buffer of `target` from there.
    """
    state = dataclasses.replace(source.buffer, kind="state")
    next_buffer = segment.states.get(target.buffer.name, target.buffer.name)

    def as_state(view: View) -> View:
        if view.buffer.name != state.name:
            return view
        return dataclasses.replace(view, buffer=Buffer(state.name, view.buffer.shape, "state"))

    ops: tuple[DeviceOp, ...] = tuple(op.map_views(as_state) for op in segment.ops)
    changed = dataclasses.replace(segment, ops=ops, states={**segment.states, state.name: next_buffer})
    entering = (
        dataclasses.replace(item, buffer=state) if item is source else item for item in graph.to_device
    )
    leaving = (
        dataclasses.replace(item, buffer=Buffer(state.name, item.buffer.shape, "state"))
        if item.buffer.name == next_buffer
        else item
        for item in graph.from_device
    )
    return dataclasses.replace(
        graph,
        segments=tuple(changed if item is segment else item for item in graph.segments),
        to_device=tuple(entering),
        from_device=tuple(leaving),
    )


def with_states(network: Network, states: Mapping[str, str]) -> Network:
    """Return the network with each input in `states` as a state: in the first run zeros, then an output of the previous
    run.

    If the output is dequantised, the state is the integers, and the input is dequantised with equal parameters.

    Raises
    ------
    CompileError
        If there is no such input or output, two states name one output, or no other output is left.
    """
    taken: list[str] = []
    for source, target in states.items():
        if target in taken:
            raise CompileError(
                f"output {target!r} is the next value of two states; name it for one state only"
            )
        network = _add_state(network, source, target)
        taken.append(target)
    if states and not set(network.outputs) - {state.target for state in network.states}:
        raise CompileError(
            f"all outputs are states ({', '.join(map(repr, taken))}), so there is nothing to compute; leave one output"
        )
    return network


def check_states(
    states: Iterable[State], dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise `CompileError` unless each state and its next value have equal type and shape."""
    for state in states:
        kinds = [(dtypes[name], shapes[name]) for name in (state.source, state.target)]
        if kinds[0] != kinds[1]:
            raise _differ(state.source, state.target, *kinds)


def _differ(source: str, target: str, *kinds: tuple[str, tuple[int, ...]]) -> CompileError:
    one, other = (f"{dtype} of shape {'x'.join(map(str, shape)) or '()'}" for dtype, shape in kinds)
    return CompileError(
        f"state {source!r} is {one}, but its next value {target!r} is {other}; both must have one type and shape"
    )


def _add_state(network: Network, source: str, target: str) -> Network:
    for side, name, known in (("input", source, network.inputs), ("output", target, network.outputs)):
        if name not in known:
            raise CompileError(
                f"the model has no {side} {name!r} for a state; it has {', '.join(map(repr, known)) or 'none'}"
            )
    kind = network.types[source]
    assert kind.sizes is not None
    declared = network.types.get(target)
    if declared is not None and declared.sizes is not None and declared != kind:
        raise _differ(source, target, (kind.dtype, kind.sizes), (declared.dtype, declared.sizes))
    # A dequantised output: the state is its integers, and a new DequantizeLinear computes the input.
    link = producer(network.nodes, target)
    zero = None if link is None else _zero_of(network, link)
    if link is None or zero is None or kind.dtype != "float32":
        initial = np.zeros(kind.sizes, dtype_of(kind.dtype))
        return dataclasses.replace(network, states=(*network.states, State(source, target, initial)))
    taken = {*network.inputs, *network.constants, *(name for node in network.nodes for name in node.outputs)}
    before, after = (_unique(f"{name}/kept", taken) for name in (source, target))
    initial = np.full(kind.sizes, zero)
    first = dataclasses.replace(
        link, inputs=(before, *link.inputs[1:]), outputs=(source,), name=f"{source}/dequantise"
    )
    last = Node("Identity", (link.inputs[0],), (after,), name=f"{target}/keep")
    return dataclasses.replace(
        network,
        nodes=(first, *network.nodes, last),
        inputs=tuple(before if name == source else name for name in network.inputs),
        outputs=tuple(after if name == target else name for name in network.outputs),
        types={**network.types, before: type_of(initial)},
        states=(*network.states, State(before, after, initial)),
    )


def _zero_of(network: Network, link: Node) -> np.ndarray | None:
    """Return the zero point, (), of a DequantizeLinear with constant per-tensor parameters; None for others."""
    parameters = [network.constants.get(name) for name in (link.input(1), link.input(2))]
    single = all(value is not None and value.size == 1 for value in parameters)
    if link.operator != "DequantizeLinear" or not single or parameters[1] is None:
        return None
    return parameters[1].reshape(())


def _unique(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
