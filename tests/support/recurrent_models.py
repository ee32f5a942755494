"""Models of a recurrent operator with quantised weights, and their results by ONNX Runtime."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

CELL_STEP = np.float32(8 / 127)
STATE_STEP = np.float32(1 / 127)


@dataclass(frozen=True)
class Cell:
    """A recurrent operator between Q/DQ pairs; `weights` is "int8" or "uint8", with a scale for each row if `rows`. It
    has its first `results` outputs, or all."""

    op: str
    steps: int
    batch: int
    inputs: int
    size: int
    direction: str = "forward"
    late: int = 0
    layout: int = 0
    initial: str = ""
    biased: bool = True
    weights: str = "int8"
    rows: bool = False
    opset: int = 17
    seed: int = 0
    results: int = 3
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def shape(self) -> tuple[int, int, int]:
        steps, batch = (self.batch, self.steps) if self.layout else (self.steps, self.batch)
        return steps, batch, self.inputs


class CellNet:
    """Builder of a cell's model and of inputs for it."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.rng = cell, np.random.default_rng(cell.seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add_weights(self, name: str, values: np.ndarray) -> str:
        """Add 8-bit weights; those of one direction may have a scale for each row."""
        cell = self.cell
        rows = cell.rows and cell.directions == 1
        scale = np.abs(values).max(axis=(0, 2) if rows else None).astype(np.float32) / 100
        shape = (1, -1, 1) if rows else ()
        zero = np.full(scale.shape, 131 if cell.weights == "uint8" else 0, cell.weights)
        limits = np.iinfo(cell.weights)
        stored = np.rint(values / scale.reshape(shape)) + zero.reshape(shape).astype(int)
        given = (np.clip(stored, limits.min, limits.max).astype(cell.weights), scale, zero)
        names = [self.constant(f"{name}_{at}", item) for at, item in enumerate(given)]
        attributes: dict[str, Any] = {"axis": 1} if rows else {}
        self.nodes.append(helper.make_node("DequantizeLinear", names, [name], f"{name}_dq", **attributes))
        return name

    def link(self, name: str, scale: np.float32, zero: int = 0) -> str:
        ends = [self.constant(f"{name}_scale", scale), self.constant(f"{name}_zero", np.int8(zero))]
        self.nodes.append(helper.make_node("QuantizeLinear", [name, *ends], [f"{name}_q"]))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *ends], [f"{name}_d"]))
        return f"{name}_d"

    def model(self) -> onnx.ModelProto:
        cell, rng = self.cell, self.rng
        gates = 4 if cell.op == "LSTM" else 3
        data = self.link("x", np.float32(0.03), 3)
        inputs = [data]
        for name, count in (("W", cell.inputs), ("R", cell.size)):
            values = rng.normal(0, 1 / np.sqrt(count), (cell.directions, gates * cell.size, count))
            inputs.append(self.add_weights(name, values))
        biases = rng.normal(0, 0.3, (cell.directions, 2 * gates * cell.size)).astype(np.float32)
        inputs.append(self.constant("B", biases) if cell.biased else "")
        entering = {"x": cell.shape()}
        inputs.append("")
        for name in ("h0", "c0")[: 2 if cell.op == "LSTM" else 1] if cell.initial else ():
            shape = (cell.directions, cell.batch, cell.size)
            shape = (shape[1], shape[0], shape[2]) if cell.layout else shape
            if cell.initial == "constant":
                inputs.append(self.constant(name, rng.uniform(-0.9, 0.9, shape).astype(np.float32)))
            else:
                entering[name] = shape
                inputs.append(self.link(name, STATE_STEP))
        results = ["Y", "Y_h", "Y_c"][: min(cell.results, 3 if cell.op == "LSTM" else 2)]
        attributes: dict[str, Any] = {
            "hidden_size": cell.size,
            "direction": cell.direction,
            **dict(cell.more),
        }
        attributes |= {"linear_before_reset": cell.late} if cell.op == "GRU" else {}
        attributes |= {"layout": 1} if cell.layout else {}
        self.nodes.append(helper.make_node(cell.op, inputs, results, "cell", **attributes))
        outputs = [self.link(name, CELL_STEP if name == "Y_c" else STATE_STEP) for name in results]
        graph = helper.make_graph(
            self.nodes, "cell",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in entering.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs], self.constants,
        )  # fmt: skip
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", cell.opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(made)

    def inputs(self, model: onnx.ModelProto) -> dict[str, np.ndarray]:
        found = {}
        for value in model.graph.input:
            shape = [item.dim_value for item in value.type.tensor_type.shape.dim]
            drawn = self.rng.normal(0, 1, shape) if value.name == "x" else self.rng.uniform(-1, 1, shape)
            found[value.name] = drawn.astype(np.float32)
        return found


def reference(cell: Cell, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run ONNX Runtime, with transposes for `layout`, which it does not support."""
    ort = pytest.importorskip("onnxruntime")
    plain = CellNet(dataclasses.replace(cell, layout=0)).model()
    feeds = {name: value.transpose(1, 0, 2) if cell.layout else value for name, value in given.items()}
    found = ort.InferenceSession(plain.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    if not cell.layout:
        return list(found)
    return [value.transpose(2, 0, 1, 3) if value.ndim == 4 else value.transpose(1, 0, 2) for value in found]


def exact(cell: Cell, model: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Compute the cell in float64 by the standard. ONNX Runtime is wrong for some bidirectional LSTMs of two rows."""
    known = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}

    def real(name: str) -> np.ndarray:
        """Return weights, biases, inputs and states as reals, with directions and steps first."""
        if f"{name}_0" in known:
            stored, scale, zero = (known[f"{name}_{at}"].astype(np.float64) for at in range(3))
            shape = (1, -1, 1) if scale.ndim else ()
            return np.asarray((stored - zero.reshape(shape)) * scale.reshape(shape))
        if name in known:
            values = known[name].astype(np.float64)
        elif name in given:
            scale, zero = known[f"{name}_scale"].astype(np.float64), known[f"{name}_zero"].astype(np.float64)
            rounded = np.rint(given[name] / known[f"{name}_scale"]) + zero
            values = (np.clip(rounded, -128, 127) - zero) * scale
        else:
            return np.zeros((cell.directions, cell.batch, cell.size))
        return values.transpose(1, 0, 2) if cell.layout and name != "B" else values

    biases = real("B") if cell.biased else np.zeros((cell.directions, 8 * cell.size))
    every = np.zeros((cell.steps, cell.directions, cell.batch, cell.size))
    last = [np.zeros((cell.directions, cell.batch, cell.size)) for _ in range(2)]
    for direction in range(cell.directions):
        state = real("h0")[direction], real("c0")[direction]
        weights = real("W")[direction], real("R")[direction], biases[direction]
        backwards = direction == 1 or cell.direction == "reverse"
        for step in range(cell.steps)[::-1] if backwards else range(cell.steps):
            state = (_lstm if cell.op == "LSTM" else _gru)(cell, real("x")[step], state, weights)
            every[step, direction] = state[0]
        for found, value in zip(last, state, strict=True):
            found[direction] = value
    if cell.layout:
        every, last = every.transpose(2, 0, 1, 3), [value.transpose(1, 0, 2) for value in last]
    return [every, *last[: 2 if cell.op == "LSTM" else 1]]


_States = tuple[np.ndarray, np.ndarray]
_Weights = tuple[np.ndarray, np.ndarray, np.ndarray]


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-values)))


def _lstm(cell: Cell, x: np.ndarray, state: _States, weights: _Weights) -> _States:
    w, r, biases = weights
    sums = x @ w.T + state[0] @ r.T + biases[: 4 * cell.size] + biases[4 * cell.size : 8 * cell.size]
    i, o, f, c = np.split(sums, 4, axis=1)
    kept = _sigmoid(f) * state[1] + _sigmoid(i) * np.tanh(c)
    return _sigmoid(o) * np.tanh(kept), kept


def _gru(cell: Cell, x: np.ndarray, state: _States, weights: _Weights) -> _States:
    w, r, biases = weights
    size, hidden = cell.size, state[0]
    own = np.split(x @ w.T + biases[: 3 * size], 3, axis=1)
    behind = np.split(biases[3 * size : 6 * size], 3)
    z, reset = (_sigmoid(own[at] + hidden @ r[at * size : (at + 1) * size].T + behind[at]) for at in range(2))
    if cell.late:
        new = np.tanh(own[2] + reset * (hidden @ r[2 * size :].T + behind[2]))
    else:
        new = np.tanh(own[2] + (reset * hidden) @ r[2 * size :].T + behind[2])
    return (1 - z) * new + z * hidden, state[1]
