"""MatMul of two activations: against ONNX Runtime, every constraint violated once, and compiled programs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from support.fallbacks import (
    Case,
    builder,
    check_fallback,
    finish_model,
    mixed_axes,
    source,
    two,
    untested_constraints,
)
from support.golden_compare import compare
from support.graph_runs import device_ops, on_host, run_graph
from support.qdq_models import Builder, Quantised

from weft.compiler.backend import compile_segment
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.products import Product
from weft.compiler.onnx import reorder
from weft.compiler.onnx.operators import multiply as module
from weft.hdl.isa.config import PRESETS, Config

Shape = tuple[int, ...]
SHAPES: list[tuple[Shape, Shape]] = [
    ((5, 7), (7, 3)),
    ((1, 1), (1, 1)),
    ((4, 6, 5), (4, 5, 9)),
    ((2, 3, 6, 5), (2, 3, 5, 4)),
    ((2, 3, 6, 5), (1, 3, 5, 4)),
    ((2, 3, 6, 5), (2, 1, 5, 4)),
    ((2, 1, 6, 5), (2, 3, 5, 4)),
    ((1, 1, 6, 5), (2, 3, 5, 4)),
    ((6, 5), (2, 3, 5, 4)),
    ((2, 3, 6, 5), (5, 4)),
    ((3, 1, 6, 5), (1, 4, 5, 4)),
    ((2, 3, 2, 6, 5), (2, 3, 1, 5, 4)),
    ((1, 40, 33), (1, 33, 70)),
]


def operand(built: Builder, shape: Shape, kind: str) -> str:
    """An operand as it is, transposed from another order, with heads split from rows, or constant, behind Reshape and
    Transpose or not."""
    if kind == "moved constant":
        turned = (*shape[:-2], shape[-1], shape[-2])
        value = operand(built, (int(np.prod(shape)),), "constant")
        value = built.node("Reshape", [value, built.constant(np.array(turned))])
        return built.node("Transpose", [value], perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
    if kind == "constant":
        scale, zero, unsigned = built.parameters()
        low = 0 if unsigned else -128
        values = built.rng.integers(low, low + 256, shape).astype(np.uint8 if unsigned else np.int8)
        return built.dequantise(Quantised(built.constant(values), shape, scale, zero, unsigned))
    if kind == "transposed":
        value = built.dequantise(built.input((*shape[:-2], shape[-1], shape[-2])))
        return built.node("Transpose", [value], perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
    if kind == "heads" and len(shape) == 4:
        images, heads, rows, size = shape
        value = built.dequantise(built.input((images, rows, heads * size)))
        split = built.node("Reshape", [value, built.constant(np.array([images, rows, heads, size]))])
        return built.node("Transpose", [split], perm=[0, 2, 1, 3])
    return built.dequantise(built.input(shape))


def model_of(
    rng: np.random.Generator, shapes: tuple[Shape, Shape], kinds: tuple[str, str]
) -> onnx.ModelProto:
    built = Builder(rng)
    value = built.node(
        "MatMul", [operand(built, shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]
    )
    lead = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
    scale = float(np.float32(0.05 * shapes[0][-1] ** 0.5 * rng.uniform(0.5, 4)))
    _, zero, unsigned = built.parameters()
    output = (*lead, shapes[0][-2], shapes[1][-1])
    if len(output) == 4 and rng.random() < 0.3:  # heads beside each other again
        value = built.node("Transpose", [value], perm=[0, 2, 1, 3])
        output = (output[0], output[2], output[1], output[3])
    return built.finish(built.quantise(value, output, scale, zero, unsigned))


def steps(model: onnx.ModelProto, rng: np.random.Generator, config: Config) -> np.ndarray:
    """Differences from ONNX Runtime in steps of the output."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = {item.name: rng.normal(0, 3, [dim.dim_value for dim in item.type.tensor_type.shape.dim])
             .astype(np.float32) for item in model.graph.input}  # fmt: skip
    expected = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]
    actual = run_graph(import_model(model, config=config), feeds)[model.graph.output[0].name]
    assert actual.shape == expected.shape
    scale = next(item for item in model.graph.initializer if item.name == model.graph.node[-1].input[1])
    return np.rint((actual - expected) / onnx.numpy_helper.to_array(scale))


@pytest.mark.drawn(5)
@pytest.mark.parametrize("shapes", SHAPES)
def test_agrees_with_onnxruntime(shapes: tuple[Shape, Shape]) -> None:
    wrong = total = 0
    for seed in range(12):
        rng = np.random.default_rng([seed, *shapes[0]])
        known = "plain", "plain", "transposed", "heads", "constant", "moved constant"
        kinds = [str(rng.choice(known)) for _ in range(2)]
        constant = [kind.endswith("constant") for kind in kinds]
        if all(constant) or (constant[1] and len(shapes[1]) == 2):
            kinds[1] = "plain"
        model = model_of(rng, shapes, (kinds[0], kinds[1]))
        config = PRESETS["default"] if seed % 3 else PRESETS["default"].replace(probability_bits=0)
        graph = import_model(model, config=config)
        assert not on_host(graph), (kinds, on_host(graph))
        assert any(isinstance(op, Product) for op in device_ops(graph))
        difference = steps(model, rng, config)
        assert np.abs(difference).max() <= 1, kinds
        wrong, total = wrong + int((difference != 0).sum()), total + difference.size
    assert wrong <= max(1, 0.01 * total)


@pytest.mark.parametrize("name", ["tiny", "default"])
def test_compiled(name: str) -> None:
    config = PRESETS[name]
    for seed, shapes in enumerate(SHAPES):
        rng = np.random.default_rng(seed)
        model = model_of(rng, shapes, ("heads", "transposed" if seed % 2 else "heads"))
        (segment,) = (
            item for item in import_model(model, config=config).segments if isinstance(item, DeviceSegment)
        )
        views = {view.buffer.name: view.buffer for item in segment.ops for view in item.sources}
        inputs = {
            name: rng.integers(-128, 128, buffer.shape).astype(np.int8)
            for name, buffer in views.items()
            if buffer.kind == "input"
        }
        compare(compile_segment(segment, config), segment, inputs, config)


def test_attention_that_is_none_runs_operator_by_operator() -> None:
    """Scores with a bias for each query and key: products, an addition and a softmax, all of them on the device."""
    rng, built = np.random.default_rng(0), Builder(np.random.default_rng(0))
    q, k, v = (operand(built, (2, 3, 8, 6), "heads") for _ in range(3))
    keys = built.node("Transpose", [k], perm=[0, 1, 3, 2])
    scores = built.quantise(built.node("MatMul", [q, keys]), (2, 3, 8, 8), 0.05, 3, False)
    bias = operand(built, (1, 3, 8, 8), "constant")
    summed = built.quantise(built.node("Add", [built.dequantise(scores), bias]), (2, 3, 8, 8), 0.06, 3, False)
    weights = built.node("Softmax", [built.dequantise(summed)], axis=-1)
    weights = built.dequantise(built.quantise(weights, (2, 3, 8, 8), 1 / 255, 0, True))
    model = built.finish(built.quantise(built.node("MatMul", [weights, v]), (2, 3, 8, 6), 0.02, 0, False))
    graph = import_model(model)
    assert not on_host(graph)
    assert [type(op).__name__ for op in device_ops(graph)] == ["Product", "Add", "Softmax", "Product"]
    notes = [why for _, op, _, why in graph.assignment if op == "MatMul" and why]
    (note,) = notes  # of the scores; the product behind has no reason of its own
    assert note.startswith("not part of a fused attention: 'add_")
    assert "Masks of scores must be constant" in note
    assert np.abs(steps(model, rng, PRESETS["default"])).max() <= 2


def test_computed_weights() -> None:
    """A matrix that is no constant: rows of all images at once."""
    model = model_of(np.random.default_rng(0), ((2, 3, 6, 5), (5, 4)), ("plain", "plain"))
    (op,) = (item for item in device_ops(import_model(model)) if isinstance(item, Product))
    assert (op.counts, op.rows) == ((1, 1), 36)


def float_matrix() -> onnx.ModelProto:
    built = builder()
    second = built.dequantise(source(built))
    return finish_model(built, built.node("MatMul", [built.constant(np.ones((3, 6), np.float32)), second]))


def of_shapes(first: Shape, second: Shape) -> onnx.ModelProto:
    return model_of(np.random.default_rng(0), (first, second), ("plain", "plain"))


CASES: dict[str, Case] = {
    "a float matrix": (float_matrix, "MatMul", module.both_quantised),
    "a vector": (lambda: two("MatMul", (5,), (5, 4)), "MatMul", module.both_matrices),
    "repeated in front": (lambda: of_shapes((2, 3, 2, 6, 5), (2, 1, 2, 5, 4)), "MatMul", module.batches),
    "long rows": (lambda: of_shapes((1, 32768), (32768, 1)), "MatMul", module.lengths),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_order_that_takes_too_many_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reorder, "cheapest", lambda before, behind: None)
    model = mixed_axes(lambda built, value: built.node("MatMul", [value, value]))
    check_fallback((lambda: model, "MatMul", module.matrix_order), probability_bits=0)


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(module.PRODUCT_OF_ACTIVATIONS_OPERATORS, CASES.values()) == {"matrix_order"}
