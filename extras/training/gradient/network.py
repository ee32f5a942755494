"""The gradients of a network as a network, and networks for batches of samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from weft.compiler.ir.network import Network, Node, Type
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.model import alive_nodes
from weft.extras.training.gradient.derivative import GradientError, gradients
from weft.extras.training.gradient.emission import Emission
from weft.extras.training.gradient.expression import Expression, Source, broadcast_to
from weft.extras.training.gradient.meaning import FLOATS, Meanings, meanings
from weft.extras.training.gradient.tensor import Graph, Tensor, one_dim_per_axis

SEED = "{}/gradient"
"""Name of the gradient of a value."""


def with_variables(network: Network, names: Iterable[str]) -> Network:
    """Turn constants into inputs, and infer the shapes of all values.

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
    """Return a network of gradients by some inputs and constants (default: all float inputs).

    Inputs are those of the network, the constants in `wanted`, and ``y/gradient`` for each output ``y``, of its shape.
    Outputs are ``x/gradient`` for each `x` in `wanted`. All are float32.

    Raises
    ------
    GradientError
        If an operator or a wanted value has no gradient.
    CompileError
        If the network is not valid, or a shape is not known.
    """
    chosen = _select_sources(network, wanted)
    opened = with_variables(network, chosen)
    expressions = meanings(opened, chosen)
    graph = Graph(nodes=list(opened.nodes), constants=dict(opened.constants))
    emission = start_emission(graph, opened, expressions)
    pairs: list[tuple[Expression, Expression]] = []
    kinds = dict(opened.types)
    for name in opened.outputs:
        item = expressions.values[name]
        seed = Source(SEED.format(name), item.axes)
        emission.place(seed, Tensor(seed.name, one_dim_per_axis(item.axes)))
        kinds[seed.name] = Type("float32", item.shape)
        pairs.append((item, seed))
    sources = [expressions.sources[name] for name in chosen]
    outputs = []
    for source, gradient in zip(sources, gradients(pairs, sources), strict=True):
        name = SEED.format(source.name)
        result = None if gradient is None else emission.emit_full(broadcast_to(gradient, source.axes))
        result = result or graph.constant(np.zeros(source.shape, np.float32))
        graph.node("Identity", [result], name)
        kinds[name] = Type("float32", source.shape)
        outputs.append(name)
    inputs = (*opened.inputs, *(SEED.format(name) for name in opened.outputs))
    combined = dataclasses.replace(
        opened, nodes=tuple(graph.nodes), constants=graph.constants, inputs=inputs, outputs=tuple(outputs),
        types={name: kind for name, kind in kinds.items() if name in inputs or name in outputs},
    )  # fmt: skip
    return resolve(prune(combined)).network


def start_emission(graph: Graph, network: Network, expressions: Meanings) -> Emission:
    """Return an emitter for a graph that already has the nodes of a network."""
    emission = Emission(graph)
    # Several values may share an expression, as behind Identity: the first name stays.
    for name, item in reversed(expressions.values.items()):
        emission.place(item, Tensor(name, one_dim_per_axis(item.axes)))
    return emission


def _select_sources(network: Network, wanted: Iterable[str] | None) -> list[str]:
    if wanted is not None:
        return list(dict.fromkeys(wanted))
    kinds = {name: network.type_of(name) for name in network.inputs}
    return [name for name, kind in kinds.items() if kind is not None and kind.dtype in FLOATS]


def prune(network: Network) -> Network:
    """Return the network without nodes and constants that no output needs."""
    nodes = tuple(alive_nodes(network))
    wanted = {*network.outputs, *(name for node in nodes for name in node.reads)}
    constants = {name: value for name, value in network.constants.items() if name in wanted}
    return dataclasses.replace(network, nodes=nodes, constants=constants)


def for_batch(network: Network, count: int) -> Network:
    """Return the network for `count` samples along the first axis of its inputs, which now has size 1 or `count`.

    Raises
    ------
    GradientError
        If an input has another first axis, or an output mixes samples.
    CompileError
        If the network is not valid for `count` samples.
    """
    known = resolve(network).network
    kinds: dict[str, Type] = {}
    for name in known.inputs:
        kind = known.types[name]
        if not kind.shape or kind.shape[0] not in (1, count):
            raise GradientError(
                f"input {name!r} has shape {kind.shape}: its first axis must be of 1 sample, or of {count}"
            )
        kinds[name] = Type(kind.dtype, (count, *kind.shape[1:]))
    if all(known.types[name] == kinds[name] for name in known.inputs):
        return known
    constants = dict(known.constants)
    nodes = tuple(_widen_reshape(node, constants, count) for node in known.nodes)
    batched = resolve(dataclasses.replace(known, nodes=nodes, constants=constants, types=kinds)).network
    for name in batched.outputs:
        before, after = known.types[name].shape, batched.types[name].shape
        if not before or not after or before[0] != 1 or after != (count, *before[1:]):
            raise GradientError(
                f"output {name!r} of shape {before} is {after} for {count} samples; it must keep them apart"
            )
    return batched


def _widen_reshape(node: Node, constants: dict[str, np.ndarray], count: int) -> Node:
    """Return a Reshape for `count` samples: they are the outermost axis, so only the first size grows."""
    if node.op != "Reshape" or node.inputs[1] not in constants:
        return node
    wanted = constants[node.inputs[1]]
    # A size of -1 or 0 adapts by itself.
    if wanted.size < 1 or int(wanted[0]) < 1:
        return node
    name = f"{node.inputs[1]}/{count}"
    constants[name] = np.array([count * wanted[0], *wanted[1:]], np.int64)
    return dataclasses.replace(node, inputs=(node.inputs[0], name))
