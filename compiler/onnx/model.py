"""A model to compile: read, checked, with static shapes and folded constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Network, Node, Type
from weft.compiler.onnx.folding import Known, resolve
from weft.compiler.onnx.limits import check_windows
from weft.compiler.onnx.qlinear import expand_qlinear
from weft.compiler.onnx.reader import Source, read
from weft.compiler.onnx.states import check_states, with_states
from weft.hdl.isa.config import Config

HOW_TO_QUANTISE = (
    "quantise the float model with `weft quantise MODEL.onnx --data SAMPLES.npz -o QUANTISED.onnx`, or in Python "
    "with weft.quantise"
)
COMPLETE = Config(kernel=64)
"""A device with everything that operators may need."""
DYNAMIC = (
    "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention", "MatMulIntegerToFloat",
    "MatMulInteger", "ConvInteger",
)  # fmt: skip
"""Operators of models whose activations are quantised when they run."""
WEIGHTS_ONLY = ("MatMulNBits", "GatherBlockQuantized")
"""Operators of models whose activations are floats."""
UNFIXED = (*DYNAMIC, *WEIGHTS_ONLY)
QLINEAR = ("QLinearConv", "QLinearMatMul")
"""Operators of models in another format, where they have no form with QuantizeLinear."""
_KEEPS = (
    "`weft quantise MODEL.onnx --data SAMPLES.npz -o QUANTISED.onnx` (in Python weft.quantise) gives its activations "
    "fixed ranges, which the device needs, and keeps the integers of its weights where int8 has them"
)


@dataclass(eq=False)
class Model:
    """A checked model with static shapes.

    `network` has no nodes that were folded into constants, or that nobody reads; `folded` are the former. `shapes` and
    `dtypes` (numpy names) cover every value, constants included. `config` tells what units the device has.
    `notes` has what to say of nodes of the device, by their names, and `dequantised` what constants are, where several
    nodes dequantise them.
    """

    network: Network
    folded: list[Node]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    config: Config = COMPLETE
    consumers: dict[str, list[Node]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    dequantised: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    self.consumers.setdefault(name, []).append(node)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In topological order."""
        return self.network.nodes

    @property
    def constants(self) -> Mapping[str, np.ndarray]:
        return self.network.constants

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
    """Read, check and simplify a model, with sizes for dimensions that it leaves open, and the outputs that inputs
    become for the next run.

    Raises
    ------
    CompileError
        If it cannot be read (see `weft.compiler.onnx.reader.read`), is not valid, not quantised (no QuantizeLinear or
        DequantizeLinear in it), or a shape is not known before running.
    """
    network = read(source, shapes)
    check_windows(network)
    network = expand_qlinear(network)
    _check_quantised(network)
    model = _simplified(resolve(with_states(network, states or {})))
    check_states(model.network.states, model.dtypes, model.shapes)
    return model


def prepare(network: Network, sure: Mapping[str, Type] | None = None) -> Model:
    """Check and simplify the network of a quantised model that another reader made, which may be `sure` of types.

    Raises
    ------
    CompileError
        If it is not valid, or a shape is not known before running.
    """
    check_windows(network)
    return _simplified(resolve(network, sure))


def without_ranges(operators: Collection[str]) -> str | None:
    """What to do with a model of these operators if no activation of it has a fixed range; None for other models."""
    if "QuantizeLinear" in operators:
        return None
    name = next((name for name in UNFIXED if name in operators), None)
    if name is None and "DequantizeLinear" in operators:
        return f"the model has quantised weights alone (no QuantizeLinear behind an activation): {_KEEPS}"
    if name is None:
        return None
    how = "is dynamically quantised" if name in DYNAMIC else "has quantised weights alone"
    return f"the model {how} (with {name}): {_KEEPS}"


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


def _simplified(known: Known) -> Model:
    """The model without nodes that nobody reads; all shapes must be known."""
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
                f"{node.label} has output {name!r} whose shape is not known before running; weft needs static shapes"
            )
        if name and 0 in shapes[name]:
            raise CompileError(f"{node.label} has empty output {name!r} of shape {shapes[name]}")


def alive_nodes(network: Network) -> list[Node]:
    """Nodes whose results reach an output."""
    wanted = set(network.outputs)
    alive = []
    for node in reversed(network.nodes):
        if wanted & set(node.outputs):
            wanted.update(node.reads)
            alive.append(node)
    return alive[::-1]
