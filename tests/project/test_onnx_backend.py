"""weft through the onnx package's backend interface, and the exact 8-bit forms it makes of single operators."""

from __future__ import annotations

import re
import unittest

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import onnx_backend
from support.onnx_backend import Levels, NotExact, Unsupported, levels, wrap

import weft
from weft.examples import digits


def model(*nodes: onnx.NodeProto, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """A float model: the values of `shapes` but y are inputs, y is the output."""
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()
    }
    inputs = [value for name, value in values.items() if name != "y"]
    graph = helper.make_graph(list(nodes), "test", inputs, [values["y"]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def relu() -> onnx.ModelProto:
    return model(helper.make_node("Relu", ["x"], ["y"], name="r"), x=(1, 4), y=(1, 4))


def test_quantised_model_gives_what_the_api_gives() -> None:
    image = digits.held_out()[0][:1]
    proto = onnx.load_from_string(digits.model())
    expected = weft.compile(proto, "small").run({"image": image}).outputs["logits"]
    rep = onnx_backend.prepare(proto, device="golden")
    for inputs in ([image], {"image": image}, image):
        (found,) = rep.run(inputs)
        np.testing.assert_array_equal(found, expected)
    assert rep.compiled is not None
    assert {row[2] for row in rep.compiled.assignment} == {"device", "host"}


def test_float_operator_with_integers_runs_on_the_device() -> None:
    rep = onnx_backend.prepare(relu())
    (found,) = rep.run([np.array([[-3, 0, 5, 127]], np.float32)])
    assert (found.dtype, found.tolist()) == (np.float32, [[0, 0, 5, 127]])
    assert rep.compiled is not None
    assert [row[2] for row in rep.compiled.assignment if row[0] == "r"] == ["device"]
    assert rep.compiled.scales == {"x": 1.0, "y": 1.0}


def test_run_model() -> None:
    (found,) = onnx_backend.run_model(relu(), [np.array([[-1, 2, 250, 100]], np.float32)], config="tiny")
    assert found.tolist() == [[0, 2, 250, 100]]


def test_devices() -> None:
    assert [name for name in ("golden", "rtl", "CPU", "CUDA") if onnx_backend.supports_device(name)] == [
        "golden",
        "rtl",
        "CPU",
    ]
    with pytest.raises(Unsupported, match="unknown device 'CUDA'; choose 'golden', 'rtl', 'CPU'"):
        onnx_backend.prepare(relu(), "CUDA")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            [np.array([[0.1, 1, 2, 3]], np.float32)],
            "input 'x' holds values that are not 8-bit integers times one scale",
        ),
        (
            [np.array([[np.nan, 1, 2, 3]], np.float32)],
            "input 'x' holds values that are not 8-bit integers times",
        ),
        ([np.zeros((1, 4))], "input 'x' is float64, not 8-bit integers or float32"),
        ([[1.0, 2.0]], "input 'x' is not a tensor but list"),
        ([np.zeros(1), np.zeros(1)], "2 inputs were given; the model reads 1"),
    ],
)
def test_refused_inputs(inputs: list[object], message: str) -> None:
    with pytest.raises(Unsupported, match="^" + re.escape(message)) as error:
        onnx_backend.prepare(relu()).run(inputs)
    assert not isinstance(error.value, unittest.SkipTest)


def test_test_runners_skip_what_is_refused() -> None:
    backend = onnx_backend.TestedBackend
    with pytest.raises(unittest.SkipTest, match="unknown device 'CUDA'"):
        backend.prepare(relu(), "CUDA")
    with pytest.raises(unittest.SkipTest, match="8-bit integers"):
        backend.prepare(relu(), "CPU").run([np.array([[0.1, 1, 2, 3]], np.float32)])


def test_float_model_of_several_nodes_is_refused() -> None:
    proto = model(
        helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"]), x=(1, 4), y=(1, 4)
    )
    with pytest.raises(Unsupported, match=r"^the model is not quantised"):
        onnx_backend.prepare(proto)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-128, 0, 127], Levels(1.0, 0, np.dtype(np.int8))),
        ([0, 255], Levels(1.0, 0, np.dtype(np.uint8))),
        ([-200, 55], Levels(1.0, 200, np.dtype(np.uint8))),
        ([12, 279], Levels(3.0, 0, np.dtype(np.int8))),
        ([1.5, -0.75], Levels(0.75, 0, np.dtype(np.int8))),
        ([0, 0], Levels(1.0, 0, np.dtype(np.int8))),
        ([], Levels(1.0, 0, np.dtype(np.int8))),
        ([-200, 57], None),
        ([1, 256.5], None),
        ([1 / 3], None),
        ([1e30], None),
        ([np.inf], None),
    ],
)
def test_levels(values: list[float], expected: Levels | None) -> None:
    array = np.array(values, np.float32)
    found = levels(array)
    assert found == expected
    if found is not None:
        back = (found.of(array).astype(np.float32) - np.float32(found.zero)) * np.float32(found.scale)
        np.testing.assert_array_equal(back, array)


def test_inexact_quantised_forms_are_refused() -> None:
    """Div truncates on integers; its quantised form rounds."""
    proto = model(helper.make_node("Div", ["x", "b"], ["y"]), x=(1, 2), b=(1, 2), y=(1, 2))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT8
    inputs = {"x": np.array([[7, 9]], np.int8), "b": np.array([[4, 3]], np.int8)}
    with pytest.raises(
        NotExact, match=r"^between QuantizeLinear and DequantizeLinear Div gives other values$"
    ):
        wrap(proto, inputs)
