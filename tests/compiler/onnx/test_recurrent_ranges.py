"""16-bit state of LSTM and GRU on both sides of every clamp: near float64, or refused with a message."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.compiler.errors import CompileError
from weft.compiler.onnx.reader import LARGEST
from weft.compiler.onnx.recurrent_ranges import MOST_CELL, MOST_SUM, SATURATED, Gates, Ranges, scale_of
from weft.hdl.isa.config import PRESETS
from weft.quantiser.ranges import largest_cell

CONFIG = PRESETS["small"].replace(kernel=64)
STEP = np.float32(1 / 127)


@dataclass
class Net:
    """A recurrent operator of one row with weights of 8 bits, between Q/DQ pairs; a result of `reach` at most."""

    op: str
    w: np.ndarray
    r: np.ndarray
    b: np.ndarray
    steps: int
    read: float = 1.0
    reach: float = 1.0
    first: dict[str, np.ndarray] = field(default_factory=dict)
    late: int = 1
    cells: float | None = None
    result: int = 0

    def stored(self, values: np.ndarray) -> tuple[np.ndarray, np.float32]:
        scale = np.float32(max(np.abs(values).max() / 127, 1e-6))
        return np.rint(values / scale).astype(np.int8), scale

    def model(self) -> onnx.ModelProto:
        constants, nodes = [], []

        def constant(name: str, value: np.ndarray) -> str:
            constants.append(numpy_helper.from_array(np.asarray(value), name))
            return name

        def pair(name: str, scale: np.float32) -> str:
            ends = [constant(f"{name}_s", np.float32(scale)), constant(f"{name}_z", np.int8(0))]
            nodes.append(helper.make_node("QuantizeLinear", [name, *ends], [f"{name}_q"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *ends], [f"{name}_d"]))
            return f"{name}_d"

        inputs = [pair("x", np.float32(self.read / 127))]
        for name, values in (("w", self.w), ("r", self.r)):
            stored, scale = self.stored(values)
            names = [constant(f"{name}_v", stored), constant(f"{name}_s", scale)]
            nodes.append(helper.make_node("DequantizeLinear", names, [name]))
            inputs.append(name)
        inputs += [constant("b", self.b.astype(np.float32)), ""]
        inputs += [constant(name, self.first[name]) if name in self.first else "" for name in ("h0", "c0")]
        inputs = inputs if self.op == "LSTM" else inputs[:6]
        count, size = (3, self.r.shape[2]) if self.op == "LSTM" else (2, self.r.shape[2])
        results = [f"out{at}" if at == self.result else "" for at in range(count)]
        more = {"linear_before_reset": self.late} if self.op == "GRU" else {}
        nodes.append(helper.make_node(self.op, inputs, results, "cell", hidden_size=size, **more))
        end = pair(results[self.result], np.float32(self.reach / 127))
        graph = helper.make_graph(
            nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (self.steps, 1, self.w.shape[2]))],
            [helper.make_tensor_value_info(end, TensorProto.FLOAT, None)], constants,
        )  # fmt: skip
        result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        if self.cells is not None:
            result.metadata_props.add(key=f"{LARGEST}cell", value=repr(self.cells))
        return onnx.shape_inference.infer_shapes(result)

    def run(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Results of weft and ONNX Runtime."""
        ort = pytest.importorskip("onnxruntime")
        model = self.model()
        program = weft.compile(model, CONFIG)
        assert all(place == "device" or "boundary" in why for _, _, place, why in program.assignment)
        (outputs,) = program.run({"x": x}).outputs.values()
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return outputs, session.run(None, {"x": x})[0]


def open_lstm(
    rng: np.random.Generator, steps: int, size: int = 4, forget: float = 9.0, **more: object
) -> Net:
    """An LSTM with gates open: its cells add one for each step while inputs are large."""
    w, r = np.zeros((1, 4 * size, size)), np.zeros((1, 4 * size, size))
    w[0, 3 * size :] = 3 * np.eye(size)
    r[0, : 3 * size] = rng.normal(0, 0.05, (3 * size, size))
    b = np.zeros((1, 8 * size))
    b[0, : 3 * size] = np.repeat([9.0, 9.0, forget], size)
    return Net("LSTM", w, r, b, steps, **more)  # type: ignore[arg-type]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("steps", [12, 16, 17, 40, 100])
def test_cells_agree_with_onnx_runtime_at_the_clamp(steps: int) -> None:
    """One for each step, up and down: on both sides of 16, and of what the next scale holds."""
    rng = np.random.default_rng(steps)
    net = open_lstm(rng, steps, reach=float(steps), result=2)
    x = np.sign(rng.normal(0, 1, (1, 1, 4))) * np.ones((steps, 1, 1))
    actual, expected = net.run(x.astype(np.float32))
    assert np.abs(expected).max() > 0.9 * steps
    assert np.abs(actual - expected).max() < 1.01 * steps / 127


def test_first_cells_count() -> None:
    """A first cell adds to what steps may add."""
    rng = np.random.default_rng(0)
    first = {"c0": np.full((1, 1, 4), 30, np.float32), "h0": np.zeros((1, 1, 4), np.float32)}
    net = open_lstm(rng, 12, reach=42.0, result=2, first=first)
    actual, expected = net.run(np.ones((12, 1, 4), np.float32))
    assert expected.max() > 40
    assert np.abs(actual - expected).max() < 1.01 * 42 / 127


def reason(net: Net) -> str:
    return next(why for name, _, _, why in weft.check(net.model(), CONFIG) if name == "cell")


def test_unbounded_cells_are_refused() -> None:
    """Steps alone may exceed 16 bits; forget gates that never open fully, or a calibration, bound cells."""
    rng = np.random.default_rng(0)
    most, steps = int(MOST_CELL), 20
    first = {"c0": np.full((1, 1, 4), most - 10, np.float32)}
    assert f"its cells may reach {most + 10}, by its weights and steps" in reason(
        open_lstm(rng, steps, first=first)
    )
    closing = weft.check(open_lstm(rng, steps, first=first, forget=1.0).model(), CONFIG)
    assert closing.warnings == ()
    assert all(name != "cell" for name, *_ in closing)
    assert "by calibration" in reason(open_lstm(rng, steps, first=first, cells=MOST_CELL))


def test_calibrated_bound_is_reported_everywhere() -> None:
    """`check`, `compile`, and the report of a run say the same of cells that may be beyond it."""
    first = {"c0": np.full((1, 1, 4), -10, np.float32)}
    net = open_lstm(np.random.default_rng(0), 30, cells=14.0, reach=20.0, result=2, first=first)
    (message,) = weft.check(net.model(), CONFIG).warnings
    assert "cells beyond 32 are clamped, and a calibration found them up to 14" in message
    program = weft.compile(net.model(), CONFIG)
    assert program.warnings == (message,)
    x = np.full((30, 1, 4), 0.3, np.float32)
    result = program.run({"x": x})
    assert result.report["warnings"] == [message]
    actual, expected = net.run(x)
    assert 5 < expected.max() < 20
    assert np.abs(actual - expected).max() < 2.01 * 20 / 127


@pytest.mark.parametrize("value", ["nan", "-1", "inf", "wide"])
def test_metadata_that_is_no_number(value: str) -> None:
    model = open_lstm(np.random.default_rng(0), 4).model()
    model.metadata_props.add(key=f"{LARGEST}cell", value=value)
    with pytest.raises(CompileError, match=f"'weft.largest.cell' is '{value}': it must be a finite number"):
        weft.check(model, CONFIG)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("part", [12.0, 30.0, 100.0])
@pytest.mark.parametrize(("op", "late"), [("LSTM", 0), ("GRU", 0), ("GRU", 1)])
def test_parts_of_sums_cancel(op: str, late: int, part: float) -> None:
    """Inputs and states may push a gate far, in opposite directions: what is left of both counts."""
    size, gates = 4, 4 if op == "LSTM" else 3
    rng = np.random.default_rng(int(part))
    w, r = np.zeros((1, gates * size, size)), np.zeros((1, gates * size, size))
    w[0, -size:] = part * np.eye(size)
    r[0, -size:] = -part * np.eye(size)
    b = np.zeros((1, 2 * gates * size))
    open_ = [9.0, 9.0, -9.0] if op == "LSTM" else [-9.0, 9.0]
    b[0, : len(open_) * size] = np.repeat(open_, size)
    net = Net(op, w, r, b, 6, late=late)
    x = rng.uniform(0.3, 1, (6, 1, size)).astype(np.float32)
    actual, expected = net.run(x)
    assert np.abs(actual - expected).max() < 2.01 * STEP


def test_sums_beyond_16_bits_are_refused() -> None:
    rng = np.random.default_rng(0)
    net = open_lstm(rng, 4)
    net.w[0, 3 * 4 :] *= MOST_SUM
    net.r[0] += MOST_SUM
    assert "sums of gates may reach" in reason(net)


@pytest.mark.parametrize("first", [0.9, 3.0, 50.0])
@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_first_states_beyond_1(op: str, first: float) -> None:
    """A GRU goes on from them, and an LSTM multiplies them with weights."""
    size, gates = 4, 4 if op == "LSTM" else 3
    rng = np.random.default_rng(int(first))
    w, r = (rng.normal(0, 0.3, (1, gates * size, size)) for _ in range(2))
    b = np.zeros((1, 2 * gates * size))
    if op == "GRU":
        b[0, :size] = 3.0  # much of the state is kept
    arguments = {"h0": rng.uniform(-first, first, (1, 1, size)).astype(np.float32)}
    net = Net(op, w, r, b, 5, first=arguments, reach=max(first, 1.0))
    actual, expected = net.run(rng.uniform(-1, 1, (5, 1, size)).astype(np.float32))
    assert np.abs(actual - expected).max() < 2.01 * max(first, 1.0) / 127


def test_bounds_are_never_exceeded() -> None:
    """Cells of random weights, inputs and first states stay below what is told of them."""
    from weft.compiler.onnx import model as models
    from weft.compiler.onnx import recurrent

    tightest = 0.0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        size, steps = int(rng.integers(1, 6)), int(rng.integers(17, 90))
        spread = float(rng.choice([0.1, 1.0, 4.0]))
        w, r = (rng.normal(0, spread, (1, 4 * size, size)) for _ in range(2))
        net = Net(
            "LSTM", w, r, rng.normal(0, spread, (1, 8 * size)), steps, read=float(rng.choice([0.5, 4.0]))
        )
        known = models.load(net.model())
        (node,) = (node for node in known.nodes if node.op == "LSTM")
        actual = recurrent._ranges(known, node)
        if isinstance(actual, str):
            continue
        ends = np.sign(rng.normal(0, 1, (steps, 1, size))) * net.read
        values = [np.asarray(item, np.float64) for item in (ends, net.w, net.r, net.b)]
        proto = next(item for item in net.model().graph.node if item.op_type == "LSTM")
        reached = largest_cell(proto, [*values])
        assert reached <= actual.cell * 1.01
        tightest = max(tightest, reached / actual.cell)
    assert tightest > 0.2


def test_scales_are_powers_of_two() -> None:
    assert [scale_of(reach) * 2**15 for reach in (0.1, 1.0, 1.1, 16.0, 16.1, 33.0)] == [1, 1, 2, 16, 32, 64]
    gates = Gates(np.ones((1, 4, 2)), np.ones((1, 4, 1)), np.zeros((1, 4)), np.zeros((1, 4)))
    assert gates.sums(np.inf, 1.0) == (np.inf, 1.0)
    assert Ranges(1.0, 1.0, 0.0).note == ""
    assert SATURATED < 16
