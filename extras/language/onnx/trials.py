"""Parts of a graph on numbers: what makes a value, for given numbers of what it depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from weft.compiler.host.evaluate import EvaluationError, Evaluator
from weft.compiler.host.onnx_model import first_line
from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Node, Type
from weft.extras.language.onnx.graph import SHAPES, Graph
from weft.extras.language.onnx.natives import native

Values = Mapping[str, np.ndarray]


class _Part:
    """Nodes that are computed together: one of an operator of our own, or several by what evaluates ONNX."""

    def __init__(self, graph: Graph, nodes: tuple[Node, ...], wanted: set[str]) -> None:
        made = dict.fromkeys(name for node in nodes for name in node.outputs if name)
        self._nodes = nodes
        self._network = graph.network.part(nodes, [name for name in made if name in wanted])
        self._evaluator: Evaluator | None = None

    def run(self, known: dict[str, Any]) -> None:
        """Add to the values that are known."""
        node = self._nodes[0]
        ours = native(node)
        if ours is not None:
            try:
                with np.errstate(all="ignore"):
                    made = ours(node, [known[name] if name else None for name in node.inputs])
            except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
                if isinstance(error, CompileError):
                    raise
                raise CompileError(
                    f"{node.label} has inputs or attributes that do not fit together: {first_line(error)}"
                ) from None
            known.update({name: value for name, value in zip(node.outputs, made, strict=False) if name})
            return
        network = self._network
        feeds = {name: known[name] for name in network.inputs}
        if self._evaluator is None:
            types = {name: Type(value.dtype.name, (None,) * value.ndim) for name, value in feeds.items()}
            self._evaluator = Evaluator(dataclasses.replace(network, types=types))
        known.update(zip(network.outputs, self._evaluator.run(feeds), strict=True))

    @property
    def label(self) -> str:
        """The node that messages are about."""
        foreign = [node for node in self._nodes if node.domain]
        return (foreign or self._nodes[::-1])[0].label


class Trials:
    """Computes values of a graph.

    Parameters
    ----------
    graph : Graph

    Attributes
    ----------
    seen : set of int
        Indices of the nodes that took part in any value so far.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._prepared: dict[tuple[Any, ...], list[_Part]] = {}
        self.seen: set[int] = set()

    def values(self, names: Iterable[str], given: Values) -> list[np.ndarray]:
        """Values of a graph, where some others have the numbers in `given`.

        Raises
        ------
        CompileError
            If a node has an operator that nothing here computes, or fails on these numbers.
        """
        names = tuple(names)
        known: dict[str, Any] = {**self._graph.network.constants, **given}
        key = (names, frozenset((name, value.ndim) for name, value in given.items()))
        if key not in self._prepared:
            self._prepared[key] = self._parts(names, given)
        for part in self._prepared[key]:
            try:
                part.run(known)
            except EvaluationError as error:
                raise CompileError(f"{part.label} cannot be tried out: {error}") from None
        return [np.asarray(known[name]) for name in names]

    def needed(self, names: Iterable[str], known: Iterable[str], *, shapes: bool = True) -> list[Node]:
        """The nodes that make values of what is known; without `shapes` those are left out that only sizes need."""
        ends, wanted, found = set(known), set(names), []
        wanted -= ends
        for node in reversed(self._graph.network.nodes):
            if wanted.intersection(node.outputs):
                found.append(node)
                if shapes or node.domain or node.operator not in SHAPES:
                    wanted.update(set(node.reads) - ends)
        return found[::-1]

    def _parts(self, names: tuple[str, ...], given: Values) -> list[_Part]:
        graph, nodes = self._graph, self.needed(names, given)
        known = {*given, *graph.network.constants}
        made = {name for node in nodes for name in node.outputs}
        for node in nodes:
            self.seen.add(node.index)
            for name in node.reads:
                if name not in known and name not in made:
                    raise CompileError(
                        f"{node.label} reads the input {name!r}, which weft does not know what to give for"
                    )
        groups: list[list[Node]] = []
        for node in nodes:
            if groups and native(node) is None and native(groups[-1][-1]) is None:
                groups[-1].append(node)
            else:
                groups.append([node])
        parts = []
        for at, group in enumerate(groups):
            later = set(names).union(*(node.reads for rest in groups[at + 1 :] for node in rest))
            parts.append(_Part(graph, tuple(group), later))
        return parts
