"""Normal form of attention masks that a model computes from its inputs, established before quantisation.

Exporters mask keys in several ways. They add (1 - mask) times -10000 or the smallest float32, add 0 or minus infinity
chosen by a condition for every query, or choose between scores and a constant. Here all of them become an addition of
0 or -10000 for each key: 8 bits can represent it, and the compiler recognises it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from weft.quantiser import float_model
from weft.quantiser.quantise_plan import MASKED
from weft.quantiser.rewriting import Rewriting, replace_nodes

_SCALE = np.float32(-MASKED / 255)  # 0 and `MASKED` are the ends of the range of int8
_INTEGERS = (TensorProto.BOOL, TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8)
_ELEMENTWISE = frozenset({
    "Add", "And", "Cast", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max",
    "Min", "Mul", "Neg", "Not", "Or", "Sub", "Where", "Xor",
})  # fmt: skip
_MOVES = frozenset({"Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that compute masks. Their size operands are constants, because shapes are static."""


@dataclass(frozen=True)
class Masks:
    """Masks of a prepared model: their values, and the names of the nodes that compute them."""

    values: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Masking:
    """Node that masks scores.

    It adds `mask` to them or, with `where`, chooses by it: scores stay where the mask equals `keeps`.
    """

    node: onnx.NodeProto
    scores: str
    mask: str
    where: bool = False
    keeps: bool = True


def unify(
    model: onnx.ModelProto, samples: Iterable[Mapping[str, np.ndarray]]
) -> tuple[onnx.ModelProto, Masks]:
    """Bring all masks of keys in a prepared model into normal form. Returns the new model and its masks.

    A value added to scores is a mask if it depends only on integer inputs, and its elements are 0 or at most -10000 in
    all samples. A model without masks is returned unchanged.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    rewriting = _Rewriting(result)
    maskings = list(rewriting.maskings())
    values = {index: rewriting.mask_of(masking) for index, masking in enumerate(maskings)}
    candidates = {name for name in values.values() if name is not None}
    if not candidates:
        return model, Masks()
    # Integer inputs may also be positions or token types: only values that mask in all samples are masks.
    probe = float_model.Probe(result, candidates)
    good = set(candidates)
    for run in samples:
        good = {name for name, value in probe(run).items() if name in good and _is_mask(value)}
    if not good:
        return model, Masks()
    for index, masking in enumerate(maskings):
        if values[index] in good:
            rewriting.replace(masking, values[index] or "")
    replace_nodes(result.graph, list(result.graph.node))
    return float_model.infer_types(result), Masks(tuple(sorted(good)), tuple(rewriting.makers_of(good)))


def _is_mask(value: np.ndarray) -> bool:
    return bool(((value == 0) | (value == MASKED)).all())


def quantise(model: onnx.ModelProto, masks: Masks) -> None:
    """Insert QuantizeLinear and DequantizeLinear after the masks of a model, in place."""
    nodes = list(model.graph.node)
    for name in masks.values:
        for node in nodes:
            for index, source in enumerate(node.input):
                if source == name:
                    node.input[index] = f"{name}_dequantised"
        parameters = [f"{name}_scale", f"{name}_zero"]
        for parameter, value in zip(parameters, (_SCALE, np.int8(127)), strict=True):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), parameter))
        steps = ("QuantizeLinear", name, f"{name}_quantised"), (
            "DequantizeLinear", f"{name}_quantised", f"{name}_dequantised",
        )  # fmt: skip
        pair = [
            helper.make_node(operator, [source, *parameters], [target], f"{name}_{operator}")
            for operator, source, target in steps
        ]
        # ONNX requires nodes in topological order.
        at = next(index for index, node in enumerate(nodes) if name in node.output)
        nodes[at + 1 : at + 1] = pair
    del model.graph.node[:]
    model.graph.node.extend(nodes)


class _Rewriting(Rewriting):
    """A prepared model, in which masks are looked for and replaced."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        graph = self.graph
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._inputs = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        self._shapes = {
            value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in (*graph.input, *graph.value_info, *graph.output)
        }
        self._shapes |= {name: tuple(tensor.dims) for name, tensor in self._constants.items()}
        self._known: dict[str, bool] = {}
        self._mask_values: dict[tuple[str, bool, bool], str] = {}
        self._narrowed: dict[str, str | None] = {}

    def maskings(self) -> Iterator[_Masking]:
        """Yield the nodes that mask scores by integer inputs, from the product of queries and keys to the softmax."""
        for node in self.graph.node:
            maskings = []
            value = node.input[0] if node.op_type == "Softmax" else ""
            while value in self._makers:
                maker = self._makers[value]
                masking = self._masking(maker)
                read = [name for name in maker.input if name and name not in self._constants]
                if masking is not None:
                    maskings.append(masking)
                    value = masking.scores
                elif maker.op_type in ("Mul", "Div") and len(read) == 1:
                    value = read[0]
                elif maker.op_type == "MatMul" and len(read) == 2:
                    yield from maskings
                    break
                else:
                    break

    def _masking(self, node: onnx.NodeProto) -> _Masking | None:
        names = list(node.input)
        if node.op_type == "Add" and not any(name in self._constants for name in names):
            for scores, mask in (names, names[::-1]):
                if self._from_integers(mask) and not self._from_integers(scores):
                    return _Masking(node, scores, mask)
        if node.op_type == "Where" and names[0] not in self._constants and self._from_integers(names[0]):
            for scores, other, keeps in ((names[1], names[2], True), (names[2], names[1], False)):
                tensor = self._constants.get(other)
                if tensor is not None and (numpy_helper.to_array(tensor) <= MASKED).all():
                    return _Masking(node, scores, names[0], True, keeps)
        return None

    def _from_integers(self, name: str) -> bool:
        """Return True if a value depends only on integer inputs and constants, through operators of masks."""
        if name in self._constants or not name:
            return True
        # Recursion ends at inputs: ONNX graphs have no cycles.
        if name not in self._known:
            node = self._makers.get(name)
            if node is None:
                self._known[name] = self._inputs.get(name) in _INTEGERS
            else:
                plain = node.op_type in (*_ELEMENTWISE, *_MOVES) and not node.domain
                self._known[name] = plain and all(self._from_integers(item) for item in node.input)
        return self._known[name]

    def mask_of(self, masking: _Masking) -> str | None:
        """Add nodes that compute the mask of each key. Returns their result; None if masks differ between queries."""
        source = self._narrow(masking.mask)
        if source is None:
            return None
        key = (source, masking.where, masking.keeps)
        if key not in self._mask_values:
            least = self._number(MASKED)
            if masking.where:
                choices = [self._number(0), least]
                inputs = [source, *(choices if masking.keeps else choices[::-1])]
                self._mask_values[key] = self._node("Where", inputs, self._shapes[source], {})
            else:
                self._mask_values[key] = self._node("Max", [source, least], self._shapes[source], {})
        return self._mask_values[key]

    def _narrow(self, name: str) -> str | None:
        """Return a value of shape (images, 1, 1, keys) that broadcasts to the value `name`; None if there is none."""
        if name not in self._narrowed:
            self._narrowed[name] = self._compute_narrow(name)
        return self._narrowed[name]

    def _compute_narrow(self, name: str) -> str | None:
        shape = self._shapes.get(name, ())
        if len(shape) != 4:
            return name if name in self._constants and np.prod(shape) == 1 else None
        if shape[1:3] == (1, 1):
            return name
        node = self._makers.get(name)
        if node is None:
            return None
        if node.op_type == "Expand":
            return self._narrow(node.input[0])
        if node.op_type not in _ELEMENTWISE:
            return None
        inputs = [self._narrow(item) if item else item for item in node.input]
        read = [item for item in inputs if item is not None]
        if len(read) < len(inputs):
            return None
        sizes = np.broadcast_shapes(*(self._shapes[item] for item in read if item))
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        return self._node(node.op_type, read, tuple(sizes), attributes)

    def _node(
        self, operator: str, inputs: list[str], shape: tuple[int, ...], attributes: dict[str, Any]
    ) -> str:
        """Insert a node after the last node that it reads. Returns the name of its result."""
        name = self.new_value(f"mask_{operator}")
        node = helper.make_node(operator, inputs, [name], name, **attributes)
        places = {output: at for at, other in enumerate(self.graph.node) for output in other.output}
        self.graph.node.insert(1 + max((places.get(item, -1) for item in inputs), default=-1), node)
        self._makers[name], self._shapes[name] = node, shape
        return name

    def _number(self, value: float) -> str:
        name = self.new_constant("mask_constant", np.array([value], np.float32))
        self._shapes[name] = (1,)
        return name

    def replace(self, masking: _Masking, mask: str) -> None:
        """Turn a masking node into the addition of a mask."""
        node = masking.node
        node.op_type = "Add"
        del node.input[:]
        node.input.extend([masking.scores, mask])

    def makers_of(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the names of all nodes that `names` depend on."""
        stack, seen = list(names), set()
        while stack:
            node = self._makers.get(stack.pop())
            if node is not None and node.name not in seen:
                seen.add(node.name)
                stack += node.input
                yield node.name
