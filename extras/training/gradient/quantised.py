"""A training step in integers: a step in real numbers with QuantizeLinear and DequantizeLinear around its operators.

Activations, gradients and what products read of weights have 8 bits with one scale a tensor, as in NITI (Wang et al.,
2009.13108), whose block exponents are these scales; weights and momenta are kept with 16 bits. All roundings are half
to even.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.network import Network, Node, producer
from weft.compiler.onnx.folding import resolve
from weft.extras.training.gradient.deployed import Deployed, Kind, Stored, depending
from weft.extras.training.gradient.held import Graph
from weft.extras.training.gradient.training import MOMENTUM, NARROW, PROBABILITIES, TARGET, Step

Range = tuple[float, float]
"""The lowest and the highest of what a value may be."""
OPSET = 21
"""The first version whose QuantizeLinear makes int16."""
_KEEPING = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that move nothing between a DequantizeLinear and what reads it."""
_MOVING = ("Pad", "Slice", "Concat", "Resize", "Expand", "MaxPool")
"""Operators whose results have the scale of what they read."""
_UNARY = (
    "Relu", "Abs", "Sign", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Erf", "Softplus", "Softsign",
    "Sin", "Cos",
)  # fmt: skip
"""Functions of one value, of which a chain is one look-up table."""
_BEFORE_RELU = ("MatMul", "Add", "Sub")
"""Operators that a ReLU becomes a part of."""
_LOGITS = 1.38
"""The largest step of logits: 128 of them are all that the device's softmax tells apart."""
_MATRIX = 2
_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_WITH_BIAS = 3
"""Inputs of a layer that has a bias."""
_WITH_NUMBER = ("Add", "Sub", "Mul", "Div")
"""Operators that are such a function where one operand is a number."""


@dataclass(frozen=True)
class Integers:
    """A value as integers: their name, and what they stand for."""

    name: str
    scale: float
    zero: int
    dtype: str

    def times(self, factor: float) -> Integers:
        return dataclasses.replace(self, scale=self.scale * factor)


def of_range(found: Range, dtype: str = "int8") -> tuple[float, int]:
    """The scale of a range, and the zero point, which is 0: products subtract none from their second matrix."""
    return max(-found[0], found[1], 1e-9) / int(np.iinfo(dtype).max), 0


def quantised_step(step: Step, ranges: Mapping[str, Range], deployed: Deployed | None = None) -> Network:
    """The network of a step in integers, for the ranges of its values: its inputs, and the results of all nodes.

    What of a quantised network is not trained stays as it is: bytes of values that do not depend on what is trained
    are those of `deployed`. Inputs and outputs are in real numbers; inputs that are states are kept as integers from
    run to run (`weft.compiler.onnx.states`).
    """
    return _Quantiser(step, ranges, deployed).network()


class _Quantiser:
    def __init__(self, step: Step, ranges: Mapping[str, Range], deployed: Deployed | None) -> None:
        self.step, self.ranges, self.source = step, ranges, step.network
        self.graph = Graph("integers", constants=dict(self.source.constants))
        self.found: dict[str, Integers] = {}
        self.names: dict[str, str] = {}
        self.readers: dict[str, list[Node]] = {}
        for node in self.source.nodes:
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(node)
        momenta = {MOMENTUM.format(item.name) for item in step.variables}
        self.wide = {item.name for item in step.variables} | momenta
        self.after = {target: source for source, target in step.states.items()}
        self.stored: Mapping[str, Stored] = {} if deployed is None else deployed.stored
        moving = depending(self.source.nodes, (TARGET, *step.states))
        kinds = {} if deployed is None else deployed.kinds
        self.kinds = {name: kind for name, kind in kinds.items() if name not in moving and kind.one}
        own = () if deployed is None else deployed.network.nodes
        self.still = {name for node in own for name in node.outputs if name not in moving}

    def network(self) -> Network:
        for name in self.source.inputs:
            self._quantise(name, name, self._kind(name))
        for node in self.source.nodes:
            self._node(node)
        for name in self.source.outputs:
            if name != PROBABILITIES:
                self._dequantise(self.found[name], name)
        made = dataclasses.replace(
            self.source, nodes=tuple(self.graph.nodes), constants=self.graph.constants, opsets={"": OPSET},
            types={name: self.source.types[name] for name in (*self.source.inputs, *self.source.outputs)},
        )  # fmt: skip
        return resolve(made).network

    def _kind(self, name: str) -> tuple[float, int, str]:
        if name in self.wide:
            return *of_range(self.ranges[name], "int16"), "int16"
        if name == TARGET:
            return 1 / 127, 0, "int8"
        return self._own(self.kinds[name]) if name in self.kinds else (*of_range(self.ranges[name]), "int8")

    @staticmethod
    def _own(kind: Kind) -> tuple[float, int, str]:
        return float(kind.scale.reshape(())), int(kind.zero.reshape(())), kind.dtype

    def _quantise(self, real: str, name: str, kind: tuple[float, int, str]) -> None:
        """Integers for a value that is made in real numbers under the name `real`."""
        scale, zero, dtype = kind
        constants = (
            self.graph.constant(np.array(scale, np.float32)),
            self.graph.constant(np.array(zero, dtype)),
        )
        made = self.graph.node("QuantizeLinear", [real, *constants])
        self.found[name] = Integers(made, float(np.float32(scale)), zero, dtype)

    def _dequantise(self, value: Integers, output: str = "") -> str:
        constants = (
            self.graph.constant(np.array(value.scale, np.float32)),
            self.graph.constant(np.array(value.zero, value.dtype)),
        )
        return self.graph.node("DequantizeLinear", [value.name, *constants], output)

    def _read(self, name: str, node: Node) -> str:
        """The name of real numbers for an input of a node."""
        if name in self.found:
            return self._dequantise(self.found[name])
        if name in self.names:
            return self.names[name]
        if name in self.stored and (self.stored[name].kind.one or node.outputs[0] in self.still):
            return self._dequantise_stored(self.stored[name])
        # Scales by output of a layer are none by output of what goes back through it.
        value = self.source.constants.get(name)
        if value is None or value.dtype.kind != "f" or value.ndim < _MATRIX:
            return name
        return self._dequantise(self._constant(value))

    def _constant(self, value: np.ndarray) -> Integers:
        """A matrix of numbers: small integers are themselves."""
        whole = value.astype(np.int8)
        if bool((whole == value).all()):
            return Integers(self.graph.constant(whole), 1.0, 0, "int8")
        scale = float(np.float32(np.abs(value).max() / 127))
        return Integers(self.graph.constant(np.rint(value / scale).astype(np.int8)), scale, 0, "int8")

    def _bias(self, node: Node, name: str) -> str:
        """A bias of real numbers, with the product of the scales of what is multiplied."""
        value, weight = self.source.constants[name], self.source.constants[node.inputs[1]]
        scale = self.found[self._origin(node.inputs[0])].scale * self._constant(weight).scale
        whole = np.clip(np.rint(value / scale), -(2**31), 2**31 - 1).astype(np.int32)
        return self._dequantise(Integers(self.graph.constant(whole), scale, 0, "int32"))

    def _has_bias(self, node: Node) -> bool:
        """Whether a layer that is not trained has a bias of real numbers."""
        names = node.inputs[1:_WITH_BIAS]
        constant = all(name in self.source.constants and name not in self.stored for name in names)
        return node.op in _LAYERS and len(names) == _WITH_BIAS - 1 and constant

    def _dequantise_stored(self, found: Stored) -> str:
        """A constant as the quantised network has it."""
        names = [self.graph.constant(value) for value in (found.values, found.kind.scale, found.kind.zero)]
        return self.graph.node("DequantizeLinear", names, axis=found.kind.axis)

    def _node(self, node: Node) -> None:
        output = node.outputs[0]
        factor = self._factor(node)
        if factor is not None:
            self.found[output] = self.found[node.inputs[0]].times(factor)
            return
        inputs = [self._read(name, node) if name else "" for name in node.inputs]
        if self._has_bias(node):
            inputs[-1] = self._bias(node, node.inputs[-1])
        made = self.graph.node(node.op, inputs, **node.attributes)
        if self._stays_real(node):
            self.names[output] = made
            return
        self._quantise(made, output, self._result(node, output))
        if output == PROBABILITIES:
            self._dequantise(self.found[output], PROBABILITIES)

    def _readers(self, node: Node) -> list[Node]:
        return self.readers.get(node.outputs[0], [])

    def _stays_real(self, node: Node) -> bool:
        """Whether a result is not rounded: what is not in the quantised network, what only moves, what becomes part of
        the next function of one value, and what a ReLU follows."""
        output = node.outputs[0]
        readers = self._readers(node)
        if output in self.still and self.kinds:
            return output not in self.kinds and not any(self._takes_integers(other) for other in readers)
        if node.op in _KEEPING or len(readers) != 1:
            return node.op in _KEEPING
        function = self._is_function(readers[0])
        return function and (self._is_function(node) or (readers[0].op == "Relu" and node.op in _BEFORE_RELU))

    def _takes_integers(self, node: Node) -> bool:
        """Whether an operator behind what is not trained adds to it."""
        return node.op in _BEFORE_RELU and node.outputs[0] not in self.still

    def _is_function(self, node: Node) -> bool:
        return node.op in _UNARY or (
            node.op in _WITH_NUMBER and any(self._is_number(name) for name in node.inputs)
        )

    def _is_number(self, name: str) -> bool:
        value = self.source.constants.get(name)
        return value is not None and value.ndim == 0

    def _is_sign(self, node: Node) -> bool:
        """Whether results are -1, 0 and 1."""
        if node.op == "Sign":
            return True
        before = producer(self.source.nodes, node.inputs[0])
        return (
            self._is_function(node)
            and node.op in ("Neg", "Add")
            and before is not None
            and self._is_sign(before)
        )

    def _compares(self, node: Node) -> bool:
        """Whether of a difference only matters whether it is 0."""
        readers = self._readers(node)
        return node.op == "Sub" and bool(readers) and all(other.op == "Abs" for other in readers)

    def _factor(self, node: Node) -> float | None:
        """The number above 0 that a value is multiplied by, if that is all."""
        if node.op != "Mul" or node.inputs[0] not in self.found:
            return None
        value = self.source.constants.get(node.inputs[1])
        return float(value) if value is not None and value.ndim == 0 and float(value) > 0 else None

    def _result(self, node: Node, output: str) -> tuple[float, int, str]:
        if output in self.kinds:
            return self._own(self.kinds[output])
        if output in self.after:
            scale, zero = of_range(self.ranges[self.after[output]], "int16")
            return scale, zero, "int16"
        if node.op in _MOVING or self._compares(node):
            first = self.found[self._origin(node.inputs[0])]
            return first.scale, first.zero, first.dtype
        if self._is_sign(node):
            return 1.0, 0, "int8"
        if output == PROBABILITIES:
            return 1 / 256, -128, "int8"
        if output in self._narrow():
            return *of_range(self.ranges[node.inputs[0]]), "int8"
        scale, zero = of_range(self.ranges[output])
        scale = max(scale, self._finest(node))
        if any(other.op == "Softmax" for other in self._readers(node)):
            scale = min(scale, _LOGITS)
        return scale, zero, "int8"

    def _finest(self, node: Node) -> float:
        """The step that a result has at least, whatever its range: that of exact products, and 1/128 of other operands'
        steps, as the device multiplies by numbers below 2**15."""
        before = producer(self.source.nodes, node.inputs[0]) if node.op == "Relu" else None
        made = node if before is None or before.op not in _BEFORE_RELU else before
        origins = list(map(self._origin, made.inputs))
        scales = [self.found[own].scale for own in origins if own in self.found]
        if made.op in ("MatMul", "Mul"):
            values = [self.source.constants[own] for own in origins if own in self.source.constants]
            return math.prod(scales) * math.prod(self._constant(value).scale for value in values)
        return min(scales, default=0.0) / 128

    def _narrow(self) -> set[str]:
        return {NARROW.format(item.name) for item in self.step.variables}

    def _origin(self, name: str) -> str:
        """The value that a chain of operators which move nothing begins with."""
        while name not in self.found and name not in self.source.constants:
            name = next(node.inputs[0] for node in self.source.nodes if name in node.outputs)
        return name
