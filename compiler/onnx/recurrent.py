"""LSTM and GRU with quantised weights, unrolled into the operators of their steps.

A model does not quantise values inside a cell. Here they have 16 bits: gates and their functions cover -1 to 1, and
sums of gates, hidden states and the cells of an LSTM cover the ranges of `weft.compiler.onnx.recurrent_ranges`. TFLite
also has gate sums and their functions in 16 bits (Integer quantization of LSTM, Li and Alvarez, 2021,
arXiv:2108.12378).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.ir.network import Node, Type
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.onnx.model import Model, prepare
from weft.compiler.onnx.qlinear import Expansion
from weft.compiler.onnx.recurrent_ranges import Gates, Ranges, ranges, scale_of

KERNEL, TABLES = 32, 2
"""Micro-operations and look-up tables that a step's kernels need."""
GATES = {"LSTM": 4, "GRU": 3}
"""Number of gates of each operator."""
_UNIT = 2.0**-15
"""Scale of values between -1 and 1."""
_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
_OUTPUT_ORDER = {0: (0, 1, 2, 3), 1: (2, 0, 1, 3)}
"""Permutation of all hidden states (steps, directions, batch, size), by the attribute `layout`."""


def unroll(model: Model) -> Model:
    """Return the model with its recurrent operators unrolled, where the device has the units for their steps.

    Operators with other activations, clip, peepholes, sequence lengths or weights that are not quantised stay.
    """
    config = model.config
    recurrent = [node for node in model.nodes if node.op in GATES]
    if not recurrent or config.kernel < KERNEL or config.lookup_tables < TABLES:
        return model
    expansion = Expansion(model.network)
    refusals = {node.name: refusal(model, node) for node in recurrent}
    refused = {name: reason for name, reason in refusals.items() if reason is not None}
    cells = {node.index: _Cell.of(model, expansion, node) for node in recurrent if node.name not in refused}
    if not cells:
        return dataclasses.replace(model, refused=refused)
    nodes: list[Node] = []
    for node in model.nodes:
        cell = cells.get(node.index)
        nodes += [node] if cell is None else cell.steps()
    types, quantisation = dict(model.network.types), dict(model.network.quantisation)
    for cell in cells.values():
        types |= cell.types
        quantisation |= cell.quantisation
    network = dataclasses.replace(
        model.network,
        nodes=tuple(nodes),
        constants=expansion.constants,
        types=types,
        quantisation=quantisation,
    )
    result = prepare(network, types)
    first_free = len(nodes)
    folded = [dataclasses.replace(node, index=first_free + at) for at, node in enumerate(model.folded)]
    notes = {
        next(node.name for node in cell.nodes if node.op == "Tanh"): cell.ranges.note
        for cell in cells.values()
        if cell.ranges.note
    }
    return dataclasses.replace(
        result, folded=[*folded, *result.folded], config=config, consumers={}, notes=notes, refused=refused
    )


def refusal(model: Model, node: Node) -> str | None:
    """Return the reason why the device does not support a recurrent operator; None if it does."""
    attributes, inputs = node.attributes, node.inputs
    names = attributes.get("activations", ())
    expected = _ACTIVATIONS[node.op]
    if tuple(name.lower() for name in names) not in ((), expected, expected * 2):
        return f"activations are {', '.join(names)}"
    for key in ("clip", "input_forget"):
        if attributes.get(key):
            return f"{key} is {attributes[key]}"
    for index, meaning in ((4, "lengths of sequences"), (7, "peepholes")):
        if node.input(index):
            return f"input {inputs[index]!r} has {meaning}"
    for index in (1, 2):
        if _weights(model, node, index) is None:
            return f"the weights {inputs[index]!r} are not quantised to 8 bits with at most one scale per row"
    if node.input(3) and node.inputs[3] not in model.constants and _floats(model, node.inputs[3]) is None:
        return f"the biases {node.inputs[3]!r} are not constant"
    reached = _ranges(model, node)
    return reached if isinstance(reached, str) else None


def _ranges(model: Model, node: Node) -> Ranges | str:
    """Return the 16-bit ranges of a node with known weights and biases, or the reason why 16 bits do not suffice."""
    real = []
    for index in (1, 2):
        weights = _weights(model, node, index)
        assert weights is not None
        values = weights.values.astype(np.float64) - weights.zero[..., None]
        real.append(values * weights.scale[..., None].astype(np.float64))
    size = real[1].shape[2]
    bias = _floats(model, node.inputs[3]) if node.input(3) else None
    parts = [_biases(node, bias, direction, size) for direction in range(len(real[0]))]
    input_bias, state_bias = (np.stack([part[at].reshape(-1) for part in parts]) for at in range(2))
    shape = model.shapes[node.inputs[0]]
    steps = shape[1] if node.attributes.get("layout", 0) else shape[0]
    return ranges(model, node, Gates(real[0], real[1], input_bias, state_bias), steps)


def _biases(node: Node, bias: np.ndarray | None, direction: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the biases of the products of inputs and of states: (gates, size) each."""
    values = np.zeros((2, GATES[node.op], size)) if bias is None else bias[direction]
    input_bias, state_bias = values.reshape(2, -1, size)
    if not _resets_after_product(node):
        return input_bias + state_bias, np.zeros_like(state_bias)
    # The last gate's state bias is added before the reset gate applies, so it stays separate.
    return input_bias + state_bias * [[1], [1], [0]], state_bias * [[0], [0], [1]]


def _resets_after_product(node: Node) -> bool:
    """Return whether a GRU has `linear_before_reset`: its reset gate multiplies the product, not the state."""
    return node.op == "GRU" and bool(node.attributes.get("linear_before_reset", 0))


def _floats(model: Model, name: str) -> np.ndarray | None:
    """Return a constant, or a dequantised constant, as floats; None for other values."""
    if name in model.constants:
        return np.asarray(model.constants[name], np.float32)
    values, quantisation = model.network.constants.get(name), model.network.quantisation.get(name)
    return None if values is None or quantisation is None else quantisation.dequantise(values)


@dataclass(frozen=True)
class _Weights:
    """Weights of all directions, (directions, gates * size, inputs), with a scale and zero point per row."""

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray


def _weights(model: Model, node: Node, index: int) -> _Weights | None:
    values = model.network.constants.get(node.input(index))
    quantisation = model.quantisation(node, node.input(index))
    if values is None or quantisation is None or quantisation.block:
        return None
    if values.dtype not in (np.int8, np.uint8):
        return None
    scale, zero = (np.broadcast_to(item, values.shape) for item in quantisation.parameters(values.shape))
    if (scale != scale[..., :1]).any() or (zero != zero[..., :1]).any():
        return None
    return _Weights(values, scale[..., 0].astype(np.float32), zero[..., 0].astype(values.dtype))


def _of_16_bits(scale: float) -> Quantisation:
    return Quantisation(np.array(scale, np.float32), np.array(0, np.int16))


@dataclass(eq=False)
class _Cell:
    """A recurrent operator that is being unrolled."""

    node: Node
    expansion: Expansion
    weights: tuple[_Weights, _Weights]
    bias: np.ndarray | None
    shape: tuple[int, int, int]
    ranges: Ranges
    nodes: list[Node] = field(default_factory=list)
    known: dict[str, np.ndarray] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)
    """Types of new values, whose inference would take long."""
    quantisation: dict[str, Quantisation] = field(default_factory=dict)
    _matrices: dict[tuple[int, int, int, int | None], tuple[np.ndarray, np.ndarray, np.ndarray]] = field(
        default_factory=dict
    )

    @classmethod
    def of(cls, model: Model, expansion: Expansion, node: Node) -> _Cell:
        first, second = (_weights(model, node, index) for index in (1, 2))
        assert first is not None
        assert second is not None
        shape = model.shapes[node.inputs[0]]
        if node.attributes.get("layout", 0):
            shape = (shape[1], shape[0], shape[2])
        bias = _floats(model, node.inputs[3]) if node.input(3) else None
        reached = _ranges(model, node)
        assert not isinstance(reached, str)
        return cls(node, expansion, (first, second), bias, (shape[0], shape[1], shape[2]), reached)

    @property
    def size(self) -> int:
        """Elements of the hidden state."""
        return self.weights[1].values.shape[2]

    def steps(self) -> list[Node]:
        """Return all nodes that replace the operator."""
        steps, batch, inputs = self.shape
        layout = int(self.node.attributes.get("layout", 0))
        data = self.node.inputs[0]
        if layout:
            data = self.emit("Transpose", data, perm=(1, 0, 2))
        rows = self.reshape(data, (steps * batch, inputs))
        directions = self.weights[0].values.shape[0]
        pages: list[list[str]] = []
        last: list[list[str]] = []
        for direction in range(directions):
            backwards = direction == 1 or self.node.attributes.get("direction") == "reverse"
            states, ends = self._run(rows, direction, backwards=backwards)
            pages.append([self.reshape(state, (1, 1, batch, self.size)) for state in states])
            last.append([self.reshape(end, (1, batch, self.size)) for end in ends])
        order = _OUTPUT_ORDER[layout]
        every = self.concatenate([page for step in zip(*pages, strict=True) for page in step], 0)
        self._finish(0, self.reshape(every, (steps, directions, batch, self.size)), order)
        for index, ends in enumerate(zip(*last, strict=True), 1):
            self._finish(index, self.concatenate(list(ends), 0), (1, 0, 2) if layout else (0, 1, 2))
        return self.nodes

    def _finish(self, index: int, value: str, order: tuple[int, ...]) -> None:
        """Write a value, with its axes permuted, to an output of the operator."""
        if index < len(self.node.outputs) and self.node.outputs[index]:
            self.emit("Transpose", value, perm=order, output=self.node.outputs[index])

    def _run(self, rows: str, direction: int, *, backwards: bool) -> tuple[list[str], tuple[str, ...]]:
        """Return the hidden states of one direction, in input order, and the final state or states."""
        steps, batch, _ = self.shape
        lstm = self.node.op == "LSTM"
        step = self._lstm if lstm else self._gru
        input_bias, state_bias = _biases(self.node, self.bias, direction, self.size)
        # One product for the inputs of all steps: only products of states wait for the step before.
        sums = self._product(0, direction, rows, input_bias)
        state = self._initial(5, direction)
        cell = self._initial(6, direction) if lstm else ""
        states = [""] * steps
        for at in range(steps)[::-1] if backwards else range(steps):
            part = self._part(sums, 0, at * batch, (at + 1) * batch)
            state, cell = step(part, direction, state_bias, (state, cell))
            states[at] = state
        return states, (state, cell) if lstm else (state,)

    def _initial(self, index: int, direction: int) -> str:
        """Return a state before the first step, "" for zeros."""
        name = self.node.input(index)
        known = self.expansion.constants.get(name)
        if not name or (known is not None and not known.any()):
            return ""
        axis = 1 if self.node.attributes.get("layout", 0) else 0
        scale = self._state_scale if index == 5 else self._cell_scale
        if known is not None:
            return self._constant(np.take(known, direction, axis).astype(np.float64), scale)
        part = self.reshape(self._part(name, axis, direction, direction + 1), (self.shape[1], self.size))
        return self.to_16_bits(part, scale)

    def _constant(self, values: np.ndarray, scale: float) -> str:
        stored = np.clip(np.rint(values / scale), -(1 << 15), (1 << 15) - 1).astype(np.int16)
        value = self.expansion.constant(f"{self.node.name}/state", stored)
        self.quantisation[value] = _of_16_bits(scale)
        self.known[value] = stored * scale
        return value

    @property
    def _cell_scale(self) -> float:
        return scale_of(self.ranges.cell)

    @property
    def _sum_scale(self) -> float:
        return scale_of(self.ranges.sums)

    @property
    def _state_scale(self) -> float:
        """Scale of initial hidden states, and of a GRU's hidden states."""
        return scale_of(self.ranges.state)

    def _lstm(
        self, part: str, direction: int, state_bias: np.ndarray, state: tuple[str, str]
    ) -> tuple[str, str]:
        """Return hidden state and cell after a step. The gates are input, output, forget and cell."""
        hidden, cell = state
        sums = self._gate_sums(part, direction, range(4), state_bias, hidden)
        gates = self.to_16_bits(self.emit("Sigmoid", self._gates(sums, 0, 3)), _UNIT)
        i, o, f = (self._gates(gates, at, at + 1) for at in range(3))
        new = self.to_16_bits(self.emit("Tanh", self._gates(sums, 3, 4)), _UNIT)
        scale = self._cell_scale
        next_cell = self.to_16_bits(self.emit("Mul", i, new), scale)
        if cell:
            remembered = self.to_16_bits(self.emit("Mul", f, cell), scale)
            next_cell = self.to_16_bits(self.emit("Add", remembered, next_cell), scale)
        seen = self.to_16_bits(self.emit("Tanh", next_cell), _UNIT)
        return self.to_16_bits(self.emit("Mul", o, seen), _UNIT), next_cell

    def _gru(
        self, part: str, direction: int, state_bias: np.ndarray, state: tuple[str, str]
    ) -> tuple[str, str]:
        """Return the hidden state after a step. The gates are update, reset and the candidate state."""
        hidden, _ = state
        gates = self._gate_sums(self._gates(part, 0, 2), direction, range(2), state_bias, hidden)
        gates = self.to_16_bits(self.emit("Sigmoid", gates), _UNIT)
        z, r = (self._gates(gates, at, at + 1) for at in range(2))
        candidate = self._gates(part, 2, 3)
        if _resets_after_product(self.node):
            if hidden:
                product = self._product(1, direction, hidden, state_bias[2:], range(2, 3))
                candidate = self._sum(
                    candidate, self.to_16_bits(self.emit("Mul", r, product), self._sum_scale)
                )
            elif state_bias.any():
                added = self.expansion.constant(f"{self.node.name}/bias", state_bias[2].astype(np.float32))
                candidate = self._sum(candidate, self.to_16_bits(self.emit("Mul", r, added), self._sum_scale))
        elif hidden:
            gated = self.to_16_bits(self.emit("Mul", r, hidden), self._state_scale)
            candidate = self._gate_sums(candidate, direction, range(2, 3), state_bias, gated)
        new = self.to_16_bits(self.emit("Tanh", candidate), _UNIT)
        scale = self._state_scale
        if not hidden:
            gated = self.to_16_bits(self.emit("Mul", z, new), _UNIT)
            return self.to_16_bits(self.emit("Sub", new, gated), scale), ""
        # new + z * (hidden - new), as new - z * (new - hidden): difference and change need twice the range.
        if hidden in self.known:
            difference = self.emit("Add", new, self._constant(-self.known[hidden], scale))
        else:
            difference = self.emit("Sub", new, hidden)
        change = self.to_16_bits(self.emit("Mul", z, self.to_16_bits(difference, 2 * scale)), 2 * scale)
        return self.to_16_bits(self.emit("Sub", new, change), scale), ""

    # Parts of a step.

    def _gate_sums(self, part: str, direction: int, gates: range, state_bias: np.ndarray, hidden: str) -> str:
        """Return sums of gates: products of inputs, plus products of the hidden state if there is one."""
        if not hidden:
            return part
        return self._sum(
            part, self._product(1, direction, hidden, state_bias[gates.start : gates.stop], gates)
        )

    def _sum(self, a: str, b: str) -> str:
        return self.to_16_bits(self.emit("Add", a, b), self._sum_scale)

    def _gates(self, value: str, first: int, last: int) -> str:
        return self._part(value, 1, first * self.size, last * self.size)

    def _product(
        self, index: int, direction: int, value: str, bias: np.ndarray, gates: range | None = None
    ) -> str:
        """Return rows times the weights of inputs (0) or hidden states (1), of some gates or all, plus biases."""
        size = self.size
        columns = slice(0, None) if gates is None else slice(gates.start * size, gates.stop * size)
        matrix = self._matrix(index, direction, columns.start, columns.stop)
        if value in self.known:
            real = (matrix[0].astype(np.float64) - matrix[2]) * matrix[1]
            return self._constant(self.known[value] @ real + bias.reshape(-1), self._sum_scale)
        weights = self.expansion.constant(f"{self.node.name}/weights", matrix[0])
        self.quantisation[weights] = Quantisation(*matrix[1:], axis=1)
        rows = self._shape(value)
        product = self.emit("MatMul", value, weights, shape=rows and (rows[0], matrix[0].shape[1]))
        if bias.any():
            added = self.expansion.constant(f"{self.node.name}/bias", bias.reshape(-1).astype(np.float32))
            product = self.emit("Add", product, added)
        return self.to_16_bits(product, self._sum_scale)

    def _matrix(
        self, index: int, direction: int, first: int, last: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return integers, scales and zero points of the weights of some gates: identical arrays for all steps."""
        key = index, direction, first, last
        if key not in self._matrices:
            weights, rows = self.weights[index], slice(first, last)
            parts = (
                weights.values[direction, rows].T,
                weights.scale[direction, rows],
                weights.zero[direction, rows],
            )
            values, scale, zero = map(np.ascontiguousarray, parts)
            self._matrices[key] = values, scale, zero
        return self._matrices[key]

    def _part(self, value: str, axis: int, first: int, last: int) -> str:
        ends = (self.expansion.constant(f"{value}/part", np.array([item])) for item in (first, last, axis))
        shape = self._shape(value)
        return self.emit(
            "Slice", value, *ends, shape=shape and (*shape[:axis], last - first, *shape[axis + 1 :])
        )

    def _shape(self, value: str) -> tuple[int, ...] | None:
        return self.types[value].sizes if value in self.types else None

    # Nodes.

    def to_16_bits(self, value: str, scale: float) -> str:
        """Return a value rounded to 16 bits."""
        self.quantisation[value] = _of_16_bits(scale)
        if value in self.types:
            self.types[value] = self.types[value]._replace(dtype="int16")
        return value

    def reshape(self, value: str, shape: tuple[int, ...]) -> str:
        target = self.expansion.constant(f"{value}/shape", np.array(shape))
        return self.emit("Reshape", value, target, shape=shape)

    def concatenate(self, values: list[str], axis: int) -> str:
        return values[0] if len(values) == 1 else self.emit("Concat", *values, axis=axis)

    def emit(
        self,
        operator: str,
        *inputs: str,
        output: str = "",
        shape: tuple[int, ...] | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node and return its output, of `shape` or of the first input's shape."""
        name = f"{self.node.name}/{operator}"
        result = output or self.expansion.name(f"{name}/{len(self.nodes)}")
        self.nodes.append(Node(operator, inputs, (result,), attributes, name=f"{name}/{len(self.nodes)}"))
        if operator in ("Transpose", "Concat"):
            return result
        shape = shape or self._shape(inputs[0])
        if shape is not None:
            self.types[result] = Type("float32", shape)
        return result
