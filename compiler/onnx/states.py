"""What is kept from run to run: memory of the device where one of its programs reads and makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from weft.compiler.ir.graph import Buffer, CompileError, DeviceOp, DeviceSegment, View
from weft.compiler.ir.layout import Layout
from weft.compiler.ir.model import Graph, HostSegment, Transfer
from weft.compiler.ir.network import Network, Node, State, dtype_of, producer, type_of


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
    return layouts[0].same(layouts[1]) and (source.dtype, source.stored_dtype) == (
        target.dtype,
        target.stored_dtype,
    )


def _kept(graph: Graph, segment: DeviceSegment, source: Transfer, target: Transfer) -> Graph:
    """The graph in which the buffer of `source` is a state of a segment. The host reads what it becomes from there: all
    values that are in the buffer of `target`."""
    state = dataclasses.replace(source.buffer, kind="state")
    made = segment.states.get(target.buffer.name, target.buffer.name)

    def placed(view: View) -> View:
        if view.buffer.name != state.name:
            return view
        return dataclasses.replace(view, buffer=Buffer(state.name, view.buffer.shape, "state"))

    ops: tuple[DeviceOp, ...] = tuple(op.map_views(placed) for op in segment.ops)
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


def with_states(network: Network, states: Mapping[str, str]) -> Network:
    """The network in which each input named in `states` is what an output was in the run before, zeros in the first.

    If the output is dequantised, what is kept is quantised: the input is dequantised likewise.

    Raises
    ------
    CompileError
        If there is no such input or output, or one of them is named twice, or no other output is left.
    """
    taken: list[str] = []
    for source, target in states.items():
        if target in taken:
            raise CompileError(f"output {target!r} is what two states become; one is possible")
        network = _with(network, source, target)
        taken.append(target)
    if states and not set(network.outputs) - {state.target for state in network.states}:
        raise CompileError(
            f"all outputs are kept ({', '.join(map(repr, taken))}), so there is nothing to compute"
        )
    return network


def check_states(
    states: Iterable[State], dtypes: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise `CompileError` unless each state becomes a value of its own type and shape."""
    for state in states:
        kinds = [(dtypes[name], shapes[name]) for name in (state.source, state.target)]
        if kinds[0] != kinds[1]:
            raise _differ(state.source, state.target, *kinds)


def _differ(source: str, target: str, *kinds: tuple[str, tuple[int, ...]]) -> CompileError:
    one, other = (f"{dtype} of shape {'x'.join(map(str, shape)) or '()'}" for dtype, shape in kinds)
    return CompileError(
        f"{source!r} is {one}, and {target!r}, which it becomes, {other}; what is kept has one type and shape"
    )


def _with(network: Network, source: str, target: str) -> Network:
    for what, name, known in (("input", source, network.inputs), ("output", target, network.outputs)):
        if name not in known:
            raise CompileError(
                f"the model has no {what} {name!r} to keep; it has {', '.join(map(repr, known)) or 'none'}"
            )
    kind = network.types[source]
    assert kind.sizes is not None
    made = network.types.get(target)
    if made is not None and made.sizes is not None and made != kind:
        raise _differ(source, target, (kind.dtype, kind.sizes), (made.dtype, made.sizes))
    link = producer(network.nodes, target)
    zero = None if link is None else _zero_of(network, link)
    if link is None or zero is None or kind.dtype != "float32":
        initial = np.zeros(kind.sizes, dtype_of(kind.dtype))
        return dataclasses.replace(network, states=(*network.states, State(source, target, initial)))
    taken = {*network.inputs, *network.constants, *(name for node in network.nodes for name in node.outputs)}
    before, behind = (_unique(f"{name}/kept", taken) for name in (source, target))
    initial = np.full(kind.sizes, zero)
    first = dataclasses.replace(
        link, inputs=(before, *link.inputs[1:]), outputs=(source,), name=f"{source}/dequantise"
    )
    last = Node("Identity", (link.inputs[0],), (behind,), name=f"{target}/keep")
    return dataclasses.replace(
        network,
        nodes=(first, *network.nodes, last),
        inputs=tuple(before if name == source else name for name in network.inputs),
        outputs=tuple(behind if name == target else name for name in network.outputs),
        types={**network.types, before: type_of(initial)},
        states=(*network.states, State(before, behind, initial)),
    )


def _zero_of(network: Network, link: Node) -> np.ndarray | None:
    """The zero point of a DequantizeLinear, (), if it has one, and one scale; both constant."""
    found = [network.constants.get(name) for name in (link.input(1), link.input(2))]
    single = all(value is not None and value.size == 1 for value in found)
    if link.operator != "DequantizeLinear" or not single or found[1] is None:
        return None
    return found[1].reshape(())


def _unique(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
