"""Products of integers that ONNX Runtime computes without saturation, on every processor.

On x86-64 without VNNI its products of uint8 and int8 add two of them in 16 bits, which saturate: 255 * 127 * 2 does not
fit. Its option for that (``session.x64quantprecision``) works for constant weights and where graphs are optimised only.
Products of two uint8 are exact. So the int8 operand of a mixed product becomes uint8, and its zero point with it: each
is 128 more, which is the same difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper


class _Operand(NamedTuple):
    """Places of an operand and of its zero point among a node's inputs."""

    value: int
    zero: int


_PAIRS: Mapping[tuple[str, str], tuple[_Operand | None, tuple[_Operand, ...]]] = {
    ("", "MatMulInteger"): (_Operand(0, 2), (_Operand(1, 3),)),
    ("", "ConvInteger"): (_Operand(0, 2), (_Operand(1, 3),)),
    ("", "QLinearMatMul"): (_Operand(0, 2), (_Operand(3, 5),)),
    ("", "QLinearConv"): (_Operand(0, 2), (_Operand(3, 5),)),
    ("com.microsoft", "QLinearConv"): (_Operand(0, 2), (_Operand(3, 5),)),
    ("com.microsoft", "MatMulIntegerToFloat"): (_Operand(0, 4), (_Operand(1, 5),)),
    ("com.microsoft", "QGemm"): (_Operand(0, 2), (_Operand(3, 5),)),
    ("com.microsoft", "QAttention"): (_Operand(0, 6), (_Operand(1, 7),)),
    ("com.microsoft", "DynamicQuantizeMatMul"): (None, (_Operand(1, 3),)),
    ("com.microsoft", "DynamicQuantizeLSTM"): (None, (_Operand(1, 9), _Operand(2, 11))),
}
"""By domain and operator: its first operand, None if it makes that of floats itself, as uint8, and its weights."""
_ONLY_FIRST = ("ConvInteger", "MatMulInteger")
"""Operators that have kernels for an int8 first operand and uint8 weights."""


def exact_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with products of uint8 and int8 as products of two uint8; the same model if it has none.

    The type of an operand is that of its zero point, if nothing else is said of it. One whose type is not known stays
    as it is.
    """
    if not _multiplies(model.graph):
        return model  # without a copy, which weights make large
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    return changed if _Rewriter(changed.graph, {}, set()).run() else model


def _multiplies(graph: GraphProto) -> bool:
    """Whether there is an operator of `_PAIRS` in a graph or a body in it."""
    return any(
        (node.domain, node.op_type) in _PAIRS or any(map(_multiplies, _bodies(node))) for node in graph.node
    )


class _Rewriter:
    """A graph, with the types of values that the graphs around it have, and all names that are `used` by now."""

    def __init__(self, graph: GraphProto, outer: Mapping[str, int], used: set[str]) -> None:
        self.graph = graph
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.types = dict(outer)
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.HasField("tensor_type"):
                self.types[value.name] = value.type.tensor_type.elem_type
        self.types |= {name: tensor.data_type for name, tensor in self.constants.items()}
        self.used = used
        self.used.update(self.types, *((*node.input, *node.output) for node in graph.node))
        self.made: dict[str, str] = {}
        self.swapped = False

    def run(self) -> bool:
        """Whether something was changed."""
        nodes, changed = [], False
        for node in self.graph.node:
            inside = [_Rewriter(body, self.types, self.used).run() for body in _bodies(node)]  # all of them
            self.swapped = False
            nodes += [*self._before(node), node]
            changed |= self.swapped or any(inside)
        if changed:
            del self.graph.node[:]
            self.graph.node.extend(nodes)
        return changed

    def _before(self, node: NodeProto) -> Iterator[NodeProto]:
        """Nodes that make operands unsigned, which `node` then reads."""
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
            made = self._type(node, 2) if node.op_type == "QuantizeLinear" else TensorProto.UINT8
            self.types.setdefault(node.output[0], made or TensorProto.UINT8)
        first, weights = _PAIRS.get((node.domain, node.op_type), (None, ()))
        one = TensorProto.UINT8 if first is None else self._of(node, first)
        for operand in weights:
            other = self._of(node, operand)
            if (one, other) == (TensorProto.UINT8, TensorProto.INT8):
                yield from self._unsigned(node, operand)
            elif (one, other) == (TensorProto.INT8, TensorProto.UINT8) and node.op_type in _ONLY_FIRST:
                assert first is not None
                yield from self._unsigned(node, first)

    def _of(self, node: NodeProto, operand: _Operand) -> int:
        return self._type(node, operand.value) or self._type(node, operand.zero)

    def _type(self, node: NodeProto, place: int) -> int:
        return self.types.get(node.input[place], 0) if place < len(node.input) else 0

    def _unsigned(self, node: NodeProto, operand: _Operand) -> Iterator[NodeProto]:
        self.swapped = True
        for place in operand:
            while place >= len(node.input):
                node.input.append("")
            name = node.input[place]
            if not name:
                node.input[place] = self._constant(np.array(128, np.uint8), "zero point")
            elif name in self.made:
                node.input[place] = self.made[name]
            elif name in self.constants:
                values = numpy_helper.to_array(self.constants[name])
                node.input[place] = self._constant(values.view(np.uint8) ^ np.uint8(0x80), name)
                self.made[name] = node.input[place]
            else:
                node.input[place] = self._name(name)
                yield from self._moved(name, node.input[place])
                self.made[name] = node.input[place]

    def _moved(self, name: str, result: str) -> Iterator[NodeProto]:
        """128 more than an int8, as uint8."""
        wide, sum_ = self._name(name), self._name(name)
        half = self._constant(np.array(128, np.int32), "half")
        yield helper.make_node("Cast", [name], [wide], to=TensorProto.INT32)
        yield helper.make_node("Add", [wide, half], [sum_])
        yield helper.make_node("Cast", [sum_], [result], to=TensorProto.UINT8)

    def _constant(self, values: np.ndarray, like: str) -> str:
        name = self._name(like)
        self.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def _name(self, like: str) -> str:
        """A name that no graph of the model has."""
        names = (f"{like}/unsigned{index}" for index in itertools.count())
        name = next(name for name in names if name not in self.used)
        self.used.add(name)
        return name


def _bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Branches, and bodies of loops."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs
