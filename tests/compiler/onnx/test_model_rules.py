"""Every rule broken in each way that it knows, with the whole message; ONNX Runtime refuses the same models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from weft.compiler.errors import CompileError
from weft.compiler.onnx import model_rules
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.model import load
from weft.compiler.onnx.model_rules import RULES
from weft.compiler.onnx.reader import read

FLOAT = np.float32


def model(
    op: str, *inputs: np.ndarray, opset: int = 21, outputs: int = 1, **attributes: Any
) -> onnx.ModelProto:
    """One node named "n" whose first operand is an input, the others constants."""
    names = [f"x{index}" for index in range(len(inputs))]
    node = helper.make_node(op, names, [f"y{index}" for index in range(outputs)], name="n", **attributes)
    arguments = [
        helper.make_tensor_value_info("x0", helper.np_dtype_to_tensor_dtype(inputs[0].dtype), inputs[0].shape)
    ]
    constants = [
        numpy_helper.from_array(value, name) for name, value in zip(names[1:], inputs[1:], strict=True)
    ]
    kind = (
        TensorProto.INT8
        if op == "QuantizeLinear"
        else TensorProto.UINT8
        if op.startswith("QLinear")
        else (TensorProto.INT32 if op.endswith("Integer") else TensorProto.FLOAT)
    )
    expected = [helper.make_tensor_value_info(name, kind, None) for name in node.output]
    graph = helper.make_graph([node], "g", arguments, expected, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def f(*shape: int) -> np.ndarray:
    return np.ones(shape, FLOAT)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


X = f(1, 4, 6, 6)
W = f(2, 4, 3, 3)
U = np.ones((1, 4, 6, 6), np.uint8)
NOT_VALID = "the model is not valid ONNX: "


def quantised_convolution(x_scale: np.ndarray, w_scale: np.ndarray) -> onnx.ModelProto:
    zero, weight = U[0, 0, 0, 0], W.astype(np.uint8)
    return model("QLinearConv", U, x_scale, zero, weight, w_scale, zero, f(1), zero)


CASES: dict[str, tuple[onnx.ModelProto, str]] = {
    "kernel that contradicts the weights": (
        model("Conv", X, W, kernel_shape=[2, 2]),
        "has kernel_shape [2, 2], but weights of shape 2x4x3x3",
    ),
    "kernel of one number": (
        model("MaxPool", X, kernel_shape=[2]),
        "",
    ),
    "kernel of zero": (model("MaxPool", X, kernel_shape=[0, 2]), ""),
    "stride of zero": (
        model("MaxPool", X, kernel_shape=[2, 2], strides=[1, 0]),
        "",
    ),
    "negative dilation": (model("Conv", X, W, dilations=[1, -1]), ""),
    "negative pad": (model("MaxPool", X, kernel_shape=[2, 2], pads=[0, 0, -1, 0]), ""),
    "pads of one side": (model("AveragePool", X, kernel_shape=[2, 2], pads=[1, 1]), ""),
    "unknown auto_pad": (
        model("Conv", X, W, auto_pad="SAME"),
        "has auto_pad 'SAME'; ONNX defines NOTSET, SAME_UPPER, SAME_LOWER, VALID",
    ),
    "auto_pad and pads": (
        model("Conv", X, W, auto_pad="SAME_UPPER", pads=[1, 1, 1, 1]),
        "has both auto_pad 'SAME_UPPER' and pads [1, 1, 1, 1]; ONNX allows one of them",
    ),
    "group of zero": (model("Conv", X, W, group=0), "has group 0; it must be at least 1"),
    "negative group": (model("Conv", X, W, group=-1), "has group -1; it must be at least 1"),
    "group that does not fit": (
        model("Conv", X, W, group=3),
        "has group 3 and weights of shape 2x4x3x3, but an input of 4 channels",
    ),
    "channels that do not match": (
        model("Conv", f(1, 5, 6, 6), W),
        "has group 1 and weights of shape 2x4x3x3, but an input of 5 channels",
    ),
    "outputs that group does not divide": (
        model("Conv", X, f(3, 2, 1, 1), group=2),
        "has group 2 and weights of shape 3x2x1x1, but an input of 4 channels",
    ),
    "channels of a transposed convolution": (
        model("ConvTranspose", X, f(3, 2, 1, 1)),
        "has group 1 and weights of shape 3x2x1x1, but an input of 4 channels",
    ),
    "weights of another rank": (model("Conv", X, f(2, 4, 3)), ""),
    "bias of another length": (
        model("Conv", X, W, f(3)),
        "has a bias of shape 3 for 2 output channels",
    ),
    "bias that is a matrix": (model("Conv", X, W, f(2, 1)), "has a bias of shape 2x1 for 2 output channels"),
    "kernel larger than the image": (
        model("Conv", X, f(2, 4, 8, 1), pads=[0, 0, 1, 0]),
        "has a kernel that covers 8 elements along axis 2, of 7 with padding",
    ),
    "dilated kernel larger than the image": (
        model("MaxPool", X, kernel_shape=[3, 3], dilations=[1, 3]),
        "has a kernel that covers 7 elements along axis 3, of 6 with padding",
    ),
    "pool of a matrix": (
        model("GlobalAveragePool", f(3, 4)),
        "has an input of shape 3x4, which is not an image",
    ),
    "zero point of another type": (
        model("DequantizeLinear", np.ones((1, 4), np.int8), np.float32(0.1), np.uint8(0)),
        "",
    ),
    "zero points of another number": (
        model("DequantizeLinear", np.ones((1, 4), np.int8), f(4), np.zeros(3, np.int8)),
        "has scales of shape 4, but zero points of shape 3; the shapes must be equal",
    ),
    "zero points of another shape": (
        model("DequantizeLinear", np.ones((1, 4), np.int8), f(4), np.zeros((1, 4), np.int8)),
        "has scales of shape 4, but zero points of shape 1x4; the shapes must be equal",
    ),
    "scales of another number": (
        model("DequantizeLinear", np.ones((1, 4), np.int8), f(3), np.zeros(3, np.int8)),
        "has scales of shape 3 for values of shape 1x4; it must be one number, or a list of 4, one for each element "
        "along axis 1",
    ),
    "one scale in a matrix": (
        model("QuantizeLinear", f(1, 4), f(1, 1), np.zeros((1, 1), np.int8), axis=0),
        "has scales of shape 1x1 for values of shape 1x4; it must be one number, or a list of 1, one for each element "
        "along axis 0",
    ),
    "one zero point in a matrix": (
        model("QuantizeLinear", f(1, 4), np.float32(1), np.zeros((1, 1), np.int8)),
        "has scales of shape (), but zero points of shape 1x1; the shapes must be equal",
    ),
    "zero points for one scale": (
        model("DequantizeLinear", np.ones((1, 4), np.int8), f(1), np.zeros(4, np.int8)),
        "has scales of shape 1, but zero points of shape 4; the shapes must be equal",
    ),
    "axis of scales": (
        model("QuantizeLinear", f(1, 4), f(4), np.zeros(4, np.int8), axis=2),
        "has axis 2, but its input has 2 dimensions",
    ),
    "blocks of another number": (
        model("DequantizeLinear", np.ones((4, 4), np.int8), f(4, 3), axis=1, block_size=2),
        "has block_size 2 and scales of shape 4x3 for values of shape 4x4",
    ),
    "blocks of less than nothing": (
        model("DequantizeLinear", np.ones((4, 4), np.int8), f(4, 2), axis=1, block_size=-2),
        "has block_size -2; it must be at least 0",
    ),
    "blocks with one scale": (
        model("DequantizeLinear", np.ones((4,), np.int8), f(1), axis=0, block_size=4),
        "has block_size 4, but only one scale: leave block_size out",
    ),
    "zero points of blocks": (
        model("DequantizeLinear", np.ones((4, 4), np.int8), f(4, 2), np.zeros(2, np.int8), block_size=2),
        "has scales of shape 4x2, but zero points of shape 2; the shapes must be equal",
    ),
    "zero points of a convolution of integers": (
        model("ConvInteger", U, U[:, :, :3, :3], np.uint8(0), np.zeros(1, np.uint8).repeat(4)),
        "has w_zero_point of shape 4; it must be one number",
    ),
    "zero points of a product of integers": (
        model("MatMulInteger", U, U, np.uint8(0), np.zeros((1, 1, 1, 6), np.uint8)),
        "has b_zero_point of shape 1x1x1x6 for weights of shape 1x4x6x6; it must be one number, or have the shape "
        "1x4x1x6",
    ),
    "zero points of rows": (
        model("MatMulInteger", U, U, np.zeros(6, np.uint8)),
        "has a_zero_point of shape 6; it must be one number",
    ),
    "scales of a quantised convolution's input": (
        quantised_convolution(f(4), f(1)),
        "has x_scale of shape 4; it must be one number",
    ),
    "scales of a quantised convolution's weights": (
        quantised_convolution(f(1), f(2, 1)),
        "has w_scale of shape 2x1 for weights of shape 2x4x3x3; it must be one number, or have the shape 2",
    ),
    "zero points of a quantised product": (
        model(
            "QLinearMatMul", U[0, 0], f(1), U[0, 0, 0, 0], U[0, 0], f(6), U[0, 0, :5, 0], f(1), U[0, 0, 0, 0]
        ),
        "has b_zero_point of shape 5 for weights of shape 6x6; it must be one number, or have the shape "
        "6 or 1x6",
    ),
    "perm that is too short": (
        model("Transpose", X, perm=[0, 1, 2]),
        "has perm [0, 1, 2] for an input of 4 dimensions",
    ),
    "perm that names an axis twice": (
        model("Transpose", X, perm=[0, 1, 1, 2]),
        "",
    ),
    "reshape to another size": (
        model("Reshape", f(2, 6), i(5, 3)),
        "reshapes 2x6 to 5x3, which has another number of elements",
    ),
    "axis of Flatten": (model("Flatten", X, axis=5), ""),
    "axis of Softmax": (model("Softmax", X, axis=4), ""),
    "axis of Concat": (model("Concat", X, f(1, 4, 6, 6), axis=4), ""),
    "parts of Concat": (
        model("Concat", X, f(1, 4, 6, 5), axis=1),
        "",
    ),
    "addend of Gemm": (
        model("Gemm", f(2, 3), f(3, 4), f(3)),
        "adds values of shape 3 to a product of 2x4",
    ),
    "rows of the addend of Gemm": (
        model("Gemm", f(2, 3), f(3, 4), f(3, 4)),
        "adds values of shape 3x4 to a product of 2x4",
    ),
    "an addend of Gemm of three dimensions": (
        model("Gemm", f(2, 3), f(3, 4), f(1, 2, 4)),
        "adds values of shape 1x2x4 to a product of 2x4",
    ),
    "parameters of BatchNormalization": (model("BatchNormalization", X, f(4), f(4), f(4), f(3)), ""),
    "bound that is a list": (
        model("Clip", X, f(4)),
        "has a bound of shape 4; it must be one number",
    ),
    "sizes that are a matrix": (
        model("Reshape", f(2, 6), np.array([[3, 4]], np.int64)),
        "has sizes of shape 1x2; they must be a list",
    ),
    "axes that are a matrix": (
        model("ReduceMean", X, np.array([[2, 3]], np.int64)),
        "has axes of shape 1x2; they must be a list",
    ),
}
"""Models that break a rule, and the message behind the node's name; "" where ONNX's own inference finds it first."""


EMPTY = ("dilated kernel larger than the image",)
"""Models with empty results in ONNX Runtime."""


def message(case: onnx.ModelProto) -> str:
    with pytest.raises(CompileError) as caught:
        resolve(read(case))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def onnxruntime_runs(case: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options, quiet = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    options.log_severity_level = quiet.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(case.SerializeToString(), options).run(None, feeds, quiet)


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    case, expected = CASES[name]
    actual = message(case)
    assert (
        actual == f"node 'n' ({case.graph.node[0].op_type}) {expected}"
        if expected
        else actual.startswith(NOT_VALID)
    )


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_refuses_it_too(name: str) -> None:
    case, _ = CASES[name]
    feeds = {"x0": np.ones([dim.dim_value for dim in case.graph.input[0].type.tensor_type.shape.dim])}
    feeds["x0"] = feeds["x0"].astype(
        helper.tensor_dtype_to_np_dtype(case.graph.input[0].type.tensor_type.elem_type)
    )
    if name in EMPTY:
        assert onnxruntime_runs(case, feeds)[0].size == 0
        return
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntime_runs(case, feeds)


def test_pools_that_start_differently() -> None:
    assert message(model("MaxPool", X, kernel_shape=[1, 1], strides=[3, 3], auto_pad="SAME_UPPER")) == (
        "node 'n' (MaxPool) has auto_pad with windows along axis 2 that skip elements (stride 3, kernel 1); "
        "runtimes start such windows at different elements: give pads instead"
    )


VALID = {
    "explicit kernel": model("Conv", X, W, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "groups": model("Conv", X, f(4, 2, 1, 1), f(4), group=2),
    "depthwise": model("Conv", X, f(8, 1, 3, 3), group=4),
    "transposed groups": model("ConvTranspose", X, f(4, 3, 2, 2), f(6), group=2, strides=[2, 2]),
    "valid with no pads": model("Conv", X, W, auto_pad="VALID", pads=[0, 0, 0, 0]),
    "padding that a pool starts in": model("MaxPool", f(1, 1, 4, 1), kernel_shape=[2, 1], pads=[0, 0, 0, 2]),
    "blocks": model("DequantizeLinear", np.ones((4, 5), np.int8), f(4, 3), axis=1, block_size=2),
    "one scale in a list": model("DequantizeLinear", np.ones((1, 4), np.int8), f(1), np.zeros(1, np.int8)),
    "a row to add": model("Gemm", f(2, 3), f(3, 4), f(1, 4)),
    "a column to add": model("Gemm", f(2, 3), f(3, 4), f(2, 1)),
    "a number to add": model("Gemm", f(2, 3), f(3, 4), np.float32(1)),
    "negative axis": model("Concat", X, f(1, 4, 6, 5), axis=-1),
    "last axis of Flatten": model("Flatten", X, axis=4),
}


@pytest.mark.parametrize("name", VALID)
def test_taken(name: str) -> None:
    assert "y0" in resolve(read(VALID[name])).shapes


@pytest.mark.parametrize("name", [name for name, (_, expected) in CASES.items() if expected])
def test_no_other_check_finds_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that ONNX's own checks make superfluous would be none."""
    monkeypatch.setattr(model_rules, "RULES", {})
    assert resolve(read(CASES[name][0])).network.nodes


def test_every_rule_is_broken_by_a_case() -> None:
    broken = {case.graph.node[0].op_type for case, expected in CASES.values() if expected}
    needed = {rule for rules in RULES.values() for rule in rules} - {model_rules.windows_agree}
    assert needed <= {rule for op in broken for rule in RULES[op]}


SHAPES: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (2,), (3,), (4,), (1, 1), (1, 3), (3, 1), (1, 4), (2, 3), (2, 1), (2, 2), (1, 1, 1), (2, 1, 3),
    (2, 1, 4), (1, 1, 3), (2, 2, 1), (3, 1, 1, 1), (1, 1, 1, 1),
)  # fmt: skip
"""Of scales and zero points."""


def drawn_shape(rng: np.random.Generator, *likely: tuple[int, ...]) -> tuple[int, ...]:
    """One of `likely` for two of three, else any."""
    if likely and rng.random() < 0.66:
        return likely[int(rng.integers(len(likely)))]
    return SHAPES[int(rng.integers(len(SHAPES)))]


def drawn_scales(rng: np.random.Generator) -> onnx.ModelProto:
    """QuantizeLinear or DequantizeLinear with scales and zero points of any shapes, axis and block_size."""
    op, opset = str(rng.choice(["QuantizeLinear", "DequantizeLinear"])), int(rng.choice([10, 13, 19, 21, 23]))
    shape = [(), (1,), (3,), (2, 3), (1, 3), (2, 3, 4)][int(rng.integers(6))]
    attributes = {}
    if opset > 10 and rng.integers(2):
        attributes["axis"] = int(rng.integers(-2, 3))
    if opset > 19 and rng.integers(2):
        attributes["block_size"] = int(rng.integers(0, 4))
    axis = attributes.get("axis", 1)
    likely = []
    if -len(shape) <= axis < len(shape):
        size = attributes.get("block_size", 0) or 1
        blocks = [-(-n // size) if at == axis % len(shape) else n for at, n in enumerate(shape)]
        likely = [shape[axis : axis + 1 or None], tuple(blocks)]
    scale = drawn_shape(rng, *likely)
    x = np.ones(shape, FLOAT if op == "QuantizeLinear" else np.int8)
    zero = [np.zeros(drawn_shape(rng, scale, scale, ()), np.int8)]
    return model(
        op, x, f(*scale), *zero[: int(op == "QuantizeLinear" or rng.integers(4))], opset=opset, **attributes
    )


def drawn_parameters(rng: np.random.Generator) -> onnx.ModelProto:
    """A quantised convolution or product, of one element type, one of whose scales and zero points have any shapes."""
    op = str(rng.choice(["QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"]))
    conv, quantised = "Conv" in op, op.startswith("Q")
    sizes = [((1, 2, 4, 4), (3, 2, 1, 1)), ((1, 2, 4, 4), (1, 2, 2, 2))] if conv else [
        ((2, 3), (3, 4)), ((2, 3), (3, 3)), ((2, 2, 3), (2, 3, 4)), ((2, 2, 3), (3, 4)), ((3,), (3, 2)), ((2, 3), (3,)),
    ]  # fmt: skip
    remaining, right = sizes[int(rng.integers(len(sizes)))]
    x, w = np.ones(remaining, np.uint8), np.ones(right, np.uint8)
    shapes: list[tuple[int, ...]] = [(1,) if rng.integers(2) else () for _ in range(6 if quantised else 2)]
    columns = (*right[:-2], 1, right[-1])
    at = int(rng.integers(len(shapes)))
    shapes[at] = drawn_shape(rng, right[:1], right[-1:], columns)
    if quantised and at in (2, 3) and rng.integers(2):
        shapes[5 - at] = drawn_shape(rng, right[:1], right[-1:], columns)
    if not quantised:
        return model(
            op, x, w, *(np.zeros(shape, np.uint8) for shape in shapes), opset=int(rng.choice([10, 13, 21]))
        )
    xs, xz, ws, wz, ys, yz = (
        np.full(shape, 1 - at % 2, (FLOAT, np.uint8)[at % 2]) for at, shape in enumerate(shapes)
    )
    return model(op, x, xs, xz, w, ws, wz, ys, yz, opset=int(rng.choice([10, 13, 21])))


def with_pair(case: onnx.ModelProto) -> onnx.ModelProto:
    """The model, in which something is quantised for certain."""
    both = onnx.ModelProto()
    both.CopyFrom(case)
    both.graph.node.append(helper.make_node("DequantizeLinear", ["other", "other scale"], ["other y"]))
    both.graph.input.append(helper.make_tensor_value_info("other", TensorProto.INT8, (1,)))
    both.graph.initializer.append(numpy_helper.from_array(np.float32(1), "other scale"))
    both.graph.output.append(helper.make_tensor_value_info("other y", TensorProto.FLOAT, (1,)))
    return both


def agrees(case: onnx.ModelProto) -> bool:
    """Return whether weft accepts a model, and check that ONNX Runtime decides equally."""
    case = with_pair(case)
    feeds = {}
    for item in case.graph.input:
        tensor = item.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        feeds[item.name] = np.ones(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    runs = text = ""
    try:
        onnxruntime_runs(case, feeds)
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
        runs = str(error)
    try:
        load(case)
    except CompileError as error:
        text = str(error)
    assert bool(runs) == bool(text), f"{helper.printable_node(case.graph.node[0])}: {text or runs}"
    return not text


def check_drawn(draw: Callable[[np.random.Generator], onnx.ModelProto], seeds: range) -> None:
    """Enough of both kinds."""
    taken = sum(agrees(draw(np.random.default_rng(seed))) for seed in seeds)
    assert len(seeds) / 8 < taken < len(seeds) * 7 / 8


@pytest.mark.parametrize("draw", [drawn_scales, drawn_parameters])
def test_shapes_of_scales(draw: Callable[[np.random.Generator], onnx.ModelProto]) -> None:
    check_drawn(draw, range(500))


@pytest.mark.long
@pytest.mark.parametrize("draw", [drawn_scales, drawn_parameters])
def test_shapes_of_scales_more(draw: Callable[[np.random.Generator], onnx.ModelProto]) -> None:
    check_drawn(draw, range(500, 20500))
