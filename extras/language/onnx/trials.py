"""Evaluation of parts of a graph on given numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError, EvaluationError
from weft.compiler.host.evaluate import Evaluator
from weft.compiler.host.onnx_model import first_line
from weft.compiler.ir.network import Node, Type
from weft.extras.language.onnx.graph import SHAPES, Graph
from weft.extras.language.onnx.natives import find_native

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
        key = (names, frozenset((name, value.ndim) for name, value in inputs.items()))
        if key not in self._segments:
            self._segments[key] = self._make_segments(names, inputs)
        for segment in self._segments[key]:
            try:
                segment.run(values)
            except EvaluationError as error:
                raise CompileError(f"{segment.label} cannot be tried out: {error}") from None
        return [np.asarray(values[name]) for name in names]

    def needed(self, names: Iterable[str], known_names: Iterable[str], *, shapes: bool = True) -> list[Node]:
        """Return the nodes between `known` values and `names`; without `shapes`, skip nodes that only sizes depend
        on.
        """
        excluded, missing, nodes = set(known_names), set(names), []
        missing -= excluded
        for node in reversed(self._graph.network.nodes):
            if missing.intersection(node.outputs):
                nodes.append(node)
                if shapes or node.domain or node.operator not in SHAPES:
                    missing.update(set(node.reads) - excluded)
        return nodes[::-1]

    def _make_segments(self, names: tuple[str, ...], inputs: Values) -> list[_Segment]:
        graph, nodes = self._graph, self.needed(names, inputs)
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
