"""Low-rank adapters: a layer's weights stay, and the product of two small matrices is added to them (Hu et al., "LoRA:
low-rank adaptation of large language models", 2106.09685).

Beside a layer with weights W there are two with `rank` channels between them, whose result is added to the layer's own.
At the end weights W + B A are made of what was trained, so that the model takes no more than it did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.network import Network, Node
from weft.extras.training.gradient.derivative import GradientError

FIRST, SECOND = "{}/adapter/first", "{}/adapter/second"
"""Names of the two matrices that belong to weights."""
_PRODUCTS = ("MatMul", "Gemm")


@dataclass(frozen=True)
class Adapter:
    """Two matrices beside the weights `name` of a layer, in the order of axes that it has."""

    name: str
    transposed: bool

    @property
    def constants(self) -> tuple[str, str]:
        return FIRST.format(self.name), SECOND.format(self.name)

    def merged(self, weight: np.ndarray, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """The layer's weights with what was trained."""
        first, second = (values[name].astype(np.float64) for name in self.constants)
        if weight.ndim > 2:
            added = np.tensordot(second.reshape(len(second), -1), first, 1)
        else:
            added = second @ first if self.transposed else first @ second
        return (weight + added).astype(np.float32)


def with_adapters(
    network: Network, layers: Iterable[tuple[Node, str]], rank: int, rng: np.random.Generator
) -> tuple[Network, tuple[Adapter, ...]]:
    """The network with an adapter beside each of some layers, given with the name of its weights.

    The first matrix is random, the second one 0, so that the network is at first what it was.

    Raises
    ------
    GradientError
        If a layer has groups, or is a transposed convolution.
    """
    chosen = {node.name: name for node, name in layers}
    constants, nodes = dict(network.constants), []
    made: list[Adapter] = []
    for node in network.nodes:
        if node.name not in chosen:
            nodes.append(node)
            continue
        adapter, added = _adapter(node, chosen[node.name], constants, rank, rng)
        own = f"{node.outputs[0]}/own"
        nodes += [dataclasses.replace(node, outputs=(own,)), *added]
        nodes.append(Node("Add", (own, added[-1].outputs[0]), node.outputs, name=f"{node.name}/adapted"))
        made.append(adapter)
    return dataclasses.replace(network, nodes=tuple(nodes), constants=constants), tuple(made)


def _adapter(
    node: Node, name: str, constants: dict[str, np.ndarray], rank: int, rng: np.random.Generator
) -> tuple[Adapter, list[Node]]:
    weight, source = constants[name], node.inputs[0]
    first, second = FIRST.format(name), SECOND.format(name)
    between, end = f"{node.name}/adapter/between", f"{node.name}/adapter/out"
    if node.op == "Conv" and node.attributes.get("group", 1) == 1:
        inner = weight.shape[1:]
        constants[first] = _random(rng, (rank, *inner), int(np.prod(inner)))
        constants[second] = np.zeros((weight.shape[0], rank, *(1 for _ in inner[1:])), np.float32)
        one = {"kernel_shape": tuple(1 for _ in inner[1:])}
        attributes = (dict(node.attributes), one)
        return Adapter(name, True), [
            Node("Conv", (given, matrix), (output,), told, name=output)
            for given, matrix, output, told in zip(
                (source, between), (first, second), (between, end), attributes, strict=True
            )
        ]
    plain = not node.attributes.get("transA", 0) and float(node.attributes.get("alpha", 1.0)) == 1.0
    if node.op not in _PRODUCTS or weight.ndim != 2 or not plain:
        raise GradientError(
            f"{node.label} takes no adapter: convolutions without groups and products of matrices do"
        )
    transposed = bool(node.attributes.get("transB", 0))
    outputs, inputs = weight.shape if transposed else weight.shape[::-1]
    shapes = ((rank, inputs), (outputs, rank)) if transposed else ((inputs, rank), (rank, outputs))
    constants[first] = _random(rng, shapes[0], inputs)
    constants[second] = np.zeros(shapes[1], np.float32)
    told = {"transB": int(transposed)}
    return Adapter(name, transposed), [
        Node("Gemm", (source, first), (between,), told, name=between),
        Node("Gemm", (between, second), (end,), told, name=end),
    ]


def _random(rng: np.random.Generator, shape: tuple[int, ...], inputs: int) -> np.ndarray:
    return (rng.normal(size=shape) / np.sqrt(inputs)).astype(np.float32)
