"""ONNX's QuantizeLinear and DequantizeLinear nodes, and quantisation as an attribute of values instead of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.layout import BITS, PACKED
from weft.compiler.ir.network import LINKS, Names, Network, Node, Type, type_of
from weft.compiler.ir.quantisation import Quantisation

MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators, which have 16 and 4 bits in every version."""
WIDE_SINCE = 21
"""First version of ONNX's operators with 16 and 4 bits."""
_STORED = (*BITS, *PACKED, "int32")
"""Types of quantised values."""
MOVES = (
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "SpaceToDepth", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip
"""Operators that move elements. Between equal quantisations `expand` lets them move integers."""
SPACING = 2
"""Factor by which `absorb` spreads the indices of nodes."""
_CONTROL = ("If", "Loop", "Scan", "SequenceMap")


@dataclass(frozen=True)
class Link:
    """Conversion from real numbers to stored integers if `quantises`, else from stored integers to real numbers."""

    quantisation: Quantisation
    quantises: bool


def absorb(network: Network, links: Mapping[str, Link] | None = None) -> Network:
    """Return a network whose values have the quantisation that nodes give them.

    These are the nodes of `links`, by name; if it is omitted, each QuantizeLinear and DequantizeLinear with constant
    parameters. Where a value is needed in both forms, or the same integers have two meanings, an Identity remains.

    Raises
    ------
    CompileError
        For scales that are not finite, or by which a QuantizeLinear would divide by zero.
    """
    return _Absorber(network, links).run()


class _Absorber:
    def __init__(self, network: Network, links: Mapping[str, Link] | None) -> None:
        self.network = network
        self.constants = dict(network.constants)
        self.types = dict(network.types)
        self.quantisation = dict(network.quantisation)
        chosen = (
            (place, _link(network, node) if links is None else links.get(node.name))
            for place, node in enumerate(network.nodes)
        )
        self.links = {place: link for place, link in chosen if link is not None}
        """Conversions by position."""
        self.stored: set[str] = set()
        """Values whose integers have a meaning."""
        self.reads = Counter(name for node in network.nodes for name in node.inputs if name)
        captured = (name for node in network.nodes for body in node.bodies for name in body.captures)
        self.leaving = {*network.outputs, *(state.target for state in network.states), *captured}
        """Values that must keep their form."""
        self.makers = {
            name: place for place, node in enumerate(network.nodes) for name in node.outputs if name
        }
        """Position of each value's node."""
        self.real: dict[str, str] = {}
        """Quantised value in place of a float value of the file."""
        self.nodes: list[list[Node]] = [[] for _ in network.nodes]

    def run(self) -> Network:
        nodes = self.network.nodes
        self.stored = {
            nodes[place].outputs[0] if link.quantises else nodes[place].inputs[0]
            for place, link in self.links.items()
        }
        for place, node in enumerate(nodes):
            link = self.links.get(place)
            if link is None:
                self.nodes[place] = [self._with_stored_inputs(node)]
            elif link.quantises:
                self._quantise(place, node, link.quantisation)
            else:
                self._dequantise(place, node, link.quantisation)
        # A node of the file may become two, whose indices differ.
        nodes = tuple(
            dataclasses.replace(node, index=SPACING * node.index + rank)
            for group in self.nodes
            for rank, node in enumerate(group)
        )
        read = {name for node in nodes for name in node.reads} | self.leaving
        made = {name for node in nodes for name in node.outputs} | {*self.network.inputs}
        return dataclasses.replace(
            self.network,
            nodes=nodes,
            types={name: kind for name, kind in self.types.items() if name in made},
            constants={name: value for name, value in self.constants.items() if name in read},
            quantisation={name: value for name, value in self.quantisation.items() if name in read | made},
        )

    def _with_stored_inputs(self, node: Node) -> Node:
        """Return a node that reads quantised values instead of their real numbers."""
        if self.stored.isdisjoint((*node.inputs, *node.outputs)):
            return dataclasses.replace(node, inputs=tuple(self.real.get(name, name) for name in node.inputs))
        # It computes on integers. Real numbers that it reads as well remain values of their own.
        for name in dict.fromkeys(node.inputs):
            if name in self.real:
                self._keep_real(name)
        return dataclasses.replace(node, raw=True)

    def _keep_real(self, name: str) -> None:
        """Keep the real numbers of a quantised value as a value of their own."""
        place, source = self.makers[name], self.real[name]
        if any(name in node.outputs for node in self.nodes[place]):
            return
        if source == name:  # integers of a constant took the name
            source = f"{name}/stored"
            self.constants[source] = self.constants.pop(name)
            self.quantisation[source] = self.quantisation.pop(name)
            self.real[name] = source
        self.nodes[place].append(_identity(self.network.nodes[place], source, name))

    def _dequantise(self, place: int, node: Node, parameters: Quantisation) -> None:
        stored, real = node.inputs[0], node.outputs[0]
        if self.quantisation.setdefault(stored, parameters) == parameters:
            self.real[real] = stored
        elif stored in self.constants:
            # Another meaning of the same integers is another constant.
            self.constants[real], self.quantisation[real], self.real[real] = (
                self.constants[stored],
                parameters,
                real,
            )
        else:
            name = f"{real}/stored"
            self.nodes[place] = [dataclasses.replace(_identity(node, stored, name), raw=True)]
            self.quantisation[name], self.real[real] = parameters, name
            if stored in self.types:
                self.types[name] = self.types[stored]
        if real in self.leaving:
            self._keep_real(real)

    def _quantise(self, place: int, node: Node, parameters: Quantisation) -> None:
        source, stored = node.inputs[0], node.outputs[0]
        self.quantisation[stored] = parameters
        maker = self.makers.get(source)
        if maker is None or source in self.real or not self._ends_here(source, self.nodes[maker]):
            self.nodes[place] = [_identity(node, self.real.get(source, source), stored)]
            return
        (producer,) = self.nodes[maker]
        outputs = tuple(stored if name == source else name for name in producer.outputs)
        self.makers[stored] = maker
        if len(outputs) > 1:
            self.nodes[maker] = [dataclasses.replace(producer, outputs=outputs)]
            return
        # The value is complete where the file quantises it.
        self.nodes[maker] = []
        self.nodes[place] = [dataclasses.replace(producer, outputs=outputs, index=node.index)]
        self.makers[stored] = place

    def _ends_here(self, value: str, nodes: list[Node]) -> bool:
        """Return whether a value of these nodes is only read by a QuantizeLinear."""
        if len(nodes) != 1 or nodes[0].raw or nodes[0].operator in (*_CONTROL, *LINKS):
            return False
        return self.reads[value] == 1 and value not in self.leaving


def _link(network: Network, node: Node) -> Link | None:
    """Return the conversion of a QuantizeLinear or DequantizeLinear with constant parameters; None for other nodes."""
    if node.operator not in LINKS:
        return None
    quantises = node.operator == "QuantizeLinear"
    stored = node.outputs[0] if quantises else node.inputs[0]
    kind, scales = network.type_of(stored), network.constants.get(node.input(1))
    zeros = network.constants.get(node.input(2)) if node.input(2) else None
    if kind is None or kind.dtype not in _STORED or scales is None or (node.input(2) and zeros is None):
        return None
    zeros = np.zeros(scales.shape, kind.dtype) if zeros is None else zeros
    _check_scales(node, scales)
    block = int(node.attributes.get("block_size", 0))
    if scales.size == 1 and not block:
        return Link(Quantisation(scales.reshape(()), zeros.reshape(())), quantises)
    if kind.shape is None or scales.shape != zeros.shape:
        return None
    axis = int(node.attributes.get("axis", 1)) % len(kind.shape)
    return Link(Quantisation(scales, zeros, axis, block), quantises)


def _check_scales(node: Node, scales: np.ndarray) -> None:
    values = np.asarray(scales, np.float64)
    bad = values[~np.isfinite(values) | ((values == 0) & (node.operator == "QuantizeLinear"))]
    if bad.size:
        raise CompileError(
            f"{node.label} has scale {bad.flat[0]:g}; scales must be finite, and for QuantizeLinear not zero"
        )


def _identity(node: Node, source: str, result: str) -> Node:
    return Node("Identity", (source,), (result,), name=node.name, index=node.index)


def expand(network: Network) -> Network:
    """Return a network without quantised values: ONNX's QuantizeLinear and DequantizeLinear nodes around operators."""
    return _Expander(network).run() if network.quantisation else network


class _Expander:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.constants, self.types = dict(network.constants), dict(network.types)
        self.opsets = dict(network.opsets)
        self.names = Names()
        for name in (
            *network.inputs,
            *network.constants,
            *(name for node in network.nodes for name in node.outputs),
        ):
            self.names.unique(name)
        self.labels = Names()
        for node in network.nodes:
            self.labels.unique(node.name)
        self.real: dict[str, str] = {}
        """Real numbers of each quantised value."""
        self.ends: dict[str, tuple[str, str]] = {}
        """Scale and zero point of each quantised value, as constants."""

    def run(self) -> Network:
        nodes = tuple(step for node in self.network.nodes for step in self._steps(node))
        return dataclasses.replace(
            self.network,
            nodes=nodes,
            types=self.types,
            constants=self.constants,
            opsets=self.opsets,
            quantisation={},
        )

    def _steps(self, node: Node) -> Iterator[Node]:
        """Yield a node with the nodes before and after it that convert its values."""
        quantisation = self.network.quantisation
        ends = [name for name in node.outputs if name in quantisation]
        if node.raw or self._moves_integers(node):
            yield dataclasses.replace(node, raw=False)
            return
        plain = node.operator == "Identity" and not node.domain
        inputs = []
        for name in node.inputs:
            if name in quantisation and name not in self.real:
                real = node.outputs[0] if plain and not ends else self.names.unique(f"{name}/real")
                yield self._link("DequantizeLinear", name, real, quantisation[name], node, plain and not ends)
                self.real[name] = real
            inputs.append(self.real.get(name, name))
        if plain and ends:
            yield self._link("QuantizeLinear", inputs[0], ends[0], quantisation[ends[0]], node, True)
            return
        if plain and inputs[0] == node.outputs[0]:
            return
        exact = {name: self.names.unique(f"{name}/exact") for name in ends}
        outputs = tuple(exact.get(name, name) for name in node.outputs)
        yield dataclasses.replace(node, inputs=tuple(inputs), outputs=outputs)
        for name, source in exact.items():
            self._note_real(source, name)
            yield self._link("QuantizeLinear", source, name, quantisation[name], node, False)

    def _moves_integers(self, node: Node) -> bool:
        """Return whether a node moves elements between values of equal quantisation, so that it can move integers."""
        if node.op not in MOVES:
            return False
        moved = node.inputs if node.op == "Concat" else node.inputs[:1]
        found = {self.network.quantisation.get(name) for name in (*moved, *filter(None, node.outputs))}
        (one,) = found if len(found) == 1 else (None,)
        return one is not None and one.per_tensor and one.dtype.name in BITS

    def _note_real(self, real: str, stored: str) -> None:
        kind = self.network.type_of(stored)
        if kind is not None:
            self.types[real] = Type(self.network.quantisation[stored].scales.dtype.name, kind.shape)

    def _link(
        self, operator: str, source: str, result: str, parameters: Quantisation, node: Node, own: bool
    ) -> Node:
        """Return a node that converts a value; with `own` it has the name of `node`."""
        quantises = operator == "QuantizeLinear"
        if not quantises:
            self._note_real(result, source)
        stored = result if quantises else source
        if stored not in self.ends:
            self.ends[stored] = (self.names.unique(f"{stored}/scale"), self.names.unique(f"{stored}/zero"))
            self.constants |= zip(self.ends[stored], (parameters.scales, parameters.zeros), strict=True)
        attributes: dict[str, object] = {} if parameters.per_tensor else {"axis": parameters.axis}
        attributes |= {"block_size": parameters.block} if parameters.block else {}
        wide = parameters.dtype.itemsize == 2 or parameters.dtype.name in PACKED
        domain = MICROSOFT if wide and self.network.opset < WIDE_SINCE else ""
        if domain:
            self.opsets.setdefault(MICROSOFT, 1)
        label = (
            node.name
            if own
            else self.labels.unique(f"{node.name}.{'quantise' if quantises else 'dequantise'}")
        )
        return Node(operator, (source, *self.ends[stored]), (result,), attributes, domain, label, node.index)


def as_real(network: Network) -> tuple[Network, Mapping[str, Quantisation]]:
    """Return a network of equal shapes without quantised values, and those values that are real numbers in it."""
    quantised = network.quantisation
    if not quantised:
        return network, {}
    captured = (name for node in network.nodes for body in node.bodies for name in body.captures)
    raw = (name for node in network.nodes if node.raw for name in (*node.inputs, *node.outputs))
    if not quantised.keys().isdisjoint((*captured, *raw)):
        return expand(network), {}
    constants = {name: value for name, value in network.constants.items() if name not in quantised}
    weights = {name: type_of(network.constants[name]) for name in network.constants if name in quantised}
    types = {name: real_type(name, kind, quantised) for name, kind in {**network.types, **weights}.items()}
    real = dataclasses.replace(
        network, inputs=(*network.inputs, *weights), types=types, constants=constants, quantisation={}
    )
    return real, quantised


def real_type(name: str, kind: Type, quantised: Mapping[str, Quantisation]) -> Type:
    """Return the type of a value's real numbers."""
    return Type(quantised[name].scales.dtype.name, kind.shape) if name in quantised else kind


def stored_types(types: Mapping[str, Type], quantised: Mapping[str, Quantisation]) -> dict[str, Type]:
    """Return types of stored values for types of real numbers."""
    stored = {
        name: Type(quantised[name].dtype.name, types[name].shape) for name in quantised if name in types
    }
    return {**types, **stored}
