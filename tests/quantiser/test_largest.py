"""What `weft quantise` notes of cells and scores, and what comes of it, on both sides of clamps of the device."""

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


def ran(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, given)[0])


def noted(model: onnx.ModelProto, name: str) -> float:
    """What a quantised model says of a node."""
    return next(float(item.value) for item in model.metadata_props if item.key == f"{LARGEST}{name}")


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_cells_are_those_of_onnx_runtime(direction: str) -> None:
    """Which tells the last cells alone: of all beginnings of a sequence."""
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
        forward, reverse = (ran(model, {"x": part}) for part in (x[:many], x[-many:]))
        cells += [
            forward[0] if direction != "reverse" else reverse[0],
            reverse[-1] if count == 2 else 0 * reverse[0],
        ]
    wanted = max(float(np.abs(item).max()) for item in cells)
    found = largest_cell(node, [x, *constants.values()])
    assert found == pytest.approx(wanted, rel=1e-5)


def test_cells_far_beyond_16_are_quantised_and_right() -> None:
    """Each step adds up to one; many more steps than that would not be taken without a calibration."""
    rng = np.random.default_rng(0)
    size, steps = 4, 150
    w, r = np.zeros((1, 4 * size, size), np.float32), np.zeros((1, 4 * size, size), np.float32)
    b = np.zeros((1, 8 * size), np.float32)
    b[0, : 3 * size] = np.repeat([4, 4, 9], size)
    w[0, 3 * size :] = np.eye(size)
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["", "", "c"], "cell", hidden_size=size)
    model = model_of([node], {"x": (steps, 1, size)}, "c", (1, 1, size), {"w": w, "r": r, "b": b})
    samples = rng.uniform(0, 0.6, (4, steps, 1, size)).astype(np.float32)
    made = weft.quantise(model, samples).model
    assert 35 < noted(made, "cell") < 60
    program = weft.compile(made, "default")
    assert sum(place == "host" for _, _, place, _ in program.assignment) <= 2
    (found,) = program.run({"x": samples[0]}).outputs.values()
    wanted = ran(made, {"x": samples[0]})
    assert wanted.max() > 30
    assert np.abs(found - wanted).max() < 1.01 * 60 / 255


def attention(factor: float) -> onnx.ModelProto:
    """Scores of two inputs, and the values that they choose."""
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
def test_scores_near_the_clamp_are_no_fused_attention(largest: float) -> None:
    """What the device computes is what the model says, and what it could clamp it does not compute."""
    rng = np.random.default_rng(int(largest))
    given = {name: rng.normal(0, 1, (6, 1, 8, 8)).astype(np.float32) for name in "qkv"}
    products = given["q"] @ given["k"].swapaxes(-1, -2)
    factor = largest / np.abs(products.max(-1)).max()
    made = weft.quantise(attention(factor), {name: value[:, None] for name, value in given.items()}).model
    assert noted(made, "softmax") == pytest.approx(largest, rel=1e-3)
    checked = weft.check(made, "default")
    why = next(row[3] for row in checked if row[1] == "MatMul")
    assert ("steps fine enough that none exceeds 177" in why) == (largest > 177)
    assert all("a calibration found them up to" in text for text in checked.warnings)
    sample = {name: value[0][None] for name, value in given.items()}
    (found,) = weft.compile(made, "default").run(sample).outputs.values()
    wanted = ran(made, sample)
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.parametrize("largest", [20.0, 400.0])
def test_scores_of_the_operator_are_noted(largest: float) -> None:
    """Of heads in groups and under a causal mask; beyond the clamp the host runs the node."""
    rng = np.random.default_rng(int(largest))
    shapes = {"q": (1, 4, 6, 8), "k": (1, 2, 6, 8), "v": (1, 2, 6, 8)}
    given = {name: rng.normal(0, 1, (5, *shape)).astype(np.float32) for name, shape in shapes.items()}
    products = given["q"] @ np.repeat(given["k"], 2, axis=2).swapaxes(-1, -2)
    rows = np.where(np.tri(6, dtype=bool), products, -np.inf).max(-1)
    node = helper.make_node(
        "Attention", ["q", "k", "v"], ["y"], "attend", is_causal=1, scale=largest / float(np.abs(rows).max())
    )
    model = model_of([node], shapes, "y", shapes["q"], {})
    model.opset_import[0].version, model.ir_version = 23, 10
    made = weft.quantise(model, given).model
    assert noted(made, "attend") == pytest.approx(largest, rel=1e-3)
    checked = weft.check(made, "default")
    (place, why) = next((row[2], row[3]) for row in checked if row[1] == "Attention")
    assert (place, "1.25 times that is beyond" in why) == (
        ("device", False) if largest < 100 else ("host", True)
    )
    sample = {name: value[0] for name, value in given.items()}
    (found,) = weft.compile(made, "default").run(sample).outputs.values()
    (wanted,) = ReferenceEvaluator(made).run(None, sample)
    assert np.abs(found - wanted).max() < 0.05


def test_rows_that_a_mask_leaves_nothing_of() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    scores = np.array([[1.0, -30.0], [-40.0, -50.0], [-1e4, -1e9], [-np.inf, -np.inf]], np.float32)
    assert largest_score(node, [scores]) == 40.0
