"""Every rule broken in each way that it knows, with the whole message; ONNX Runtime refuses the same models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from weft.compiler import model_rules
from weft.compiler.folding import resolve
from weft.compiler.ir import CompileError
from weft.compiler.model_rules import RULES

FLOAT = np.float32


def model(
    op: str, *inputs: np.ndarray, opset: int = 21, outputs: int = 1, **attributes: Any
) -> onnx.ModelProto:
    """One node named "n" whose first operand is an input, the others constants."""
    names = [f"x{index}" for index in range(len(inputs))]
    node = helper.make_node(op, names, [f"y{index}" for index in range(outputs)], name="n", **attributes)
    given = [
        helper.make_tensor_value_info("x0", helper.np_dtype_to_tensor_dtype(inputs[0].dtype), inputs[0].shape)
    ]
    constants = [
        numpy_helper.from_array(value, name) for name, value in zip(names[1:], inputs[1:], strict=True)
    ]
    kind = {"QuantizeLinear": TensorProto.INT8}.get(op, TensorProto.FLOAT)
    wanted = [helper.make_tensor_value_info(name, kind, None) for name in node.output]
    graph = helper.make_graph([node], "g", given, wanted, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def f(*shape: int) -> np.ndarray:
    return np.ones(shape, FLOAT)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


X = f(1, 4, 6, 6)
W = f(2, 4, 3, 3)
NOT_VALID = "the model is not valid ONNX: "

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
    "pool of a matrix": (model("GlobalAveragePool", f(3, 4)), "has an input of shape 3x4, which is no image"),
    "zero point of another type": (
        model("DequantizeLinear", np.ones((1, 4), np.int8), np.float32(0.1), np.uint8(0)),
        "",
    ),
    "zero points of another number": (
        model("DequantizeLinear", np.ones((1, 4), np.int8), f(4), np.zeros(3, np.int8)),
        "has 4 scales but 3 zero points",
    ),
    "zero points of another shape": (
        model("DequantizeLinear", np.ones((1, 4), np.int8), f(4), np.zeros((1, 4), np.int8)),
        "has 4 scales but 4 zero points, of shapes 4 and 1x4",
    ),
    "scales of another number": (
        model("DequantizeLinear", np.ones((1, 4), np.int8), f(3), np.zeros(3, np.int8)),
        "has 3 per-channel scales, but dimension 1 of its input (1, 4) is 4",
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
        "makes 5x3 of 2x6, which has another number of elements",
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
"""What gives nothing in ONNX Runtime."""


def message(case: onnx.ModelProto) -> str:
    with pytest.raises(CompileError) as caught:
        resolve(case)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    case, wanted = CASES[name]
    found = message(case)
    assert (
        found == f"node 'n' ({case.graph.node[0].op_type}) {wanted}"
        if wanted
        else found.startswith(NOT_VALID)
    )


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_refuses_it_too(name: str) -> None:
    case, _ = CASES[name]
    feeds = {"x0": np.ones([dim.dim_value for dim in case.graph.input[0].type.tensor_type.shape.dim])}
    feeds["x0"] = feeds["x0"].astype(
        helper.tensor_dtype_to_np_dtype(case.graph.input[0].type.tensor_type.elem_type)
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 4

    def run() -> list[np.ndarray]:
        session = onnxruntime.InferenceSession(case.SerializeToString(), options)
        return session.run(None, feeds, quiet)

    if name in EMPTY:
        assert run()[0].size == 0
        return
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run()


def test_pools_that_are_counted_differently() -> None:
    """ONNX's inference counts a window that starts behind the input; runtimes do not."""
    assert message(model("MaxPool", X, kernel_shape=[1, 1], strides=[4, 4], ceil_mode=1, opset=12)) == (
        "node 'n' (MaxPool) has 3 windows along axis 2 by ONNX's shape inference, of which 2 start in the input; "
        "runtimes leave out the others: change ceil_mode or pads"
    )


def test_pools_that_start_differently() -> None:
    assert message(model("MaxPool", X, kernel_shape=[1, 1], strides=[3, 3], auto_pad="SAME_UPPER")) == (
        "node 'n' (MaxPool) has auto_pad with windows along axis 2 that leave elements out (stride 3, kernel 1), where "
        "runtimes start at different ones: give pads instead"
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
    "a number to add": model("Gemm", f(2, 3), f(3, 4), np.float32(1)),
    "negative axis": model("Concat", X, f(1, 4, 6, 5), axis=-1),
    "last axis of Flatten": model("Flatten", X, axis=4),
}


@pytest.mark.parametrize("name", VALID)
def test_taken(name: str) -> None:
    assert "y0" in resolve(VALID[name]).shapes


@pytest.mark.parametrize("name", [name for name, (_, wanted) in CASES.items() if wanted])
def test_no_other_check_finds_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that ONNX's own checks make superfluous would be none."""
    monkeypatch.setattr(model_rules, "RULES", {})
    assert resolve(CASES[name][0]).kept


def test_every_rule_is_broken_by_a_case() -> None:
    broken = {case.graph.node[0].op_type for case, wanted in CASES.values() if wanted}
    needed = {rule for rules in RULES.values() for rule in rules} - {model_rules.windows_agree}
    assert needed <= {rule for op in broken for rule in RULES[op]}
