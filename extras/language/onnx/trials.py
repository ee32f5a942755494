"""Evaluation of parts of a graph on given numbers, and a graph's inputs for a text.

The inputs are tokens, masks, positions, and past keys and values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError, EvaluationError
from weft.compiler.host.evaluate import Evaluator
from weft.compiler.host.onnx_model import first_line
from weft.compiler.ir.network import Node, Type, dtype_of
from weft.extras.language.onnx.graph import SHAPES, Graph
from weft.extras.language.onnx.natives import find_native
from weft.extras.language.onnx.structure import Half, Structure

Values = Mapping[str, np.ndarray]


class _Segment:
    """Nodes that are computed together: one of `weft.extras.language.onnx.natives`, or several of ONNX's operators."""

    def __init__(self, graph: Graph, nodes: tuple[Node, ...], needed: set[str]) -> None:
        outputs = dict.fromkeys(name for node in nodes for name in node.outputs if name)
        self._nodes = nodes
        self._network = graph.network.part(nodes, [name for name in outputs if name in needed])
        self._evaluator: Evaluator | None = None

    def run(self, values: dict[str, Any]) -> None:
        """Compute the outputs and add them to `values`."""
        node = self._nodes[0]
        implementation = find_native(node)
        if implementation is not None:
            try:
                with np.errstate(all="ignore"):
                    results = implementation(node, [values[name] if name else None for name in node.inputs])
            except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
                # CompileError is a ValueError.
                if isinstance(error, CompileError):
                    raise
                raise CompileError(
                    f"{node.label} has inputs or attributes that do not fit together: {first_line(error)}"
                ) from None
            values.update({name: value for name, value in zip(node.outputs, results, strict=False) if name})
            return
        network = self._network
        feeds = {name: values[name] for name in network.inputs}
        if self._evaluator is None:
            # With open shapes, one evaluator serves texts of all lengths.
            types = {name: Type(value.dtype.name, (None,) * value.ndim) for name, value in feeds.items()}
            self._evaluator = Evaluator(dataclasses.replace(network, types=types))
        values.update(zip(network.outputs, self._evaluator.run(feeds), strict=True))

    @property
    def label(self) -> str:
        """Label of the node that messages refer to."""
        foreign = [node for node in self._nodes if node.domain]
        return (foreign or self._nodes[::-1])[0].label


class Trials:
    """Evaluator of a graph's values.

    Parameters
    ----------
    graph : Graph

    Attributes
    ----------
    used_nodes : set of int
        Indices of the nodes that contributed to any value so far.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._segments: dict[tuple[Any, ...], list[_Segment]] = {}
        self.used_nodes: set[int] = set()

    def values(self, names: Iterable[str], inputs: Values) -> list[np.ndarray]:
        """Return values of a graph, given others.

        Raises
        ------
        CompileError
            If a node has an unknown operator, or fails on these numbers.
        """
        names = tuple(names)
        values: dict[str, Any] = {**self._graph.network.constants, **inputs}
        # Evaluators depend on the ranks of inputs, but not on their sizes.
        key = (names, frozenset((name, value.ndim) for name, value in inputs.items()))
        if key not in self._segments:
            self._segments[key] = self._make_segments(names, inputs)
        for segment in self._segments[key]:
            try:
                segment.run(values)
            except EvaluationError as error:
                raise CompileError(f"{segment.label} cannot be tried out: {error}") from None
        return [np.asarray(values[name]) for name in names]

    def needed_nodes(
        self, names: Iterable[str], known_names: Iterable[str], *, shapes: bool = True
    ) -> list[Node]:
        """Return the nodes from `known_names` to `names`; without `shapes`, skip nodes that only sizes depend on."""
        excluded, missing, nodes = set(known_names), set(names), []
        missing -= excluded
        for node in reversed(self._graph.network.nodes):
            if missing.intersection(node.outputs):
                nodes.append(node)
                if shapes or node.domain or node.operator not in SHAPES:
                    missing.update(set(node.reads) - excluded)
        return nodes[::-1]

    def _make_segments(self, names: tuple[str, ...], inputs: Values) -> list[_Segment]:
        graph, nodes = self._graph, self.needed_nodes(names, inputs)
        available = {*inputs, *graph.network.constants}
        computed = {name for node in nodes for name in node.outputs}
        for node in nodes:
            self.used_nodes.add(node.index)
            for name in node.reads:
                if name not in available and name not in computed:
                    raise CompileError(
                        f"{node.label} reads the input {name!r}, which weft does not know what to give for"
                    )
        # Operators of `natives` run one at a time, all others in groups as long as possible.
        groups: list[list[Node]] = []
        for node in nodes:
            if groups and find_native(node) is None and find_native(groups[-1][-1]) is None:
                groups[-1].append(node)
            else:
                groups.append([node])
        segments = []
        for at, group in enumerate(groups):
            read_later = set(names).union(
                *(node.reads for node_group in groups[at + 1 :] for node in node_group)
            )
            segments.append(_Segment(graph, tuple(group), read_later))
        return segments


class Texts:
    """Evaluator of a graph's values for a single text.

    Parameters
    ----------
    graph : Graph
    structure : Structure
    """

    def __init__(self, graph: Graph, structure: Structure) -> None:
        self.graph, self.structure = graph, structure
        self.trials = Trials(graph)
        assert structure.head is not None
        all_products = [
            structure.head,
            *(part for half in structure.halves for part in (*half.first, half.last)),
        ]
        self._flat = {product.output for product in all_products if product.node.operator == "Gemm"}
        self.pasts = {name: self._past_shape(half, name) for half in structure.halves for name in half.pasts}
        """Heads and length of each past."""

    def shape(self, name: str, tokens: int) -> tuple[int, ...]:
        """Return the shape of a stream, or of a product's result, for a number of tokens."""
        width = self.structure.ends[name]
        return (tokens, width) if name in self._flat else (1, tokens, width)

    def values(
        self,
        names: list[str],
        values_by_name: Mapping[str, np.ndarray],
        tokens: int,
        before: int = 0,
        numbers: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Return values for `tokens` tokens after `before` others, with streams and products as given, in any shape.

        Raises
        ------
        CompileError
            If they depend on anything else, or cannot be computed.
        """
        graph_inputs = self._inputs(tokens, before, numbers)
        decoder_values = {
            name: value for name, value in values_by_name.items() if name in self.structure.ends
        }
        graph_inputs = {**graph_inputs, **values_by_name}
        self._check_dependencies(names, graph_inputs)
        graph_inputs |= {
            name: value.reshape(self.shape(name, tokens)) for name, value in decoder_values.items()
        }
        # Values depend on these by their sizes only, as `_check_dependencies` has shown.
        unused = [name for name in self.structure.ends if name not in values_by_name and name not in names]
        graph_inputs |= {name: np.zeros(self.shape(name, tokens), np.float32) for name in unused}
        return self.trials.values(names, graph_inputs)

    def _check_dependencies(self, names: list[str], known: Mapping[str, np.ndarray]) -> None:
        """Raise if values depend on unknown streams or products other than by their sizes."""
        ends = self.structure.ends
        for node in self.trials.needed_nodes(names, known, shapes=False):
            for name in () if not node.domain and node.operator in SHAPES else node.reads:
                if name in ends and name not in known and name not in names:
                    raise CompileError(
                        f"{node.label} reads {name!r}, which belongs to another part of the decoder"
                    )

    def _inputs(self, tokens: int, before: int, numbers: np.ndarray | None) -> dict[str, np.ndarray]:
        network, structure = self.graph.network, self.structure
        total = before + tokens
        at = np.arange(before, total)
        inputs: dict[str, np.ndarray] = {}
        for name in network.inputs:
            network_type = network.type_of(name)
            assert network_type is not None
            dtype, rank = dtype_of(network_type.dtype), len(network_type.shape or ())
            if name == structure.tokens:
                value = np.zeros(tokens, dtype) if numbers is None else numbers
            elif name in self.pasts:
                heads, length = self.pasts[name]
                inputs[name] = np.zeros((1, heads, before, length), np.float32)
                continue
            elif rank == 4 and dtype.kind == "f":
                continue  # cache of a layer that no output depends on
            elif "mask" in name:
                value = np.ones(total)
            elif "position" in name:
                value = at
            else:
                raise CompileError(
                    f"input {name!r} is none that weft knows: tokens, a mask of tokens, positions, and keys and "
                    "values of tokens before"
                )
            inputs[name] = value.astype(dtype).reshape((1,) * (rank - 1) + (-1,))
        return inputs

    def _past_shape(self, half: Half, name: str) -> tuple[int, int]:
        """Return heads and length of past keys or values; operators give what the input's type leaves open."""
        network_type = self.graph.network.type_of(name)
        shape = network_type.shape if network_type is not None and network_type.shape is not None else ()
        groups, length = shape[1::2] if len(shape) == 4 else (None, None)
        for node in self.graph.readers(name):
            if node.operator == "GroupQueryAttention" and {"num_heads", "kv_num_heads"} <= set(
                node.attributes
            ):
                heads, groups = int(node.attributes["num_heads"]), int(node.attributes["kv_num_heads"])
                # Queries, keys and values have equal lengths, so that one product and three give the same sum.
                length = length or sum(part.outputs for part in half.first) // max(heads + 2 * groups, 1)
        if not groups or not length or groups < 1:
            raise CompileError(
                f"input {name!r} has shape {shape}; keys and values of tokens before must have four axes: texts, "
                "heads, tokens and elements, heads and elements of fixed size"
            )
        return groups, length
