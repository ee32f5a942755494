"""Inputs and outputs of a model that its user says are kept from run to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Network, Node, State, dtype_of, producer, type_of


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
