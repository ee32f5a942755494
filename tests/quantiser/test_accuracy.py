"""Signal-to-noise ratios of layers, against a numpy calculation."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import float_nets

import weft
from weft.quantiser import accuracy, float_model
from weft.quantiser.accuracy import Accuracy, Layer


def quantise_by_hand(scales: tuple[float, float, float]) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return x -> Abs -> Neg -> y in float, and with a Q/DQ pair after x and each node, named as the quantiser does."""

    def model(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
        ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])] for name in "xy"]
        graph = helper.make_graph(
            nodes, "net", *ends, [numpy_helper.from_array(value, name) for name, value in constants.items()]
        )
        result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        return float_model.infer_types(result)

    def pair(value: str, out: str, scale: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("QuantizeLinear", [value, scale, "zero"], [f"{value}_q"], f"{value}_q"),
            helper.make_node("DequantizeLinear", [f"{value}_q", scale, "zero"], [out], f"{value}_dq"),
        ]

    node = helper.make_node
    plain = model([node("Abs", ["x"], ["a"], "abs"), node("Neg", ["a"], ["y"], "neg")], {})
    stored = {f"s{at}": np.float32(scale) for at, scale in enumerate(scales)} | {"zero": np.int8(0)}
    nodes = [
        *pair("x", "x_d", "s0"),
        node("Abs", ["x_d"], ["a"], "abs"),
        *pair("a", "a_d", "s1"),
        node("Neg", ["a_d"], ["y_QuantizeLinear_Input"], "neg"),
        *pair("y_QuantizeLinear_Input", "y", "s2"),
    ]
    return plain, model(nodes, {name: np.asarray(value) for name, value in stored.items()})


def round_to_step(values: np.ndarray, scale: float) -> np.ndarray:
    return np.clip(np.rint(values / np.float32(scale)), -128, 127) * np.float32(scale)


@pytest.mark.parametrize("scales", [(0.01, 0.1, 0.02), (0.5, 0.001, 0.5), (0.1, 0.1, 0.1)])
def test_ratios_of_layers_and_outputs(scales: tuple[float, float, float]) -> None:
    plain, result = quantise_by_hand(scales)
    samples = np.random.default_rng(0).normal(0, 1, (5, 1, 4)).astype(np.float32)
    actual = accuracy.measure(plain, result, ({"x": sample} for sample in samples))
    x = round_to_step(samples, scales[0])
    a = round_to_step(np.abs(x), scales[1])
    y = round_to_step(-a, scales[2])
    expected = {
        "abs": 10 * math.log10((samples**2).sum() / ((np.abs(samples) - a) ** 2).sum()),
        "neg": 10 * math.log10((samples**2).sum() / ((-np.abs(samples) - y) ** 2).sum()),
    }
    by_name = {layer.name: layer for layer in actual.layers}
    assert {name: layer.snr for name, layer in by_name.items()} == pytest.approx(expected, abs=1e-4)
    assert by_name["neg"].before == by_name["abs"].snr
    assert by_name["abs"].before == accuracy.LIMIT
    (output,) = actual.outputs
    assert output.snr == pytest.approx(expected["neg"], abs=1e-4)
    same = np.mean((-np.abs(samples)).argmax(2) == y.argmax(2))
    assert output.same == pytest.approx(same)
    assert actual.samples == 5


def test_decibels() -> None:
    assert accuracy.decibels(100, 1) == 20
    assert accuracy.decibels(1, 100) == -20
    assert accuracy.decibels(5, 0) == accuracy.decibels(0, 0) == accuracy.decibels(1e300, 1e-300) == 200
    assert accuracy.decibels(0, 1) == -200


def test_budget() -> None:
    layers = (Layer("c", "Conv", 10, 20), Layer("b", "Conv", 20, 40), Layer("a", "Conv", 40, 200))
    actual = Accuracy(layers, (), 1)
    assert [layer.name for layer in actual.below(30)] == ["c", "b"]
    assert [layer.name for layer in actual.causes(30)] == ["b"]
    assert [layer.name for layer in actual.below(20)] == ["c"]
    assert [layer.name for layer in actual.causes(20)] == ["c"]
    assert actual.below(10) == []


def test_layers_that_move_values_are_not_listed() -> None:
    model = float_nets.transformer()
    actual = weft.quantise(model, float_nets.samples(model)).accuracy
    operators = {layer.operator for layer in actual.layers}
    assert {"Gemm", "MatMul", "Softmax", "LayerNormalization", "Gelu", "Add"} <= operators
    assert not operators & {"Reshape", "Transpose", "QuantizeLinear", "DequantizeLinear"}
    # The node after a Reshape is compared at the Reshape's input.
    assert all(layer.before < accuracy.LIMIT for layer in actual.layers if layer.operator == "Softmax")
