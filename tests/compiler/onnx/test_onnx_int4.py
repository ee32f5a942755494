"""Weights of the types INT4 and UINT4: models against the same in 8 bits, byte for byte, and against ONNX Runtime."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.compiler.errors import CompileError

WEIGHTS = {"Gemm": (12, 20), "MatMul": (20, 12), "Conv": (12, 5, 3, 3)}
CHANNELS = {"Gemm": 0, "MatMul": 1, "Conv": 0}
INPUTS = {"Gemm": (4, 20), "MatMul": (4, 20), "Conv": (1, 5, 8, 8)}
OUTPUTS = {"Gemm": (4, 12), "MatMul": (4, 12), "Conv": (1, 12, 6, 6)}
TYPES = {TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15)}


def model(
    op: str, kind: int, zero: int, *, channels: bool = False, wide: bool = False, block: int = 0
) -> onnx.ModelProto:
    """One operator between Q/DQ pairs; with `wide` the same weights in 8 bits, with `block` scales by blocks."""
    rng, shape, axis = np.random.default_rng(kind), WEIGHTS[op], CHANNELS[op]
    low, high = TYPES[kind]
    weight = rng.integers(low, high + 1, shape)
    scale = rng.uniform(0.01, 0.05, shape[axis] if channels else ()).astype(np.float32)
    if block:
        axis = 0
        scale = rng.uniform(0.01, 0.05, (shape[0] // block, *shape[1:])).astype(np.float32)
    if wide:
        kind = TensorProto.INT8 if low < 0 else TensorProto.UINT8
    constants = [
        helper.make_tensor("weight", kind, shape, weight.ravel().tolist()),
        numpy_helper.from_array(np.asarray(scale), "scale"),
        helper.make_tensor("zero", kind, scale.shape, [zero] * scale.size),
        numpy_helper.from_array(np.float32(0.0503), "x_scale"),
        numpy_helper.from_array(np.int8(3), "x_zero"),
    ]
    arguments = ({"axis": axis} if channels or block else {}) | ({"block_size": block} if block else {})
    quant = ["x_scale", "x_zero"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *quant], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", *quant], ["xd"]),
        helper.make_node("DequantizeLinear", ["weight", "scale", "zero"], ["weights"], **arguments),
        helper.make_node(
            op, ["xd", "weights"], ["r"], name="node", **({"transB": 1} if op == "Gemm" else {})
        ),
        helper.make_node("QuantizeLinear", ["r", *quant], ["rq"]),
        helper.make_node("DequantizeLinear", ["rq", *quant], ["y"]),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[op])]
        for name, shapes in (("x", INPUTS), ("y", OUTPUTS))
    ]
    graph = helper.make_graph(nodes, "graph", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def narrow(program: weft.Program) -> int:
    """Bytes of weights in 4 bits."""
    return sum(getattr(segment, "narrow_bytes", 0) for segment in program.segments)


CASES = [
    *itertools.product(WEIGHTS, [TensorProto.INT4], [0], [False, True]),
    *itertools.product(WEIGHTS, [TensorProto.UINT4], [8], [False, True]),
    *itertools.product(["Gemm", "Conv"], [TensorProto.UINT4, TensorProto.INT4], [3], [False, True]),
]


@pytest.mark.parametrize(("op", "kind", "zero", "channels"), CASES)
def test_is_the_model_in_8_bits(op: str, kind: int, zero: int, channels: bool) -> None:
    x = {"x": np.random.default_rng(5).normal(0, 2, INPUTS[op]).astype(np.float32)}
    four, eight = (model(op, kind, zero, channels=channels, wide=wide) for wide in (False, True))
    programs = [weft.compile(item, "small") for item in (four, eight)]
    assert not any(place == "host" for name, _, place, _ in programs[0].assignment if name == "node")
    outputs, expected = (program.run(x).outputs["y"] for program in programs)
    assert outputs.tobytes() == expected.tobytes()
    assert narrow(programs[0]) == narrow(programs[1])
    assert (narrow(programs[0]) > 0) is (zero in (0, 8))
    session = onnxruntime.InferenceSession(four.SerializeToString(), providers=["CPUExecutionProvider"])
    apart = np.abs(session.run(None, x)[0] - outputs) / 0.0503
    assert apart.max() < 1.01
    assert (apart > 0.5).mean() < 0.02  # where a sum lies in the middle, float32 rounds either way


def test_scales_by_blocks_stay_on_the_host() -> None:
    program = weft.compile(model("MatMul", TensorProto.INT4, 0, block=5), "small")
    reasons = {name: reason for name, _, _, reason in program.assignment}
    assert reasons["node"] == (
        "Weights must be constants quantised to 4 or 8 bits, without block-wise scales (input "
        "'weight' has a scale for every 5 values)"
    )


def test_activations_of_4_bits_stay_on_the_host() -> None:
    given = model("Gemm", TensorProto.INT4, 0)
    for constant in given.graph.initializer:
        if constant.name == "x_zero":
            constant.CopyFrom(helper.make_tensor("x_zero", TensorProto.INT4, (), [3]))
    program = weft.compile(given, "small")
    assert all(place == "host" for _, _, place, _ in program.assignment)


@pytest.mark.parametrize(("size", "message"), [
    (117, r"the model is not valid ONNX: .*raw_data size \(117 bytes\) is too small"),
    (123, r"^initialiser 'weight' cannot be read: 240 values of 4 bits take 120 bytes, not 123$"),
    (240, r"^initialiser 'weight' cannot be read: 240 values of 4 bits take 120 bytes, not 240$"),
])  # fmt: skip
def test_packed_values_of_a_wrong_length(size: int, message: str) -> None:
    given = model("Gemm", TensorProto.INT4, 0)
    weight = given.graph.initializer[0]
    weight.ClearField("int32_data")
    weight.raw_data = bytes(size)
    with pytest.raises(CompileError, match=message):
        weft.compile(given, "small")


def test_an_odd_number_of_values() -> None:
    """The last nibble of a byte is no value."""
    given = model("Gemm", TensorProto.INT4, 0)
    values = np.arange(-8, 7).astype(ml_dtypes.int4)
    weight = given.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(values.reshape(1, 15), "weight"))
    for value, columns in ((given.graph.input[0], 15), (given.graph.output[0], 1)):
        value.type.tensor_type.shape.dim[1].dim_value = columns
    x = {"x": np.random.default_rng(7).normal(0, 2, (4, 15)).astype(np.float32)}
    program = weft.compile(given, "small")
    expected = onnxruntime.InferenceSession(given.SerializeToString()).run(None, x)[0]
    assert np.abs(program.run(x).outputs["y"] - expected).max() < 0.0503 * 1.01
    assert narrow(program) > 0
