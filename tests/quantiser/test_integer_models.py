"""Models with integer weights as float models: results equal ONNX Runtime's on the integers; refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType
from support import float_nets, integer_nets
from typer.testing import CliRunner

import weft
from weft.cli.main import app
from weft.compiler.errors import CompileError
from weft.compiler.onnx.reader import read_proto
from weft.quantiser import integer_models

FLOATS = {"MatMul", "Conv", "Add", "Gather", "Mul", "Identity", "Reshape", "Relu", "Tanh", "Softmax"}


def exact_inputs(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Integers from 0 to 255, both included: DynamicQuantizeLinear gets scale 1 and zero point 0."""
    values = rng.integers(0, 256, shape).astype(np.float32)
    values.reshape(-1)[0], values.reshape(-1)[-1] = 255, 0
    return values


def check_same(given: onnx.ModelProto, x: np.ndarray, count: int = 1) -> onnx.ModelProto:
    """Compare the float model with ONNX Runtime on the integers, and check that weights are remembered."""
    before = given.SerializeToString(deterministic=True)
    floats, remembered = integer_models.to_floats(read_proto(given))
    assert given.SerializeToString(deterministic=True) == before
    assert {node.op_type for node in floats.graph.node} <= FLOATS
    assert len(remembered) == count
    onnx.checker.check_model(floats)
    expected, got = integer_nets.run(given, x=x), integer_nets.run(floats, x=x)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6 * float(np.abs(expected).max()))
    actual = {tensor.name: numpy_helper.to_array(tensor) for tensor in floats.graph.initializer}
    assert sum(remembered.find(array) is not None for array in actual.values()) == count
    return floats


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(10))
def test_dynamic_quantisation_of_products(seed: int) -> None:
    """ONNX Runtime quantises, with and without bias, symmetric or not, by tensor or channel."""
    rng = np.random.default_rng(seed)
    rows, inner, outputs = (int(size) for size in rng.integers(1, 40, 3))
    net = float_nets.FloatNet(seed)
    y = net.add("MatMul", "x", net.weight(inner, outputs, scale=0.3))
    if rng.integers(2):
        y = net.add("Add", y, net.weight(outputs, scale=1))
    source = net.model({"x": (rows, inner)}, y, (rows, outputs), opset=int(rng.integers(13, 22)))
    result = integer_nets.dynamic(
        source,
        weight_type=(QuantType.QInt8, QuantType.QUInt8)[seed % 2],
        per_channel=bool(rng.integers(2)),
        reduce_range=bool(rng.integers(2)),
        extra_options={"WeightSymmetric": bool(rng.integers(2))},
    )
    assert any(node.op_type == "MatMulInteger" for node in result.graph.node)
    check_same(result, exact_inputs(rng, rows, inner))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", range(4))
def test_dynamic_quantisation_of_convolutions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    net = float_nets.FloatNet(seed)
    bias = [net.weight(6, scale=1)] if seed % 2 else []
    y = net.add("Conv", "x", net.weight(6, 2, 3, 3), *bias, group=2, strides=[2, 1], pads=[1, 0, 1, 2])
    source = net.model({"x": (1, 4, 9, 8)}, y, (1, 6, 5, 8), opset=13 + 3 * (seed % 3))
    result = integer_nets.dynamic(source, weight_type=QuantType.QUInt8, op_types_to_quantize=["Conv"])
    assert any(node.op_type == "ConvInteger" for node in result.graph.node)
    check_same(result, exact_inputs(rng, 1, 4, 9, 8))


def test_dynamic_quantisation_of_everything_else() -> None:
    """Two products with a shared input, a product with transposed weights, and rows of a table."""
    net = float_nets.FloatNet(7)
    rng = np.random.default_rng(7)
    first = net.add("Gemm", "x", net.weight(5, 12), net.weight(5, scale=1), transB=1)
    second = net.add("MatMul", "x", net.weight(12, 5))
    rows = net.add("Gather", net.weight(9, 5), net.constant(np.array([3, 0, 8, 3], np.int64)))
    y = net.add("Add", net.add("Add", first, second), rows)
    result = integer_nets.dynamic(net.model({"x": (4, 12)}, y, (4, 5)), weight_type=QuantType.QInt8)
    operators = [node.op_type for node in result.graph.node]
    assert (operators.count("MatMulInteger"), operators.count("DequantizeLinear")) == (2, 1)
    check_same(result, exact_inputs(rng, 4, 12), 3)


def test_products_of_two_activations() -> None:
    """Neither operand is a weight: both quantisation steps are dropped."""
    names = ["_q", "_s", "_z"]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", [name], [f"{name}{end}" for end in names])
        for name in ("x", "t")
    ]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        *nodes,
        helper.make_node("MatMulInteger", ["x_q", "t_q", "x_z", "t_z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x_s", "t_s"], ["s"]),
        helper.make_node("Mul", ["s", "half"], ["h"]),
        helper.make_node("Mul", ["h", "f"], ["y"]),
    ]
    source = integer_nets.model(nodes, {"x": (3, 5)}, {"half": np.float32(0.5)})
    floats, remembered = integer_models.to_floats(read_proto(source))
    assert [node.op_type for node in floats.graph.node] == ["Transpose", "MatMul", "Mul"]
    assert not len(remembered)
    x = exact_inputs(np.random.default_rng(0), 3, 5)
    np.testing.assert_allclose(integer_nets.run(floats, x=x), integer_nets.run(source, x=x), rtol=1e-6)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(8))
def test_fused_products(seed: int) -> None:
    """DynamicQuantizeMatMul and MatMulIntegerToFloat, as ONNX Runtime's optimiser writes them."""
    rng = np.random.default_rng(seed)
    inner, outputs, each = int(rng.integers(1, 30)), int(rng.integers(1, 20)), bool(seed & 1)
    low, high, dtype = [(-128, 128, np.int8), (0, 256, np.uint8)][(seed >> 1) & 1]
    shape = (outputs,) if each else ()
    constants: dict[str, Any] = {
        "w": rng.integers(low, high, (inner, outputs)).astype(dtype),
        "s": rng.uniform(0.01, 0.2, shape).astype(np.float32),
        "z": rng.integers(low, high, shape).astype(dtype),
        "b": rng.normal(0, 9, outputs).astype(np.float32),
    }
    bias = "b" if rng.integers(2) else ""
    if seed & 4:
        nodes = [helper.make_node("DynamicQuantizeMatMul", ["x", "w", "s", "z", bias], ["y"], "product")]
    else:
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["x_q", "x_s", "x_z"]),
            helper.make_node(
                "MatMulIntegerToFloat", ["x_q", "w", "x_s", "s", "x_z", "z", bias], ["y"], "product"
            ),
        ]
    nodes[-1].domain = "com.microsoft"
    result = check_same(integer_nets.model(nodes, {"x": (3, inner)}, constants), exact_inputs(rng, 3, inner))
    assert result.graph.node[0].name == "product"


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(8))
def test_packed_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inner, outputs = (int(size) for size in rng.integers(1, 100, 2))
    block, zeros = int(rng.choice([16, 32, 64, 128, 256])), ("none", "packed", "float")[seed % 3]
    settings = {"accuracy_level": 1} if seed % 2 else {}
    source = integer_nets.packed_product(rng, inner, outputs, block, 4, zeros, bool(seed & 2), **settings)
    result = check_same(source, rng.normal(0, 1, (3, inner)).astype(np.float32))
    assert [node.op_type for node in result.graph.node] == ["MatMul", "Add"][: 1 + bool(seed & 2)]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["int4", "uint8"])
def test_blocks(axis: int, kind: str) -> None:
    rng = np.random.default_rng(axis)
    shape = (37, 11) if axis == 0 else (11, 37)
    source = integer_nets.blocked_product(rng, shape, axis, 16, kind, bool(axis))
    floats, remembered = integer_models.to_floats(read_proto(source))
    x = rng.normal(0, 1, (3, 37)).astype(np.float32)
    np.testing.assert_allclose(
        integer_nets.run(floats, x=x), integer_nets.run(source, x=x), rtol=1e-5, atol=1e-5
    )
    assert len(remembered) == 1
    assert "DequantizeLinear" not in {node.op_type for node in floats.graph.node}


def test_external_data(tmp_path: Path) -> None:
    """Weights in a file of their own, as large models have them."""
    rng = np.random.default_rng(0)
    source = integer_nets.packed_product(np.random.default_rng(0), 64, 40, 32)
    path = tmp_path / "model.onnx"
    onnx.save_model(
        integer_nets.packed_product(np.random.default_rng(0), 64, 40, 32),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    floats, _ = integer_models.to_floats(read_proto(path))
    x = rng.normal(0, 1, (3, 64)).astype(np.float32)
    np.testing.assert_allclose(
        integer_nets.run(floats, x=x), integer_nets.run(source, x=x), rtol=1e-5, atol=1e-5
    )
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(CompileError, match=r"^cannot read"):
        weft.quantise(path, np.ones((2, 3, 64), np.float32))


def test_float_and_static_models_stay() -> None:
    model = float_nets.perceptron()
    for given in (model, weft.quantise(model, float_nets.samples(model)).model):
        floats, remembered = integer_models.to_floats(given)
        assert floats is given
        assert not len(remembered)


def chain() -> onnx.ModelProto:
    """Return a dynamically quantised product."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["x_q", "x_s", "x_z"], "ranges"),
        helper.make_node("MatMulInteger", ["x_q", "w", "x_z", "z"], ["i"], "product"),
        helper.make_node("Cast", ["i"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x_s", "s"], ["scale"], "scales"),
        helper.make_node("Mul", ["f", "scale"], ["y"], "scaled"),
    ]
    constants = {"w": np.ones((4, 3), np.int8), "z": np.int8(1), "s": np.float32(0.5)}
    return integer_nets.model(nodes, {"x": (2, 4)}, constants)


def change_nodes(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    model = chain()
    change(model)
    return model


def constant(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    tensor = next(item for item in model.graph.initializer if item.name == name)
    tensor.CopyFrom(numpy_helper.from_array(value, name))


def change_packed(change: Callable[[onnx.NodeProto], object], **constants: np.ndarray) -> onnx.ModelProto:
    model = integer_nets.packed_product(np.random.default_rng(0), 40, 3, 16, zeros="packed")
    change(model.graph.node[0])
    for name, value in constants.items():
        known = {item.name for item in model.graph.initializer}
        if name in known:
            constant(model, name, value)
        else:
            model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def scale_by_input(model: onnx.ModelProto) -> None:
    """Make the scale of the weights a computed value."""
    model.graph.node.insert(0, helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0))
    model.graph.node[4].input[1] = "m"


def attribute(node: onnx.NodeProto, name: str, value: int) -> None:
    next(item for item in node.attribute if item.name == name).i = value


STRANGE = (
    "has a form that weft does not read: a product of integers must follow DynamicQuantizeLinear, have constant "
    "weights, scales and zero points, and be multiplied by the scales of both sides"
)
REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "no scale": (
        lambda: change_nodes(lambda model: model.graph.node[4].input.__setitem__(1, "s")),
        f"node 'ranges' (DynamicQuantizeLinear) {STRANGE}",
    ),
    "computed scale": (
        lambda: change_nodes(scale_by_input),
        f"node 'ranges' (DynamicQuantizeLinear) {STRANGE}",
    ),
    "no zero point": (
        lambda: change_nodes(lambda model: model.graph.node[1].input.__setitem__(2, "")),
        f"node 'ranges' (DynamicQuantizeLinear) {STRANGE}",
    ),
    "scale": (
        lambda: change_nodes(lambda model: constant(model, "s", np.array(np.inf, np.float32))),
        "node 'product' (MatMulInteger) has scale inf; scales of weights must be finite numbers",
    ),
    "factors for rows": (
        lambda: change_nodes(lambda model: constant(model, "s", np.ones((2, 1), np.float32))),
        f"node 'ranges' (DynamicQuantizeLinear) {STRANGE}",
    ),
    "zero points": (
        lambda: change_nodes(lambda model: constant(model, "z", np.zeros(2, np.int8))),
        "node 'product' (MatMulInteger) has b_zero_point of shape 2 for weights of shape 4x3; it must be one number, "
        "or have the shape 3 or 1x3",
    ),
    "order": (
        lambda: change_packed(lambda node: node.input.append("g"), g=np.zeros(40, np.int32)),
        "node 'product' (MatMulNBits) reorders its blocks with g_idx, which weft does not read: quantise the model "
        "without it",
    ),
    "weights that are an input": (
        lambda: change_packed(lambda node: node.input.__setitem__(1, "x")),
        "node 'product' (MatMulNBits) has weights that are not constant ('x')",
    ),
    "bits": (
        lambda: change_packed(lambda node: attribute(node, "bits", 5)),
        "node 'product' (MatMulNBits) has weights of 5 bits; weft reads 2, 4 and 8",
    ),
    "packed scales": (
        lambda: change_packed(lambda node: None, scales=np.ones(7, np.float32)),
        "node 'product' (MatMulNBits) has 7 scales for 9 blocks of 16",
    ),
    "half precision": (
        lambda: change_packed(lambda node: None, scales=np.ones(9, np.float16)),
        "node 'product' (MatMulNBits) has scales of float16; weft reads float32: export the model in float32",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_models_are_refused(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(CompileError) as caught:
        weft.quantise(build(), np.ones((2, 2, 4), np.float32))
    assert str(caught.value) == message


def test_mismatched_blocks_are_refused() -> None:
    model = integer_nets.blocked_product(np.random.default_rng(0), (37, 11), 0, 16, "int4", zeros=False)
    constant(model, "s", np.ones((2, 11), np.float32))
    with pytest.raises(CompileError) as caught:
        weft.quantise(model, np.ones((2, 3, 37), np.float32))
    assert str(caught.value) == (
        "node 'weights' (DequantizeLinear) has block_size 16 and scales of shape 2x11 for values of shape 37x11"
    )


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (chain, "the model is dynamically quantised (with DynamicQuantizeLinear): `weft quantise MODEL.onnx --data"),
        (
            lambda: integer_nets.packed_product(np.random.default_rng(0), 32, 3, 16),
            "the model has quantised weights only (with MatMulNBits): `weft quantise MODEL.onnx --data",
        ),
    ],
)  # fmt: skip
def test_compile_points_to_the_quantiser(build: Callable[[], onnx.ModelProto], text: str) -> None:
    for action in (weft.check, weft.compile):
        with pytest.raises(CompileError) as caught:
            action(build())
        assert str(caught.value).startswith(text)


def test_commands_warn_of_weight_only_quantisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host runs a model with blocks of DequantizeLinear: a warning, no error."""
    monkeypatch.chdir(tmp_path)
    model = integer_nets.blocked_product(np.random.default_rng(0), (32, 3), 0, 16, "int4", zeros=True)
    onnx.save(model, "blocks.onnx")
    for arguments in (["check"], ["compile", "-o", "program"]):
        result = CliRunner().invoke(app, [*arguments, "blocks.onnx"])
        assert result.exit_code == 0
        message = " ".join(result.stderr.split())
        assert "warning: the model has quantised weights only: `weft quantise MODEL.onnx" in message


@pytest.mark.parametrize("per_channel", [False, True])
def test_attention_of_integers(per_channel: bool) -> None:
    """QAttention, with the weights of three products."""
    rng = np.random.default_rng(0)
    shape = (24,) if per_channel else ()
    constants: dict[str, Any] = {
        "w": rng.integers(-128, 128, (10, 24)).astype(np.int8),
        "s": rng.uniform(1e-4, 2e-4, shape).astype(np.float32),
        "z": np.zeros(shape, np.int8),
        "b": rng.normal(0, 1, 24).astype(np.float32),
    }
    names = ["x_q", "w", "b", "x_s", "s", "", "x_z", "z"]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["x_q", "x_s", "x_z"]),
        helper.make_node("QAttention", names, ["y"], "attention", domain="com.microsoft", num_heads=2),
    ]
    source = integer_nets.model(nodes, {"x": (1, 6, 10)}, constants, 20)
    source.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "width"
    x = exact_inputs(rng, 1, 6, 10)
    quantised = weft.quantise(source, np.stack([x, x]))
    assert [item.kept for item in quantised.weights] == [True] * 3
    expected, got = integer_nets.run(source, x=x), weft.compile(quantised.model).run({"x": x}).outputs["y"]
    np.testing.assert_allclose(got, expected, atol=0.03 * np.abs(expected).max())
