"""Shapes of results as the text of ONNX defines them, where the onnx package's shape inference has others.

Inference counts windows of pools that would start behind the input, which the text says to ignore. It adds the output
padding of ConvTranspose to a size that auto_pad defines. ONNX Runtime computes what the text says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from weft.compiler.host.onnx_model import STANDARD, NetworkError, inferred
from weft.compiler.ir.network import Network, Node, Type
from weft.compiler.ir.windows import axes, span

Shape = tuple[int, ...]


def types_by_text(network: Network, sure: Mapping[str, Type]) -> dict[str, Type]:
    """The types of a network's values by shape inference, with the shapes of the text; those of values in `sure` are
    right already.

    Raises
    ------
    NetworkError
        If types or shapes contradict each other.
    """
    settled = dict(sure)
    while True:  # ends: each round settles what only settled nodes come before
        types, error = _inferred(network, settled)
        fresh = _other_types(network, types)
        if not fresh and len(settled) == len(sure) and error is not None:
            raise error
        if not fresh:
            return types
        settled |= fresh


def _inferred(network: Network, settled: Mapping[str, Type]) -> tuple[dict[str, Type], NetworkError | None]:
    """Types by inference with `settled` ones as inputs; and the error if shapes that the file declares are others."""
    nodes = tuple(node for node in network.nodes if settled.keys().isdisjoint(node.outputs))
    cut = _cut(network, nodes, settled) if settled else network
    try:
        return {**settled, **inferred(cut)}, None
    except NetworkError as error:
        if not any(node.op in _BY_TEXT for node in network.nodes):
            raise
        foreign = (name for node in nodes if node.domain not in STANDARD for name in node.outputs)
        given = {name: cut.types[name] for name in (*cut.inputs, *foreign) if name in cut.types}
        return {**settled, **inferred(dataclasses.replace(cut, types=given))}, error


def _cut(network: Network, nodes: tuple[Node, ...], settled: Mapping[str, Type]) -> Network:
    """The network of some nodes, whose inputs are those of all and the `settled` values that they read."""
    part = network.part(nodes, network.outputs)
    inputs = tuple(dict.fromkeys((*network.inputs, *part.inputs)))
    known = {**{name: network.types[name] for name in inputs if name in network.types}, **part.types}
    return dataclasses.replace(
        part, inputs=inputs, types=known | {name: settled[name] for name in inputs if name in settled}
    )


def _other_types(network: Network, types: Mapping[str, Type]) -> dict[str, Type]:
    """The types of the outputs of nodes whose shape is another one by the text."""
    other = {}
    for node in network.nodes:
        found = _shape(node, network.constants, types) if node.op in _BY_TEXT else None
        for name in node.outputs if found is not None else ():
            if name in types and types[name].sizes != found:
                other[name] = Type(types[name].dtype, found)
    return other


def _shape(node: Node, constants: Mapping[str, np.ndarray], types: Mapping[str, Type]) -> Shape | None:
    shapes: list[Shape | None] = []
    for name in node.inputs:
        known = types.get(name)
        shapes.append(constants[name].shape if name in constants else None if known is None else known.sizes)
    if not shapes or shapes[0] is None:
        return None
    return _BY_TEXT[node.op](node, shapes[0], shapes[1:])


def _pool(node: Node, image: Shape, others: list[Shape | None]) -> Shape | None:
    if len(image) < 3 or len(node.attributes.get("kernel_shape", ())) != len(image) - 2:
        return None
    counts = tuple(axis.count for axis in axes(image[2:], node.attributes))
    # Kernels that are larger than the padded image have no windows by the text; `model_rules` refuses them.
    return (*image[:2], *counts) if all(counts) else None


def _spread(node: Node, image: Shape, others: list[Shape | None]) -> Shape | None:
    weight, given = others[0] if others else None, node.attributes
    if given.get("auto_pad") not in ("SAME_UPPER", "SAME_LOWER") or "output_shape" in given:
        return None
    if weight is None or len(weight) != len(image):
        return None
    rank = len(image) - 2
    strides, dilations = (given.get(name) or (1,) * rank for name in ("strides", "dilations"))
    extra = given.get("output_padding") or (0,) * rank
    sizes = (
        min(size * stride, (size - 1) * stride + more + span(kernel, dilation))
        for size, stride, more, kernel, dilation in zip(
            image[2:], strides, extra, weight[2:], dilations, strict=True
        )
    )
    return (image[0], weight[1] * given.get("group", 1), *sizes)


_Shape = Callable[[Node, Shape, list[Shape | None]], Shape | None]
_BY_TEXT: dict[str, _Shape] = {
    "AveragePool": _pool,
    "ConvTranspose": _spread,
    "LpPool": _pool,
    "MaxPool": _pool,
}
"""The shape of a node's results for those of its inputs; None where it is not known, or inference is right."""
