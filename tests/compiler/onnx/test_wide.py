"""Values of 16 bits in models: on the device as a whole, against ONNX Runtime; or refused, and right on the host."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import movement, qdq_models
from support.golden_compare import compare
from support.graph_runs import on_host, run_graph
from support.ort_sessions import plain_session
from support.qdq_models import Builder, Quantised

from weft.compiler.backend import compile_segment
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph
from weft.compiler.onnx.operators import lookup
from weft.compiler.onnx.wide import OPERATORS
from weft.hdl.isa.config import PRESETS, Config

CONFIG = PRESETS["small"].replace(kernel=128)
Rng = np.random.Generator
Shape = tuple[int, ...]
IMAGE = (1, 6, 7, 8)
ROWS = (2, 5, 12)


class Mixed(Builder):
    """Values of 16 bits, but for some of 8 as often as `narrow` says."""

    def __init__(self, rng: Rng, opset: int = 21, domain: str = "", narrow: float = 0.0) -> None:
        super().__init__(rng, opset, 16, domain)
        self.narrow, self.wide_inputs = narrow, False

    def input(self, shape: Shape, unsigned: bool | None = None) -> Quantised:
        narrow, self.narrow = self.narrow, 0.0 if self.wide_inputs else self.narrow
        result = super().input(shape, unsigned)
        self.narrow = narrow
        return result

    def quantise(
        self, value: str, shape: Shape, scale: float, zero: int, unsigned: bool, bits: int | None = None
    ) -> Quantised:
        bits = bits or (8 if self.rng.random() < self.narrow else 16)
        return super().quantise(value, shape, scale, zero, unsigned, bits)

    def quantise_result(self, value: str, scale: float) -> Quantised:
        """A float value with parameters of its own."""
        return self.quantise(value, self.shape_of(value), scale, *self.parameters()[1:])

    def of(self, op: str, *values: Quantised | str, scale: float = 0.0, **attributes: Any) -> Quantised:
        """A node of quantised values and constants."""
        names = [value if isinstance(value, str) else self.dequantise(value) for value in values]
        first = next(value for value in values if isinstance(value, Quantised))
        return self.quantise_result(self.node(op, names, **attributes), scale or first.scale * 1.037)

    def floats(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant(self.rng.normal(0, scale, shape).astype(np.float32))


Case = Callable[[Mixed], Quantised]


def conv(**given: Any) -> Case:
    return lambda b: b.conv(b.input((1, 6, 9, 8)), 12, **given)


POOLS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_shape": [2, 2]},
    "strides": {"kernel_shape": [3, 2], "strides": [2, 3]},
    "pads": {"kernel_shape": [3, 3], "pads": [1, 2, 0, 1], "strides": [2, 1]},
    "dilations": {"kernel_shape": [2, 3], "dilations": [3, 2], "pads": [1, 1, 1, 1]},
    "whole": {"kernel_shape": [7, 8]},
    "one": {"kernel_shape": [1, 1], "strides": [2, 2]},
}


def number(op: str, value: float, *, first: bool = False) -> Case:
    def case(b: Mixed) -> Quantised:
        x, other = b.input(IMAGE), b.constant(np.float32(value))
        gain = {"Mul": abs(value), "Div": 1 / abs(value)}.get(op, 1.0)
        return b.of(op, *((other, x) if first else (x, other)), scale=x.scale * gain * 1.3)

    return case


def two(op: str, shape: Shape = IMAGE) -> Case:
    def case(b: Mixed) -> Quantised:
        x, y = b.input(IMAGE), b.input(shape)
        return b.of(op, x, y, scale=x.scale * y.scale * 40 if op == "Mul" else x.scale + y.scale)

    return case


def channels(op: str) -> Case:
    def case(b: Mixed) -> Quantised:
        b.wide_inputs = True  # sums with values of 8 bits are a step of 16 bits further off
        x, other = b.input(IMAGE), b.constant(b.rng.uniform(0.4, 2, (6, 1, 1)).astype(np.float32))
        return b.of(op, x, other, scale=x.scale * 1.7)

    return case


def one(op: str, shape: Shape = IMAGE, scale: float = 0.0, **attributes: Any) -> Case:
    def case(b: Mixed) -> Quantised:
        b.wide_inputs = "MaxPool" in op  # of 8 bits they have results of 8 bits
        return b.of(op, b.input(shape), scale=scale, **attributes)

    return case


def norm(op: str, **attributes: Any) -> Case:
    def case(b: Mixed) -> Quantised:
        b.wide_inputs = True
        more = [b.floats(ROWS[-1]) for _ in range(1 + (op == "LayerNormalization"))]
        return b.of(op, b.input(ROWS), *more, scale=0.04, **attributes)

    return case


def decomposed_silu(b: Mixed) -> Quantised:
    """x * Sigmoid(x), with a Q/DQ pair between."""
    x = b.input(IMAGE)
    gate = b.quantise(b.node("Sigmoid", [b.dequantise(x)]), IMAGE, 1 / 256, 0, True)
    return b.of("Mul", x, gate, scale=x.scale)


def silu(b: Mixed) -> Quantised:
    x = b.dequantise(b.input(IMAGE))
    return b.quantise_result(b.node("Mul", [x, b.node("Sigmoid", [x])]), 0.05)


def ints(b: Mixed, *values: int) -> str:
    return b.constant(np.array(values, np.int64))


def transposed_conv(b: Mixed) -> Quantised:
    x = b.input(IMAGE)
    weight, _ = b.weight((6, 4, 3, 2), 1, per_channel=True, unsigned=False)
    return b.of("ConvTranspose", x, weight, scale=x.scale * 3, strides=[2, 1])


def concat(b: Mixed) -> Quantised:
    parts = [b.input(IMAGE), b.input((1, 3, 7, 8)), b.input((1, 1, 7, 8))]
    return b.of("Concat", *parts, axis=1, scale=max(part.scale for part in parts))


def clip(b: Mixed) -> Quantised:
    return b.of("Clip", b.input(IMAGE), b.constant(np.float32(-0.4)), b.constant(np.float32(0.9)))


def gemm(b: Mixed) -> Quantised:
    return b.dense(b.flatten(b.input((3, 4, 2, 2))), 11)


EXACT: dict[str, Case] = {
    **{f"Conv {name}": conv(**given) for name, given in {
        "plain": {}, "depthwise": {"groups": 6}, "groups": {"groups": 2, "stride": (2, 1)},
        "dilated": {"dilation": (2, 3), "pads": (1, 2, 0, 3)}, "unsigned": {"unsigned_weight": True, "relu": True},
        "one": {"kernel": (1, 1), "per_channel": False}, "strides": {"kernel": (1, 1), "stride": (2, 2)},
    }.items()},
    "Gemm": gemm, "MatMul": lambda b: b.dense(b.input(ROWS), 9, op="MatMul"), "ConvTranspose": transposed_conv,
    **{f"{op} {value:g}": number(op, value) for op in ("Add", "Sub", "Mul", "Div") for value in (0.7, -1.3)},
    "Sub from": number("Sub", 0.4, first=True), "Min with": number("Min", 90.0), "Max with": number("Max", -90.0),
    **{f"{op} channels": channels(op) for op in ("Add", "Mul", "Div")},
    **{op: two(op) for op in ("Add", "Sub", "Mul", "Min", "Max")},
    **{f"{op} repeated": two(op, (1, 6, 1, 1)) for op in ("Add", "Sub", "Mul")},
    **{f"{op} repeated rows": two(op, (1, 1, 8)) for op in ("Add", "Mul")},
    "Relu": one("Relu"), "Clip": clip,
    **{f"MaxPool {name}": one("MaxPool", **given) for name, given in POOLS.items()},
    **{f"AveragePool {name}": one("AveragePool", **given) for name, given in POOLS.items() if "pads" not in given},
    "AveragePool padded": one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "GlobalAveragePool": one("GlobalAveragePool"), "GlobalMaxPool": one("GlobalMaxPool"), "Concat": concat,
    "Transpose": lambda b: b.dense(b.of("Transpose", b.input(ROWS), perm=[0, 2, 1]), 4, op="MatMul"),
    "requantise": lambda b: b.of("Identity", b.input(IMAGE)),
}  # fmt: skip
"""Operators within one step."""
NEAR: dict[str, Case] = {
    "Sigmoid": one("Sigmoid", scale=1 / 200), "Tanh": one("Tanh", scale=1 / 110), "Gelu": one("Gelu"),
    "Gelu tanh": one("Gelu", approximate="tanh"), "Erf": one("Erf", scale=1 / 110),
    "Softplus": one("Softplus"), "Neg": one("Neg"), "Silu": silu, "Silu in two": decomposed_silu, "Elu": one("Elu"),
    "LayerNormalization": norm("LayerNormalization", axis=-1), "no epsilon": norm("LayerNormalization", epsilon=1e-9),
    "RMSNormalization": norm("RMSNormalization", axis=-1, epsilon=1e-3),
}  # fmt: skip
"""Operators within 8 steps of 16 bits."""


def check(
    model: onnx.ModelProto, rng: Rng, steps: int, config: Config = CONFIG, *, host: bool = False
) -> Graph:
    """A model on the device, or with `host` a part of it, against ONNX Runtime: so many steps of 16 bits apart at most,
    or one of 8; and on golden the bytes of the micro-ops."""
    graph = import_model(model, config=config)
    assert bool(on_host(graph)) == host, on_host(graph)
    feeds = qdq_models.feeds(model, rng)
    expected = dict(zip(graph.outputs, plain_session(model).run(None, feeds), strict=True))
    given = run_graph(graph, feeds)
    makers = {node.output[0]: node for node in model.graph.node}
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    for name, values in expected.items():
        scale, zero = (constants[item] for item in makers[name].input[1:])
        apart = np.rint(np.abs(given[name].astype(np.float64) - values) / scale)
        assert apart.max(initial=0) <= (steps if zero.dtype.itemsize == 2 else 1), (
            f"{name} is {apart.max():g} steps off"
        )
    for segment in graph.segments:
        if isinstance(segment, DeviceSegment):
            read = {view.buffer.name: view.buffer for op in segment.ops for view in op.sources}
            inputs = {name: rng.integers(-128, 128, buffer.shape).astype(np.int8)
                      for name, buffer in read.items() if buffer.kind == "input"}  # fmt: skip
            compare(compile_segment(segment, config), segment, inputs, config, temps=False)
    return graph


@pytest.mark.drawn(20)
@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str) -> None:
    """All of 16 bits, and mixed with 8."""
    for seed, narrow in enumerate((0.0, 0.5)):
        b = Mixed(np.random.default_rng([seed, len(name)]), narrow=narrow)
        check(b.finish(EXACT[name](b)), b.rng, 1)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", NEAR)
def test_near(name: str) -> None:
    for seed, narrow in enumerate((0.0, 0.5, 0.0)):
        b = Mixed(np.random.default_rng([seed, len(name)]), 23 if "RMS" in name else 21, narrow=narrow)
        check(b.finish(NEAR[name](b)), b.rng, 8)


@pytest.mark.parametrize("opset", [17, 21])
def test_quantisation_of_onnx_runtimes_own_domain(opset: int) -> None:
    b = Mixed(np.random.default_rng(0), opset, "com.microsoft")
    x = b.input((1, 6, 9, 8))
    y = b.quantise(b.node("Relu", [b.dequantise(b.conv(x, 4, (1, 1)))]), (1, 4, 9, 8), 0.07, 9, False)
    check(b.finish(y), b.rng, 1)


@pytest.mark.drawn(10)
@pytest.mark.parametrize("kind", movement.MOVES)
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_movement(kind: str, rank: int) -> None:
    """Operators that only move elements, with the same scale or another."""
    compared = 0
    for seed in range(8):
        b = Mixed(np.random.default_rng([seed, rank]))
        x = b.input(movement.random_shape(b.rng, rank))
        b.wide_inputs = True
        result = movement.append_move(b, x, kind)
        model = b.finish(result)
        moves = {node.op_type for node in b.nodes}
        if any(x.name in node.input for node in b.nodes if node.op_type != "DequantizeLinear"):
            continue  # on integers, for which ONNX Runtime lacks some operators
        host = bool(moves & {"DepthToSpace", "SpaceToDepth"})
        check(model, b.rng, 1, host=host)
        compared += 1
    assert compared >= 3


def chain(b: Mixed) -> Quantised:
    """A network: convolutions, pools, a residual, a head; some values of 8 bits."""
    x = b.conv(b.input((1, 3, 10, 10)), 8, pads=(1, 1, 1, 1), relu=True)
    y = b.conv(x, 8, pads=(1, 1, 1, 1), groups=8)
    y = b.pool(b.add(x, b.conv(y, 8, (1, 1)), relu=True), "AveragePool", same=False, kernel_shape=[2, 2])
    return b.dense(b.flatten(b.pool(y, "GlobalAveragePool", same=False)), 5)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("narrow", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_networks(seed: int, narrow: float) -> None:
    """All on the device. One step of a layer is at most some more of the last one."""
    b = Mixed(np.random.default_rng(seed), narrow=narrow)
    model = b.finish(chain(b))
    graph = import_model(model, config=CONFIG)
    assert not on_host(graph)
    feeds = qdq_models.feeds(model, b.rng)
    (given,), (expected,) = run_graph(graph, feeds).values(), plain_session(model).run(None, feeds)
    assert np.abs(given - expected).max() < (0.001 if not narrow else 0.1) * np.abs(expected).max()
    (segment,) = (segment for segment in graph.segments if isinstance(segment, DeviceSegment))
    inputs = {
        item.buffer.name: np.resize(np.arange(-128, 128, dtype=np.int8), item.buffer.shape)
        for item in graph.to_device
    }
    for config in (CONFIG, PRESETS["tiny"].replace(kernel=32)):
        compare(compile_segment(segment, config), segment, inputs, config, temps=False)


Refusal = tuple[Case, str, str, dict[str, int]]
FORMS = r"Values of 16 bits must be sums, products, convolutions, pools, extremes, copies, functions or normalisations"


def slopes(b: Mixed) -> Quantised:
    b.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE))
    x = b.quantise("x", IMAGE, 0.05, 3, False, 8)
    other = b.constant(b.rng.uniform(0.1, 1.3, (6, 1, 1)).astype(np.float32))
    return b.of("PRelu", x, other)


REFUSED: dict[str, Refusal] = {
    "PRelu of 8 bits": (slopes, "PRelu", FORMS, {}),
    "Softmax": (one("Softmax", ROWS, 1 / 256), "Softmax", "", {}),
    "MatMul of two": (
        lambda b: b.of("MatMul", b.input(ROWS), b.input((2, 12, 4)), scale=0.5),
        "MatMul",
        "",
        {},
    ),
    "ReduceMean": (lambda b: b.of("ReduceMean", b.input(ROWS), ints(b, -1)), "ReduceMean", "", {}),
    "DepthToSpace": (one("DepthToSpace", (1, 8, 3, 3), blocksize=2), "DepthToSpace", "", {}),
    "no engine": (
        one("Relu"),
        "Relu",
        r"need a kernel engine \('kernel' 32 or more\) \(.*'kernel' is 0\)",
        {"kernel": 0},
    ),
    "a small engine": (one("Relu"), "Relu", r"'kernel' is 16\)", {"kernel": 16}),
    "no tables": (one("Sigmoid", scale=1 / 200), "Sigmoid", "", {"lookup_tables": 0}),
    "one table": (one("Sigmoid", scale=1 / 200), "Sigmoid", "", {"lookup_tables": 1}),
    "a kink": (
        one("Abs"),
        "Abs",
        r"piecewise linear with 256 intervals, at most 8 steps off .*\(the error is \d+ steps\)",
        {},
    ),
    "a normalisation on a small engine": (
        norm("LayerNormalization"),
        "LayerNormalization",
        r"\('kernel' 128\) \('kernel' is 64\)",
        {"kernel": 64},
    ),
    "a pool without its padding": (
        one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        "AveragePool",
        FORMS,
        {},
    ),
    "a quotient": (lambda b: b.of("Div", b.input(IMAGE), b.input(IMAGE), scale=0.1), "Div", "", {}),
    "a sum far beyond": (
        lambda b: b.of("Sub", b.input(IMAGE), b.input(IMAGE), scale=1e-4),
        "Sub",
        r"terms of sums of 16 bits are at most 4,194,304 steps",
        {},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    case, op, message, changes = REFUSED[name]
    b = Mixed(np.random.default_rng(3))
    model, config = b.finish(case(b)), CONFIG.replace(**changes)
    graph = check(model, b.rng, 1, config, host=True)
    reasons = [reason for _, kind, place, reason in graph.assignment if kind == op and place == "host"]
    assert any(re.search(message, reason) and reason for reason in reasons), reasons
    assert all(reason.isprintable() for reason in reasons)


@pytest.mark.parametrize(("bits", "apart", "place"), [
    (16, 8, "device"), (16, 9, "host"), (8, 1, "device"), (8, 2, "host"),
])  # fmt: skip
def test_how_near_lines_have_to_be(
    bits: int, apart: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "_fit_lines", lambda *given: (_FIT_LINES(*given)[0], apart))
    b = Mixed(np.random.default_rng(3))
    result = b.node("Sigmoid", [b.dequantise(b.input(IMAGE))])
    value = b.quantise(result, IMAGE, 1 / 200 if bits == 8 else 1 / 50_000, 0, False, bits)
    graph = import_model(b.finish(value), config=CONFIG)
    assert [item[2] for item in graph.assignment if item[1] == "Sigmoid"] == [place]


_FIT_LINES = lookup._fit_lines


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_padding_of_integers(dtype: type[np.integer]) -> None:
    """With a number of their own, which ONNX Runtime has for floats only."""
    b, kind = Mixed(np.random.default_rng(2)), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    b.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE))
    x = b.quantise("x", IMAGE, 0.05, 12, np.dtype(dtype).kind == "u")
    number = b.constant(np.array(300, dtype))
    name = b.node("Pad", [x.name, ints(b, 0, 0, 1, 2, 0, 0, 0, 3), number])
    shape = (1, 6, 8, 13)
    outputs = [helper.make_tensor_value_info(name, kind, shape)]
    graph = helper.make_graph(b.nodes, "integers", b.inputs, outputs, b.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    value = b.rng.normal(0, 3, IMAGE).astype(np.float32)
    imported = import_model(model, config=CONFIG)
    assert "Pad" in [op for _, op, place, _ in imported.assignment if place == "device"]
    (given,) = run_graph(imported, {"x": value}).values()
    scale, zero = x.exact
    info = np.iinfo(dtype)
    stored = np.clip(np.rint(value / scale) + zero, info.min, info.max).astype(dtype)
    assert np.array_equal(given, np.pad(stored, ((0, 0), (0, 0), (1, 0), (2, 3)), constant_values=300))


@pytest.mark.parametrize("dtypes", [(np.int8, np.int16), (np.int16, np.int8)])
def test_other_bits_of_the_same_scale(dtypes: tuple[type[np.integer], ...]) -> None:
    """Values of 16 bits are not those of 8, though scale and zero point are the same."""
    b = Mixed(np.random.default_rng(0))
    b.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE))
    value, scale = "x", b.constant(np.float32(0.01))
    for dtype in dtypes:
        pair = [scale, b.constant(np.array(0, dtype))]
        value = b.node(
            "DequantizeLinear",
            [b.node("QuantizeLinear", [value, *pair]), scale, b.constant(np.array(0, dtype))],
        )
    outputs = [helper.make_tensor_value_info(value, TensorProto.FLOAT, IMAGE)]
    graph = helper.make_graph(b.nodes, "same", b.inputs, outputs, b.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    check(model, b.rng, 0)


def test_every_operator_is_tried() -> None:
    tried = set()
    for make in (*EXACT.values(), *NEAR.values()):
        b = Mixed(np.random.default_rng(0))
        make(b)
        tried |= {node.op_type for node in b.nodes}
    moved = {"Expand", "Gather", "Pad", "Resize", "Slice", "Split", "Tile", "Reshape", "Squeeze", "Unsqueeze"}
    assert set(OPERATORS) - tried - moved == set()


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_integers_at_the_boundary(dtype: type[np.integer]) -> None:
    """Inputs and outputs of the model that have 16 bits themselves, in any order of axes."""
    b, kind = Mixed(np.random.default_rng(2)), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = Quantised("x", (1, 5, 6, 7), 0.05, 12, np.dtype(dtype).kind == "u", 16)
    b.inputs.append(helper.make_tensor_value_info("x", kind, x.shape))
    moved = b.of("Transpose", b.conv(x, 4), perm=[0, 2, 3, 1])
    y = b.quantise(b.node("Relu", [b.dequantise(moved)]), moved.shape, 0.2, 3, x.unsigned)
    outputs = [helper.make_tensor_value_info(y.name, kind, y.shape)]
    graph = helper.make_graph(b.nodes, "integers", b.inputs, outputs, b.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    info = np.iinfo(dtype)
    value = b.rng.integers(info.min, info.max + 1, x.shape).astype(dtype)
    value.flat[:2] = info.min, info.max
    imported = import_model(model, config=CONFIG)
    assert not on_host(imported)
    (given,), (expected,) = (
        run_graph(imported, {"x": value}).values(),
        plain_session(model).run(None, {"x": value}),
    )
    assert given.dtype == expected.dtype == dtype
    assert np.abs(given.astype(int) - expected).max() <= 2
