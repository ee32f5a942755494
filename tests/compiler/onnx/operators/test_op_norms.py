"""LayerNormalization and RMSNormalization against ONNX Runtime and onnx, and every constraint violated once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from support.fallbacks import (
    Case,
    builder,
    check_fallback,
    finish_model,
    mixed_axes,
    source,
    untested_constraints,
)
from support.graph_runs import on_host, run_graph
from support.qdq_models import Builder

from weft.compiler.frontend import import_model
from weft.compiler.onnx.conditions import input_quantised, kernel_engine
from weft.compiler.onnx.operators.norms import (
    LAYER_NORMALIZATION_OPERATORS,
    normal_axes,
    normal_constants,
    normal_length,
    normal_results,
)

Shape = tuple[int, ...]
NAMES = {"LayerNormalization": 21, "RMSNormalization": 23}


def model_of(rng: np.random.Generator, op: str, shape: Shape, axis: int) -> tuple[onnx.ModelProto, float]:
    """A model of one normalisation, and the scale of its output."""
    built = Builder(rng, NAMES[op])
    x = built.input(shape)
    size = shape[axis:]
    names = [built.dequantise(x), built.constant(rng.normal(1, 0.3, size).astype(np.float32))]
    if op == "LayerNormalization" and rng.random() < 0.8:
        names.append(built.constant(rng.normal(0, 0.5, size).astype(np.float32)))
    value = built.node(op, names, axis=axis, epsilon=float(rng.choice([1e-5, 1e-2, 1e-12])))
    _, zero, unsigned = built.parameters()
    scale = float(np.float32(rng.uniform(0.02, 0.06)))
    return built.finish(built.quantise(value, shape, scale, zero, unsigned)), scale


@pytest.mark.parametrize("op", NAMES)
def test_random_shapes(op: str) -> None:
    wrong = total = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, len(op)])
        shape = (*(int(rng.integers(1, 9)) for _ in range(rng.integers(0, 4))), int(rng.integers(2, 70)))
        axis = -1 if rng.random() < 0.6 else int(rng.integers(-len(shape), 0))
        model, scale = model_of(rng, op, shape, axis)
        graph = import_model(model)
        assert not on_host(graph), (seed, shape, axis)
        feeds = {item.name: rng.normal(0, 3, shape).astype(np.float32) for item in model.graph.input}
        expected = ReferenceEvaluator(model).run(None, feeds)[0]
        outputs = run_graph(graph, feeds)[model.graph.output[0].name]
        difference = np.rint((outputs - expected) / scale)
        assert np.abs(difference).max() <= 1, (seed, shape, axis)
        wrong += int((difference != 0).sum())
        total += difference.size
    assert wrong < 0.05 * total


def normal(
    shape: Shape = (2, 4, 6),
    *,
    axis: int = -1,
    weight: object = 1.0,
    bias: float | None = None,
    outputs: int = 1,
) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built, shape))
    size = shape[axis:]
    if isinstance(weight, str):
        name = (
            built.dequantise(source(built, size))
            if weight == "input"
            else built.constant(np.ones((6, 1), np.float32))
        )
    else:
        name = built.constant(np.full(size, weight, np.float32))
    more = [] if bias is None else [built.constant(np.full(size, bias, np.float32))]
    result = built.node("LayerNormalization", [value, name, *more], axis=axis)
    if outputs > 1:
        built.nodes[-1].output.append("mean")
        result = built.node("Add", [result, "mean"])
    return finish_model(built, result)


def channels_first() -> onnx.ModelProto:
    """The last axis is the width of an image, which would take too many copies."""

    def then(built: Builder, value: str) -> str:
        weight = built.constant(np.ones(built.shape_of(value)[-1], np.float32))
        return built.node("LayerNormalization", [value, weight], axis=-1)

    return mixed_axes(then)


def leave_in_float() -> onnx.ModelProto:
    built = builder()
    value = built.node("Cos", [built.node("Softmax", [built.dequantise(source(built))], axis=2)])
    return finish_model(
        built, built.node("LayerNormalization", [value, built.constant(np.ones(6, np.float32))], axis=-1)
    )


CASES: dict[str, Case] = {
    "input that is not quantised": (leave_in_float, "LayerNormalization", input_quantised),
    "weights that are an input": (lambda: normal(weight="input"), "LayerNormalization", normal_constants),
    "weights that are not finite": (lambda: normal(weight=np.inf), "LayerNormalization", normal_constants),
    "bias that is not finite": (lambda: normal(bias=np.nan), "LayerNormalization", normal_constants),
    "mean that is read": (lambda: normal(outputs=2), "LayerNormalization", normal_results),
    "channels that are not last": (channels_first, "LayerNormalization", normal_axes),
    "row that is too long": (lambda: normal((1, 66000)), "LayerNormalization", normal_length),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name], kernel=64)


@pytest.mark.parametrize("size", [0, 16])
def test_without_a_kernel_engine(size: int) -> None:
    check_fallback((normal, "LayerNormalization", kernel_engine), kernel=size)


def test_every_constraint_has_a_case() -> None:
    # Values of 16 bits are tried in test_wide.py.
    assert untested_constraints(LAYER_NORMALIZATION_OPERATORS, CASES.values()) == {
        "kernel_engine",
        "normal_room",
    }
