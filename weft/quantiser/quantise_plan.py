"""Choice of the operators that the quantiser surrounds with QuantizeLinear and DequantizeLinear.

The quantiser surrounds all operators that the device supports, except groups that the device computes as one operator,
and operators that are more exact without. The following stay in float if their neighbours quantise their inputs and
results:

- Attention, which is one operator of the device: its products, scale, mask and softmax. Masks add -10,000 or less, so
  quantised masked scores would have one value left for all unmasked keys. If anything but a mask is added to scores,
  the group is no attention, and its products are quantised.
- Functions of one activation that consist of several operators, for example GELU: they become one look-up table.
- Averages. Their results then get a scale of their own. The quantiser would use the scale of the input, with which
  many averages are exact halves of a step and much of the range is unused.
- Normalisations, including expanded ones: their constants stay exact.
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
"""Largest value that a mask adds to the scores of masked keys."""
_AVERAGES = ("AveragePool",)
_NORMALISATIONS = ("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization")
_CLAMPS = ("Relu", "Clip")
"""Operators that become part of the operator before them. The quantiser skips them if that operator is in float."""
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare")
_NUMBER_STEPS = ("Add", "Clip", "Expand", "Max", "Mul", "Pow", "Reciprocal", "Reshape", "Sqrt", "Unsqueeze")
"""Operators that an expanded normalisation applies to its statistic of each row."""
_NO_FLOATS = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "And", "Or", "Not", "Xor"})

_ELEMENTWISE = {
    name: name not in MOVES and any(record.elementwise for record in records)
    for name, records in NAMES.items()
}


def operators() -> list[str]:
    """Return the names of the operators to quantise: those that the device supports."""
    return sorted({name.rpartition(".")[2] for name in NAMES} - _NO_FLOATS)


class Plan:
    """Nodes of a model that stay in float, as `excluded`.

    Parameters
    ----------
    model : ModelProto
        A prepared float model.
    keep : sequence of str
        Names of nodes that stay in float in any case.
    masks : sequence of str
        Values that mask scores; `weft.quantiser.masks` quantises these.
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
        # A node belongs to the first group that contains it.
        groups = (self._attentions(), self._single_nodes(), self._normalisations(), self._functions())
        for group in itertools.chain(*groups):
            if self._has_quantised_borders(group):
                self.excluded += (node.name for node in group)

    def results(self, names: Sequence[str]) -> list[str]:
        """Return the quantised results of nodes, including those of the clamps that follow them."""
        values = []
        for node in self._nodes:
            for value in node.output if node.name in names else ():
                values.append(value)
                users = self._users.get(value, [])
                values += [name for user in users if user.op_type in _CLAMPS for name in user.output]
        return list(dict.fromkeys(values))

    def _single_nodes(self) -> Iterator[list[onnx.NodeProto]]:
        yield from ([node] for node in self._nodes if node.op_type in (*_AVERAGES, *_NORMALISATIONS))

    def _has_quantised_borders(self, group: Sequence[onnx.NodeProto]) -> bool:
        """Return True if other nodes quantise all inputs and results of a group."""
        inside = {node.name for node in group}
        if inside & set(self.excluded):
            return False
        results = {name for node in group for name in node.output if name}
        read = (
            {name for node in group for name in node.input if name}
            - results
            - self._constants.keys()
            - self._masks
        )
        leaving = {
            name
            for name in results
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
        """Yield groups that divide elements by a norm or deviation of their row, then scale and shift by constants."""
        for node in self._nodes:
            read = [name for name in node.input if name and name not in self._constants]
            if node.op_type not in ("Div", "Mul") or len(set(read)) != 2:
                continue
            norms = (self._statistic(number, x) for x, number in (read, read[::-1]))
            norm = next((group for group in norms if group), None)
            if norm is not None:
                yield [*norm, *self._with_scaling(node)]

    def _statistic(self, number: str, elements: str) -> list[onnx.NodeProto] | None:
        """Return the nodes that reduce each row of `elements` to `number`, and those that subtract the mean, if any."""
        group: list[onnx.NodeProto] = []
        node = self._makers.get(number)
        while node is not None and node.op_type in _NUMBER_STEPS:
            read = [name for name in node.input if name and name not in self._constants]
            if len(read) != 1:
                return None
            group.append(node)
            node = self._makers.get(read[0])
        if node is None or node.op_type not in _REDUCTIONS:
            return None
        group.append(node)
        power = self._makers.get(node.input[0])  # the square or absolute value inside a norm
        if node.input[0] != elements and power is not None and power.op_type in ("Abs", "Mul", "Pow"):
            group.append(power)
        if group[-1].input[0] != elements:
            return None
        centred = self._makers.get(elements)
        if centred is not None and centred.op_type == "Sub":
            mean = self._makers.get(centred.input[1])
            if mean is not None and mean.op_type == "ReduceMean" and mean.input[0] == centred.input[0]:
                group += [centred, mean]
        return group

    def _with_scaling(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield a node, and the products and sums with constants that follow it."""
        yield node
        users = self._users.get(node.output[0], [])
        while len(users) == 1 and users[0].op_type in ("Add", "Mul") and self._activations(users[0]) == 1:
            yield users[0]
            users = self._users.get(users[0].output[0], [])

    def _attentions(self) -> Iterator[list[onnx.NodeProto]]:
        """Yield attention groups, from the product of queries and keys to the product with values."""
        for node in self._nodes:
            users = self._users.get(node.output[0], [])
            if node.op_type != "Softmax" or len(users) != 1 or users[0].op_type != "MatMul":
                continue
            group = [node, users[0]]
            producer = self._private_producer(node)
            while producer is not None and self._scales_or_masks(producer):
                group.append(producer)
                producer = self._private_producer(producer)
            if producer is not None and producer.op_type == "MatMul" and self._activations(producer) == 2:
                yield [*group, producer]

    def _scales_or_masks(self, node: onnx.NodeProto) -> bool:
        """Return True if the device's attention can apply a node to scores; an Add must add a mask."""
        if node.op_type != "Add":
            return node.op_type in ("Mul", "Div", "Where")
        addends = (self._constants[name] for name in node.input if name in self._constants)
        values = (numpy_helper.to_array(tensor) for tensor in addends)
        return all(((value == 0) | (value <= MASKED)).all() for value in values)

    def _private_producer(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return the only node that computes an input of `node`, if nothing else reads its result."""
        read = [name for name in node.input if name and name not in self._constants.keys() | self._masks]
        alone = len(read) == 1 and len(self._users[read[0]]) == 1 and read[0] not in self._outputs
        return self._makers.get(read[0]) if alone else None

    def _activations(self, node: onnx.NodeProto) -> int:
        return sum(name not in self._constants for name in node.input)

    def _functions(self) -> Iterator[list[onnx.NodeProto]]:
        """Yield groups of at least two nodes that compute a function of one activation, element by element."""
        roots: dict[str, str] = {}
        groups: dict[str, list[onnx.NodeProto]] = {}
        for node in self._nodes:
            read = {name for name in node.input if name and name not in self._constants}
            constants = (self._constants[name] for name in node.input if name in self._constants)
            sizes = [math.prod(tensor.dims) for tensor in constants]
            sources = {roots.get(name, name) for name in read}
            elementwise = _ELEMENTWISE.get(node.op_type, False)
            clamps = node.op_type in _CLAMPS and not read & roots.keys()
            # Constants of several elements would give each channel a function of its own.
            if len(sources) != 1 or not elementwise or clamps or max(sizes, default=1) > 1:
                continue
            root = sources.pop()
            roots[node.output[0]] = root  # the activation that the function starts from
            groups.setdefault(root, []).append(node)
        yield from (group for group in groups.values() if len(group) > 1)
