"""LSTM and GRU with quantised weights, unrolled on the device, against ONNX Runtime."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.isa.config import PRESETS

ort = pytest.importorskip("onnxruntime")
CONFIG = PRESETS["small"].replace(kernel=64)
CELL_STEP = np.float32(8 / 127)
STATE_STEP = np.float32(1 / 127)


@dataclass(frozen=True)
class Cell:
    """A recurrent operator between Q/DQ pairs; `weights` is "int8" or "uint8", with a scale for each row if `rows`."""

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
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def shape(self) -> tuple[int, int, int]:
        steps, batch = (self.batch, self.steps) if self.layout else (self.steps, self.batch)
        return steps, batch, self.inputs


class _Net:
    def __init__(self, cell: Cell) -> None:
        self.cell, self.rng = cell, np.random.default_rng(cell.seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def dequantised(self, name: str, values: np.ndarray) -> str:
        """Weights of 8 bits; those of one direction may have a scale for each row."""
        cell = self.cell
        rows = cell.rows and cell.directions == 1
        scale = np.abs(values).max(axis=(0, 2) if rows else None).astype(np.float32) / 100
        shape = (1, -1, 1) if rows else ()
        zero = np.full(scale.shape, 131 if cell.weights == "uint8" else 0, cell.weights)
        limits = np.iinfo(cell.weights)
        stored = np.rint(values / scale.reshape(shape)) + zero.reshape(shape).astype(int)
        given = (np.clip(stored, limits.min, limits.max).astype(cell.weights), scale, zero)
        names = [self.constant(f"{name}_{at}", item) for at, item in enumerate(given)]
        attributes = {"axis": 1} if rows else {}
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
            inputs.append(self.dequantised(name, values))
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
        results = ["Y", "Y_h", "Y_c"][: 3 if cell.op == "LSTM" else 2]
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
    """What ONNX Runtime makes of it, which knows no `layout`: that is made of transposes."""
    plain = _Net(dataclasses.replace(cell, layout=0)).model()
    feeds = {name: value.transpose(1, 0, 2) if cell.layout else value for name, value in given.items()}
    found = ort.InferenceSession(plain.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    if not cell.layout:
        return list(found)
    return [value.transpose(2, 0, 1, 3) if value.ndim == 4 else value.transpose(1, 0, 2) for value in found]


CELLS = (
    Cell("LSTM", 5, 1, 7, 9),
    Cell("LSTM", 1, 1, 1, 1, initial="constant"),
    Cell("LSTM", 7, 2, 16, 8, "bidirectional", initial="constant", opset=21),
    Cell("LSTM", 3, 3, 5, 4, "reverse", biased=False, rows=True),
    Cell("LSTM", 4, 2, 6, 5, "bidirectional", layout=1, initial="given", seed=3),
    Cell("LSTM", 3, 1, 40, 20, weights="uint8", initial="given"),
    Cell("GRU", 5, 1, 7, 9),
    Cell("GRU", 7, 2, 16, 8, "bidirectional", late=1, initial="constant"),
    Cell("GRU", 4, 1, 16, 8, "reverse", late=1, opset=21),
    Cell("GRU", 3, 1, 16, 8, late=1, biased=False, rows=True, weights="uint8"),
    Cell("GRU", 4, 2, 6, 5, initial="given", layout=1),
)


def check(cell: Cell, config: weft.Config = CONFIG) -> None:
    """All of it is one program for the device, and results are at most a step off."""
    net = _Net(cell)
    model = net.model()
    given = net.inputs(model)
    graph = import_model(model, config=config)
    assert sum(isinstance(segment, DeviceSegment) for segment in graph.segments) == 1
    why = {reason for _, _, place, reason in graph.assignment if place == "host"}
    assert all("boundary" in reason for reason in why), why
    found = weft.compile(model, config).run(given).outputs
    steps = (STATE_STEP, STATE_STEP, CELL_STEP)
    for (name, value), wanted, step in zip(found.items(), reference(cell, given), steps, strict=False):
        assert value.shape == wanted.shape, name
        assert np.abs(value - wanted).max() < 1.01 * step, name


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_cells(cell: Cell) -> None:
    check(cell)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_drawn_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    check(
        Cell(
            str(rng.choice(["LSTM", "GRU"])), *map(int, rng.integers(1, (30, 4, 70, 50))),
            str(rng.choice(["forward", "reverse", "bidirectional"])), int(rng.integers(2)), int(rng.integers(2)),
            str(rng.choice(["", "constant", "given"])), bool(rng.integers(2)), str(rng.choice(["int8", "uint8"])),
            bool(rng.integers(2)), int(rng.choice([14, 17, 20, 21])), seed,
        ),
        PRESETS[str(rng.choice(["tiny", "small", "default"]))].replace(kernel=64),
    )  # fmt: skip


def test_on_rtl() -> None:
    net = _Net(Cell("LSTM", 2, 1, 5, 4))
    model = net.model()
    given = net.inputs(model)
    program = weft.compile(model, CONFIG)
    on_rtl, golden = (program.run(given, on=where).outputs for where in ("rtl", "golden"))
    assert all(np.array_equal(on_rtl[name], value) for name, value in golden.items())


REFUSED = {
    "clip is 3.0": Cell("LSTM", 2, 1, 3, 4, more=(("clip", 3.0),)),
    "activations are Sigmoid, Relu, Tanh": Cell(
        "LSTM", 2, 1, 3, 4, more=(("activations", ["Sigmoid", "Relu", "Tanh"]),)
    ),
    "input_forget is 1": Cell("LSTM", 2, 1, 3, 4, more=(("input_forget", 1),)),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    cell = REFUSED[why]
    net = _Net(cell)
    model = net.model()
    found = {
        reason for name, _, place, reason in import_model(model, config=CONFIG).assignment if name == "cell"
    }
    assert found == {
        "LSTM and GRU need quantised weights, the usual functions, a kernel engine ('kernel' 32) and 2 look-up tables"
        f" ({why})"
    }
    given = net.inputs(model)
    wanted = reference(cell, given) if cell.more[0][0] != "input_forget" else None
    if wanted is not None:
        found_values = weft.compile(model, CONFIG).run(given).outputs.values()
        assert all(np.abs(a - b).max() < 1e-5 for a, b in zip(found_values, wanted, strict=True))


def test_without_a_kernel_engine() -> None:
    model = _Net(CELLS[0]).model()
    found = {name: reason for name, _, _, reason in import_model(model, config=PRESETS["small"]).assignment}
    assert found["cell"].endswith("('kernel' is 0, 'lookup_tables' is 4)")


def test_weights_in_float_stay() -> None:
    model = _Net(CELLS[0]).model()
    weights = next(node for node in model.graph.node if node.name == "R_dq")
    model.graph.node.remove(weights)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 36, 9), np.float32), "R"))
    found = {name: reason for name, _, _, reason in import_model(model, config=CONFIG).assignment}
    assert found["cell"].endswith(
        "(the weights 'R' are not quantised to 8 bits, with a scale for a gate at least)"
    )
