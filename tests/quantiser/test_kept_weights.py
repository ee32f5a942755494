"""Quantised models reuse the file's integers: bit for bit where int8 holds them, with a note where it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType
from support import encoder_models, float_nets, integer_nets
from typer.testing import CliRunner

import weft
from weft.cli.main import app
from weft.quantiser.quantise import Quantised


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def weights_of(made: onnx.ModelProto, operators: tuple[str, ...] = ("MatMul", "Gemm", "Conv")) -> list[Any]:
    """Return (integers less zero points, scales, axis, node name) of each constant second operand."""
    arrays, makers = constants(made), {name: node for node in made.graph.node for name in node.output}
    result = []
    for node in made.graph.node:
        link = makers.get(node.input[1]) if node.op_type in operators else None
        if link is not None and link.op_type == "DequantizeLinear" and link.input[0] in arrays:
            values, scale, zero = (arrays[name] for name in link.input)
            assert not zero.any()
            result.append((values, scale, 0 if node.op_type == "Conv" else 1, node.name))
    return result


def check_device(made: Quantised, samples: dict[str, np.ndarray], near: float = 1.5) -> None:
    """Compare the device with ONNX Runtime on the quantised model, up to few roundings."""
    program = weft.compile(made.model, "small")
    (name,) = program.outputs
    for index in range(2):
        run = {key: value[index] for key, value in samples.items()}
        expected = integer_nets.run(made.model, **run)
        got = program.run(run).outputs[name]
        step = np.abs(expected).max() / 127
        assert np.abs(got - expected).max() <= near * step


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(8))
def test_symmetric_integers_are_kept(seed: int) -> None:
    """Includes -128, zero columns, and columns with a small range, which rounding again would change."""
    rng = np.random.default_rng(seed)
    inner, outputs, each = int(rng.integers(2, 40)), int(rng.integers(2, 40)), bool(seed % 2)
    unsigned = bool(seed & 2)
    w = rng.integers(-128, 128, (inner, outputs))
    w[:, 0] = rng.integers(-3, 4, inner)
    w[:, -1] = 0
    w[0, 1:-1] = -128
    scale = rng.uniform(0.01, 0.2, outputs if each else ()).astype(np.float32)
    zero = np.full(scale.shape, 128 if unsigned else 0, np.uint8 if unsigned else np.int8)
    arguments = {"w": (w + 128 * unsigned).astype(zero.dtype), "s": scale, "z": zero}
    names = ["x", "w", "s", "z"]
    if seed & 4:
        arguments["b"] = rng.normal(0, 5, outputs).astype(np.float32)
        names.append("b")
    node = helper.make_node("DynamicQuantizeMatMul", names, ["y"], "product", domain="com.microsoft")
    model = integer_nets.model([node], {"x": (3, inner)}, arguments)
    samples = {"x": rng.normal(0, 1, (4, 3, inner)).astype(np.float32)}
    quantised = weft.quantise(model, samples)
    ((values, scales, axis, _),) = weights_of(quantised.model)
    assert axis == 1
    np.testing.assert_array_equal(values, w)
    np.testing.assert_array_equal(scales[:-1], np.broadcast_to(scale, outputs)[:-1])
    (item,) = quantised.weights
    assert (item.kept, item.snr, item.kind) == (True, 200.0, "uint8" if unsigned else "int8")
    check_device(quantised, samples)
    (output,) = quantised.accuracy.outputs
    assert output.snr > 35


def test_biases_have_the_scales_of_kept_weights() -> None:
    rng = np.random.default_rng(3)
    net = float_nets.FloatNet(3)
    bias = net.weight(8, scale=1)
    y = net.add("Gemm", "x", net.weight(8, 12), bias, transB=1)
    source = integer_nets.dynamic(net.model({"x": (2, 12)}, y, (2, 8)), weight_type=QuantType.QInt8)
    quantised = weft.quantise(source, rng.normal(0, 1, (4, 2, 12)).astype(np.float32)).model
    arrays, makers = (
        constants(quantised),
        {name: node for node in quantised.graph.node for name in node.output},
    )
    (product,) = (node for node in quantised.graph.node if node.op_type == "Gemm")
    x, w, b = (makers[name] for name in product.input)
    np.testing.assert_array_equal(arrays[w.input[1]], np.full(8, arrays[w.input[1]][0]))
    np.testing.assert_allclose(arrays[b.input[1]], arrays[x.input[1]] * arrays[w.input[1]], rtol=1e-6)
    floats = numpy_helper.to_array(next(item for item in net.weights if item.name == bias))
    np.testing.assert_allclose(arrays[b.input[0]] * arrays[b.input[1]], floats, atol=arrays[b.input[1]].max())


def test_biases_beyond_32_bits_change_the_scale() -> None:
    """32 bits do not hold them: their channels get another scale and other integers."""
    rng = np.random.default_rng(0)
    scale = np.full(4, 0.05, np.float32)
    scale[2] = 1e-12
    inputs = {"w": rng.integers(-100, 100, (8, 4)).astype(np.int8), "s": scale, "z": np.zeros(4, np.int8)}
    inputs["b"] = np.array([1, 2, 30, 4], np.float32)
    node = helper.make_node(
        "DynamicQuantizeMatMul", ["x", "w", "s", "z", "b"], ["y"], "product", domain="com.microsoft"
    )
    model = integer_nets.model([node], {"x": (3, 8)}, inputs)
    samples = rng.normal(0, 1, (4, 3, 8)).astype(np.float32)
    quantised = weft.quantise(model, samples)
    ((values, _, _, _),) = weights_of(quantised.model)
    np.testing.assert_array_equal(values[:, [0, 1, 3]], inputs["w"][:, [0, 1, 3]])
    assert quantised.accuracy.outputs[0].snr > 35
    check_device(quantised, {"x": samples})


@pytest.mark.parametrize(("low", "kept"), [(-128, True), (-129, False)])
def test_zero_points_of_weights(low: int, kept: bool) -> None:
    """Integers less a zero point have 9 bits: those that fit int8 are kept, others are rounded again."""
    rng = np.random.default_rng(1)
    w = rng.integers(max(low, -128), 128 + min(0, low + 128), (20, 6))
    w[0] = low
    zero = np.int16(-low - 128 + 128)
    arguments = {"w": (w + zero).astype(np.uint8), "s": np.float32(0.02), "z": np.uint8(zero)}
    node = helper.make_node(
        "DynamicQuantizeMatMul", ["x", "w", "s", "z"], ["y"], "product", domain="com.microsoft"
    )
    model = integer_nets.model([node], {"x": (3, 20)}, arguments)
    samples = {"x": rng.normal(0, 1, (4, 3, 20)).astype(np.float32)}
    quantised = weft.quantise(model, samples)
    (item,) = quantised.weights
    assert item.kept == kept
    ((values, scales, _, _),) = weights_of(quantised.model)
    if kept:
        np.testing.assert_array_equal(values, w)
    else:
        assert 40 < item.snr < 80
        np.testing.assert_allclose(values * scales, w * np.float32(0.02), atol=0.011)
    check_device(quantised, samples)


@pytest.mark.parametrize("zeros", ["none", "packed"])
@pytest.mark.parametrize("inner", [24, 32, 33])
def test_packed_weights_of_one_block(inner: int, zeros: str) -> None:
    """Each channel has one scale: 5 bits at most with zero points, 4 without."""
    rng = np.random.default_rng(inner)
    model = integer_nets.packed_product(rng, inner, 640, 32, zeros=zeros)
    scales = next(tensor for tensor in model.graph.initializer if tensor.name == "scales")
    if inner == 32:
        scales.CopyFrom(numpy_helper.from_array(np.abs(numpy_helper.to_array(scales)), "scales"))
    samples = {"x": rng.normal(0, 1, (4, 3, inner)).astype(np.float32)}
    quantised = weft.quantise(model, samples)
    (item,) = quantised.weights
    assert (item.kind, item.kept) == ("uint4 in blocks of 32", inner <= 32)
    ((values, steps, _, _),) = weights_of(quantised.model)
    if inner <= 32:
        assert np.abs(values).max() <= (8 if zeros == "none" else 15)
        program = weft.compile(quantised.model, "small")
        # A negative scale turns -8 into 8, which 4 bits do not hold.
        assert (program.narrow_bytes > 0) == (zeros == "none" and inner == 32)
        array = constants(model)
        offsets = 8 if zeros == "none" else (array["zeros"] & 15)[:, 0]
        numbers = np.stack([array["w"] & 15, array["w"] >> 4], -1).reshape(640, -1)[:, :inner]
        signs = np.sign(array["scales"])
        np.testing.assert_array_equal(values, (numbers.T.astype(int) - offsets) * signs)
        np.testing.assert_array_equal(steps, np.abs(array["scales"]))
    else:
        assert item.snr > 30
    check_device(quantised, samples)


@pytest.mark.parametrize("block", [16, 32, 128])
def test_blocks_are_rounded_again(block: int) -> None:
    rng = np.random.default_rng(block)
    model = integer_nets.packed_product(rng, 256, 48, block, bias=True)
    samples = {"x": rng.normal(0, 1, (4, 3, 256)).astype(np.float32)}
    quantised = weft.quantise(model, samples)
    (item,) = quantised.weights
    assert (item.kind, item.kept) == (f"uint4 in blocks of {block}", False)
    assert 25 < item.snr < 60
    assert quantised.accuracy.outputs[0].snr > 25
    check_device(quantised, samples)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_block_by_dequantize_linear(axis: int) -> None:
    """ONNX Runtime writes 4-bit channels as one block of the matrix's length, transposed or not."""
    rng = np.random.default_rng(axis)
    shape = (40, 30) if axis == 0 else (30, 40)
    model = integer_nets.blocked_product(rng, shape, axis, 40, "int4", zeros=False)
    quantised = weft.quantise(model, rng.normal(0, 1, (4, 3, 40)).astype(np.float32))
    ((values, _, _, _),) = weights_of(quantised.model)
    expected = constants(model)["w"].astype(np.int8)
    np.testing.assert_array_equal(values, expected if axis == 0 else expected.T)
    assert [item.kept for item in quantised.weights] == [True]


def test_convolutions_keep_integers() -> None:
    net = float_nets.FloatNet(1)
    y = net.add("Relu", net.add("Conv", "x", net.weight(6, 4, 3, 3), net.weight(6, scale=1), pads=[1] * 4))
    y = net.add("Conv", y, net.weight(5, 6, 1, 1))
    source = integer_nets.dynamic(
        net.model({"x": (1, 4, 8, 8)}, y, (1, 5, 8, 8)),
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["Conv"],
    )
    samples = {"x": np.random.default_rng(0).normal(0, 1, (4, 1, 4, 8, 8)).astype(np.float32)}
    quantised = weft.quantise(source, samples)
    assert [item.kept for item in quantised.weights] == [True, True]
    expected = [value for name, value in constants(source).items() if name.endswith("_quantized")]
    for (values, _, _, _), integers in zip(weights_of(quantised.model), expected, strict=True):
        np.testing.assert_array_equal(values, integers)
    check_device(quantised, samples)


@pytest.mark.parametrize(("opset", "per_channel"), [(13, True), (17, False)])
def test_dynamically_quantised_encoders(opset: int, per_channel: bool) -> None:
    """An encoder from `quantize_dynamic` gets fixed ranges for the device."""
    shape = encoder_models.Shape(opset=opset, mask="none", tokens=12)
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape, 6)
    dynamic = integer_nets.dynamic(model, weight_type=QuantType.QInt8, per_channel=per_channel)
    quantised = weft.quantise(dynamic, samples)
    assert len(quantised.weights) == 6 * shape.layers + 2
    assert all(item.kept for item in quantised.weights)
    before, after = constants(dynamic), weights_of(quantised.model)
    expected = [value for name, value in before.items() if value.dtype == np.int8 and value.ndim == 2]
    for values, _, _, name in after:
        assert any(np.array_equal(values, integers) for integers in expected), name
    assert {node[2] for node in weft.check(quantised.model) if node[1] != "Dequantise"} == {"device"}
    program = weft.compile(quantised.model)
    for index in range(2):
        run = {name: value[index] for name, value in samples.items()}
        got = program.run(run).outputs["y"].ravel()
        for reference in (model, dynamic):
            floats = integer_nets.run(reference, **run).ravel()
            assert got @ floats / np.linalg.norm(got) / np.linalg.norm(floats) > 0.995


def test_quantise_reports_kept_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("data.npy", rng.normal(0, 1, (4, 3, 64)).astype(np.float32))
    for block, text in (
        (64, "all 1 integer constants keep their values in the file"),
        (
            32,
            "0 of 1 integer constants keep their values in the file; the other 1 do not fit int8 with one scale per",
        ),
    ):
        onnx.save(integer_nets.packed_product(rng, 64, 10, block), "packed.onnx")
        command = ["quantise", "packed.onnx", "--data", "data.npy", "-o", "int8.onnx", "--report", "r.json"]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert text in " ".join(result.output.split())
        (item,) = json.loads(Path("r.json").read_text())["weights"]
        assert item["type"] == f"uint4 in blocks of {block}"
        assert item["kept"] == (block == 64)
