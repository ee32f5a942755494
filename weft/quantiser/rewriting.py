"""Rewriting a model in ONNX's form: the walk over its nodes, and names and constants for those that are new."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from weft.compiler.ir.graph import CompileError

Nodes = list[onnx.NodeProto] | None
"""What takes the place of a node; None where it stays."""


class Rewriting:
    """A model in which nodes are being replaced.

    Parameters
    ----------
    model : ModelProto
        A valid model, which is changed.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._constants[node.output[0]] = node.attribute[0].t
        self._names = {name for node in model.graph.node for name in (*node.input, *node.output)}
        self._names |= set(self._constants)

    def run(self, forms: Mapping[str, Callable[[Any, onnx.NodeProto], Nodes]]) -> Sequence[onnx.NodeProto]:
        """Replace nodes by what the function of their operator makes of this and the node, in order; then leave out
        what nobody reads. Returns the nodes."""
        nodes: list[onnx.NodeProto] = []
        for index, node in enumerate(self.graph.node):
            if not node.name:
                node.name = f"{node.op_type}_{index}"
            form = forms.get(node.op_type)
            made = None if form is None else form(self, node)
            nodes += [node] if made is None else made
        put(self.graph, nodes)
        del self.graph.value_info[:]
        return list(self.graph.node)

    def array(self, name: str) -> np.ndarray | None:
        """The value of a constant, None if it is none."""
        tensor = self._constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def needed(self, node: onnx.NodeProto, index: int, what: str) -> np.ndarray:
        """A constant that a node reads. Raises `CompileError` if it is none."""
        name = input_of(node, index)
        found = self.array(name)
        if found is None:
            raise CompileError(f"{label(node)} has {what} that are not constant ({name!r})")
        return found

    def constant(self, wanted: str, value: np.ndarray) -> str:
        """The name of a new constant."""
        name = self.value(wanted)
        tensor = numpy_helper.from_array(np.ascontiguousarray(value), name)
        self._constants[name] = tensor
        self.graph.initializer.append(tensor)
        return name

    def value(self, wanted: str) -> str:
        """The name of a new value."""
        while wanted in self._names:
            wanted += "_"
        self._names.add(wanted)
        return wanted

    def biased(self, node: onnx.NodeProto, made: onnx.NodeProto, bias: str) -> list[onnx.NodeProto]:
        """A node that takes the place of another, and behind it the addition of a bias, if there is one."""
        if not bias:
            made.output[0] = node.output[0]
            return [made]
        last = helper.make_node("Add", [made.output[0], bias], [node.output[0]], f"{node.name}_bias")
        return [made, last]


def put(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Have a graph consist of nodes, without those whose results nobody reads, and constants that nobody reads."""
    wanted = {value.name for value in graph.output}
    alive = list(_alive(list(nodes), wanted))
    del graph.node[:]
    graph.node.extend(alive)
    read = wanted | {name for node in alive for name in _reads(node)}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _alive(nodes: list[onnx.NodeProto], outputs: set[str]) -> Iterator[onnx.NodeProto]:
    """The nodes whose results are read, in order."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted & set(node.output):
            wanted.update(_reads(node))
            kept.append(node)
    return reversed(kept)


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)
            yield from (value.name for value in graph.output)


def label(node: onnx.NodeProto) -> str:
    """A node in messages."""
    return f"node {node.name!r} ({node.op_type})"


def input_of(node: onnx.NodeProto, index: int) -> str:
    """The name of an input, "" if it is left out."""
    return node.input[index] if index < len(node.input) else ""


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node."""
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}
