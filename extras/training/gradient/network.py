"""The gradients of a network as a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from weft.compiler.ir.network import Network, Type
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.model import alive_nodes
from weft.extras.training.gradient.context import FLOATS
from weft.extras.training.gradient.derivative import GradientError, gradients
from weft.extras.training.gradient.emission import Emission
from weft.extras.training.gradient.expression import Expression, Source, spread
from weft.extras.training.gradient.held import Graph, Held, singles
from weft.extras.training.gradient.meaning import Meanings, meanings

SEED = "{}/gradient"
"""The name of the gradient of a value."""


def with_variables(network: Network, names: Iterable[str]) -> Network:
    """The network with constants as inputs, and with the shapes of all values.

    Raises
    ------
    GradientError
        If a name is neither a constant of real numbers nor an input of the network.
    CompileError
        If the network is not valid, or a shape is not known.
    """
    names = tuple(dict.fromkeys(names))
    kinds: dict[str, Type] = dict(network.types)
    for name in names:
        kind = network.type_of(name)
        if kind is None or not (name in network.constants or name in network.inputs):
            known = ", ".join(sorted(network.constants)[:8])
            raise GradientError(
                f"{name!r} is neither a constant nor an input of the network, which has {known}"
            )
        if kind.dtype not in FLOATS:
            raise GradientError(f"{name!r} is of {kind.dtype}, which has no gradient; real numbers have")
        kinds[name] = kind
    constants = {name: value for name, value in network.constants.items() if name not in names}
    inputs = (*network.inputs, *(name for name in names if name not in network.inputs))
    opened = dataclasses.replace(network, constants=constants, inputs=inputs, types=kinds)
    return resolve(opened).network


def gradient_network(network: Network, wanted: Iterable[str] | None = None) -> Network:
    """The gradients of a network by some of its inputs and constants (all inputs of real numbers, if it is not said).

    Inputs are those of the network, the constants, and for each output ``y/gradient``, of its shape: the gradient of
    something by it. Outputs are ``x/gradient`` for each `x` that is wanted. All are float32.

    Raises
    ------
    GradientError
        If an operator has no gradient, or something is wanted that has none.
    CompileError
        If the network is not valid, or a shape is not known.
    """
    chosen = _chosen(network, wanted)
    opened = with_variables(network, chosen)
    found = meanings(opened, chosen)
    graph = Graph(nodes=list(opened.nodes), constants=dict(opened.constants))
    emission = emission_of(graph, opened, found)
    pairs: list[tuple[Expression, Expression]] = []
    kinds = dict(opened.types)
    for name in opened.outputs:
        item = found.values[name]
        seed = Source(SEED.format(name), item.axes)
        emission.place(seed, Held(seed.name, singles(item.axes)))
        kinds[seed.name] = Type("float32", item.shape)
        pairs.append((item, seed))
    sources = [found.sources[name] for name in chosen]
    outputs = []
    for source, gradient in zip(sources, gradients(pairs, sources), strict=True):
        name = SEED.format(source.name)
        made = None if gradient is None else emission.whole(spread(gradient, source.axes))
        made = made or graph.constant(np.zeros(source.shape, np.float32))
        graph.node("Identity", [made], name)
        kinds[name] = Type("float32", source.shape)
        outputs.append(name)
    inputs = (*opened.inputs, *(SEED.format(name) for name in opened.outputs))
    made_of = dataclasses.replace(
        opened, nodes=tuple(graph.nodes), constants=graph.constants, inputs=inputs, outputs=tuple(outputs),
        types={name: kind for name, kind in kinds.items() if name in inputs or name in outputs},
    )  # fmt: skip
    return resolve(needed(made_of)).network


def emission_of(graph: Graph, network: Network, found: Meanings) -> Emission:
    """What makes nodes of expressions in a graph that has the nodes of a network."""
    emission = Emission(graph)
    for name, item in reversed(found.values.items()):
        emission.place(item, Held(name, singles(item.axes)))
    return emission


def _chosen(network: Network, wanted: Iterable[str] | None) -> list[str]:
    if wanted is not None:
        return list(dict.fromkeys(wanted))
    kinds = {name: network.type_of(name) for name in network.inputs}
    return [name for name, kind in kinds.items() if kind is not None and kind.dtype in FLOATS]


def needed(network: Network) -> Network:
    """Without nodes and constants that no output needs."""
    nodes = tuple(alive_nodes(network))
    wanted = {*network.outputs, *(name for node in nodes for name in node.reads)}
    constants = {name: value for name, value in network.constants.items() if name in wanted}
    return dataclasses.replace(network, nodes=nodes, constants=constants)
