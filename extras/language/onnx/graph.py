"""The graph of a decoder in one form: float32, without constants as nodes, and with sums and norms apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Network, Node, Type

MICROSOFT = "com.microsoft"
"""The domain of the operators that ONNX Runtime adds."""
SHAPES = ("Shape", "Size")
"""Operators that read of a value how large it is, and nothing else."""
ALIASES = ("Identity", "Cast")
"""Operators behind which real numbers are the same."""
_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_HALF_TYPES = (10, 16)
_FLOAT = 1
"""Numbers of ONNX's element types: float16 and bfloat16, and float32."""
_ROUNDED = {"float16": 1e-3, "bfloat16": 8e-3}
"""The last bit of numbers beside 1."""
_CONSTANTS = ("value", "value_float", "value_floats", "value_int", "value_ints")
_SKIPS = {"SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization", "SkipLayerNormalization": ""}


class Graph:
    """A network whose nodes all take part in its outputs.

    Attributes
    ----------
    network : Network
        Of float32 where the file has float16 or bfloat16.
    makers : dict of str to Node
        The node that makes a value.
    notes : list of str
        Sentences about what was left out.
    rounded : float
        How far tables of the file, cosines for example, may be off: their last bit.
    """

    def __init__(self, network: Network) -> None:
        self.notes: list[str] = []
        self.rounded = max(
            (_ROUNDED.get(value.dtype.name, 0.0) for value in network.constants.values()), default=0.0
        )
        _check_order(network)
        network = _single(_without_constant_nodes(network))
        nodes = [part for node in network.nodes for part in _apart(node)]
        network = dataclasses.replace(network, nodes=tuple(self._unquantised(nodes, network)))
        self.network = _living(network)
        self.makers = {name: node for node in self.network.nodes for name in node.outputs if name}
        self._readers: dict[str, list[Node]] = {}
        for node in self.network.nodes:
            for name in node.reads:
                self._readers.setdefault(name, []).append(node)
        self.fixed = self._fixed()

    def readers(self, name: str) -> list[Node]:
        """The nodes that read a value."""
        return self._readers.get(name, [])

    def only_reader(self, name: str) -> Node | None:
        """The node that reads a value, if it is one alone and the value is no output."""
        found = self.readers(name)
        return found[0] if len(found) == 1 and name not in self.network.outputs else None

    def origin(self, name: str) -> str:
        """The value in front of casts and the like."""
        while (node := self.makers.get(name)) is not None and not node.domain and node.operator in ALIASES:
            name = node.inputs[0]
        return name

    def _fixed(self) -> set[str]:
        """Values that depend on no input."""
        found = set(self.network.constants)
        for node in self.network.nodes:
            if all(name in found for name in node.reads):
                found.update(node.outputs)
        return found

    def _unquantised(self, nodes: Iterable[Node], network: Network) -> Iterator[Node]:
        """Without the steps that a file quantises activations by: weft has its own."""
        quantised: dict[str, str] = {}
        dropped = 0
        for node in nodes:
            if node.operator == "QuantizeLinear" and node.inputs[0] not in network.constants:
                quantised[node.outputs[0]] = node.inputs[0]
                dropped += 1
            elif node.operator == "DequantizeLinear" and node.inputs[0] in quantised:
                yield Node(
                    "Identity", (quantised[node.inputs[0]],), node.outputs, {}, "", node.name, node.index
                )
                continue
            yield node
        if dropped:
            self.notes.append(
                f"the file quantises {dropped:,} values by steps of its own; weft takes its own steps"
            )


def _check_order(network: Network) -> None:
    known = {"", *network.inputs, *network.constants}
    for node in network.nodes:
        for name in node.reads:
            if name not in known:
                raise CompileError(
                    f"{node.label} reads {name!r}, which no node in front of it makes: the graph has a cycle, or "
                    "lacks a node"
                )
        if any(True for _ in node.bodies):
            raise CompileError(
                f"{node.label} chooses or repeats a part of the graph; weft reads decoders without control flow: "
                "export one graph with past_key_values, not a merged one"
            )
        known.update(node.outputs)


def _without_constant_nodes(network: Network) -> Network:
    constants, nodes = dict(network.constants), []
    for node in network.nodes:
        value = next((node.attributes[name] for name in _CONSTANTS if name in node.attributes), None)
        if node.domain or node.operator != "Constant" or value is None:
            nodes.append(node)
            continue
        if not isinstance(value, np.ndarray):
            flat = value[0] if isinstance(value, tuple) and value else value
            value = np.array(value, np.float32 if isinstance(flat, float) else np.int64)
        constants[node.outputs[0]] = value
    return dataclasses.replace(network, nodes=tuple(nodes), constants=constants)


def _single(network: Network) -> Network:
    """float16 and bfloat16 as float32: what is exact stays so, and nothing else is rounded."""
    constants = {name: _as_single(value) for name, value in network.constants.items()}
    types = {
        name: Type("float32", known.shape) if known.dtype in ("float16", "bfloat16") else known
        for name, known in network.types.items()
    }
    nodes = []
    for node in network.nodes:
        attributes: dict[str, Any] = {
            name: _as_single(value) if isinstance(value, np.ndarray) else value
            for name, value in node.attributes.items()
        }
        for name in ("to", "dtype", "output_dtype"):
            if attributes.get(name) in _HALF_TYPES:
                attributes[name] = _FLOAT
        nodes.append(dataclasses.replace(node, attributes=attributes))
    return dataclasses.replace(network, nodes=tuple(nodes), constants=constants, types=types)


def _as_single(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32) if value.dtype in _HALF else value


def _apart(node: Node) -> Iterator[Node]:
    """Sums apart from the norms that ONNX Runtime fuses them with; every other node as it is."""
    if node.operator not in _SKIPS:
        yield node
        return
    simplified = bool(_SKIPS[node.operator])
    beta, bias = ("", node.input(3)) if simplified else (node.input(3), node.input(4))
    skip, total = node.input(1), node.outputs[3] if len(node.outputs) > 3 and node.outputs[3] else ""
    prefix = node.name or node.outputs[0]
    if bias:
        yield Node("Add", (skip, bias), (f"{prefix}//bias",), {}, "", node.name, node.index)
        skip = f"{prefix}//bias"
    total = total or f"{prefix}//sum"
    yield Node("Add", (node.inputs[0], skip), (total,), {}, "", node.name, node.index)
    epsilon = node.attributes.get("epsilon", 1e-12)
    gamma = node.input(2)
    if simplified:
        yield Node(
            "SimplifiedLayerNormalization", (total, gamma), node.outputs[:1], {"epsilon": epsilon}, MICROSOFT,
            node.name, node.index,
        )  # fmt: skip
    else:
        inputs = (total, gamma, beta) if beta else (total, gamma)
        yield Node(
            "LayerNormalization", inputs, node.outputs[:1], {"epsilon": epsilon, "axis": -1}, "", node.name,
            node.index,
        )  # fmt: skip


def _living(network: Network) -> Network:
    """Without nodes that no output depends on."""
    wanted, kept = set(network.outputs), []
    for node in reversed(network.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.reads)
            kept.append(node)
    return dataclasses.replace(network, nodes=tuple(reversed(kept)))
