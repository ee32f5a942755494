"""Graph of a decoder in a uniform form: float32, constants folded, and sums separated from norms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import Network, Node, Type

MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""
SHAPES = ("Shape", "Size")
"""Operators that depend only on a value's size."""
ALIASES = ("Identity", "Cast")
"""Operators that leave real numbers unchanged."""
_HALF_DTYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_HALF_TYPES = (10, 16)
_FLOAT = 1
"""ONNX's codes of element types: float16 and bfloat16 above, and float32."""
_LAST_BIT = {"float16": 1e-3, "bfloat16": 8e-3}
"""Relative value of the last bit of 16-bit formats."""
_CONSTANTS = ("value", "value_float", "value_floats", "value_int", "value_ints")
_SKIPS = {"SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization", "SkipLayerNormalization": ""}


class Graph:
    """Network in which every node contributes to an output.

    Attributes
    ----------
    network : Network
        With float32 in place of float16 and bfloat16.
    makers : dict of str to Node
        Node that computes each value.
    fixed : set of str
        Values that depend on no input.
    notes : list of str
        Sentences about removed parts.
    table_error : float
        Error bound of tables in the file, such as cosines: their last bit.
    """

    def __init__(self, network: Network) -> None:
        self.notes: list[str] = []
        self.table_error = max(
            (_LAST_BIT.get(value.dtype.name, 0.0) for value in network.constants.values()), default=0.0
        )
        _check_order(network)
        network = _to_float32(_fold_constant_nodes(network))
        nodes = [part for node in network.nodes for part in _split_skip_norm(node)]
        network = dataclasses.replace(network, nodes=tuple(self._remove_activation_steps(nodes, network)))
        self.network = _remove_dead_nodes(network)
        self.makers = {name: node for node in self.network.nodes for name in node.outputs if name}
        self._readers: dict[str, list[Node]] = {}
        for node in self.network.nodes:
            for name in node.reads:
                self._readers.setdefault(name, []).append(node)
        self.fixed = self._find_fixed()

    def readers(self, name: str) -> list[Node]:
        """Return the nodes that read a value."""
        return self._readers.get(name, [])

    def only_reader(self, name: str) -> Node | None:
        """Return the only node that reads a value, or None if there are several or the value is an output."""
        reading_nodes = self.readers(name)
        return reading_nodes[0] if len(reading_nodes) == 1 and name not in self.network.outputs else None

    def origin(self, name: str) -> str:
        """Return the value before casts and identities."""
        while (node := self.makers.get(name)) is not None and not node.domain and node.operator in ALIASES:
            name = node.inputs[0]
        return name

    def _find_fixed(self) -> set[str]:
        fixed = set(self.network.constants)
        for node in self.network.nodes:
            if all(name in fixed for name in node.reads):
                fixed.update(node.outputs)
        return fixed

    def _remove_activation_steps(self, nodes: Iterable[Node], network: Network) -> Iterator[Node]:
        """Remove the quantisation of activations, because weft chooses its own steps."""
        quantised: dict[str, str] = {}
        dropped = 0
        for node in nodes:
            if node.operator == "QuantizeLinear" and node.inputs[0] not in network.constants:
                quantised[node.outputs[0]] = node.inputs[0]
                dropped += 1
            elif node.operator == "DequantizeLinear" and node.inputs[0] in quantised:
                # Other nodes read this name.
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


def _fold_constant_nodes(network: Network) -> Network:
    constants, nodes = dict(network.constants), []
    for node in network.nodes:
        value = next((node.attributes[name] for name in _CONSTANTS if name in node.attributes), None)
        if node.domain or node.operator != "Constant" or value is None:
            nodes.append(node)
            continue
        if not isinstance(value, np.ndarray):
            # Attributes value_float(s) and value_int(s) are no arrays.
            flat = value[0] if isinstance(value, tuple) and value else value
            value = np.array(value, np.float32 if isinstance(flat, float) else np.int64)
        constants[node.outputs[0]] = value
    return dataclasses.replace(network, nodes=tuple(nodes), constants=constants)


def _to_float32(network: Network) -> Network:
    """Convert float16 and bfloat16 to float32, which is exact."""
    constants = {name: _array_to_float32(value) for name, value in network.constants.items()}
    types = {
        name: Type("float32", known.shape) if known.dtype in ("float16", "bfloat16") else known
        for name, known in network.types.items()
    }
    nodes = []
    for node in network.nodes:
        attributes: dict[str, Any] = {
            name: _array_to_float32(value) if isinstance(value, np.ndarray) else value
            for name, value in node.attributes.items()
        }
        for name in ("to", "dtype", "output_dtype"):
            if attributes.get(name) in _HALF_TYPES:
                attributes[name] = _FLOAT
        nodes.append(dataclasses.replace(node, attributes=attributes))
    return dataclasses.replace(network, nodes=tuple(nodes), constants=constants, types=types)


def _array_to_float32(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32) if value.dtype in _HALF_DTYPES else value


def _split_skip_norm(node: Node) -> Iterator[Node]:
    """Split ONNX Runtime's fused sum and norm into two nodes; yield every other node unchanged."""
    if node.operator not in _SKIPS:
        yield node
        return
    simplified = bool(_SKIPS[node.operator])
    # SkipLayerNormalization has a beta before the bias; the fourth output of both operators is the sum.
    beta, bias = ("", node.input(3)) if simplified else (node.input(3), node.input(4))
    skip, total = node.input(1), node.outputs[3] if len(node.outputs) > 3 and node.outputs[3] else ""
    prefix = node.name or node.outputs[0]
    if bias:
        yield Node("Add", (skip, bias), (f"{prefix}//bias",), {}, "", node.name, node.index)
        skip = f"{prefix}//bias"
    total = total or f"{prefix}//sum"
    yield Node("Add", (node.inputs[0], skip), (total,), {}, "", node.name, node.index)
    # The operators' default.
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


def _remove_dead_nodes(network: Network) -> Network:
    """Remove nodes that no output depends on."""
    needed, live_nodes = set(network.outputs), []
    for node in reversed(network.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.reads)
            live_nodes.append(node)
    return dataclasses.replace(network, nodes=tuple(reversed(live_nodes)))
