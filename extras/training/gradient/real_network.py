"""A quantised network as a network of real numbers, without QuantizeLinear and DequantizeLinear nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.ir.network import LINKS, Network, Node, Type

MOVING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice")
"""Operators that move elements."""
_KEEPING_SIGN = (*MOVING, "MaxPool", "AveragePool", "GlobalAveragePool")
"""Operators whose results are not negative if their operand is not."""
_NOT_NEGATIVE = ("Relu", "Sigmoid", "Softmax")
"""Operators whose results are never negative."""


@dataclass(frozen=True)
class Kind:
    """Quantisation of a value: scales, zero points, their type, and the axis if there are several."""

    scale: np.ndarray
    zero: np.ndarray
    axis: int = 1

    @property
    def dtype(self) -> str:
        return self.zero.dtype.name

    @property
    def per_tensor(self) -> bool:
        return self.scale.size == 1


@dataclass(frozen=True)
class Stored:
    """A constant of the quantised network; `output` is its name in real numbers."""

    name: str
    values: np.ndarray
    kind: Kind
    output: str
    scale_name: str
    zero_name: str

    @property
    def real(self) -> np.ndarray:
        """The constant in real numbers, float32 of the same shape."""
        shape = [1] * self.values.ndim
        if not self.kind.per_tensor:
            shape[self.kind.axis] = self.kind.scale.size
        scale, zero = self.kind.scale.reshape(shape), self.kind.zero.astype(np.float64)
        # One zero point may serve the scales of all channels.
        zero = zero.reshape(shape) if zero.size > 1 else zero.reshape(())
        return ((self.values.astype(np.float64) - zero) * scale).astype(np.float32)


@dataclass(frozen=True)
class RealNetwork:
    """A quantised network in real numbers.

    Attributes
    ----------
    network : Network
        The network of real numbers. Float inputs and outputs have the names of the quantised network.
    stored : dict
        Integer constants of the quantised network, by their names in `network`.
    kinds : dict
        Quantisation of values of `network`, by name.
    links : dict
        QuantizeLinear nodes of these values in the quantised network, by name.
    integers : dict
        Quantisation of inputs that are integers in the quantised network.
    ends : dict
        Outputs of the quantised network that have another name in `network`, and that name.
    """

    network: Network
    stored: dict[str, Stored] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    links: dict[str, Node] = field(default_factory=dict)
    integers: dict[str, Kind] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)

    def with_original_names(self) -> Network:
        """Return the network with the output names of the quantised network."""
        nodes = tuple(Node("Identity", (own,), (name,), name=name) for name, own in self.ends.items())
        back = {own: name for name, own in self.ends.items()}
        kinds = {back.get(name, name): kind for name, kind in self.network.types.items()}
        outputs = tuple(back.get(name, name) for name in self.network.outputs)
        return dataclasses.replace(
            self.network, nodes=(*self.network.nodes, *nodes), outputs=outputs, types=kinds
        )


def to_real_network(network: Network) -> RealNetwork:
    """Return the network of real numbers that a quantised network approximates.

    If the least integer stands for 0, a ReLU is added. Other values are assumed to lie in the range of their integers.
    """
    return _Reader(network).real_network()


class _Reader:
    def __init__(self, network: Network) -> None:
        self.source = network
        self.alias: dict[str, str] = {}
        self.constants = dict(network.constants)
        self.result = RealNetwork(network)
        self.nodes: list[Node] = []
        self.producers: dict[str, Node] = {}

    def real_network(self) -> RealNetwork:
        for node in self.source.nodes:
            if node.operator in LINKS and self._link(node):
                continue
            inputs = tuple(self.alias.get(name, name) for name in node.inputs)
            self._add(dataclasses.replace(node, inputs=inputs))
        ends = {name: self.alias[name] for name in self.source.outputs if name in self.alias}
        network = dataclasses.replace(
            self.source, nodes=tuple(self.nodes), constants=self.constants,
            outputs=tuple(ends.get(name, name) for name in self.source.outputs), types=self._types(ends),
        )  # fmt: skip
        return dataclasses.replace(self.result, network=_drop_unused_constants(network), ends=ends)

    def _types(self, ends: Mapping[str, str]) -> dict[str, Type]:
        kinds = {name: self.source.types[name] for name in self.source.inputs if name in self.source.types}
        for name in self.result.integers:
            kinds[name] = Type("float32", kinds[name].shape)
        for name in self.source.outputs:
            if name in self.source.types:
                own = ends.get(name, name)
                kinds[own] = (
                    Type("float32", self.source.types[name].shape)
                    if name in ends
                    else self.source.types[name]
                )
        return kinds

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        for name in node.outputs:
            self.producers[name] = node

    def _link(self, node: Node) -> bool:
        """Remove a QuantizeLinear or DequantizeLinear; return False if it stays because its scale is computed."""
        scale, zero = (self.source.constants.get(node.input(at)) for at in (1, 2))
        if scale is None:
            return False
        # ONNX's default zero point is a uint8.
        zero = np.zeros((), np.uint8) if zero is None else zero
        kind = Kind(np.asarray(scale), np.asarray(zero), int(node.attributes.get("axis", 1)))
        name, output = node.inputs[0], node.outputs[0]
        values = self.source.constants.get(name)
        if node.operator == "DequantizeLinear" and values is not None:
            axis = kind.axis % max(values.ndim, 1)
            stored = Stored(
                name, values, dataclasses.replace(kind, axis=axis), output, node.input(1), node.input(2)
            )
            self.result.stored[output] = stored
            self.constants[output] = stored.real
        elif node.operator == "DequantizeLinear":
            root = self._root(name)
            if root in self.source.inputs and kind.per_tensor:
                # The model takes integers there: this DequantizeLinear gives their scale.
                self.result.integers[root] = self.result.kinds[root] = kind
            self.alias[output] = self.alias.get(name, name)
        else:
            self.alias[output] = self._round(self.alias.get(name, name), kind, node)
        return True

    def _root(self, name: str) -> str:
        """Return the value before operators that move elements."""
        while name in self.producers and self.producers[name].operator in MOVING:
            name = self.producers[name].inputs[0]
        return name

    def _round(self, name: str, kind: Kind, node: Node) -> str:
        """Return the value that integers stand for, after a ReLU if they cannot be negative."""
        # Exporters drop a ReLU whose clamp the quantisation already does.
        lowest = bool((kind.zero == np.iinfo(kind.zero.dtype).min).all())
        if lowest and name in self.producers and not self._not_negative(name):
            output = f"{name}/relu"
            self._add(Node("Relu", (name,), (output,), name=output))
            name = output
        if name not in self.result.kinds:
            self.result.kinds[name] = kind
            self.result.links[name] = node
        return name

    def _not_negative(self, name: str) -> bool:
        while name in self.producers:
            node = self.producers[name]
            if node.operator in _NOT_NEGATIVE:
                return True
            if node.operator not in _KEEPING_SIGN:
                return False
            name = node.inputs[0]
        return False


def _drop_unused_constants(network: Network) -> Network:
    """Return the network without constants that no node reads."""
    read = {name for node in network.nodes for name in node.reads} | set(network.outputs)
    constants = {name: value for name, value in network.constants.items() if name in read}
    return dataclasses.replace(network, constants=constants)


def dependents(nodes: Iterable[Node], names: Iterable[str]) -> set[str]:
    """Return the values that depend on `names`, which are included."""
    values = set(names)
    for node in nodes:
        if values.intersection(node.reads):
            values.update(node.outputs)
    return values
