"""Masks of attention that are computed from inputs when a model runs, brought into one form ahead of quantisation.

Exporters mask keys in many ways: what is added is (1 - mask) * -10000, or times the least float32; or it is chosen
between 0 and minus infinity, by a condition that was repeated for every query; or scores themselves are chosen. Here
all of them become an addition of 0 or -10000 for each key, which 8 bits have, and which the compiler knows.
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
from weft.quantiser.rewriting import Rewriting, put

_SCALE = np.float32(-MASKED / 255)
_INTEGERS = (TensorProto.BOOL, TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8)
_ELEMENTWISE = frozenset({
    "Add", "And", "Cast", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max",
    "Min", "Mul", "Neg", "Not", "Or", "Sub", "Where", "Xor",
})  # fmt: skip
_MOVES = frozenset({"Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that masks are made of. Sizes that they need were constants, as shapes are static."""


@dataclass(frozen=True)
class Masks:
    """The masks of a prepared model: their values, and the names of the nodes that make them."""

    values: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Masking:
    """A node that masks scores: adds `mask` to them, or with `where` chooses by it; `keeps` where it is true."""

    node: onnx.NodeProto
    scores: str
    mask: str
    where: bool = False
    keeps: bool = True


def unified(
    model: onnx.ModelProto, samples: Iterable[Mapping[str, np.ndarray]]
) -> tuple[onnx.ModelProto, Masks]:
    """A prepared model with all masks of keys in one form, and these masks.

    What is added to scores counts as a mask if it is made of inputs of integers alone, and is 0 or -10000 and less in
    all samples. Where there is none, the model is returned as it is.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    rewriting = _Rewriting(made)
    maskings = list(rewriting.maskings())
    values = {index: rewriting.mask_of(masking) for index, masking in enumerate(maskings)}
    wanted = {name for name in values.values() if name is not None}
    if not wanted:
        return model, Masks()
    probe = float_model.Probe(made, wanted)
    good = set(wanted)
    for run in samples:
        good = {name for name, value in probe(run).items() if name in good and _is_mask(value)}
    if not good:
        return model, Masks()
    for index, masking in enumerate(maskings):
        if values[index] in good:
            rewriting.replace(masking, values[index] or "")
    put(made.graph, list(made.graph.node))
    return float_model.typed(made), Masks(tuple(sorted(good)), tuple(rewriting.makers_of(good)))


def _is_mask(value: np.ndarray) -> bool:
    return bool(((value == 0) | (value == MASKED)).all())


def quantised(model: onnx.ModelProto, masks: Masks) -> None:
    """Put QuantizeLinear and DequantizeLinear behind the masks of a model, in place."""
    nodes = list(model.graph.node)
    for name in masks.values:
        for node in nodes:
            for index, given in enumerate(node.input):
                if given == name:
                    node.input[index] = f"{name}_dequantised"
        ends = [f"{name}_scale", f"{name}_zero"]
        for end, value in zip(ends, (_SCALE, np.int8(127)), strict=True):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), end))
        steps = ("QuantizeLinear", name, f"{name}_quantised"), (
            "DequantizeLinear", f"{name}_quantised", f"{name}_dequantised",
        )  # fmt: skip
        pair = [
            helper.make_node(operator, [source, *ends], [target], f"{name}_{operator}")
            for operator, source, target in steps
        ]
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
        self._made: dict[tuple[str, bool, bool], str] = {}
        self._narrowed: dict[str, str | None] = {}

    def maskings(self) -> Iterator[_Masking]:
        """The nodes that mask scores, between the product of queries and keys and softmax, by inputs of integers."""
        for node in self.graph.node:
            found = []
            value = node.input[0] if node.op_type == "Softmax" else ""
            while value in self._makers:
                maker = self._makers[value]
                masking = self._masking(maker)
                read = [name for name in maker.input if name and name not in self._constants]
                if masking is not None:
                    found.append(masking)
                    value = masking.scores
                elif maker.op_type in ("Mul", "Div") and len(read) == 1:
                    value = read[0]
                elif maker.op_type == "MatMul" and len(read) == 2:
                    yield from found
                    break
                else:
                    break

    def _masking(self, node: onnx.NodeProto) -> _Masking | None:
        names = list(node.input)
        if node.op_type == "Add" and not any(name in self._constants for name in names):
            for scores, mask in (names, names[::-1]):
                if self._of_integers(mask) and not self._of_integers(scores):
                    return _Masking(node, scores, mask)
        if node.op_type == "Where" and names[0] not in self._constants and self._of_integers(names[0]):
            for scores, other, keeps in ((names[1], names[2], True), (names[2], names[1], False)):
                tensor = self._constants.get(other)
                if tensor is not None and (numpy_helper.to_array(tensor) <= MASKED).all():
                    return _Masking(node, scores, names[0], True, keeps)
        return None

    def _of_integers(self, name: str) -> bool:
        """Whether a value is made of inputs of integers and of constants, by operators that masks are made of."""
        if name in self._constants or not name:
            return True
        if name not in self._known:
            node = self._makers.get(name)
            if node is None:
                self._known[name] = self._inputs.get(name) in _INTEGERS
            else:
                plain = node.op_type in (*_ELEMENTWISE, *_MOVES) and not node.domain
                self._known[name] = plain and all(self._of_integers(item) for item in node.input)
        return self._known[name]

    def mask_of(self, masking: _Masking) -> str | None:
        """The value of a new node that makes the mask for each key; None if it is not the same for all queries."""
        source = self._narrow(masking.mask)
        if source is None:
            return None
        key = (source, masking.where, masking.keeps)
        if key not in self._made:
            least = self._end(MASKED)
            if masking.where:
                ends = [self._end(0), least]
                inputs = [source, *(ends if masking.keeps else ends[::-1])]
                self._made[key] = self._node("Where", inputs, self._shapes[source], {})
            else:
                self._made[key] = self._node("Max", [source, least], self._shapes[source], {})
        return self._made[key]

    def _narrow(self, name: str) -> str | None:
        """A value of (images, 1, 1, keys) that broadcasts to a value; None if there is none."""
        if name not in self._narrowed:
            self._narrowed[name] = self._found(name)
        return self._narrowed[name]

    def _found(self, name: str) -> str | None:
        """What `_narrow` has not found yet."""
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
        kept = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        return self._node(node.op_type, read, tuple(sizes), kept)

    def _node(
        self, operator: str, inputs: list[str], shape: tuple[int, ...], attributes: dict[str, Any]
    ) -> str:
        """The result of a new node, which comes behind the last one that it reads."""
        name = self.value(f"mask_{operator}")
        made = helper.make_node(operator, inputs, [name], name, **attributes)
        places = {output: at for at, node in enumerate(self.graph.node) for output in node.output}
        self.graph.node.insert(1 + max((places.get(item, -1) for item in inputs), default=-1), made)
        self._makers[name], self._shapes[name] = made, shape
        return name

    def _end(self, value: float) -> str:
        name = self.constant("mask_constant", np.array([value], np.float32))
        self._shapes[name] = (1,)
        return name

    def replace(self, masking: _Masking, mask: str) -> None:
        """Have a node add a mask to scores."""
        node = masking.node
        node.op_type = "Add"
        del node.input[:]
        node.input.extend([masking.scores, mask])

    def makers_of(self, names: Iterable[str]) -> Iterator[str]:
        """The names of all nodes that some values are made by."""
        stack, seen = list(names), set()
        while stack:
            node = self._makers.get(stack.pop())
            if node is not None and node.name not in seen:
                seen.add(node.name)
                stack += node.input
                yield node.name
