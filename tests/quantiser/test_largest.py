"""Recorded bounds of cells and scores, and their effect on both sides of the device's clamps."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import weft
from weft.compiler.onnx.reader import LARGEST
from weft.quantiser.ranges import largest_cell, largest_score

ort = pytest.importorskip("onnxruntime")


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], output: str, shape: tuple[int, ...],
             constants: dict[str, np.ndarray]) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run_onnxruntime(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, given)[0])


def metadata_of(model: onnx.ModelProto, name: str) -> float:
    """Return the metadata of a node in a quantised model."""
    return next(float(item.value) for item in model.metadata_props if item.key == f"{LARGEST}{name}")


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_largest_cells_equal_those_of_onnx_runtime(direction: str) -> None:
    """ONNX Runtime returns only the last cells, so run every prefix of a sequence."""
    rng = np.random.default_rng(0)
    size, steps, count = 5, 12, 2 if direction == "bidirectional" else 1
    constants = {
        name: rng.normal(0, 1, sizes).astype(np.float32)
        for name, sizes in (
            ("w", (count, 4 * size, 3)),
            ("r", (count, 4 * size, size)),
            ("b", (count, 8 * size)),
        )
    }
    node = helper.make_node(
        "LSTM", ["x", "w", "r", "b"], ["", "", "c"], hidden_size=size, direction=direction
    )
    x = rng.normal(0, 2, (steps, 1, 3)).astype(np.float32)
    cells = []
    for many in range(1, steps + 1):
        model = model_of([node], {"x": (many, 1, 3)}, "c", (count, 1, size), constants)
        forward, reverse = (run_onnxruntime(model, {"x": part}) for part in (x[:many], x[-many:]))
        cells += [
            forward[0] if direction != "reverse" else reverse[0],
            reverse[-1] if count == 2 else 0 * reverse[0],
        ]
    expected = max(float(np.abs(item).max()) for item in cells)
    actual = largest_cell(node, [x, *constants.values()])
    assert actual == pytest.approx(expected, rel=1e-5)


def test_cells_far_beyond_16_are_quantised() -> None:
    """Each step adds up to one; without calibration so many steps are refused."""
    rng = np.random.default_rng(0)
    size, steps = 4, 150
    w, r = np.zeros((1, 4 * size, size), np.float32), np.zeros((1, 4 * size, size), np.float32)
    b = np.zeros((1, 8 * size), np.float32)
    b[0, : 3 * size] = np.repeat([4, 4, 9], size)
    w[0, 3 * size :] = np.eye(size)
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["", "", "c"], "cell", hidden_size=size)
    model = model_of([node], {"x": (steps, 1, size)}, "c", (1, 1, size), {"w": w, "r": r, "b": b})
    samples = rng.uniform(0, 0.6, (4, steps, 1, size)).astype(np.float32)
    quantised = weft.quantise(model, samples).model
    assert 35 < metadata_of(quantised, "cell") < 60
    program = weft.compile(quantised, "default")
    assert sum(place == "host" for _, _, place, _ in program.assignment) <= 2
    (outputs,) = program.run({"x": samples[0]}).outputs.values()
    expected = run_onnxruntime(quantised, {"x": samples[0]})
    assert expected.max() > 30
    assert np.abs(outputs - expected).max() < 1.01 * 60 / 255


def attention(factor: float) -> onnx.ModelProto:
    """Scores of two inputs, and the values that they weight."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["products"]),
        helper.make_node("Mul", ["products", "factor"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"], "values"),
    ]
    shape = (1, 1, 8, 8)
    return model_of(nodes, dict.fromkeys("qkv", shape), "y", shape, {"factor": np.float32(factor)})


@pytest.mark.parametrize("largest", [20.0, 80.0, 160.0, 400.0])
def test_scores_near_the_clamp_are_not_fused(largest: float) -> None:
    """The device's results equal the model's, because it does not fuse scores that it might clamp."""
    rng = np.random.default_rng(int(largest))
    inputs = {name: rng.normal(0, 1, (6, 1, 8, 8)).astype(np.float32) for name in "qkv"}
    products = inputs["q"] @ inputs["k"].swapaxes(-1, -2)
    factor = largest / np.abs(products.max(-1)).max()
    quantised = weft.quantise(
        attention(factor), {name: value[:, None] for name, value in inputs.items()}
    ).model
    assert metadata_of(quantised, "softmax") == pytest.approx(largest, rel=1e-3)
    checked = weft.check(quantised, "default")
    why = next(row[3] for row in checked if row[1] == "MatMul")
    assert ("steps fine enough that none exceeds 177" in why) == (largest > 177)
    assert all("a calibration found them up to" in text for text in checked.warnings)
    sample = {name: value[0][None] for name, value in inputs.items()}
    (outputs,) = weft.compile(quantised, "default").run(sample).outputs.values()
    expected = run_onnxruntime(quantised, sample)
    assert np.abs(outputs - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("largest", [20.0, 400.0])
def test_largest_scores_are_recorded(largest: float) -> None:
    """Heads come in groups, under a causal mask; beyond the clamp the host runs the node."""
    rng = np.random.default_rng(int(largest))
    shapes = {"q": (1, 4, 6, 8), "k": (1, 2, 6, 8), "v": (1, 2, 6, 8)}
    inputs = {name: rng.normal(0, 1, (5, *shape)).astype(np.float32) for name, shape in shapes.items()}
    products = inputs["q"] @ np.repeat(inputs["k"], 2, axis=2).swapaxes(-1, -2)
    rows = np.where(np.tri(6, dtype=bool), products, -np.inf).max(-1)
    node = helper.make_node(
        "Attention", ["q", "k", "v"], ["y"], "attend", is_causal=1, scale=largest / float(np.abs(rows).max())
    )
    model = model_of([node], shapes, "y", shapes["q"], {})
    model.opset_import[0].version, model.ir_version = 23, 10
    quantised = weft.quantise(model, inputs).model
    assert metadata_of(quantised, "attend") == pytest.approx(largest, rel=1e-3)
    checked = weft.check(quantised, "default")
    (place, why) = next((row[2], row[3]) for row in checked if row[1] == "Attention")
    assert (place, "1.25 times that is beyond" in why) == (
        ("device", False) if largest < 100 else ("host", True)
    )
    sample = {name: value[0] for name, value in inputs.items()}
    (outputs,) = weft.compile(quantised, "default").run(sample).outputs.values()
    (expected,) = ReferenceEvaluator(quantised).run(None, sample)
    assert np.abs(outputs - expected).max() < 0.05


def test_fully_masked_rows() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    scores = np.array([[1.0, -30.0], [-40.0, -50.0], [-1e4, -1e9], [-np.inf, -np.inf]], np.float32)
    assert largest_score(node, [scores]) == 40.0
