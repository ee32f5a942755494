"""Operators of ONNX Runtime's own domain: what they become is on the device, and at most a step from ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from support import one_step
from support.graph_runs import on_host, run_graph
from support.ort_sessions import plain_session

from weft.compiler.frontend import import_model
from weft.compiler.onnx.qlinear import FORMS, expand_qlinear
from weft.compiler.onnx.reader import network_of

Rng = np.random.Generator
NUMBERS = {np.int8: (TensorProto.INT8, -128, 127), np.uint8: (TensorProto.UINT8, 0, 255)}


class Single:
    """A model of one node on quantised values."""

    def __init__(self, rng: Rng, dtype: type, opset: int = 17) -> None:
        self.rng, self.dtype, self.opset = rng, dtype, opset
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.feeds: dict[str, np.ndarray] = {}

    def constant(self, values: Any, dtype: type) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def draw(self, shape: tuple[int, ...], dtype: type | None = None) -> np.ndarray:
        _, low, high = NUMBERS[dtype or self.dtype]
        return self.rng.integers(low, high + 1, shape).astype(dtype or self.dtype)

    def value(self, shape: tuple[int, ...]) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, NUMBERS[self.dtype][0], shape))
        self.feeds[name] = self.draw(shape)
        return name

    def pair(self, scale: float | None = None) -> list[str]:
        """A scale and a zero point."""
        _, low, high = NUMBERS[self.dtype]
        scale = float(self.rng.uniform(0.02, 0.1)) if scale is None else scale
        return [
            self.constant(scale, np.float32),
            self.constant(int(self.rng.integers(low + 60, high - 60)), self.dtype),
        ]

    def model(self, op: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
        node = helper.make_node(op, inputs, ["y"], name="n", domain="com.microsoft", **attributes)
        output = helper.make_tensor_value_info("y", NUMBERS[self.dtype][0], shape)
        graph = helper.make_graph([node], "single", self.inputs, [output], self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


Build = Callable[[Single], onnx.ModelProto]
SHAPE = (2, 3, 4, 6)


def pairwise(op: str) -> Build:
    def build(made: Single) -> onnx.ModelProto:
        a, b = made.value(SHAPE), made.value((1, 3, 4, 6) if op == "QLinearAdd" else SHAPE)
        return made.model(op, [a, *made.pair(), b, *made.pair(), *made.pair(0.15)], SHAPE)

    return build


def single(op: str, shape: tuple[int, ...] = SHAPE, scale: float | None = None, **attributes: Any) -> Build:
    return lambda made: made.model(
        op, [made.value(SHAPE), *made.pair(), *made.pair(scale)], shape, **attributes
    )


def softmax(made: Single) -> onnx.ModelProto:
    zero = made.constant(-128 if made.dtype is np.int8 else 0, made.dtype)
    inputs = [made.value((2, 5, 9)), *made.pair(0.05), made.constant(1 / 256, np.float32), zero]
    return made.model("QLinearSoftmax", inputs, (2, 5, 9), axis=-1, opset=13)


def gemm(made: Single) -> onnx.ModelProto:
    a, transposed = made.value((4, 6)), int(made.rng.integers(2))
    weights = made.constant(made.draw((5, 6) if transposed else (6, 5), np.int8), np.int8)
    each = [made.constant(made.rng.uniform(0.01, 0.02, 5), np.float32), made.constant(np.zeros(5), np.int8)]
    bias = made.constant(made.rng.integers(-500, 500, 5), np.int32)
    message = {"transB": transposed} if transposed or made.rng.integers(2) else {}
    return made.model("QGemm", [a, *made.pair(), weights, *each, bias, *made.pair()], (4, 5), **message)


def concat(made: Single) -> onnx.ModelProto:
    parts = [name for size in (2, 3) for name in (made.value((2, size, 4)), *made.pair())]
    return made.model("QLinearConcat", [*made.pair(), *parts], (2, 5, 4), axis=1)


CASES: dict[str, Build] = {
    "QLinearAdd": pairwise("QLinearAdd"),
    "QLinearMul": pairwise("QLinearMul"),
    "QLinearSigmoid": single("QLinearSigmoid", scale=1 / 256),
    "QLinearLeakyRelu": single("QLinearLeakyRelu", alpha=0.2),
    "QLinearAveragePool": single("QLinearAveragePool", (2, 3, 4, 5), kernel_shape=[3, 2], pads=[1, 0, 1, 0]),
    "channels last": single("QLinearAveragePool", (2, 2, 3, 6), kernel_shape=[2, 2], channels_last=1),
    "QLinearGlobalAveragePool": single("QLinearGlobalAveragePool", (2, 3, 1, 1)),
    "QLinearSoftmax": softmax,
    "QGemm": gemm,
    "QLinearConcat": concat,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_operators(name: str, dtype: type) -> None:
    """Sums of integers may be rounded once more by ONNX Runtime, in float32."""
    for seed in range(4):
        result = Single(np.random.default_rng(seed), dtype)
        model = CASES[name](result)
        graph = import_model(model)
        assert not on_host(graph)
        (expected,) = plain_session(model).run(None, result.feeds)
        outputs = run_graph(graph, result.feeds)["y"]
        assert outputs.dtype == expected.dtype
        assert np.abs(outputs.astype(int) - expected).max() <= 1
        if name != "QLinearSoftmax":
            one_step.on_golden(graph, "tiny", result.rng)


@pytest.mark.parametrize("opset", [11, 17])
def test_both_meanings_of_softmax_agree_about_the_last_axis(opset: int) -> None:
    """The operator says that it means the later one, in a model of whatever version."""
    result = Single(np.random.default_rng(1), np.int8)
    result.opset = opset
    model = softmax(result)
    graph = import_model(model)
    assert not on_host(graph)
    (expected,) = plain_session(model).run(None, result.feeds)
    assert np.abs(run_graph(graph, result.feeds)["y"].astype(int) - expected).max() <= 1


def where_model(made: Single) -> onnx.ModelProto:
    where = made.constant(made.rng.random(SHAPE) < 0.5, np.bool_)
    arguments = [name for _ in range(2) for name in (made.value(SHAPE), *made.pair())]
    return made.model("QLinearWhere", [where, *arguments, *made.pair()], SHAPE)


def test_choice() -> None:
    result = Single(np.random.default_rng(0), np.uint8)
    model = where_model(result)
    (expected,) = plain_session(model).run(None, result.feeds)
    assert np.abs(run_graph(import_model(model), result.feeds)["y"].astype(int) - expected).max() <= 1


def test_all_are_tried() -> None:
    elsewhere = {
        "DequantizeLinear",
        "QuantizeLinear",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "QLinearWhere",
    }
    assert {name.removeprefix("com.microsoft.") for name in FORMS} == (
        set(CASES) - {"channels last"}
    ) | elsewhere


def floats(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    shape: tuple[int, ...],
    result: tuple[int, ...],
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "floats",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def of_microsoft(
    middle: list[onnx.NodeProto],
    extra: dict[str, np.ndarray],
    shape: tuple[int, ...],
    result: tuple[int, ...],
) -> onnx.ModelProto:
    """Between quantisers of the same domain: from value a to value b, weights w from `extra`."""

    def link(op: str, source: str, target: str, which: str) -> onnx.NodeProto:
        return helper.make_node(
            op, [source, f"{which}s", f"{which}z"], [target], name=target, domain="com.microsoft"
        )

    nodes = [link("QuantizeLinear", "x", "xq", "x"), link("DequantizeLinear", "xq", "a", "x"),
             link("DequantizeLinear", "wq", "w", "w"), *middle,
             link("QuantizeLinear", "b", "yq", "y"), link("DequantizeLinear", "yq", "y", "y")]  # fmt: skip
    scales = {"x": 0.03, "w": 0.01, "y": 0.05}
    pairs = {f"{which}s": np.array(scale, np.float32) for which, scale in scales.items()}
    pairs |= {f"{which}z": np.array(3, np.int8) for which in scales}
    return floats(nodes, pairs | extra, shape, result)


@pytest.mark.parametrize("activation", ["", "Relu", "Clip"])
@pytest.mark.parametrize("added", [False, True])
def test_fused_convolutions(activation: str, added: bool) -> None:
    rng = np.random.default_rng(1)
    attributes: dict[str, Any] = {"pads": [1, 1, 1, 1]}
    if activation:
        attributes |= {"activation": activation}
    if activation == "Clip":
        attributes["activation_params"] = [-0.5, 1.5]
    inputs = ["a", "w", "bias"]
    if added:
        inputs.append("each")
    node = helper.make_node("FusedConv", inputs, ["b"], name="fused", domain="com.microsoft", **attributes)
    extra = {
        "wq": rng.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8),
        "bias": rng.normal(0, 1, 4).astype(np.float32),
    }
    if added:
        extra["each"] = rng.normal(0, 1, (2, 4, 5, 6)).astype(np.float32) * 0 + 0.5
    model = of_microsoft([node], extra, (2, 3, 5, 6), (2, 4, 5, 6))
    graph = import_model(model)
    kinds = {row[1] for row in graph.assignment}
    assert "Conv" in kinds
    assert not any(kind.startswith("com.microsoft.") for kind in kinds), kinds
    feeds = {"x": rng.normal(0, 2, (2, 3, 5, 6)).astype(np.float32)}
    (expected,) = plain_session(model).run(None, feeds)
    assert np.abs(run_graph(graph, feeds)["y"] - expected).max() <= 0.0501
    assert added or not on_host(graph)


@pytest.mark.parametrize(
    ("dtype", "opset", "domain"),
    [
        ("int8", 12, ""), ("uint8", 17, ""), ("int8", 21, ""),
        ("int16", 17, "com.microsoft"), ("uint16", 20, "com.microsoft"), ("uint16", 21, ""), ("int16", 21, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("each", [False, True])
def test_quantisers_become_those_of_onnx(dtype: str, opset: int, domain: str, each: bool) -> None:
    """ONNX has 16 bits from opset 21 on, and a scale per channel from 13 on."""
    size = 6 if each else 1
    constants = {"scale": np.full(size, 0.1, np.float32), "zero": np.full(size, 3, dtype)}
    nodes = [
        helper.make_node(
            op, [source, *constants], [result], domain="com.microsoft", **({"axis": 1} if each else {})
        )
        for op, source, result in (("QuantizeLinear", "x", "q"), ("DequantizeLinear", "q", "y"))
    ]
    network = expand_qlinear(network_of(floats(nodes, constants, (4, 6), (4, 6), opset)))
    expected = "com.microsoft" if each and opset < 13 else domain
    assert [(node.domain, node.op) for node in network.nodes] == [
        (expected, "QuantizeLinear"), (expected, "DequantizeLinear"),
    ]  # fmt: skip
    if expected != "com.microsoft":
        shapes = {network.constants[name].shape for node in network.nodes for name in node.inputs[1:]}
        assert shapes == {(6,) if each else ()}


@pytest.mark.parametrize("transposed", [0, 1])
def test_fused_products(transposed: int) -> None:
    rng = np.random.default_rng(2)
    node = helper.make_node(
        "FusedMatMul", ["a", "w"], ["b"], name="fused", domain="com.microsoft", alpha=0.5, transB=transposed
    )
    shape = (7, 6) if transposed else (6, 7)
    nodes = [node]
    model = of_microsoft(nodes, {"wq": rng.integers(-128, 128, shape).astype(np.int8)}, (4, 6), (4, 7))
    graph = import_model(model)
    feeds = {"x": rng.normal(0, 2, (4, 6)).astype(np.float32)}
    (expected,) = plain_session(model).run(None, feeds)
    assert np.abs(run_graph(graph, feeds)["y"] - expected).max() <= 0.0501


def test_scales_that_are_inputs_stay() -> None:
    result = Single(np.random.default_rng(0), np.int8)
    model = pairwise("QLinearAdd")(result)
    scale = model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info(scale.name, TensorProto.FLOAT, []))
    model.graph.initializer.remove(scale)
    assert [node.op for node in expand_qlinear(network_of(model)).nodes] == ["com.microsoft.QLinearAdd"]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_pools_of_integers(dtype: type) -> None:
    """The format has MaxPool on integers; a table behind it reads them."""
    result = Single(np.random.default_rng(0), dtype)
    model = result.model("QLinearSigmoid", ["pooled", *result.pair(), *result.pair(1 / 256)], (2, 3, 2, 3))
    result.value(SHAPE)
    model.graph.input.extend(result.inputs)
    pool = helper.make_node("MaxPool", ["x0"], ["pooled"], name="pool", kernel_shape=[2, 2], strides=[2, 2])
    model.graph.node.insert(0, pool)
    graph = import_model(model)
    assert not on_host(graph)
    (expected,) = plain_session(model).run(None, result.feeds)
    assert np.abs(run_graph(graph, result.feeds)["y"].astype(int) - expected).max() <= 1


class Calibration(CalibrationDataReader):
    def __init__(self, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(0)
        self.left = iter([{"x": rng.normal(0, 1, shape).astype(np.float32)} for _ in range(8)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def network(rng: Rng) -> onnx.ModelProto:
    """Convolutions, two branches, pools, a table and a product."""

    def node(op: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], name=output, **attributes)

    def weights(*shape: int) -> np.ndarray:
        return (rng.normal(0, 1, shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)

    nodes = [
        node("Conv", ["x", "w1", "b1"], "c1", pads=[1, 1, 1, 1]), node("Relu", ["c1"], "r1"),
        node("MaxPool", ["r1"], "m1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["m1", "w2"], "c2", pads=[1, 1, 1, 1]), node("LeakyRelu", ["c2"], "l2", alpha=0.1),
        node("Add", ["l2", "m1"], "a2"), node("Sigmoid", ["a2"], "s2"), node("Mul", ["a2", "s2"], "p2"),
        node("Concat", ["p2", "m1"], "j2", axis=1),
        node("AveragePool", ["j2"], "v2", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["v2"], "g2"), node("Flatten", ["g2"], "f2"),
        node("Gemm", ["f2", "w3", "b3"], "d3", transB=1), node("Softmax", ["d3"], "y", axis=-1),
    ]  # fmt: skip
    constants = {
        "w1": weights(8, 3, 3, 3),
        "b1": weights(8),
        "w2": weights(8, 8, 3, 3),
        "w3": weights(5, 16),
        "b3": weights(5),
    }
    return floats(nodes, constants, (1, 3, 12, 12), (1, 5), 13)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_static_quantisation_in_operator_format(tmp_path: Path, kind: QuantType, each: bool) -> None:
    rng = np.random.default_rng(0)
    onnx.save(network(rng), tmp_path / "float.onnx")
    quant_pre_process(tmp_path / "float.onnx", tmp_path / "inferred.onnx", skip_symbolic_shape=True)
    quantize_static(
        tmp_path / "inferred.onnx", tmp_path / "quantised.onnx", Calibration((1, 3, 12, 12)),
        quant_format=QuantFormat.QOperator, activation_type=kind, weight_type=QuantType.QInt8, per_channel=each,
    )  # fmt: skip
    model = onnx.load(tmp_path / "quantised.onnx")
    used = {node.op_type for node in model.graph.node}
    assert {"QLinearConv", "QLinearAdd", "QLinearMul", "QLinearConcat", "QGemm"} <= used
    graph = import_model(model)
    assert not on_host(graph), on_host(graph)
    feeds = {"x": rng.normal(0, 1, (1, 3, 12, 12)).astype(np.float32)}
    (expected,) = plain_session(model).run(None, feeds)
    assert np.abs(run_graph(graph, feeds)["y"] - expected).max() < 0.02
