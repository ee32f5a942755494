"""A model to compile: read, checked, with static shapes and folded constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.model import CONVERTING
from weft.compiler.ir.network import Network, Node, Type, check_windows, type_of
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.onnx.folding import Known, resolve
from weft.compiler.onnx.links import SPACING, absorb
from weft.compiler.onnx.qlinear import expand_qlinear
from weft.compiler.onnx.reader import Source, read
from weft.compiler.onnx.states import check_states, with_states
from weft.hdl.isa.config import Config

HOW_TO_QUANTISE = (
    "quantise the float model with `weft quantise MODEL.onnx --data SAMPLES.npz -o QUANTISED.onnx`, or in Python "
    "with weft.quantise"
)
COMPLETE = Config(kernel=64)
"""Configuration with all units that operators may need."""
DYNAMIC = (
    "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention", "MatMulIntegerToFloat",
    "MatMulInteger", "ConvInteger",
)  # fmt: skip
"""Operators of models that quantise their activations at run time."""
WEIGHTS_ONLY = ("MatMulNBits", "GatherBlockQuantized")
"""Operators of models with float activations and quantised weights."""
UNFIXED = (*DYNAMIC, *WEIGHTS_ONLY)
QLINEAR = ("QLinearConv", "QLinearMatMul")
"""Operators of the QOperator format, for messages where they have no QDQ form."""
_REMEDY = (
    "`weft quantise MODEL.onnx --data SAMPLES.npz -o QUANTISED.onnx` (in Python weft.quantise) gives its activations "
    "fixed ranges, which the device needs, and keeps the integers of its weights where int8 has them"
)


@dataclass(eq=False)
class Model:
    """A checked model with static shapes.

    Attributes
    ----------
    network : Network
        Network without folded nodes and without nodes that no output needs.
    folded : list of Node
        Nodes that became constants.
    shapes, dtypes : dict
        Shape and numpy type name of every value, constants included.
    config : Config
        Configuration whose units the device has.
    notes : mapping of str to str
        Remarks on device nodes for the report, by node name.
    refused : mapping of str to str
        Reasons why recurrent operators were not unrolled, by node name.
    dequantised : dict
        Real numbers of quantised constants.
    """

    network: Network
    folded: list[Node]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    config: Config = COMPLETE
    consumers: dict[str, list[Node]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    dequantised: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    self.consumers.setdefault(name, []).append(node)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes in topological order."""
        return self.network.nodes

    @cached_property
    def constants(self) -> Mapping[str, np.ndarray]:
        """Constants that are what operators read. Quantised constants are in `network` only."""
        quantised = self.network.quantisation
        return {name: value for name, value in self.network.constants.items() if name not in quantised}

    def quantisation(self, node: Node, name: str) -> Quantisation | None:
        """Return the quantisation of a value where a node reads or writes real numbers, else None."""
        return None if node.raw else self.network.quantisation.get(name)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.network.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.network.outputs

    def users(self, value: str) -> list[Node]:
        return self.consumers.get(value, [])


def load(
    source: Source, shapes: Mapping[str, int] | None = None, states: Mapping[str, str] | None = None
) -> Model:
    """Read, check and simplify a model.

    Parameters
    ----------
    shapes : mapping of str to int
        Sizes of dimensions that the model leaves open.
    states : mapping of str to str
        For each state input, the output that replaces it in the next run.
    ~
    Raises
    ------
    CompileError
        If the model cannot be read (see `weft.compiler.onnx.reader.read`), is not valid, is not quantised (it has no
        QuantizeLinear or DequantizeLinear), or has a shape that is only known at run time.
    """
    network = read(source, shapes)
    check_windows(network)
    network = expand_qlinear(network)
    _check_quantised(network)
    model = _simplify(resolve(with_states(network, states or {})))
    check_states(model.network.states, model.dtypes, model.shapes)
    return _with_quantised_values(model)


def prepare(network: Network, sure: Mapping[str, Type] | None = None) -> Model:
    """Check and simplify the network of a quantised model from another reader, which may provide types in `sure`.

    Raises
    ------
    CompileError
        If it is not valid, or has a shape that is only known at run time.
    """
    check_windows(network)
    return _with_quantised_values(_simplify(resolve(network, sure)))


def _with_quantised_values(model: Model) -> Model:
    """Return a model whose values are quantised, instead of QuantizeLinear and DequantizeLinear nodes.

    Raises
    ------
    CompileError
        For invalid scales.
    """
    network = absorb(model.network)
    kinds = {name: kind for name, kind in network.types.items() if name not in model.shapes}
    kinds |= {name: type_of(value) for name, value in network.constants.items()}
    shapes = {name: kind.sizes for name, kind in kinds.items() if kind.sizes is not None}
    dtypes = {name: kind.dtype for name, kind in kinds.items()}
    return dataclasses.replace(
        model,
        network=network,
        folded=[dataclasses.replace(node, index=SPACING * node.index) for node in model.folded],
        shapes=model.shapes | shapes,
        dtypes=model.dtypes | dtypes,
        consumers={},
    )


def without_ranges(operators: Collection[str], *, weights_only: bool = False) -> str | None:
    """Return the remedy for a model with these operators if no activation has a fixed range, else None."""
    if not {"QuantizeLinear", CONVERTING[0]}.isdisjoint(operators):
        return None
    name = next((name for name in UNFIXED if name in operators), None)
    if name is None and weights_only:
        return f"the model has quantised weights only: {_REMEDY}"
    if name is None:
        return None
    how = "is dynamically quantised" if name in DYNAMIC else "has quantised weights only"
    return f"the model {how} (with {name}): {_REMEDY}"


def _check_quantised(network: Network) -> None:
    operators = {node.operator for node in network.nodes}
    if operators & {"QuantizeLinear", "DequantizeLinear"}:
        return
    for name in QLINEAR:
        if name in operators:
            raise CompileError(
                f"the model uses {name}; weft reads the QDQ format (QuantizeLinear and DequantizeLinear around "
                f"float operators): {HOW_TO_QUANTISE}"
            )
    raise CompileError(
        without_ranges(operators)
        or f"the model is not quantised (no QuantizeLinear or DequantizeLinear): {HOW_TO_QUANTISE}"
    )


def _simplify(known: Known) -> Model:
    """Return the model without dead nodes, once all shapes are known."""
    network = known.network
    alive = alive_nodes(network)
    for node in alive:
        _check_static(node, known.shapes)
    used = (node for name, nodes in known.moved.items() if name in network.constants for node in nodes[:-1])
    folded = [*known.folded, *(node for node in dict.fromkeys(used) if node not in alive)]
    inputs = tuple(name for name in network.inputs if name not in network.constants)
    network = dataclasses.replace(network, nodes=tuple(alive), inputs=inputs)
    return Model(network, folded, known.shapes, known.dtypes)


def _check_static(node: Node, shapes: dict[str, tuple[int, ...]]) -> None:
    for name in node.outputs:
        if name and name not in shapes:
            raise CompileError(
                f"{node.label} has output {name!r} whose shape is only known at run time; weft needs static shapes"
            )
        if name and 0 in shapes[name]:
            raise CompileError(f"{node.label} has empty output {name!r} of shape {shapes[name]}")


def alive_nodes(network: Network) -> list[Node]:
    """Return the nodes that contribute to an output, in topological order."""
    needed = set(network.outputs)
    alive = []
    for node in reversed(network.nodes):
        if needed & set(node.outputs):
            needed.update(node.reads)
            alive.append(node)
    return alive[::-1]
