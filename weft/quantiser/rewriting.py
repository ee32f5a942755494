"""Rewriting of ONNX models: a walk that replaces nodes, and names and constants for new nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from weft.compiler.errors import CompileError

Nodes = list[onnx.NodeProto] | None
"""Nodes that replace a node; None to leave it."""


class Rewriting:
    """Model whose nodes are being replaced.

    Parameters
    ----------
    model : ModelProto
        A valid model, which is changed in place.
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
        """Replace nodes in order, then delete unused nodes and constants.

        `forms` maps operators to functions that take this object and a node, and return its replacement. Returns the
        new nodes.
        """
        nodes: list[onnx.NodeProto] = []
        for index, node in enumerate(self.graph.node):
            if not node.name:
                node.name = f"{node.op_type}_{index}"
            form = forms.get(node.op_type)
            replacement = None if form is None else form(self, node)
            nodes += [node] if replacement is None else replacement
        replace_nodes(self.graph, nodes)
        del self.graph.value_info[:]
        return list(self.graph.node)

    def array(self, name: str) -> np.ndarray | None:
        """Return the value of a constant; None for any other value."""
        tensor = self._constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def constant_input(self, node: onnx.NodeProto, index: int, role: str) -> np.ndarray:
        """Return the constant that input `index` of a node reads. Raises `CompileError` if it is not constant."""
        name = input_of(node, index)
        array = self.array(name)
        if array is None:
            raise CompileError(f"{label(node)} has {role} that are not constant ({name!r})")
        return array

    def new_constant(self, hint: str, value: np.ndarray) -> str:
        """Add a constant. Returns its name, which is `hint` or begins with it."""
        name = self.new_value(hint)
        tensor = numpy_helper.from_array(np.ascontiguousarray(value), name)
        self._constants[name] = tensor
        self.graph.initializer.append(tensor)
        return name

    def new_value(self, hint: str) -> str:
        """Return an unused name for a value, which is `hint` or begins with it."""
        while hint in self._names:
            hint += "_"
        self._names.add(hint)
        return hint

    def add_bias(self, node: onnx.NodeProto, product: onnx.NodeProto, bias: str) -> list[onnx.NodeProto]:
        """Return `product`, and the addition of `bias` unless it is "", as the replacement of `node`."""
        if not bias:
            product.output[0] = node.output[0]
            return [product]
        last = helper.make_node("Add", [product.output[0], bias], [node.output[0]], f"{node.name}_bias")
        return [product, last]


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Make `nodes` the nodes of a graph, and delete nodes and constants whose values are not read."""
    outputs = {value.name for value in graph.output}
    live = list(_live_nodes(list(nodes), outputs))
    del graph.node[:]
    graph.node.extend(live)
    read = outputs | {name for node in live for name in _reads(node)}
    tensors = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(tensors)


def _live_nodes(nodes: list[onnx.NodeProto], outputs: set[str]) -> Iterator[onnx.NodeProto]:
    read, live = set(outputs), []
    # Readers come after writers, so one pass backwards finds all live nodes.
    for node in reversed(nodes):
        if read & set(node.output):
            read.update(_reads(node))
            live.append(node)
    return reversed(live)


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    yield from node.input
    # Bodies of If and Loop read values of the outer graph.
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)
            yield from (value.name for value in graph.output)


def label(node: onnx.NodeProto) -> str:
    """Return a name of a node for messages."""
    return f"node {node.name!r} ({node.op_type})"


def input_of(node: onnx.NodeProto, index: int) -> str:
    """Return the name of an input of a node; "" if it is left out."""
    return node.input[index] if index < len(node.input) else ""


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}
