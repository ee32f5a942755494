"""Which operators of a float model the quantiser is to surround with QuantizeLinear and DequantizeLinear.

All that the device has are, but for those that the device computes together with others, or more exactly, from what is
quantised around them. These are left as they are if their neighbours quantise what they read and write:

- the products, the scale, the mask and the softmax of attention, which is one operator of the device: scores that are
  quantised behind their mask, which adds -10,000 and less, have one value left for all others. Where anything else is
  added to scores it is none, and its products are quantised like others;
- the operators that a function of one activation is written out in, GELU for example: one look-up table;
- averages: their results get a scale of their own then, and the quantiser would give them their input's, by which
  averages fall on exact halves, and much of the range goes unused;
- normalisations, whose constants stay as exact as they are, also those that are written out in operators.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import onnx
from onnx import numpy_helper

from weft.compiler.onnx.elementwise import MOVES
from weft.compiler.onnx.registry import NAMES

MASKED = -10_000
"""What a mask adds, or less, to scores of keys that do not take part."""
_AVERAGES = ("AveragePool",)
_NORMALISATIONS = ("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization")
_CLAMPS = ("Relu", "Clip")
"""What becomes part of the operator in front of it; the quantiser leaves them alone where that is not quantised."""
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare")
_NUMBER_STEPS = ("Add", "Clip", "Expand", "Max", "Mul", "Pow", "Reciprocal", "Reshape", "Sqrt", "Unsqueeze")
"""What a written out normalisation does with the number that it has for each row."""
_NO_FLOATS = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "And", "Or", "Not", "Xor"})

_ELEMENTWISE = {
    name: name not in MOVES and any(record.elementwise for record in records)
    for name, records in NAMES.items()
}


def operators() -> list[str]:
    """Names of the operators that are quantised: those of the device."""
    return sorted({name.rpartition(".")[2] for name in NAMES} - _NO_FLOATS)


class Plan:
    """The nodes of a model that are not quantised.

    Parameters
    ----------
    model : ModelProto
        A prepared float model.
    keep : sequence of str
        Names of nodes that are not to be quantised in any case.
    masks : sequence of str
        Values that mask scores, which get their pairs elsewhere.
    """

    def __init__(self, model: onnx.ModelProto, keep: Sequence[str] = (), masks: Sequence[str] = ()) -> None:
        graph = model.graph
        self._nodes = list(graph.node)
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._outputs = {value.name for value in graph.output}
        self._makers = {name: node for node in self._nodes for name in node.output if name}
        self._users: dict[str, list[onnx.NodeProto]] = {}
        for node in self._nodes:
            for name in dict.fromkeys(node.input):
                self._users.setdefault(name, []).append(node)
        self._quantised = frozenset(operators())
        self._masks = frozenset(masks)
        self.excluded = list(keep)
        groups = (self._attentions(), self._alone(), self._normalisations(), self._functions())
        for group in itertools.chain(*groups):
            if self._surrounded(group):
                self.excluded += (node.name for node in group)

    def results(self, names: Sequence[str]) -> list[str]:
        """The values that are quantised of what nodes make: a clamp behind a node is part of it."""
        found = []
        for node in self._nodes:
            for value in node.output if node.name in names else ():
                found.append(value)
                users = self._users.get(value, [])
                found += [name for user in users if user.op_type in _CLAMPS for name in user.output]
        return list(dict.fromkeys(found))

    def _alone(self) -> Iterator[list[onnx.NodeProto]]:
        yield from ([node] for node in self._nodes if node.op_type in (*_AVERAGES, *_NORMALISATIONS))

    def _surrounded(self, group: Sequence[onnx.NodeProto]) -> bool:
        """Whether other nodes quantise all that a group reads and writes."""
        inside = {node.name for node in group}
        if inside & set(self.excluded):
            return False
        made = {name for node in group for name in node.output if name}
        read = (
            {name for node in group for name in node.input if name}
            - made
            - self._constants.keys()
            - self._masks
        )
        leaving = {
            name
            for name in made
            if name in self._outputs or any(user.name not in inside for user in self._users.get(name, ()))
        }
        return all(self._quantised_by_others(name, inside) for name in (*read, *leaving))

    def _quantised_by_others(self, value: str, inside: set[str]) -> bool:
        maker = self._makers.get(value)
        users = (node for node in self._users.get(value, ()) if node.op_type not in _CLAMPS)
        others = (node for node in (maker, *users) if node is not None)
        return any(
            node.op_type in self._quantised and node.name not in inside and node.name not in self.excluded
            for node in others
        )

    def _normalisations(self) -> Iterator[list[onnx.NodeProto]]:
        """Elements divided by a norm or a deviation of their own, with the constants behind that."""
        for node in self._nodes:
            read = [name for name in node.input if name and name not in self._constants]
            if node.op_type not in ("Div", "Mul") or len(set(read)) != 2:
                continue
            norms = (self._norm(number, x) for x, number in (read, read[::-1]))
            norm = next((found for found in norms if found), None)
            if norm is not None:
                yield [*norm, *self._scaled(node)]

    def _norm(self, number: str, elements: str) -> list[onnx.NodeProto] | None:
        """The nodes that make a number for each row of the elements, and these if they are less their mean."""
        group: list[onnx.NodeProto] = []
        made = self._makers.get(number)
        while made is not None and made.op_type in _NUMBER_STEPS:
            read = [name for name in made.input if name and name not in self._constants]
            if len(read) != 1:
                return None
            group.append(made)
            made = self._makers.get(read[0])
        if made is None or made.op_type not in _REDUCTIONS:
            return None
        group.append(made)
        power = self._makers.get(made.input[0])
        if made.input[0] != elements and power is not None and power.op_type in ("Abs", "Mul", "Pow"):
            group.append(power)
        if group[-1].input[0] != elements:
            return None
        centred = self._makers.get(elements)
        if centred is not None and centred.op_type == "Sub":
            mean = self._makers.get(centred.input[1])
            if mean is not None and mean.op_type == "ReduceMean" and mean.input[0] == centred.input[0]:
                group += [centred, mean]
        return group

    def _scaled(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """A node, and the products and sums with constants behind it."""
        yield node
        users = self._users.get(node.output[0], [])
        while len(users) == 1 and users[0].op_type in ("Add", "Mul") and self._activations(users[0]) == 1:
            yield users[0]
            users = self._users.get(users[0].output[0], [])

    def _attentions(self) -> Iterator[list[onnx.NodeProto]]:
        """From the product of queries and keys to the product with the values."""
        for node in self._nodes:
            users = self._users.get(node.output[0], [])
            if node.op_type != "Softmax" or len(users) != 1 or users[0].op_type != "MatMul":
                continue
            group = [node, users[0]]
            before = self._before(node)
            while before is not None and self._scaled_or_masked(before):
                group.append(before)
                before = self._before(before)
            if before is not None and before.op_type == "MatMul" and self._activations(before) == 2:
                yield [*group, before]

    def _scaled_or_masked(self, node: onnx.NodeProto) -> bool:
        """Whether a node does with scores what attention on the device can: the addends are those of a mask."""
        if node.op_type != "Add":
            return node.op_type in ("Mul", "Div", "Where")
        added = (self._constants[name] for name in node.input if name in self._constants)
        values = (numpy_helper.to_array(tensor) for tensor in added)
        return all(((value == 0) | (value <= MASKED)).all() for value in values)

    def _before(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The one node whose result, but for constants, a node reads, if nothing else reads it."""
        read = [name for name in node.input if name and name not in self._constants.keys() | self._masks]
        alone = len(read) == 1 and len(self._users[read[0]]) == 1 and read[0] not in self._outputs
        return self._makers.get(read[0]) if alone else None

    def _activations(self, node: onnx.NodeProto) -> int:
        return sum(name not in self._constants for name in node.input)

    def _functions(self) -> Iterator[list[onnx.NodeProto]]:
        """Two nodes or more that compute a function of one activation, element by element."""
        roots: dict[str, str] = {}
        groups: dict[str, list[onnx.NodeProto]] = {}
        for node in self._nodes:
            read = {name for name in node.input if name and name not in self._constants}
            constants = (self._constants[name] for name in node.input if name in self._constants)
            sizes = [math.prod(tensor.dims) for tensor in constants]
            found = {roots.get(name, name) for name in read}
            elementwise = _ELEMENTWISE.get(node.op_type, False)
            clamps = node.op_type in _CLAMPS and not read & roots.keys()
            if len(found) != 1 or not elementwise or clamps or max(sizes, default=1) > 1:
                continue
            root = found.pop()
            roots[node.output[0]] = root
            groups.setdefault(root, []).append(node)
        yield from (group for group in groups.values() if len(group) > 1)
