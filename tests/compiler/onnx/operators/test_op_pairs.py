"""Min, Max, Div and Pow of two activations against ONNX Runtime, and every constraint violated once."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.fallbacks import Case, check_fallback, two, untested_constraints
from support.graph_runs import on_host, run_graph
from support.qdq_models import Builder

from weft.compiler.frontend import import_model
from weft.compiler.onnx.conditions import kernel_room
from weft.compiler.onnx.operators.pairs import (
    PAIRS_OPERATORS,
    element_pairs,
    pair_length,
    power_base,
    power_range,
    power_tables,
)
from weft.hdl.isa.config import Config

Shape = tuple[int, ...]


def shapes_of(rng: np.random.Generator) -> tuple[Shape, Shape]:
    full = tuple(int(rng.integers(1, 8)) for _ in range(rng.integers(1, 5)))
    way, part = rng.integers(4), full
    channel = 1 if len(full) == 4 else len(full) - 1
    if way == 1:
        part = tuple(1 if axis != channel and rng.integers(2) else size for axis, size in enumerate(full))
    elif way == 2:
        part = tuple(1 if axis == channel else size for axis, size in enumerate(full))
    while len(part) > 1 and part[0] == 1 and rng.integers(2):
        part = part[1:]
    return (part, full) if rng.integers(2) else (full, part)


@pytest.mark.parametrize("op", ["Min", "Max", "Div"])
def test_random(op: str) -> None:
    wrong = total = zeros = 0
    for seed in range(50):
        rng = np.random.default_rng([seed, ord(op[1])])
        built, shapes = Builder(rng), shapes_of(rng)
        a, b = (built.input(shape) for shape in shapes)
        value = built.node(op, [built.dequantise(a), built.dequantise(b)])
        _, zero, unsigned = built.parameters()
        usual = a.scale / b.scale if op == "Div" else 60 * max(a.scale, b.scale)
        scale = float(np.float32(usual * rng.uniform(0.5, 2) / 60))
        model = built.finish(built.quantise(value, np.broadcast_shapes(*shapes), scale, zero, unsigned))
        feeds = {
            item.name: rng.normal(0, 40 * given.scale, given.shape).astype(np.float32)
            for item, given in zip(model.graph.input, (a, b), strict=True)
        }
        first = divisor = list(feeds.values())
        divisor[1][rng.random(shapes[1]) < 0.1] = 0
        first[0][rng.random(shapes[0]) < 0.1] = 0
        graph = import_model(model, config=Config(kernel=64))
        assert not on_host(graph), (seed, shapes, on_host(graph))
        expected = reference(model, feeds)
        difference = np.rint((run_graph(graph, feeds)[model.graph.output[0].name] - expected) / scale)
        assert np.abs(difference).max() <= 1, (seed, shapes)
        wrong, total = wrong + int((difference != 0).sum()), total + difference.size
        zeros += int((divisor[1] == 0).sum())
    assert wrong < 0.02 * total
    assert zeros > 20


def reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0])


def power(
    rng: np.random.Generator, shapes: tuple[Shape, Shape], steps: tuple[float, float], *, least: bool = True
) -> onnx.ModelProto:
    """Pow of activations of these scales, of which the first is not negative, with results of about 100 steps."""
    built, names = Builder(rng), []
    for shape, step, lowest in zip(shapes, steps, (least, False), strict=True):
        names.append(built.name("input"))
        built.inputs.append(helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, shape))
        _, zero, unsigned = built.parameters()
        zero = zero if not lowest else 0 if unsigned else -128
        names[-1] = built.dequantise(
            built.quantise(names[-1], shape, float(np.float32(step)), zero, unsigned)
        )
    _, zero, unsigned = built.parameters()
    typical = (steps[0] * rng.choice([10, 255])) ** (steps[1] * rng.uniform(-60, 60))
    value = built.node("Pow", names)
    scale = float(np.float32(typical / 100))
    return built.finish(built.quantise(value, np.broadcast_shapes(*shapes), scale, zero, unsigned))


def test_random_powers() -> None:
    wrong = total = zeros = 0
    for seed in range(60):
        rng = np.random.default_rng([seed, 5])
        shapes, steps = shapes_of(rng), (float(10 ** rng.uniform(-3, 0)), float(10 ** rng.uniform(-3, -1.3)))
        model = power(rng, shapes, steps)
        feeds = {
            item.name: (rng.normal(0, 60, shape) * step).astype(np.float32)
            for item, shape, step in zip(model.graph.input, shapes, steps, strict=True)
        }
        graph = import_model(model, config=Config(kernel=64))
        assert not on_host(graph), (seed, shapes, on_host(graph))
        with np.errstate(all="ignore"):
            expected = reference(model, feeds)
        quantiser = [item for item in model.graph.node if item.op_type == "QuantizeLinear"][-1]
        scale = next(
            onnx.numpy_helper.to_array(item)
            for item in model.graph.initializer
            if item.name == quantiser.input[1]
        )
        difference = np.rint((run_graph(graph, feeds)[model.graph.output[0].name] - expected) / scale)
        assert np.abs(difference).max() <= 1, (seed, shapes)
        wrong, total = wrong + int((difference != 0).sum()), total + difference.size
        zeros += int((next(iter(feeds.values())) <= 0).sum())
    assert wrong < 0.02 * total
    assert zeros > 20


RNG = np.random.default_rng(1)
CASES: dict[str, Case] = {
    "both repeat": (lambda: two("Max", (3, 1), (1, 4)), "Max", element_pairs),
    "pixel that is too long": (lambda: two("Min", (1, 66000), (1, 66000)), "Min", pair_length),
    "negative base": (lambda: power(RNG, ((3, 4), (3, 4)), (0.1, 0.01), least=False), "Pow", power_base),
    "large powers": (lambda: power(RNG, ((3, 4), (3, 4)), (0.1, 0.3)), "Pow", power_range),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name], kernel=64)


@pytest.mark.parametrize("size", [0, 32])
def test_without_a_kernel_engine(size: int) -> None:
    check_fallback((lambda: two("Div", (3, 4), (3, 4)), "Div", kernel_room), kernel=size)


def test_without_tables() -> None:
    model = power(RNG, ((3, 4), (3, 4)), (0.1, 0.01))
    check_fallback((lambda: model, "Pow", power_tables), kernel=64, lookup_tables=2)


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(PAIRS_OPERATORS, CASES.values()) == {"kernel_room", "power_tables"}
