"""Pools and ReduceMean: every constraint violated once, with the reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from support.fallbacks import (
    Case,
    builder,
    check_fallback,
    finish_model,
    mixed_axes,
    one,
    source,
    untested_constraints,
)
from support.graph_runs import on_host, run_graph
from support.qdq_models import Builder, feeds

from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.onnx.conditions import depth_alone, image, image_order
from weft.compiler.onnx.operators.windows import (
    POOL_OPERATORS,
    ceil_average,
    depth_counted,
    mean_order,
    pool_values,
    window_size,
    window_steps,
)
from weft.hdl.isa.config import Config


def indices() -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built))
    node = onnx.helper.make_node("MaxPool", [value], ["kept", "where"], name="pool", kernel_shape=[2, 2])
    built.nodes.append(node)
    model = finish_model(built, "kept")
    model.graph.output.append(onnx.helper.make_tensor_value_info("where", TensorProto.INT64, (1, 4, 5, 5)))
    return model


def pool3(built: Builder, value: str) -> str:
    return built.node("MaxPool", [value], kernel_shape=[2, 2])


def over_image(built: Builder, value: str) -> str:
    return built.node("ReduceMean", [value, built.constant(np.array([2, 3]))])


def mean(axes: list[int], shape: tuple[int, ...] = (1, 4, 6, 6)) -> onnx.ModelProto:
    built = builder()
    axis = built.constant(np.array(axes, np.int64))
    return finish_model(built, built.node("ReduceMean", [built.dequantise(source(built, shape)), axis]))


@pytest.mark.parametrize("kernel", [0, 64])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 5, 6, 3), [2, 3]), ((2, 5, 6, 3), [1, 2]), ((2, 5, 6), [2]), ((2, 5, 6), [1]), ((1, 9, 1), [-1])],
)
def test_means(shape: tuple[int, ...], axes: list[int], kernel: int) -> None:
    """Over the pixels of images with channels in front or behind, and of rows; behind a convolution or not."""
    for case in range(8):
        built = Builder(np.random.default_rng(case))
        given = source(built, shape)
        if case & 2 and axes == [2, 3]:
            given = built.conv(given, 7)
        node = built.node(
            "ReduceMean", [built.dequantise(given), built.constant(np.array(axes))], keepdims=case & 1
        )
        mean = built.quantise(node, built.shape_of(node), given.scale * 0.4, 2, False)
        flat = built.node("Flatten", [built.dequantise(mean)])
        model = built.finish(built.dense(built.like(flat, built.shape_of(flat), mean), 3))
        graph = import_model(model, config=Config(kernel=kernel))
        assert not on_host(graph)
        values = feeds(model, np.random.default_rng(1))
        (actual,), (expected,) = (
            run_graph(graph, values).values(),
            ReferenceEvaluator(model).run(None, values),
        )
        (scale,) = (item for item in model.graph.initializer if item.name == model.graph.node[-1].input[1])
        assert np.abs(np.rint((actual - expected) / onnx.numpy_helper.to_array(scale))).max() <= 1


CASES: dict[str, Case] = {
    "padded stride of 128": (
        lambda: one("MaxPool", kernel_shape=[2, 1], strides=[128, 1], pads=[1, 0, 0, 0]),
        "MaxPool",
        window_steps,
    ),
    "four dimensions": (
        lambda: one("MaxPool", (1, 4, 2, 2, 2, 2), kernel_shape=[1, 1, 2, 2]),
        "MaxPool",
        image,
    ),
    "depth": (lambda: one("MaxPool", (1, 4, 3, 4, 5), kernel_shape=[2, 2, 2]), "MaxPool", depth_alone),
    "depth that counts": (
        lambda: one(
            "AveragePool", (1, 4, 1, 4, 5), kernel_shape=[3, 2, 2], pads=[1, 0, 0] * 2, count_include_pad=1
        ),
        "AveragePool",
        depth_counted,
    ),
    "mean of mixed axes": (lambda: mixed_axes(over_image), "ReduceMean", mean_order),
    "pool of mixed axes": (lambda: mixed_axes(pool3), "MaxPool", image_order),
    "indices": (lambda: indices(), "MaxPool", pool_values),
    "pool of a tall image": (
        lambda: one("MaxPool", (1, 1, 4096, 2), kernel_shape=[1, 1]),
        "MaxPool",
        window_size,
    ),
    "mean of a large image": (
        lambda: one("GlobalAveragePool", (1, 1, 300, 300)),
        "GlobalAveragePool",
        window_size,
    ),
    "mean of many rows": (lambda: mean([1], (1, 4096, 2)), "ReduceMean", window_size),
    "average past the padding": (
        lambda: one(
            "AveragePool",
            kernel_shape=[2, 2],
            strides=[3, 3],
            ceil_mode=1,
            count_include_pad=1,
            pads=[1, 1, 0, 0],
        ),
        "AveragePool",
        ceil_average,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # These are tried with another operator, or implied in any model that ONNX accepts.
    assert untested_constraints(POOL_OPERATORS, CASES.values()) == {"input_quantised", "windows_filled"}


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad(auto_pad: str) -> None:
    model = one("MaxPool", (1, 4, 7, 6), kernel_shape=[4, 3], strides=[2, 1], auto_pad=auto_pad)
    graph = import_model(model)
    (segment,) = (item for item in graph.segments if isinstance(item, DeviceSegment))
    expected = {"SAME_UPPER": (1, 1, 2, 1), "SAME_LOWER": (2, 1, 1, 1), "VALID": (0, 0, 0, 0)}[auto_pad]
    assert segment.ops[0].window.pad == expected
