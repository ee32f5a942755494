"""ArgMax and ArgMin against ONNX Runtime, and every constraint violated once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support import qdq_models
from support.fallbacks import MANY, Case, builder, check_fallback, source, untested_constraints
from support.graph_runs import device_ops, on_host, run_graph
from support.ort_sessions import plain_session
from support.qdq_models import Builder, Quantised

import weft
from weft.compiler.frontend import import_model
from weft.compiler.kernel.rows import RowPlace
from weft.compiler.onnx.conditions import kernel_room
from weft.compiler.onnx.operators.reductions import (
    ARG_EXTREME_OPERATORS,
    place_input,
    place_length,
    place_order,
)
from weft.hdl.isa.config import PRESETS, Config

NAMES = ("ArgMax", "ArgMin")


def finish(built: Builder, value: str) -> onnx.ModelProto:
    """Model that outputs the indices."""
    return built.finish_as(value, TensorProto.INT64)


def of(built: Builder, given: Quantised, op: str, *, stored: bool = False, **attributes: object) -> str:
    """The node on floats, or on their stored integers."""
    value = given.name if stored else built.dequantise(given)
    return built.node(op, [value], **attributes)


def check(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Check that all runs on the device and equals ONNX Runtime."""
    graph = import_model(model)
    assert [type(op) for op in device_ops(graph)].count(RowPlace) == 1, on_host(graph)
    (expected,) = plain_session(model).run(None, feeds)
    (actual,) = run_graph(graph, feeds).values()
    assert actual.dtype == expected.dtype
    assert np.array_equal(actual, expected)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("op", NAMES)
def test_random(op: str, stored: bool) -> None:
    for seed in range(40):
        rng = np.random.default_rng([seed, stored])
        built = Builder(rng, int(rng.choice([13, 18, 21])))
        shape = tuple(int(rng.integers(1, 9)) for _ in range(rng.integers(1, 5)))
        axis = int(rng.integers(-len(shape), len(shape)))
        if rng.random() < 0.3:
            shape = tuple(int(rng.integers(200, 600)) if at == axis % len(shape) else min(size, 3)
                          for at, size in enumerate(shape))  # fmt: skip
        given = built.input(shape)
        if len(shape) == 4 and rng.random() < 0.5:
            given = built.conv(given, shape[1], (1, 1))
        value = of(
            built, given, op, stored=stored, axis=axis, keepdims=int(rng.integers(2)),
            select_last_index=int(rng.integers(2)),
        )  # fmt: skip
        spread = float(rng.choice([0.02, 0.5]))
        feeds = {built.inputs[0].name: rng.normal(0, spread, shape).astype(np.float32)}
        check(finish(built, value), feeds)


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 4096, 32768])
def test_lengths(count: int) -> None:
    """The largest supported index, in 8 bits or 16."""
    built = builder()
    given = built.input((2, count))
    value = of(built, given, "ArgMax", axis=1)
    x = np.zeros((2, count), np.float32)
    x[0, -1] = x[1, count // 2] = 1
    check(finish(built, value), {built.inputs[0].name: x})


def test_defaults() -> None:
    """The default is axis 0 with keepdims."""
    built = builder()
    value = of(built, source(built), "ArgMax")
    model = finish(built, value)
    check(model, qdq_models.feeds(model, np.random.default_rng(3)))


def test_host_operators_on_indices() -> None:
    """The host casts, compares and reshapes indices as int64, while others read the scores."""
    built = builder()
    given = built.conv(source(built), 5, (1, 1))
    value = of(built, given, "ArgMax", axis=1, keepdims=0)
    value = built.node("Squeeze", [value, built.constant(np.array([0]))])
    value = built.node("Cast", [value], to=TensorProto.FLOAT)
    result = built.quantise(value, (6, 6), 0.05, -100, False)
    joined = built.node("Add", [built.dequantise(result), built.dequantise(given)])
    model = built.finish(built.quantise(joined, (1, 5, 6, 6), 0.07, 0, False))
    feeds = qdq_models.feeds(model, np.random.default_rng(4))
    graph = import_model(model)
    assert RowPlace in {type(op) for op in device_ops(graph)}
    assert {"Squeeze", "Cast"} <= {op for _, op, where, _ in graph.assignment if where == "host"}
    (expected,) = plain_session(model).run(None, feeds)
    (actual,) = run_graph(graph, feeds).values()
    assert np.abs(np.rint((actual - expected) / 0.07)).max() <= 1


@pytest.mark.parametrize(("preset", "count"), [("tiny", 21), ("default", 1000)])
def test_programs(preset: str, count: int, tmp_path: Path) -> None:
    """Compiled, saved and loaded; indices of two outputs."""
    built, rng = builder(), np.random.default_rng(8)
    given = built.dense(built.input((3, 40)), count)
    first, other = (built.node(op, [built.dequantise(given)], axis=-1) for op in NAMES)
    model = finish(built, first)
    model.graph.output.append(onnx.helper.make_tensor_value_info(other, TensorProto.INT64, (3, 1)))
    program = weft.compile(model, PRESETS[preset].replace(kernel=64))
    program.save(tmp_path / "program")
    feeds = qdq_models.feeds(model, rng)
    values = weft.load(tmp_path / "program").run(feeds).outputs
    assert [value.dtype for value in values.values()] == [np.int64] * 2
    for value, expected in zip(values.values(), plain_session(model).run(None, feeds), strict=True):
        assert np.array_equal(value, expected)


def operator(shape: tuple[int, ...], **attributes: object) -> onnx.ModelProto:
    built = builder()
    return finish(built, of(built, source(built, shape), "ArgMax", **attributes))


def floats() -> onnx.ModelProto:
    built = builder()
    return finish(built, built.node("ArgMin", [built.node("Erf", [built.dequantise(source(built))])]))


def mix_axes() -> onnx.ModelProto:
    built = builder()
    flat = built.flatten(built.conv(source(built, (1, MANY, 17, 17)), MANY, (1, 1)))
    value = built.node("Reshape", [flat.name, built.constant(np.array((MANY, MANY), np.int64))])
    return finish(built, built.node("ArgMax", [value], axis=1))


CASES: dict[str, Case] = {
    "floats": (floats, "ArgMin", place_input),
    "axis that takes too many copies": (mix_axes, "ArgMax", place_order),
    "row that is too long": (lambda: operator((2, 70000), axis=1), "ArgMax", place_length),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name], kernel=64)


def test_without_a_kernel_engine() -> None:
    check_fallback((lambda: operator((2, 3)), "ArgMax", kernel_room), kernel=32)
    assert import_model(operator((2, 3)), config=Config()).segments


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(ARG_EXTREME_OPERATORS, CASES.values()) == {"kernel_room"}
