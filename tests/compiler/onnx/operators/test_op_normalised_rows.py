"""Normalisations written out in operators: against onnx's reference, as ONNX Runtime quantises them, and refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
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
from weft.compiler.ir.model import Graph
from weft.compiler.kernel.operators import RowOp
from weft.compiler.onnx.conditions import input_quantised
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.operators.normalised_rows import (
    OPERATORS,
    elements_plain,
    norm_length,
    norm_order,
    norm_room,
    normal_affine,
    row_factor,
    row_mean,
    row_norm,
    row_square,
)
from weft.hdl.isa.config import Config

Shape = tuple[int, ...]
KINDS = ("layer", "rms", "l2", "l1")


class Writer:
    """Writes a normalisation out, in one of the ways in which exporters do."""

    def __init__(self, built: Builder, shape: Shape, axes: list[int]) -> None:
        self.built, self.rng, self.shape, self.axes = built, built.rng, shape, axes

    def number(self, value: float) -> str:
        return self.built.constant(np.array(value if self.rng.integers(2) else [value], np.float32))

    def reduced(self, op: str, value: str) -> str:
        if self.built.opset >= (13 if op == "ReduceSum" else 18):
            return self.built.node(
                op, [value, self.built.constant(np.array(self.axes, np.int64))], keepdims=1
            )
        return self.built.node(op, [value], axes=self.axes, keepdims=1)

    def either(self, op: str, a: str, b: str) -> str:
        return self.built.node(op, [a, b] if self.rng.integers(2) else [b, a])

    def square(self, value: str) -> str:
        if self.rng.integers(2):
            return self.built.node("Mul", [value, value])
        return self.built.node("Pow", [value, self.number(2.0)])

    def divided(self, value: str, number: str) -> str:
        way, node = self.rng.integers(5), self.built.node
        if way == 4:
            return self.either("Mul", value, node("Pow", [number, self.number(-0.5)]))
        root = node("Sqrt", [number]) if way else node("Pow", [number, self.number(0.5)])
        if way < 2:
            return node("Div", [value, root])
        inverse = node("Reciprocal", [root]) if way == 2 else node("Div", [self.number(1.0), root])
        return self.either("Mul", value, inverse)

    def affine(self, value: str) -> str:
        size = [self.shape[axis] if axis in self.axes else 1 for axis in range(len(self.shape))]
        size = size[min(self.axes) :]
        if self.rng.random() < 0.7:
            value = self.either(
                "Mul", value, self.built.constant(self.rng.normal(1, 0.3, size).astype(np.float32))
            )
        if self.rng.random() < 0.6:
            value = self.either(
                "Add", value, self.built.constant(self.rng.normal(0, 0.5, size).astype(np.float32))
            )
        return value

    def layer(self, x: str) -> str:
        centred = self.built.node("Sub", [x, self.reduced("ReduceMean", x)])
        variance = self.reduced("ReduceMean", self.square(centred))
        added = self.either("Add", variance, self.number(float(self.rng.choice([1e-5, 1e-2]))))
        return self.affine(self.divided(centred, added))

    def rms(self, x: str) -> str:
        mean = self.reduced("ReduceMean", self.square(x))
        added = self.either("Add", mean, self.number(float(self.rng.choice([1e-5, 1e-2]))))
        return self.affine(self.divided(x, added))

    def l2(self, x: str) -> str:
        node = self.built.node
        if self.rng.integers(2):
            norm = self.reduced("ReduceL2", x)
        else:
            norm = node("Sqrt", [self.reduced("ReduceSum", self.square(x))])
        return node("Div", [x, self.bounded(norm, float(self.rng.choice([1e-12, 1.0])))])

    def l1(self, x: str) -> str:
        norm = (
            self.reduced("ReduceL1", x)
            if self.rng.integers(2)
            else (self.reduced("ReduceSum", self.built.node("Abs", [x])))
        )
        return self.built.node("Div", [x, self.bounded(norm, 1e-12)])

    def bounded(self, norm: str, least: float) -> str:
        node, way = self.built.node, self.rng.integers(3)
        if way:
            norm = (
                node("Clip", [norm, self.built.constant(np.float32(least))])
                if way == 1
                else (self.either("Max", norm, self.number(least)))
            )
        if self.rng.integers(2):
            norm = node("Expand", [norm, self.built.constant(np.array(self.shape, np.int64))])
        return norm


def draw_shape(rng: np.random.Generator) -> tuple[Shape, list[int]]:
    """Draw a shape, and the axes of its rows."""
    if rng.random() < 0.3:  # images, channels of which are normalised
        return (
            int(rng.integers(1, 3)),
            int(rng.integers(2, 40)),
            int(rng.integers(1, 5)),
            int(rng.integers(2, 6)),
        ), [1]
    shape = (*(int(rng.integers(1, 7)) for _ in range(rng.integers(0, 4))), int(rng.integers(2, 70)))
    count = int(rng.integers(1, len(shape) + 1)) if rng.random() < 0.3 else 1
    axes = list(range(len(shape) - count, len(shape)))
    return shape, [axis - len(shape) for axis in axes] if rng.integers(2) else axes


def decomposed_model(
    rng: np.random.Generator, kind: str
) -> tuple[onnx.ModelProto, dict[str, np.ndarray], float]:
    """Model of a float normalisation between two quantised values: model, input, and output scale."""
    built = Builder(rng, int(rng.choice([13, 17, 18, 21])))
    shape, axes = draw_shape(rng)
    x = built.input(shape)
    writer = Writer(built, shape, [axis % len(shape) for axis in axes])
    value = getattr(writer, kind)(built.dequantise(x))
    _, zero, unsigned = built.parameters()
    typical = {"layer": 4, "rms": 4}.get(
        kind, 2 / np.prod([shape[axis] for axis in axes]) ** {"l1": 1, "l2": 0.5}.get(kind, 0)
    )
    scale = float(np.float32(typical / 100))
    model = built.finish(built.quantise(value, shape, scale, zero, unsigned))
    spread = rng.choice([0.1, 1, 3], (*shape[:-1], 1))
    return model, {built.inputs[0].name: (rng.normal(0, 1, shape) * spread).astype(np.float32)}, scale


def reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The first output as ONNX Runtime computes it, node by node."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0])


def kinds_of(graph: Graph) -> list[str]:
    return [type(op).__name__ for segment in graph.segments for op in getattr(segment, "ops", ())]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", KINDS)
def test_in_float(kind: str) -> None:
    """One operator of the device, and at most one step from the reference."""
    wrong = total = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, len(kind), ord(kind[1])])
        model, feeds, scale = decomposed_model(rng, kind)
        graph = import_model(model, config=Config(kernel=64))
        assert not on_host(graph), (seed, on_host(graph))
        assert kinds_of(graph) == ["RowShare" if kind == "l1" else "LayerNorm"], seed
        expected = reference(model, feeds)
        outputs = run_graph(graph, feeds)[model.graph.output[0].name]
        difference = np.rint((outputs - expected) / scale)
        assert np.abs(difference).max() <= 1, seed
        wrong, total = wrong + int((difference != 0).sum()), total + difference.size
    assert wrong < 0.05 * total


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(p: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng([seed, p])
        built, (shape, axes) = Builder(rng, int(rng.choice([13, 22]))), draw_shape(rng)
        x = built.input(shape)
        value = built.node("LpNormalization", [built.dequantise(x)], axis=axes[-1], p=p)
        scale = float(np.float32(0.02 / shape[axes[-1]] ** (1 / p)))
        model = built.finish(built.quantise(value, shape, scale, *built.parameters()[1:]))
        graph = import_model(model, config=Config(kernel=64))
        assert not on_host(graph), seed
        feeds = {built.inputs[0].name: rng.normal(0, 2, shape).astype(np.float32)}
        expected = reference(model, feeds)
        outputs = run_graph(graph, feeds)[model.graph.output[0].name]
        assert np.abs(np.rint((outputs - expected) / scale)).max() <= 1, seed


@pytest.mark.parametrize("way", ["sqrt", "inverse", "power"])
def test_root_of_a_number_that_is_quantised(way: str) -> None:
    """An addend after DequantizeLinear counts, and so do constants after the quotient."""
    for seed in range(12):
        rng = np.random.default_rng([seed, len(way)])
        built, shape = Builder(rng), (int(rng.integers(1, 9)), int(rng.integers(2, 50)))
        x = built.input(shape)
        number = built.input((shape[0], 1), unsigned=True)
        value = built.node(
            "Add", [built.dequantise(number), built.constant(np.float32(number.zero * number.scale + 0.3))]
        )
        names = [built.dequantise(x), built.node("Sqrt", [value])]
        if way == "sqrt":
            quotient = built.node("Div", names)
        elif way == "inverse":
            quotient = built.node("Mul", [built.node("Reciprocal", names[1:]), names[0]])
        else:
            quotient = built.node(
                "Mul", [names[0], built.node("Pow", [value, built.constant(np.float32(-0.5))])]
            )
        result = built.node("Add", [quotient, built.constant(rng.normal(0, 1, shape[1]).astype(np.float32))])
        model = built.finish(built.quantise(result, shape, 0.05, 0, False))
        graph = import_model(model, config=Config(kernel=64))
        assert kinds_of(graph) == ["RowScale"], seed
        feeds = {
            built.inputs[0].name: rng.normal(0, 1, shape).astype(np.float32),
            built.inputs[1].name: rng.uniform(0, 4, (shape[0], 1)).astype(np.float32),
        }
        outputs = run_graph(graph, feeds)[model.graph.output[0].name]
        assert np.abs(np.rint((outputs - reference(model, feeds)) / 0.05)).max() <= 1, seed


@pytest.mark.parametrize("way", ["as it is", "expanded", "as columns", "in order"])
def test_numbers_of_other_rows(way: str) -> None:
    """Norms of rows that divide columns: a square matrix has as many."""
    built = Builder(np.random.default_rng(8))
    x = built.input((5, 5))
    value = built.dequantise(x)
    number = built.node("ReduceL2", [value, built.constant(np.array([1], np.int64))], keepdims=0)
    if way == "expanded":
        number = built.node("Expand", [number, built.constant(np.array([5, 5], np.int64))])
    elif way != "as it is":
        shape = [1, 5] if way == "as columns" else [5, 1]
        number = built.node("Reshape", [number, built.constant(np.array(shape, np.int64))])
    model = built.finish(built.quantise(built.node("Div", [value, number]), (5, 5), 0.01, 0, False))
    graph = import_model(model, config=Config(kernel=64))
    assert kinds_of(graph) == (["LayerNorm"] if way == "in order" else [])
    feeds = {built.inputs[0].name: built.rng.normal(0, 1, (5, 5)).astype(np.float32)}
    outputs = run_graph(graph, feeds)[model.graph.output[0].name]
    assert np.abs(np.rint((outputs - reference(model, feeds)) / 0.01)).max() <= 1


class Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: list[dict[str, np.ndarray]]) -> None:
        self.samples: Iterator[dict[str, np.ndarray]] = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.samples, None)


def float_model(rng: np.random.Generator, kind: str, opset: int) -> onnx.ModelProto:
    """A normalisation between two products, in float."""
    shape, built = (1, 10, 24), Builder(rng, opset)
    weights = [built.constant((rng.normal(0, 0.2, (24, 24))).astype(np.float32)) for _ in range(2)]
    value = built.node("MatMul", ["x", weights[0]])
    value = getattr(Writer(built, shape, [2]), kind)(value)
    value = built.node("MatMul", [value, weights[1]])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", value)]
    graph = helper.make_graph(built.nodes, "normal", ends[:1], ends[1:], built.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


OPTIONS: dict[str, dict[str, Any]] = {
    "uint8": {"activation_type": QuantType.QUInt8},
    "int8": {"activation_type": QuantType.QInt8, "per_channel": True},
    "products of matrices": {"op_types_to_quantize": ["MatMul"]},
    "products": {"op_types_to_quantize": ["MatMul", "Mul"]},
    "sums": {"op_types_to_quantize": ["MatMul", "Add"]},
}


@pytest.mark.drawn(6)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_quantised_by_onnx_runtime(kind: str, options: str, tmp_path: Path) -> None:
    for seed in range(3):
        rng = np.random.default_rng([seed, len(options), ord(kind[0]), ord(kind[1])])
        paths = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
        onnx.save(float_model(rng, kind, (13, 17)[seed % 2]), paths[0])
        samples = [{"x": rng.normal(0, 1, (1, 10, 24)).astype(np.float32)} for _ in range(8)]
        quantize_static(*paths, Samples(samples), quant_format=QuantFormat.QDQ, **OPTIONS[options])
        model = onnx.load(paths[1])
        graph = import_model(model, config=Config(kernel=64))
        assert not on_host(graph), on_host(graph)
        assert any(isinstance(op, RowOp) for segment in graph.segments for op in getattr(segment, "ops", ()))
        expected = reference(model, samples[0])
        (name,) = (item.name for item in model.graph.output)
        steps = [
            numpy_helper.to_array(item) for item in model.graph.initializer if item.name == f"{name}_scale"
        ]
        difference = np.rint((run_graph(graph, samples[0])[name] - expected) / float(steps[0]))
        assert np.abs(difference).max() <= 2, (
            seed
        )  # a step of what the last product reads may be more of its own
        assert (difference != 0).mean() < 0.2


def end_model(build: Callable[[Builder, str], str]) -> onnx.ModelProto:
    """Nodes behind a quantised value of (2, 3, 8), which end the model."""
    built = builder()
    return finish_model(built, build(built, built.dequantise(source(built, (2, 3, 8)))))


def mean(built: Builder, value: str, axis: int = -1) -> str:
    return built.node("ReduceMean", [value, built.constant(np.array([axis], np.int64))])


def other_mean() -> onnx.ModelProto:
    built = builder()
    first, other = (built.input((2, 3, 8)) for _ in range(2))
    x = built.dequantise(first)
    same = built.like(built.dequantise(other), (2, 3, 8), first)
    return finish_model(built, built.node("Sub", [x, mean(built, built.dequantise(same))]))


def sum_taken_off() -> onnx.ModelProto:
    def build(built: Builder, x: str) -> str:
        return built.node("Sub", [x, built.node("ReduceSum", [x, built.constant(np.array([-1], np.int64))])])

    return end_model(build)


def cube() -> onnx.ModelProto:
    def build(built: Builder, x: str) -> str:
        centred = built.node("Sub", [x, mean(built, x)])
        return mean(built, built.node("Pow", [centred, built.constant(np.float32(3))]))

    return end_model(build)


def times_mean() -> onnx.ModelProto:
    return end_model(lambda built, x: built.node("Mul", [x, mean(built, x)]))


def quantised_squares() -> onnx.ModelProto:
    def build(built: Builder, x: str) -> str:
        centred = built.node("Sub", [x, mean(built, x)])
        return built.node("Mul", [centred, centred])

    return end_model(build)


def by_elements() -> onnx.ModelProto:
    """Distances from the mean, times an activation of their own shape."""

    def build(built: Builder, x: str) -> str:
        centred = built.node("Sub", [x, mean(built, x)])
        return built.node("Mul", [centred, built.dequantise(source(built, (2, 3, 8)))])

    return end_model(build)


def constants_by_row() -> onnx.ModelProto:
    def build(built: Builder, x: str) -> str:
        weight = built.constant(np.ones(8, np.float32))
        normal = built.node("LayerNormalization", [x, weight], axis=-1)
        return built.node("Mul", [normal, built.constant(np.ones((2, 3, 1), np.float32))])

    return end_model(build)


def lp_over_mixed_axes() -> onnx.ModelProto:
    """The last axis is the width of an image, which would take too many copies."""
    return mixed_axes(lambda built, value: built.node("LpNormalization", [value], axis=-1))


def lp(shape: Shape, axis: int, *, quantised: bool = True) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built, shape))
    if not quantised:
        value = built.node("Cos", [built.node("Softmax", [value], axis=2)])
    return finish_model(built, built.node("LpNormalization", [value], axis=axis))


CASES: dict[str, Case] = {
    "mean of something else": (other_mean, "Sub", row_mean),
    "sum that is taken off": (sum_taken_off, "Sub", row_mean),
    "distances to the third power": (cube, "Pow", row_square),
    "rows times their mean": (times_mean, "Mul", row_norm),
    "squares that are quantised": (quantised_squares, "Mul", elements_plain),
    "distances times elements": (by_elements, "Mul", row_factor),
    "weights by row": (constants_by_row, "Mul", normal_affine),
    "row that is too long": (lambda: lp((1, 40000), 1), "LpNormalization", norm_length),
    "axis that takes too many copies": (lp_over_mixed_axes, "LpNormalization", norm_order),
    "input that is not quantised": (
        lambda: lp((1, 4, 6, 6), 1, quantised=False),
        "LpNormalization",
        input_quantised,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name], kernel=64)


def test_other_norm_on_wide_vectors() -> None:
    """Divided by the root of the mean square, but less the mean."""

    def build(built: Builder, x: str) -> str:
        centred = built.node("Sub", [x, mean(built, x)])
        return built.node("Div", [centred, built.node("Sqrt", [mean(built, built.node("Mul", [x, x]))])])

    case: Case = (lambda: end_model(build), "Div", norm_room)
    check_fallback(case, kernel=64, n=32, bus_bytes=32)
    assert not on_host(import_model(end_model(build), config=Config(kernel=128, n=32, bus_bytes=32)))


@pytest.mark.parametrize(
    ("axis", "long"), [({}, 2), ({"axis": -1}, 2), ({"axis": 2}, 2), ({"axis": 1}, 1), ({"axis": -3}, 0)]
)
def test_norms_have_the_length_of_their_axis(axis: dict[str, int], long: int) -> None:
    """The last one if none is said; of at most 32,768 elements, which is also an eighth of the scratchpad."""
    node = SimpleNamespace(attributes=axis)
    for length, told in ((1 << 15, None), ((1 << 15) + 1, "there are 32769")):
        shape = tuple(length if at == long else 3 for at in range(3))
        given = SimpleNamespace(
            node=node, shape=lambda found=shape: found, model=SimpleNamespace(config=Config())
        )
        assert norm_length(cast(NodeContext, given)) == told


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(OPERATORS, CASES.values()) == {"kernel_room", "norm_room", "per_tensor"}
