"""InstanceNormalization and GroupNormalization against ONNX Runtime, and every constraint violated once."""

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
    untested_constraints,
)
from support.graph_runs import on_host, run_graph
from support.qdq_models import Builder

from weft.compiler.frontend import import_model
from weft.compiler.onnx.conditions import image_order, input_quantised, kernel_engine
from weft.compiler.onnx.operators.norms import (
    GROUP_NORMALIZATION_OPERATORS,
    group_constants,
    group_image,
    group_pixels,
    group_size,
)


def model_of(rng: np.random.Generator, op: str) -> tuple[onnx.ModelProto, float]:
    """A model of one normalisation, and the scale of its output."""
    built = Builder(rng)
    group = 1 if op == "InstanceNormalization" else 1 << int(rng.integers(0, 5))
    groups = int(rng.integers(1, 6))
    rank = int(rng.integers(1, 3)) if op == "InstanceNormalization" else 2
    shape = (int(rng.integers(1, 3)), group * groups, *(int(rng.integers(1, 9)) for _ in range(rank)))
    count = shape[1]
    names = [built.dequantise(built.input(shape))]
    names += [built.constant(rng.normal(middle, 0.3, count).astype(np.float32)) for middle in (1, 0)]
    more = {"num_groups": groups} if op == "GroupNormalization" else {}
    value = built.node(op, names, epsilon=float(rng.choice([1e-5, 1e-2])), **more)
    _, zero, unsigned = built.parameters()
    scale = float(np.float32(rng.uniform(0.02, 0.06)))
    return add_shape(built.finish(built.quantise(value, shape, scale, zero, unsigned)), value, shape), scale


def add_shape(model: onnx.ModelProto, value: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    """Add the output's shape, which onnx does not infer for GroupNormalization."""
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, shape))
    return model


@pytest.mark.parametrize("op", ["InstanceNormalization", "GroupNormalization"])
def test_random_shapes(op: str) -> None:
    wrong = total = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, len(op)])
        model, scale = model_of(rng, op)
        graph = import_model(model)
        assert not on_host(graph), seed
        shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
        feeds = {model.graph.input[0].name: rng.normal(0, 3, shape).astype(np.float32)}
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        expected = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]
        outputs = run_graph(graph, feeds)[model.graph.output[0].name]
        difference = np.rint((outputs - expected) / scale)
        assert np.abs(difference).max() <= 1, seed
        wrong += int((difference != 0).sum())
        total += difference.size
    assert wrong < 0.05 * total


def normal(
    shape: tuple[int, ...] = (1, 4, 6, 6), *, weight: object = 1.0, groups: int = 0
) -> onnx.ModelProto:
    built = builder()
    value, channels = built.dequantise(source(built, shape)), shape[1]
    if isinstance(weight, str):
        name = built.dequantise(source(built, (channels,)))
    else:
        name = built.constant(np.full(channels, weight, np.float32))
    names = [value, name, built.constant(np.zeros(channels, np.float32))]
    if groups:
        result = built.node("GroupNormalization", names, num_groups=groups)
        return add_shape(built.finish(built.quantise(result, shape, 0.1, 0, False)), result, shape)
    return finish_model(built, built.node("InstanceNormalization", names))


def leave_in_float() -> onnx.ModelProto:
    built = builder()
    value = built.node("Cos", [built.node("Softmax", [built.dequantise(source(built))], axis=2)])
    constants = [built.constant(np.ones(4, np.float32)) for _ in range(2)]
    return finish_model(built, built.node("InstanceNormalization", [value, *constants]))


def shuffle_channels() -> onnx.ModelProto:
    def then(built: Builder, value: str) -> str:
        constants = [built.constant(np.ones(built.shape_of(value)[1], np.float32)) for _ in range(2)]
        return built.node("InstanceNormalization", [value, *constants])

    return mixed_axes(then)


OP = "InstanceNormalization"
CASES: dict[str, Case] = {
    "input that is not quantised": (leave_in_float, OP, input_quantised),
    "volume": (lambda: normal((1, 4, 2, 3, 3)), OP, group_image),
    "axes that are mixed": (shuffle_channels, OP, image_order),
    "weights that are an input": (lambda: normal(weight="input"), OP, group_constants),
    "weights that are not finite": (lambda: normal(weight=np.nan), OP, group_constants),
    "groups of three": (lambda: normal((1, 6, 4, 4), groups=2), "GroupNormalization", group_size),
    "groups of 32": (lambda: normal((1, 64, 4, 4), groups=2), "GroupNormalization", group_size),
    "too many pixels": (lambda: normal((1, 4, 64, 64)), OP, group_pixels),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name], kernel=64)


def test_without_a_kernel_engine() -> None:
    check_fallback((normal, OP, kernel_engine), kernel=0)


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(GROUP_NORMALIZATION_OPERATORS, CASES.values()) == {"kernel_engine"}
