"""LSTM and GRU with quantised weights as the operators of their steps, one step after the other.

What is between the products of a cell has no quantisation in the model. Here it has 16 bits: gates and their functions
from -1 to 1; sums of gates, hidden states and the cells of an LSTM as far as
`weft.compiler.onnx.recurrent_ranges` says. Gate sums and their functions in 16 bits are also what TFLite has (Integer
quantization of LSTM, Li and Alvarez, 2021, arXiv:2108.12378).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.ir.network import LINKS, Node, Type, producer
from weft.compiler.onnx.model import Model, prepare
from weft.compiler.onnx.qlinear import WIDE_SINCE, Expansion
from weft.compiler.onnx.recurrent_ranges import Gates, Ranges, ranges, scale_of

KERNEL, TABLES = 32, 2
"""Micro-operations and look-up tables that the kernels of a step need."""
MICROSOFT = "com.microsoft"
"""ONNX Runtime's own operators."""
GATES = {"LSTM": 4, "GRU": 3}
"""Gates of each kind of cell."""
_UNIT = 2.0**-15
"""The scale of what is between -1 and 1."""
_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
_OUTPUT_ORDER = {0: (0, 1, 2, 3), 1: (2, 0, 1, 3)}
"""Axes of all hidden states (steps, directions, batch, size), by the attribute `layout`."""


def unroll(model: Model) -> Model:
    """The model with its recurrent operators as their steps, where the device has what these take.

    Those of other activations, with clips, peepholes, lengths of sequences, or weights that are not quantised stay.
    """
    config = model.config
    found = [node for node in model.nodes if node.op in GATES]
    if not found or config.kernel < KERNEL or config.lookup_tables < TABLES:
        return model
    expansion = Expansion(model.network)
    cells = {node.index: _Cell.of(model, expansion, node) for node in found}
    if not any(cells.values()):
        return model
    nodes: list[Node] = []
    for node in model.nodes:
        cell = cells.get(node.index)
        nodes += [node] if cell is None else cell.steps()
    opsets = {MICROSOFT: 1} | dict(model.network.opsets)
    types = dict(model.network.types)
    for cell in filter(None, cells.values()):
        types |= cell.types
    network = dataclasses.replace(
        model.network, nodes=tuple(nodes), constants=expansion.constants, opsets=opsets, types=types
    )
    made = prepare(network, types)
    behind = len(nodes)
    folded = [dataclasses.replace(node, index=behind + at) for at, node in enumerate(model.folded)]
    notes = {
        next(node.name for node in cell.nodes if node.op == "Tanh"): cell.ranges.note
        for cell in cells.values()
        if cell is not None and cell.ranges.note
    }
    return dataclasses.replace(made, folded=[*folded, *made.folded], config=config, consumers={}, notes=notes)


def refusal(model: Model, node: Node) -> str | None:
    """What of a recurrent operator the device does not take; None if it takes it."""
    attributes, inputs = node.attributes, node.inputs
    names = attributes.get("activations", ())
    wanted = _ACTIVATIONS[node.op]
    if tuple(name.lower() for name in names) not in ((), wanted, wanted * 2):
        return f"activations are {', '.join(names)}"
    for key in ("clip", "input_forget"):
        if attributes.get(key):
            return f"{key} is {attributes[key]}"
    for index, what in ((4, "lengths of sequences"), (7, "peepholes")):
        if node.input(index):
            return f"input {inputs[index]!r} has {what}"
    for index in (1, 2):
        if _weights(model, node, index) is None:
            return (
                f"the weights {inputs[index]!r} are not quantised to 8 bits, with a scale for a gate at least"
            )
    if node.input(3) and node.inputs[3] not in model.constants and _floats(model, node.inputs[3]) is None:
        return f"the biases {node.inputs[3]!r} are not constant"
    found = _ranges(model, node)
    return found if isinstance(found, str) else None


def _ranges(model: Model, node: Node) -> Ranges | str:
    """What is in 16 bits of a node whose weights and biases are known, or why 16 bits do not hold it."""
    real = []
    for index in (1, 2):
        found = _weights(model, node, index)
        assert found is not None
        values = found.values.astype(np.float64) - found.zero[..., None]
        real.append(values * found.scale[..., None].astype(np.float64))
    size = real[1].shape[2]
    bias = _floats(model, node.inputs[3]) if node.input(3) else None
    parts = [_biases(node, bias, direction, size) for direction in range(len(real[0]))]
    own, behind = (np.stack([part[at].reshape(-1) for part in parts]) for at in range(2))
    shape = model.shapes[node.inputs[0]]
    steps = shape[1] if node.attributes.get("layout", 0) else shape[0]
    return ranges(model, node, Gates(real[0], real[1], own, behind), steps)


def _biases(node: Node, bias: np.ndarray | None, direction: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """What is added to the products of inputs, and to those of states: (gates, size) each."""
    found = np.zeros((2, GATES[node.op], size)) if bias is None else bias[direction]
    own, behind = found.reshape(2, -1, size)
    if not _resets_late(node):
        return own + behind, np.zeros_like(behind)
    # What is added to the product of the last gate is added before that is reset.
    return own + behind * [[1], [1], [0]], behind * [[0], [0], [1]]


def _resets_late(node: Node) -> bool:
    """Whether a GRU multiplies what its reset gate is for behind the product."""
    return node.op == "GRU" and bool(node.attributes.get("linear_before_reset", 0))


def _floats(model: Model, name: str) -> np.ndarray | None:
    """A constant, or one that is dequantised, as floats."""
    if name in model.constants:
        return np.asarray(model.constants[name], np.float32)
    made = producer(model.nodes, name)
    if made is None or made.op != "DequantizeLinear" or made.inputs[0] not in model.constants:
        return None
    values, scale, zero = _dequantised(model, made)
    return np.asarray((values - zero) * scale, np.float32)


def _dequantised(model: Model, node: Node) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers, scales and zero points of a constant, all of the same shape."""
    values, scale = model.constants[node.inputs[0]], model.constants[node.inputs[1]]
    zero = model.constants[node.inputs[2]] if node.input(2) else np.zeros_like(scale, values.dtype)
    shape = [1] * values.ndim
    if scale.size > 1:
        shape[int(node.attributes.get("axis", 1)) % values.ndim] = scale.size
    spread = (np.broadcast_to(item.reshape(shape), values.shape) for item in (scale, zero))
    found, offset = spread
    return values.astype(np.int32), found.astype(np.float64), offset.astype(np.int32)


@dataclass(frozen=True)
class _Weights:
    """Weights of all directions, (directions, gates * size, inputs), with a scale and zero point for each row."""

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray


def _weights(model: Model, node: Node, index: int) -> _Weights | None:
    made = producer(model.nodes, node.input(index))
    if made is None or made.op != "DequantizeLinear" or made.attributes.get("block_size", 0):
        return None
    values = model.constants.get(made.inputs[0])
    if values is None or values.dtype not in (np.int8, np.uint8) or made.input(1) not in model.constants:
        return None
    if made.input(2) and made.input(2) not in model.constants:
        return None
    _, scale, zero = _dequantised(model, made)
    if (scale != scale[..., :1]).any() or (zero != zero[..., :1]).any():
        return None
    return _Weights(values, scale[..., 0].astype(np.float32), zero[..., 0].astype(values.dtype))


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
    """Types of new values: those of ONNX Runtime's own operators would take it long to tell."""
    _matrices: dict[tuple[int, int, int, int | None], tuple[np.ndarray, np.ndarray, np.ndarray]] = field(
        default_factory=dict
    )

    @classmethod
    def of(cls, model: Model, expansion: Expansion, node: Node) -> _Cell | None:
        if refusal(model, node) is not None:
            return None
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
        """All nodes that take the operator's place."""
        steps, batch, inputs = self.shape
        layout = int(self.node.attributes.get("layout", 0))
        data = self.node.inputs[0]
        if layout:
            data = self.emit("Transpose", data, perm=(1, 0, 2))
        rows = self.shaped(data, (steps * batch, inputs))
        directions = self.weights[0].values.shape[0]
        pages: list[list[str]] = []
        last: list[list[str]] = []
        for direction in range(directions):
            backwards = direction == 1 or self.node.attributes.get("direction") == "reverse"
            states, ends = self._run(rows, direction, backwards=backwards)
            pages.append([self.shaped(state, (1, 1, batch, self.size)) for state in states])
            last.append([self.shaped(end, (1, batch, self.size)) for end in ends])
        order = _OUTPUT_ORDER[layout]
        every = self.joined([page for step in zip(*pages, strict=True) for page in step], 0)
        self._finish(0, self.shaped(every, (steps, directions, batch, self.size)), order)
        for index, ends in enumerate(zip(*last, strict=True), 1):
            self._finish(index, self.joined(list(ends), 0), (1, 0, 2) if layout else (0, 1, 2))
        return self.nodes

    def _finish(self, index: int, value: str, order: tuple[int, ...]) -> None:
        """A value, with its axes in another order, as an output of the operator."""
        if index < len(self.node.outputs) and self.node.outputs[index]:
            self.emit("Transpose", value, perm=order, output=self.node.outputs[index])

    def _run(self, rows: str, direction: int, *, backwards: bool) -> tuple[list[str], tuple[str, ...]]:
        """The hidden states of one direction, in the order of the inputs, and the last state, or states."""
        steps, batch, _ = self.shape
        lstm = self.node.op == "LSTM"
        step = self._lstm if lstm else self._gru
        own, behind = _biases(self.node, self.bias, direction, self.size)
        sums = self._product(0, direction, rows, own)
        state = self._initial(5, direction)
        cell = self._initial(6, direction) if lstm else ""
        states = [""] * steps
        for at in range(steps)[::-1] if backwards else range(steps):
            part = self._part(sums, 0, at * batch, (at + 1) * batch)
            state, cell = step(part, direction, behind, (state, cell))
            states[at] = state
        return states, (state, cell) if lstm else (state,)

    def _initial(self, index: int, direction: int) -> str:
        """A state before the first step, "" for zeros."""
        name = self.node.input(index)
        known = self.expansion.constants.get(name)
        if not name or (known is not None and not known.any()):
            return ""
        axis = 1 if self.node.attributes.get("layout", 0) else 0
        scale = self._state if index == 5 else self._cell_scale
        if known is not None:
            return self._fixed(np.take(known, direction, axis).astype(np.float64), scale)
        part = self.shaped(self._part(name, axis, direction, direction + 1), (self.shape[1], self.size))
        return self.rounded(part, scale)

    def _fixed(self, values: np.ndarray, scale: float) -> str:
        """A constant in 16 bits."""
        stored = np.clip(np.rint(values / scale), -(1 << 15), (1 << 15) - 1).astype(np.int16)
        name = f"{self.node.name}/state"
        given = (stored, np.array(scale, np.float32), np.array(0, np.int16))
        made = self.emit(
            "DequantizeLinear", *(self.expansion.constant(name, item) for item in given), shape=stored.shape
        )
        self.known[made] = stored * scale
        return made

    @property
    def _cell_scale(self) -> float:
        """The scale of an LSTM's cells."""
        return scale_of(self.ranges.cell)

    @property
    def _sums(self) -> float:
        """The scale of sums of gates."""
        return scale_of(self.ranges.sums)

    @property
    def _state(self) -> float:
        """The scale of first hidden states, and of those of a GRU, which go on from them."""
        return scale_of(self.ranges.state)

    def _lstm(self, part: str, direction: int, behind: np.ndarray, state: tuple[str, str]) -> tuple[str, str]:
        """Gates are those of input, output, forgetting and cell."""
        hidden, cell = state
        sums = self._with(part, direction, range(4), behind, hidden)
        gates = self.rounded(self.emit("Sigmoid", self._gates(sums, 0, 3)), _UNIT)
        i, o, f = (self._gates(gates, at, at + 1) for at in range(3))
        new = self.rounded(self.emit("Tanh", self._gates(sums, 3, 4)), _UNIT)
        scale = self._cell_scale
        made = self.rounded(self.emit("Mul", i, new), scale)
        if cell:
            kept = self.rounded(self.emit("Mul", f, cell), scale)
            made = self.rounded(self.emit("Add", kept, made), scale)
        seen = self.rounded(self.emit("Tanh", made), _UNIT)
        return self.rounded(self.emit("Mul", o, seen), _UNIT), made

    def _gru(self, part: str, direction: int, behind: np.ndarray, state: tuple[str, str]) -> tuple[str, str]:
        """Gates are those of update, reset and the new state."""
        hidden, _ = state
        gates = self._with(self._gates(part, 0, 2), direction, range(2), behind, hidden)
        gates = self.rounded(self.emit("Sigmoid", gates), _UNIT)
        z, r = (self._gates(gates, at, at + 1) for at in range(2))
        own = self._gates(part, 2, 3)
        if _resets_late(self.node):
            if hidden:
                product = self._product(1, direction, hidden, behind[2:], range(2, 3))
                own = self._sum(own, self.rounded(self.emit("Mul", r, product), self._sums))
            elif behind.any():
                added = self.expansion.constant(f"{self.node.name}/bias", behind[2].astype(np.float32))
                own = self._sum(own, self.rounded(self.emit("Mul", r, added), self._sums))
        elif hidden:
            kept = self.rounded(self.emit("Mul", r, hidden), self._state)
            own = self._with(own, direction, range(2, 3), behind, kept)
        new = self.rounded(self.emit("Tanh", own), _UNIT)
        scale = self._state
        if not hidden:
            kept = self.rounded(self.emit("Mul", z, new), _UNIT)
            return self.rounded(self.emit("Sub", new, kept), scale), ""
        if hidden in self.known:
            apart = self.emit("Add", new, self._fixed(-self.known[hidden], scale))
        else:
            apart = self.emit("Sub", new, hidden)
        moved = self.rounded(self.emit("Mul", z, self.rounded(apart, 2 * scale)), 2 * scale)
        return self.rounded(self.emit("Sub", new, moved), scale), ""

    # Parts of a step.

    def _with(self, part: str, direction: int, gates: range, behind: np.ndarray, hidden: str) -> str:
        """Sums of gates: those of the inputs' products, and of the hidden state's if there is one."""
        if not hidden:
            return part
        return self._sum(part, self._product(1, direction, hidden, behind[gates.start : gates.stop], gates))

    def _sum(self, a: str, b: str) -> str:
        return self.rounded(self.emit("Add", a, b), self._sums)

    def _gates(self, value: str, first: int, last: int) -> str:
        """The columns of some gates."""
        return self._part(value, 1, first * self.size, last * self.size)

    def _product(
        self, index: int, direction: int, value: str, bias: np.ndarray, gates: range | None = None
    ) -> str:
        """Rows times the weights of inputs (0) or hidden states (1) of some gates, or all, and biases; rounded."""
        size = self.size
        taken = slice(0, None) if gates is None else slice(gates.start * size, gates.stop * size)
        given = self._matrix(index, direction, taken.start, taken.stop)
        if value in self.known:
            real = (given[0].astype(np.float64) - given[2]) * given[1]
            return self._fixed(self.known[value] @ real + bias.reshape(-1), self._sums)
        name = f"{self.node.name}/weights"
        weights = self.emit(
            "DequantizeLinear",
            *(self.expansion.constant(name, item) for item in given),
            axis=1,
            shape=given[0].shape,
        )
        rows = self._shape(value)
        made = self.emit("MatMul", value, weights, shape=rows and (rows[0], given[0].shape[1]))
        if bias.any():
            added = self.expansion.constant(f"{self.node.name}/bias", bias.reshape(-1).astype(np.float32))
            made = self.emit("Add", made, added)
        return self.rounded(made, self._sums)

    def _matrix(
        self, index: int, direction: int, first: int, last: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Integers, scales and zero points of the weights of some gates: the same arrays for all steps."""
        key = index, direction, first, last
        if key not in self._matrices:
            found, taken = self.weights[index], slice(first, last)
            parts = (
                found.values[direction, taken].T,
                found.scale[direction, taken],
                found.zero[direction, taken],
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
        """The shape of a new value; None where it is not known."""
        return self.types[value].sizes if value in self.types else None

    # Nodes.

    def rounded(self, value: str, scale: float) -> str:
        """A value in 16 bits."""
        given = (
            self.expansion.constant(f"{value}/scale", np.array(scale, np.float32)),
            self.expansion.constant(f"{value}/zero", np.array(0, np.int16)),
        )
        return self.emit("DequantizeLinear", self.emit("QuantizeLinear", value, *given), *given)

    def shaped(self, value: str, shape: tuple[int, ...]) -> str:
        target = self.expansion.constant(f"{value}/shape", np.array(shape))
        return self.emit("Reshape", value, target, shape=shape)

    def joined(self, values: list[str], axis: int) -> str:
        return values[0] if len(values) == 1 else self.emit("Concat", *values, axis=axis)

    def emit(
        self,
        operator: str,
        *inputs: str,
        output: str = "",
        shape: tuple[int, ...] | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node, and return its output, which has a shape, or that of the first input."""
        name = f"{self.node.name}/{operator}"
        made = output or self.expansion.name(f"{name}/{len(self.nodes)}")
        domain = MICROSOFT if operator in LINKS and self.expansion.network.opset < WIDE_SINCE else ""
        self.nodes.append(Node(operator, inputs, (made,), attributes, domain, f"{name}/{len(self.nodes)}"))
        if operator in ("Transpose", "Concat"):
            return made
        shape = shape or self._shape(inputs[0])
        if shape is not None:
            self.types[made] = Type("int16" if operator == "QuantizeLinear" else "float32", shape)
        return made
