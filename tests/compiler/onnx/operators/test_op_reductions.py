"""Reductions of rows against ONNX Runtime, and every constraint violated once."""

from __future__ import annotations

import math
from typing import Any

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
from weft.compiler.onnx.conditions import kernel_room
from weft.compiler.onnx.operators.reductions import (
    REDUCTIONS_OPERATORS,
    _at_least,
    number_range,
    number_shape,
    number_steps,
    reduction_axes,
    reduction_input,
    reduction_length,
    reduction_order,
)
from weft.compiler.onnx.qdq import RowNumber
from weft.hdl.isa.config import Config

Shape = tuple[int, ...]
NAMES = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin")


def reduce(built: Builder, op: str, value: str, axes: list[int] | None, **attributes: object) -> str:
    """A reduction, as its opset has the axes."""
    if axes is None:
        return built.node(op, [value], **attributes)
    if built.opset >= (13 if op == "ReduceSum" else 18):
        return built.node(op, [value, built.constant(np.array(axes, np.int64))], **attributes)
    return built.node(op, [value], axes=axes, **attributes)


def drawn_axes(rng: np.random.Generator, shape: Shape) -> list[int] | None:
    """All, the last ones, or the channels or pixels of an image."""
    way, rank = rng.random(), len(shape)
    if way < 0.2:
        return None if rng.integers(2) else list(range(rank))
    if way < 0.5 and rank == 4:
        return [1] if rng.integers(2) else [2, 3]
    first = int(rng.integers(1, rank)) if rank > 1 else 0
    axes = list(range(first, rank))
    return [axis - rank for axis in axes] if rng.integers(2) else axes


def output_shape(shape: Shape, axes: list[int] | None, keep: int) -> Shape:
    chosen = range(len(shape)) if axes is None else [axis % len(shape) for axis in axes]
    return tuple(
        1 if axis in chosen else size for axis, size in enumerate(shape) if keep or axis not in chosen
    )


def behind(built: Builder, value: str) -> str:
    """Nodes on a positive number that stay in float."""
    rng = built.rng
    if rng.random() < 0.4:
        value = built.node("Mul", [value, built.constant(np.float32(rng.uniform(0.5, 2)))])
    if rng.random() < 0.4:
        value = built.node("Add", [built.constant(np.float32(rng.uniform(0.01, 2))), value])
    if rng.random() < 0.3:
        value = built.node("Sub", [value, built.constant(np.float32(-0.2))])
    if rng.random() < 0.3:
        value = built.node("Max", [value, built.constant(np.float32(0.3))])
    if rng.random() < 0.5:
        value = built.node("Sqrt", [value])
        value = built.node("Reciprocal", [value]) if rng.integers(2) else value
    return built.node("Div", [value, built.constant(np.float32(3))]) if rng.random() < 0.3 else value


def calibrate(
    built: Builder, value: str, shape: Shape, feeds: dict[str, np.ndarray]
) -> tuple[onnx.ModelProto, float]:
    """The model that ends in a value, quantised for what it is for the feeds."""
    nodes, constants = list(built.nodes), list(built.constants)
    model = built.finish(built.quantise(value, shape, 1e-3, 0, True))
    model.graph.output.append(onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, shape))
    actual = session(model).run([value], feeds)[0]
    built.nodes, built.constants = nodes, constants
    low, high = min(float(actual.min()), 0.0), max(float(actual.max()), 1e-3)
    unsigned = bool(built.rng.integers(2))
    scale = float(np.float32((high - low) / 240))
    zero = round(8 - low / scale) - (0 if unsigned else 128)
    return built.finish(built.quantise(value, shape, scale, zero, unsigned)), scale


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("op", NAMES)
def test_random(op: str) -> None:
    wrong = total = 0
    for seed in range(30):
        rng = np.random.default_rng([seed, len(op), ord(op[-1])])
        built = Builder(rng, int(rng.choice([13, 17, 18, 21])))
        shape = (*(int(rng.integers(1, 7)) for _ in range(rng.integers(0, 4))), int(rng.integers(2, 60)))
        axes, keep = drawn_axes(rng, shape), int(rng.integers(2))
        x = built.input(shape)
        value = reduce(built, op, built.dequantise(x), axes, keepdims=keep)
        if op in ("ReduceSumSquare", "ReduceL1"):
            value = behind(built, value)
        feeds = {built.inputs[0].name: (rng.normal(0, 1, shape) * rng.uniform(0.1, 3)).astype(np.float32)}
        model, scale = calibrate(built, value, output_shape(shape, axes, keep), feeds)
        graph = import_model(model, config=Config(kernel=64))
        assert not on_host(graph), (seed, shape, axes)
        expected = session(model).run(None, feeds)[0]
        outputs = run_graph(graph, feeds)[model.graph.output[0].name]
        assert outputs.shape == expected.shape
        difference = np.rint((outputs - expected) / scale)
        assert np.abs(difference).max() <= 1, (seed, shape, axes)
        wrong, total = wrong + int((difference != 0).sum()), total + difference.size
    assert wrong < max(2, 0.05 * total)


def end_model(
    op: str, shape: Shape = (2, 3, 8), axes: object = (-1,), **attributes: object
) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built, shape))
    names = [value] if axes is None else [value, built.constant(np.array(axes, np.int64))]
    return finish_model(built, built.node(op, names, **attributes))


def then(op: str, *constants: object, first: bool = False) -> onnx.ModelProto:
    """A node behind a sum of squares, with constants behind it or in front."""
    built = builder()
    value = built.dequantise(source(built, (2, 3, 8)))
    value = built.node("ReduceSumSquare", [value, built.constant(np.array([-1], np.int64))])
    names = [built.constant(np.array(item)) for item in constants]
    return finish_model(built, built.node(op, [*names, value] if first else [value, *names]))


def leave_in_float() -> onnx.ModelProto:
    built = builder()
    value = built.node("Cos", [built.node("Softmax", [built.dequantise(source(built))], axis=2)])
    return finish_model(built, reduce(built, "ReduceMax", value, [1]))


def given_axes() -> onnx.ModelProto:
    """Axes that are an input of the model."""
    built = builder()
    built.inputs.append(onnx.helper.make_tensor_value_info("axes", onnx.TensorProto.INT64, (1,)))
    value = built.node("ReduceSum", [built.dequantise(source(built, (2, 3, 8))), "axes"])
    return built.finish(built.quantise(value, (2, 3, 1), 0.1, 0, False))


def root_of_mean() -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built, (2, 3, 8)))
    value = built.node("ReduceMean", [value, built.constant(np.array([-1], np.int64))])
    return finish_model(built, built.node("Sqrt", [value]))


def power(exponent: float, *ahead: str) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built, (2, 3, 8)))
    value = built.node("ReduceSumSquare", [value, built.constant(np.array([-1], np.int64))])
    for op in ahead:
        value = built.node(op, [value])
    return finish_model(built, built.node("Pow", [value, built.constant(np.float32(exponent))]))


def whole_number() -> onnx.ModelProto:
    """A norm whose fraction is cut off."""
    built = builder()
    value = built.dequantise(source(built, (2, 3, 8)))
    value = built.node("ReduceL1", [value, built.constant(np.array([-1], np.int64))])
    cut = built.node("Cast", [value], to=onnx.TensorProto.INT32)
    return finish_model(built, built.node("Cast", [cut], to=onnx.TensorProto.FLOAT))


CASES: dict[str, Case] = {
    "input that is not quantised": (leave_in_float, "ReduceMax", reduction_input),
    "no axes": (
        lambda: end_model("ReduceSum", axes=None, noop_with_empty_axes=1),
        "ReduceSum",
        reduction_axes,
    ),
    "axes that take too many copies": (
        lambda: mixed_axes(lambda built, value: reduce(built, "ReduceMax", value, [-1])),
        "ReduceMax",
        reduction_order,
    ),
    "row that is too long": (lambda: end_model("ReduceSum", (1, 40000)), "ReduceSum", reduction_length),
    "root of what may be negative": (root_of_mean, "Sqrt", number_steps),
    "constant by row": (lambda: then("Add", np.ones((3, 1), np.float32)), "Add", number_steps),
    "whole numbers": (whole_number, "Cast", number_steps),
    "power of a constant": (lambda: then("Pow", np.float32(0.5), first=True), "Pow", number_steps),
    "square": (lambda: power(2.0), "Pow", number_steps),
    "square of a root": (lambda: power(2.0, "Sqrt"), "Pow", number_steps),
    "root of a root": (lambda: power(0.5, "Sqrt"), "Pow", number_steps),
    "root itself": (lambda: power(1.0, "Sqrt"), "Pow", number_steps),
    "inverse without a root": (lambda: power(-1.0), "Pow", number_steps),
    "taken off a constant": (lambda: then("Sub", np.float32(0.5), first=True), "Sub", number_steps),
    "three numbers": (lambda: then("Max", np.float32(0.5), np.float32(0.7)), "Max", number_steps),
    "large sum": (lambda: then("Add", np.float32(1000)), "Add", number_range),
    "number that is repeated": (lambda: then("Expand", np.array([2, 3, 8])), "Expand", number_shape),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name], kernel=64)


def test_without_a_kernel_engine() -> None:
    check_fallback((lambda: end_model("ReduceMin"), "ReduceMin", kernel_room), kernel=0)


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(REDUCTIONS_OPERATORS, CASES.values()) == {"kernel_room", "per_tensor"}


def test_count() -> None:
    """Means over all axes of a large image."""
    rng = np.random.default_rng(3)
    built = Builder(rng)
    x = built.input((1, 40, 16, 16))
    value = reduce(built, "ReduceMean", built.dequantise(x), [1, 2, 3], keepdims=0)
    feeds = {built.inputs[0].name: rng.normal(1, 1, (1, 40, 16, 16)).astype(np.float32)}
    model, scale = calibrate(built, value, (1,), feeds)
    graph = import_model(model, config=Config(kernel=64))
    assert not on_host(graph)
    difference = run_graph(graph, feeds)[model.graph.output[0].name] - session(model).run(None, feeds)[0]
    assert math.isclose(np.abs(difference).max() / scale, 0, abs_tol=1.01)


@pytest.mark.parametrize(
    ("root", "gain", "value", "least"),
    [("", 1.0, 3.0, 3.0), ("", 4.0, 3.0, 0.75), ("root", 2.0, 3.0, 2.25), ("root", 0.5, 3.0, 36.0)],
)
def test_the_least_of_a_number_is_ahead_of_its_root_and_gain(
    root: str, gain: float, value: float, least: float
) -> None:
    """``max(gain * root(total), value)`` is ``gain * root(max(total, least))``."""
    number = RowNumber(Any, (1, 4), (1,), (), "squares", 1.0, root=root, gain=gain)  # type: ignore[arg-type]
    actual = _at_least(number, value)
    assert actual is not None
    assert actual.least == least
    again = _at_least(actual, value / 2)
    assert again is not None
    assert again.least == least
