"""LRN against ONNX Runtime, or what ONNX says where that departs from it, and every constraint violated once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from support.fallbacks import (
    MANY,
    Case,
    builder,
    check_fallback,
    finish_model,
    mixed_axes,
    source,
    untested_constraints,
)
from support.graph_runs import on_host, run_graph
from support.ort_sessions import plain_session
from support.qdq_models import Builder

import weft
from weft.compiler.frontend import import_model
from weft.compiler.onnx.conditions import input_quantised, kernel_room
from weft.compiler.onnx.operators.norms import (
    LRN_OPERATORS,
    response_length,
    response_order,
    response_power,
    response_range,
    response_tables,
)
from weft.hdl.isa.config import PRESETS


def draw_model(
    rng: np.random.Generator, shape: tuple[int, ...], *, even: bool
) -> tuple[onnx.ModelProto, dict[str, Any], float]:
    """Draw an LRN after a convolution or an input, its attributes, and its output scale."""
    built = Builder(rng)
    given = built.input(shape)
    if len(shape) == 4 and rng.random() < 0.4:
        given = built.conv(given, shape[1], (1, 1), bias=False)
    size, bias = int(rng.choice([2, 4, 6] if even else [1, 3, 5, 7, 45])), float(rng.uniform(0.5, 3))
    zero = given.zero - 128 * given.unsigned
    most = max(128 + zero, 127 - zero) * given.scale
    ratio, beta = 10.0 ** rng.uniform(-2, 2.3), float(rng.choice([0.3, 0.5, 0.75, 1.0]))
    used = {
        "size": size,
        "bias": bias,
        "beta": beta,
        "alpha": ratio * bias * size / min(size, shape[1]) / most**2,
    }
    value = built.node("LRN", [built.dequantise(given)], **used)
    largest = max(part * most / (bias + part**2 * ratio * bias) ** beta for part in (0.2, 0.5, 1))
    scale = float(np.float32(largest * rng.uniform(0.3, 1) / 127))
    return built.finish(built.quantise(value, shape, scale, *built.parameters()[1:])), used, scale


def feeds_of(
    model: onnx.ModelProto, rng: np.random.Generator, shape: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Elements of all sizes, up to the largest and smallest that the input has; in some images all are large."""
    (scale,) = (onnx.numpy_helper.to_array(item) for item in model.graph.initializer
                if item.name == model.graph.node[0].input[1])  # fmt: skip
    spread = 2.0 ** -rng.integers(0, 1 if rng.random() < 0.3 else 5, shape)
    return {model.graph.input[0].name: (rng.uniform(-260, 260, shape) * scale * spread).astype(np.float32)}


def steps_off(model: onnx.ModelProto, feeds: dict[str, np.ndarray], scale: float) -> np.ndarray:
    graph = import_model(model)
    assert not on_host(graph)
    (actual,) = run_graph(graph, feeds).values()
    (expected,) = plain_session(model).run(None, feeds)
    return np.rint(np.abs(actual - expected) / scale)


def test_random() -> None:
    wrong = total = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        shape = tuple(int(rng.integers(1, most)) for most in (3, 50, 7, 7))
        model, _, scale = draw_model(rng, shape, even=False)
        off = steps_off(model, feeds_of(model, rng, shape), scale)
        assert off.max() <= 1, seed
        wrong, total = wrong + int(off.sum()), total + off.size
    assert wrong < 0.03 * total


def test_forms_that_onnx_runtime_refuses() -> None:
    """Windows of even size, with one more channel after the centre than before, and rows."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        shape = (1, int(rng.integers(2, 30)), 3, 4) if seed % 2 else (2, int(rng.integers(2, 30)), 5)
        model, used, scale = draw_model(rng, shape, even=bool(seed % 3))
        feeds = feeds_of(model, rng, shape)
        plain = onnx.ModelProto()
        plain.CopyFrom(model)
        (node,) = (item for item in plain.graph.node if item.op_type == "LRN")
        plain.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(node.input[0], 1, shape))
        (x,) = plain_session(_without(plain, node)).run(None, feeds)
        around = [(0, 0), ((used["size"] - 1) // 2, used["size"] // 2), *[(0, 0)] * (len(shape) - 2)]
        squares = np.pad(x.astype(np.float64) ** 2, around)
        sums = sum(squares[:, at : at + shape[1]] for at in range(used["size"]))
        exact = x / (used["bias"] + used["alpha"] / used["size"] * sums) ** used["beta"]
        graph = import_model(model)
        assert not on_host(graph)
        (actual,) = run_graph(graph, feeds).values()
        zero = _zero(model)
        low = -128 if zero.dtype == np.int8 else 0
        expected = np.clip(np.rint(exact / scale) + zero, low, low + 255)
        assert np.abs(np.rint(actual / scale) + zero - expected).max() <= 1, seed


def _without(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    kept = list(model.graph.node)[: list(model.graph.node).index(node)]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def _zero(model: onnx.ModelProto) -> np.ndarray:
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    return constants[model.graph.node[-1].input[2]]


@pytest.mark.parametrize("preset", ["tiny", "default"])
def test_programs(preset: str) -> None:
    """The golden interpreter equals the micro-ops."""
    config = PRESETS[preset].replace(kernel=64)
    for seed in range(3):
        rng = np.random.default_rng([seed, 5])
        shape = (1, int(rng.integers(3, 40)), 5, 6)
        model, _, _ = draw_model(rng, shape, even=False)
        feeds = feeds_of(model, rng, shape)
        (outputs,) = weft.compile(model, config).run(feeds).outputs.values()
        (expected,) = run_graph(import_model(model, config=config), feeds).values()
        assert np.array_equal(outputs, expected), seed


def of(shape: tuple[int, ...] = (1, 8, 3, 3), **attributes: float) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built, shape))
    return finish_model(built, built.node("LRN", [value], size=3, **attributes))


def floats() -> onnx.ModelProto:
    built = builder()
    value = built.node("Cos", [built.node("Softmax", [built.dequantise(source(built))], axis=2)])
    return finish_model(built, built.node("LRN", [value], size=3))


def exchange_axes() -> onnx.ModelProto:
    """Take a convolution's pixels as channels."""
    return mixed_axes(lambda built, value: built.node("LRN", [value], size=3), (MANY, MANY, 1, 1))


CASES: dict[str, Case] = {
    "floats": (floats, "LRN", input_quantised),
    "power above 1": (lambda: of(beta=1.5), "LRN", response_power),
    "large squares": (lambda: of(alpha=1e6), "LRN", response_range),
    "axes that take too many copies": (exchange_axes, "LRN", response_order),
    "many channels": (lambda: of((1, 40000, 1, 1)), "LRN", response_length),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name], kernel=64)


def test_units() -> None:
    check_fallback((of, "LRN", kernel_room), kernel=32)
    check_fallback((of, "LRN", response_tables), kernel=64, lookup_tables=1)
    check_fallback((lambda: of(alpha=2.0), "LRN", response_tables), kernel=64, lookup_tables=2)


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(LRN_OPERATORS, CASES.values()) == {"kernel_room", "response_tables"}
