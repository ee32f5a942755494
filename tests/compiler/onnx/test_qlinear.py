"""QLinearConv and QLinearMatMul as QDQ models: the integers of their definition, on the device."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import weft
from weft.compiler.errors import CompileError
from weft.compiler.ir.network import encode
from weft.compiler.onnx.qlinear import expand_qlinear
from weft.compiler.onnx.reader import network_of


def model(
    operator: str,
    x: tuple[int, ...],
    y: tuple[int, ...],
    constants: dict[str, np.ndarray],
    opset: int = 13,
    **attributes: object,
) -> onnx.ModelProto:
    """One node n whose inputs but x are constants, in the operator's order; types as the zero points'."""
    types = {"x": constants["xz"].dtype, "y": constants["yz"].dtype}
    x_info, y_info = (
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(types[name]), shape)
        for name, shape in (("x", x), ("y", y))
    )
    node = helper.make_node(operator, ["x", *constants], ["y"], name="n", **attributes)
    initialisers = [numpy_helper.from_array(values, name) for name, values in constants.items()]
    graph = helper.make_graph([node], "test", [x_info], [y_info], initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def draw(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def requantise(totals: np.ndarray, factors: list[Fraction], zero: int, dtype: type) -> np.ndarray:
    """Sums of shape (..., channels) times a factor for each channel, rounded half to even, exactly."""
    limits = np.iinfo(dtype)
    flat = [
        round(int(total) * factors[index % len(factors)]) + zero
        for index, total in enumerate(totals.reshape(-1))
    ]
    return np.clip(flat, limits.min, limits.max).astype(dtype).reshape(totals.shape)


def conv_constants(rng: np.random.Generator, dtype: type, channels: int) -> dict[str, np.ndarray]:
    scales = rng.uniform(0.001, 0.01, channels).astype(np.float32)
    return {
        "xs": np.float32(0.02), "xz": np.array(draw(rng, dtype, ())),
        "w": draw(rng, np.int8, (channels, 2, 3, 3)), "ws": scales, "wz": np.zeros(channels, np.int8),
        "ys": np.array(0.05, np.float32), "yz": np.array(draw(rng, dtype, ())),
        "b": rng.integers(-3000, 3000, channels).astype(np.int32),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("seed", range(3))
def test_conv(dtype: type, seed: int) -> None:
    rng = np.random.default_rng(seed)
    constants = {name: np.asarray(value) for name, value in conv_constants(rng, dtype, 5).items()}
    x = draw(rng, dtype, (1, 2, 6, 7))
    program = weft.compile(
        model("QLinearConv", x.shape, (1, 5, 3, 4), constants, pads=[1, 1, 1, 1], strides=[2, 2]), "tiny"
    )
    padded = np.pad(x.astype(np.int64) - int(constants["xz"]), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    totals = np.einsum("nchwyx,ocyx->nhwo", windows, constants["w"].astype(np.int64)) + constants["b"]
    factors = [
        Fraction(float(constants["xs"])) * Fraction(float(scale)) / Fraction(float(constants["ys"]))
        for scale in constants["ws"]
    ]
    expected = requantise(totals, factors, int(constants["yz"]), dtype).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(program.run({"x": x}).outputs["y"], expected)


@pytest.mark.parametrize(
    ("opset", "scale_type"), [(10, np.float32), (13, np.float32), (21, np.float32), (21, np.float16)]
)
def test_matmul(opset: int, scale_type: type) -> None:
    rng = np.random.default_rng(opset)
    constants = {
        "xs": np.array([0.01], scale_type), "xz": np.array([113], np.uint8),
        "w": draw(rng, np.uint8, (6, 5)), "ws": np.array([0.02], scale_type), "wz": np.array([114], np.uint8),
        "ys": np.array([0.3], scale_type), "yz": np.array([118], np.uint8),
    }  # fmt: skip
    x = draw(rng, np.uint8, (4, 6))
    actual = weft.compile(model("QLinearMatMul", (4, 6), (4, 5), constants, opset), "tiny").run({"x": x})
    totals = (x.astype(np.int64) - 113) @ (constants["w"].astype(np.int64) - 114)
    xs, ws, ys = (Fraction(float(constants[name][0])) for name in ("xs", "ws", "ys"))
    np.testing.assert_array_equal(actual.outputs["y"], requantise(totals, [xs * ws / ys], 118, np.uint8))


def constants_1x1() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: np.asarray(value) for name, value in conv_constants(rng, np.int8, 5).items()}


def test_report_keeps_the_nodes_name() -> None:
    rows = weft.check(model("QLinearConv", (1, 2, 3, 3), (1, 5, 1, 1), constants_1x1()))
    assert [row[:3] for row in rows if row[0] == "n"] == [("n", "Conv", "device")]
    assert {row[2] for row in rows} == {"device"}


def test_network_is_left_alone_and_names_stay_unique() -> None:
    proto = model("QLinearConv", (1, 2, 3, 3), (1, 5, 1, 1), constants_1x1())
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "y/float"))
    network = network_of(proto)
    before = encode(network)
    expanded = expand_qlinear(network)
    assert encode(network) == before
    result = [*(name for node in expanded.nodes for name in node.outputs), *expanded.constants]
    assert len(result) == len(set(result))
    assert [node.op for node in expanded.nodes] == [
        *["DequantizeLinear"] * 3,
        "Conv",
        "QuantizeLinear",
    ]


@pytest.mark.parametrize("shapes", [((), (5,)), ((5,), ()), ((1,), (1, 5)), ((1, 5), (5,)), ((1, 5), (1, 5))])
def test_scales_or_zero_points_of_columns(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """One may be for the whole matrix and the other for each column, as a list or as a row."""
    rng = np.random.default_rng(1)
    scale, zero = shapes
    constants = {
        "xs": np.float32(0.01), "xz": np.uint8(113),
        "w": draw(rng, np.uint8, (6, 5)),
        "ws": np.asarray(rng.uniform(0.005, 0.03, scale), np.float32), "wz": np.asarray(draw(rng, np.uint8, zero)),
        "ys": np.float32(0.3), "yz": np.uint8(118),
    }  # fmt: skip
    constants = {name: np.asarray(value) for name, value in constants.items()}
    x = draw(rng, np.uint8, (4, 6))
    proto = model("QLinearMatMul", (4, 6), (4, 5), constants)
    assert {row[2] for row in weft.check(proto)} == {"device"}
    totals = (x.astype(np.int64) - 113) @ (constants["w"].astype(np.int64) - constants["wz"])
    xs, ys = (Fraction(float(constants[name])) for name in ("xs", "ys"))
    factors = [xs * Fraction(float(scale)) / ys for scale in np.broadcast_to(constants["ws"].reshape(-1), 5)]
    outputs = weft.compile(proto, "tiny").run({"x": x}).outputs["y"]
    np.testing.assert_array_equal(outputs, requantise(totals, factors, 118, np.uint8))


def test_unsupported_shapes_are_refused() -> None:
    constants = constants_1x1() | {"xs": np.full((1, 1), 0.1, np.float32)}
    proto = model("QLinearConv", (1, 2, 3, 3), (1, 5, 1, 1), constants)
    proto.graph.node[0].name = ""
    with pytest.raises(CompileError) as caught:
        weft.compile(proto)
    assert (
        str(caught.value)
        == "node 'QLinearConv_0' (QLinearConv) has x_scale of shape 1x1; it must be one number"
    )


@pytest.mark.parametrize("what", ["scale is an input", "axis in opset 10", "weights are an input"])
def test_nodes_without_a_qdq_form_stay(what: str) -> None:
    constants = constants_1x1()
    proto = model(
        "QLinearConv", (1, 2, 3, 3), (1, 5, 1, 1), constants, 10 if what == "axis in opset 10" else 13
    )
    if what.endswith("an input"):
        name = "xs" if what.startswith("scale") else "w"
        (arguments,) = [tensor for tensor in proto.graph.initializer if tensor.name == name]
        proto.graph.initializer.remove(arguments)
        proto.graph.input.append(helper.make_tensor_value_info(name, arguments.data_type, arguments.dims))
    assert [node.op for node in expand_qlinear(network_of(proto)).nodes] == ["QLinearConv"]
    with pytest.raises(CompileError, match=r"^the model uses QLinearConv; weft reads the QDQ format"):
        weft.compile(proto)
