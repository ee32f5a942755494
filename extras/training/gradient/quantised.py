"""A training step in integers: QuantizeLinear and DequantizeLinear around the operators of a step.

Activations, gradients and the weights that products read have 8 bits with one scale per tensor, like the block
exponents of NITI (Wang et al., 2009.13108). Weights and momenta are kept with 16 bits. All operations round half to
even.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.network import Network, Node, producer
from weft.compiler.onnx.folding import resolve
from weft.extras.training.gradient.real_network import Kind, RealNetwork, Stored, dependents
from weft.extras.training.gradient.tensor import Graph
from weft.extras.training.gradient.training import MOMENTUM, NARROW, PROBABILITIES, TARGET, Step

Range = tuple[float, float]
"""Least and greatest element of a value."""
OPSET = 21
"""The first version whose QuantizeLinear has int16."""
_KEEPING = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that keep the order of elements between a DequantizeLinear and its reader."""
_MOVING = ("Pad", "Slice", "Concat", "Resize", "Expand", "MaxPool")
"""Operators whose results have the scale of their operand."""
_UNARY = (
    "Relu", "Abs", "Sign", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Erf", "Softplus", "Softsign",
    "Sin", "Cos",
)  # fmt: skip
"""Functions of one value; a chain of them becomes one look-up table."""
_BEFORE_RELU = ("MatMul", "Add", "Sub")
"""Operators that absorb a ReLU."""
_LOGITS = 1.38
"""Largest scale of logits: the device's softmax distinguishes 128 steps."""
_MATRIX = 2
_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_WITH_BIAS = 3
"""Number of inputs of a layer with a bias."""
_WITH_NUMBER = ("Add", "Sub", "Mul", "Div")
"""Operators that are functions of one value if one operand is a number."""


@dataclass(frozen=True)
class Integers:
    """A value in integers, with scale, zero point and type."""

    name: str
    scale: float
    zero: int
    dtype: str

    def scaled_by(self, factor: float) -> Integers:
        return dataclasses.replace(self, scale=self.scale * factor)


def scale_of_range(range_: Range, dtype: str = "int8") -> tuple[float, int]:
    """Return the scale of a range, and zero point 0: products do not subtract one from their second matrix."""
    return max(-range_[0], range_[1], 1e-9) / int(np.iinfo(dtype).max), 0


def quantise_step(
    step: Step, ranges: Mapping[str, Range], real_network: RealNetwork | None = None
) -> Network:
    """Return the network of a step in integers, for the ranges of its inputs and of all node results.

    Values that do not depend on trained constants keep the bytes of the quantised network behind `real_network`.
    Inputs and outputs are real numbers; states are kept as integers between runs (`weft.compiler.onnx.states`).
    """
    return _Quantiser(step, ranges, real_network).network()


class _Quantiser:
    def __init__(self, step: Step, ranges: Mapping[str, Range], real_network: RealNetwork | None) -> None:
        self.step, self.ranges, self.source = step, ranges, step.network
        self.graph = Graph("integers", constants=dict(self.source.constants))
        self.quantised_values: dict[str, Integers] = {}
        self.real_names: dict[str, str] = {}
        self.readers: dict[str, list[Node]] = {}
        for node in self.source.nodes:
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(node)
        momenta = {MOMENTUM.format(item.name) for item in step.variables}
        self.wide = {item.name for item in step.variables} | momenta
        self.next_states = {target: source for source, target in step.states.items()}
        self.stored: Mapping[str, Stored] = {} if real_network is None else real_network.stored
        moving = dependents(self.source.nodes, (TARGET, *step.states))
        kinds = {} if real_network is None else real_network.kinds
        self.kinds = {name: kind for name, kind in kinds.items() if name not in moving and kind.per_tensor}
        own = () if real_network is None else real_network.network.nodes
        # Values before the first trained layer keep the bytes of the quantised network.
        self.frozen = {name for node in own for name in node.outputs if name not in moving}

    def network(self) -> Network:
        for name in self.source.inputs:
            self._quantise(name, name, self._kind(name))
        for node in self.source.nodes:
            self._node(node)
        for name in self.source.outputs:
            if name != PROBABILITIES:
                self._dequantise(self.quantised_values[name], name)
        network = dataclasses.replace(
            self.source, nodes=tuple(self.graph.nodes), constants=self.graph.constants, opsets={"": OPSET},
            types={name: self.source.types[name] for name in (*self.source.inputs, *self.source.outputs)},
        )  # fmt: skip
        return resolve(network).network

    def _kind(self, name: str) -> tuple[float, int, str]:
        if name in self.wide:
            return *scale_of_range(self.ranges[name], "int16"), "int16"
        if name == TARGET:
            return 1 / 127, 0, "int8"  # one-hot rows: 0 and 1 are exact
        return (
            self._unpack(self.kinds[name])
            if name in self.kinds
            else (*scale_of_range(self.ranges[name]), "int8")
        )

    @staticmethod
    def _unpack(kind: Kind) -> tuple[float, int, str]:
        return float(kind.scale.reshape(())), int(kind.zero.reshape(())), kind.dtype

    def _quantise(self, real: str, name: str, kind: tuple[float, int, str]) -> None:
        """Add the integers of the real value `real`, under the name `name`."""
        scale, zero, dtype = kind
        constants = (
            self.graph.constant(np.array(scale, np.float32)),
            self.graph.constant(np.array(zero, dtype)),
        )
        # The model stores the scale as float32: later products use that value.
        integers = self.graph.node("QuantizeLinear", [real, *constants])
        self.quantised_values[name] = Integers(integers, float(np.float32(scale)), zero, dtype)

    def _dequantise(self, value: Integers, output: str = "") -> str:
        constants = (
            self.graph.constant(np.array(value.scale, np.float32)),
            self.graph.constant(np.array(value.zero, value.dtype)),
        )
        return self.graph.node("DequantizeLinear", [value.name, *constants], output)

    def _read(self, name: str, node: Node) -> str:
        """Return the name of real numbers for an input of a node."""
        if name in self.quantised_values:
            return self._dequantise(self.quantised_values[name])
        if name in self.real_names:
            return self.real_names[name]
        if name in self.stored and (self.stored[name].kind.per_tensor or node.outputs[0] in self.frozen):
            return self._dequantise_stored(self.stored[name])
        # Scales per output channel do not fit the backward product, which sums over these channels.
        value = self.source.constants.get(name)
        if value is None or value.dtype.kind != "f" or value.ndim < _MATRIX:
            return name
        return self._dequantise(self._constant(value))

    def _constant(self, value: np.ndarray) -> Integers:
        """Return a matrix as integers; small integers keep scale 1."""
        rounded = value.astype(np.int8)
        if bool((rounded == value).all()):
            return Integers(self.graph.constant(rounded), 1.0, 0, "int8")
        scale = float(np.float32(np.abs(value).max() / 127))
        return Integers(self.graph.constant(np.rint(value / scale).astype(np.int8)), scale, 0, "int8")

    def _bias(self, node: Node, name: str) -> str:
        """Return a float bias, quantised with the product of the scales of input and weights."""
        value, weight = self.source.constants[name], self.source.constants[node.inputs[1]]
        scale = self.quantised_values[self._origin(node.inputs[0])].scale * self._constant(weight).scale
        rounded = np.clip(np.rint(value / scale), -(2**31), 2**31 - 1).astype(np.int32)
        return self._dequantise(Integers(self.graph.constant(rounded), scale, 0, "int32"))

    def _has_bias(self, node: Node) -> bool:
        """Return whether a layer that is not trained has a float bias."""
        names = node.inputs[1:_WITH_BIAS]
        constant = all(name in self.source.constants and name not in self.stored for name in names)
        return node.op in _LAYERS and len(names) == _WITH_BIAS - 1 and constant

    def _dequantise_stored(self, stored: Stored) -> str:
        """Return a constant with the integers and scales of the quantised network."""
        names = [self.graph.constant(value) for value in (stored.values, stored.kind.scale, stored.kind.zero)]
        return self.graph.node("DequantizeLinear", names, axis=stored.kind.axis)

    def _node(self, node: Node) -> None:
        output = node.outputs[0]
        factor = self._factor(node)
        if factor is not None:
            # A positive factor changes the scale only.
            self.quantised_values[output] = self.quantised_values[node.inputs[0]].scaled_by(factor)
            return
        inputs = [self._read(name, node) if name else "" for name in node.inputs]
        if self._has_bias(node):
            inputs[-1] = self._bias(node, node.inputs[-1])
        result = self.graph.node(node.op, inputs, **node.attributes)
        if self._stays_real(node):
            self.real_names[output] = result
            return
        self._quantise(result, output, self._result_kind(node, output))
        if output == PROBABILITIES:
            self._dequantise(self.quantised_values[output], PROBABILITIES)

    def _readers(self, node: Node) -> list[Node]:
        return self.readers.get(node.outputs[0], [])

    def _stays_real(self, node: Node) -> bool:
        """Return whether a result is not rounded.

        This holds for values that the quantised network does not round, for reshapes, for functions that a function
        of one value follows, and for operators that absorb a ReLU.
        """
        output = node.outputs[0]
        readers = self._readers(node)
        if output in self.frozen and self.kinds:
            return output not in self.kinds and not any(self._takes_integers(other) for other in readers)
        if node.op in _KEEPING or len(readers) != 1:
            return node.op in _KEEPING
        function = self._is_function(readers[0])
        return function and (self._is_function(node) or (readers[0].op == "Relu" and node.op in _BEFORE_RELU))

    def _takes_integers(self, node: Node) -> bool:
        """Return whether an operator after frozen layers adds to their result."""
        return node.op in _BEFORE_RELU and node.outputs[0] not in self.frozen

    def _is_function(self, node: Node) -> bool:
        return node.op in _UNARY or (
            node.op in _WITH_NUMBER and any(self._is_number(name) for name in node.inputs)
        )

    def _is_number(self, name: str) -> bool:
        value = self.source.constants.get(name)
        return value is not None and value.ndim == 0

    def _is_sign(self, node: Node) -> bool:
        """Return whether results are only -1, 0 and 1."""
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
        """Return whether readers of a difference only compare it with 0."""
        readers = self._readers(node)
        return node.op == "Sub" and bool(readers) and all(other.op == "Abs" for other in readers)

    def _factor(self, node: Node) -> float | None:
        """Return the positive number that a Mul multiplies by, or None."""
        if node.op != "Mul" or node.inputs[0] not in self.quantised_values:
            return None
        value = self.source.constants.get(node.inputs[1])
        return float(value) if value is not None and value.ndim == 0 and float(value) > 0 else None

    def _result_kind(self, node: Node, output: str) -> tuple[float, int, str]:
        if output in self.kinds:
            return self._unpack(self.kinds[output])
        if output in self.next_states:
            scale, zero = scale_of_range(self.ranges[self.next_states[output]], "int16")
            return scale, zero, "int16"
        # A difference that is compared with 0 keeps its operand's scale, so that only equal numbers give 0.
        if node.op in _MOVING or self._compares(node):
            first = self.quantised_values[self._origin(node.inputs[0])]
            return first.scale, first.zero, first.dtype
        if self._is_sign(node):
            return 1.0, 0, "int8"
        if output == PROBABILITIES:
            return 1 / 256, -128, "int8"  # the device's softmax has 256 steps from 0
        if output in self._narrow_names():
            return *scale_of_range(self.ranges[node.inputs[0]]), "int8"
        scale, zero = scale_of_range(self.ranges[output])
        scale = max(scale, self._least_scale(node))
        if any(other.op == "Softmax" for other in self._readers(node)):
            scale = min(scale, _LOGITS)
        return scale, zero, "int8"

    def _least_scale(self, node: Node) -> float:
        """Return the least scale of a result, whatever its range.

        That is the scale of exact products, and 1/128 of the operands' scales elsewhere: the device multiplies by
        numbers below 2**15.
        """
        producer_ = producer(self.source.nodes, node.inputs[0]) if node.op == "Relu" else None
        product = node if producer_ is None or producer_.op not in _BEFORE_RELU else producer_
        origins = list(map(self._origin, product.inputs))
        scales = [self.quantised_values[own].scale for own in origins if own in self.quantised_values]
        if product.op in ("MatMul", "Mul"):
            values = [self.source.constants[own] for own in origins if own in self.source.constants]
            return math.prod(scales) * math.prod(self._constant(value).scale for value in values)
        return min(scales, default=0.0) / 128

    def _narrow_names(self) -> set[str]:
        return {NARROW.format(item.name) for item in self.step.variables}

    def _origin(self, name: str) -> str:
        """Return the value at the start of a chain of reshapes and transposes."""
        while name not in self.quantised_values and name not in self.source.constants:
            name = next(node.inputs[0] for node in self.source.nodes if name in node.outputs)
        return name
