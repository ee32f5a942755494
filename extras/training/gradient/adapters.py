"""Low-rank adapters: the weights of a layer stay, and the product of two small matrices is added to them.

Hu et al., "LoRA: low-rank adaptation of large language models", 2106.09685. Two layers with `rank` channels between
them run in parallel with a layer of weights W; the results are added. After training, the weights become W + B A, so
that the model costs no more than before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.network import Network, Node
from weft.extras.training.gradient.derivative import GradientError

FIRST, SECOND = "{}/adapter/first", "{}/adapter/second"
"""Names of the two matrices of an adapter, by the name of the weights."""
_PRODUCTS = ("MatMul", "Gemm")


@dataclass(frozen=True)
class Adapter:
    """Two matrices in parallel with the weights `name`; `transposed` if the weights have outputs first."""

    name: str
    transposed: bool

    @property
    def constants(self) -> tuple[str, str]:
        return FIRST.format(self.name), SECOND.format(self.name)

    def merge(self, weight: np.ndarray, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the layer's weights plus the product of the trained matrices."""
        first, second = (values[name].astype(np.float64) for name in self.constants)
        if weight.ndim > 2:
            added = np.tensordot(second.reshape(len(second), -1), first, 1)
        else:
            added = second @ first if self.transposed else first @ second
        return (weight + added).astype(np.float32)


def with_adapters(
    network: Network, layers: Iterable[tuple[Node, str]], rank: int, rng: np.random.Generator
) -> tuple[Network, tuple[Adapter, ...]]:
    """Add an adapter to each of some layers, given with the names of their weights.

    The first matrix is random and the second 0, so that the network first computes the same as before.

    Raises
    ------
    GradientError
        If a layer has groups, or is a transposed convolution.
    """
    chosen = {node.name: name for node, name in layers}
    constants, nodes = dict(network.constants), []
    adapters: list[Adapter] = []
    for node in network.nodes:
        if node.name not in chosen:
            nodes.append(node)
            continue
        adapter, added = _adapter(node, chosen[node.name], constants, rank, rng)
        own = f"{node.outputs[0]}/own"
        nodes += [dataclasses.replace(node, outputs=(own,)), *added]
        nodes.append(Node("Add", (own, added[-1].outputs[0]), node.outputs, name=f"{node.name}/adapted"))
        adapters.append(adapter)
    return dataclasses.replace(network, nodes=tuple(nodes), constants=constants), tuple(adapters)


def _adapter(
    node: Node, name: str, constants: dict[str, np.ndarray], rank: int, rng: np.random.Generator
) -> tuple[Adapter, list[Node]]:
    weight, source = constants[name], node.inputs[0]
    first, second = FIRST.format(name), SECOND.format(name)
    between, end = f"{node.name}/adapter/between", f"{node.name}/adapter/out"
    if node.op == "Conv" and node.attributes.get("group", 1) == 1:
        inner = weight.shape[1:]
        constants[first] = _random_matrix(rng, (rank, *inner), int(np.prod(inner)))
        constants[second] = np.zeros((weight.shape[0], rank, *(1 for _ in inner[1:])), np.float32)
        pointwise = {"kernel_shape": tuple(1 for _ in inner[1:])}
        both = (dict(node.attributes), pointwise)
        return Adapter(name, True), [
            Node("Conv", (operand, matrix), (output,), attributes, name=output)
            for operand, matrix, output, attributes in zip(
                (source, between), (first, second), (between, end), both, strict=True
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
    constants[first] = _random_matrix(rng, shapes[0], inputs)
    constants[second] = np.zeros(shapes[1], np.float32)
    attributes = {"transB": int(transposed)}
    return Adapter(name, transposed), [
        Node("Gemm", (source, first), (between,), attributes, name=between),
        Node("Gemm", (between, second), (end,), attributes, name=end),
    ]


def _random_matrix(rng: np.random.Generator, shape: tuple[int, ...], inputs: int) -> np.ndarray:
    return (rng.normal(size=shape) / np.sqrt(inputs)).astype(np.float32)
