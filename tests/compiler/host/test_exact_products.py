"""Products of integers of all signs on ONNX Runtime: numpy's results on every processor."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from weft.compiler.host.evaluate import exact_products

BYTES = (np.uint8, np.int8)
QUIET = 4
OPSETS = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]


class Case:
    """Node with its inputs: `given` are the graph's, the others constants."""

    def __init__(self, operator: str, given: dict[str, np.ndarray], domain: str = "") -> None:
        self.operator, self.domain, self.given = operator, domain, given
        self.names: list[str] = []
        self.constants: list[TensorProto] = []

    def add(self, name: str, value: Any, *, constant: bool = True) -> None:
        self.names.append(name)
        if constant:
            self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        else:
            self.given[name] = np.asarray(value)

    def model(self, element: int, shape: tuple[int, ...]) -> onnx.ModelProto:
        node = helper.make_node(self.operator, self.names, ["y"], domain=self.domain)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in self.given.items()
        ]
        output = helper.make_tensor_value_info("y", element, shape)
        graph = helper.make_graph([node], "g", inputs, [output], self.constants)
        return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = QUIET
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, feeds)[0])


def draw_bytes(rng: np.random.Generator, kind: type, shape: tuple[int, ...], *, large: bool) -> np.ndarray:
    """Draw any bytes, or only the largest."""
    ends = np.iinfo(kind)
    if large:
        return rng.choice(np.array([ends.max, ends.max - 1, ends.min], kind), shape)
    return rng.integers(ends.min, ends.max + 1, shape).astype(kind)


PRODUCTS = [
    (operator, a, b, constant)
    for operator in ("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv")
    for a, b, constant in itertools.product(BYTES, BYTES, (False, True))
    if not (
        operator.startswith("QLinear") and (a, b) == (np.int8, np.uint8)
    )  # ONNX Runtime lacks these types
]


@pytest.mark.parametrize(
    ("operator", "a", "b", "constant"),
    PRODUCTS,
    ids=[f"{op}-{a.__name__}-{b.__name__}-{'constant' if c else 'given'}" for op, a, b, c in PRODUCTS],
)
def test_products(operator: str, a: type, b: type, constant: bool) -> None:
    """Draw with and without zero points, any bytes and the largest."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        large = seed % 2 == 0
        conv = operator.endswith(("Conv", "ConvInteger"))
        x = draw_bytes(rng, a, (1, 32, 1, 5) if conv else (5, 32), large=large)
        w = draw_bytes(rng, b, (8, 32, 1, 1) if conv else (32, 8), large=large)
        linear = operator.startswith("QLinear")
        zeros = (a(rng.integers(0, 100)), b(rng.integers(0, 100))) if linear or seed > 3 else (a(0), b(0))
        remaining, right = x.astype(np.int64) - int(zeros[0]), w.astype(np.int64) - int(zeros[1])
        expected = (right[:, :, 0, 0] @ remaining[0, :, 0])[None, :, None, :] if conv else remaining @ right
        case = Case(operator, {})
        scale = np.float32(2.0 ** np.ceil(np.log2(max(int(np.abs(expected).max()), 1) / 100)))
        case.add("x", x, constant=False)
        if linear:
            for name, value in (("xs", np.float32(1)), ("xz", zeros[0])):
                case.add(name, value)
            case.add("w", w, constant=constant)
            for name, value in (("ws", np.float32(1)), ("wz", zeros[1]), ("ys", scale), ("yz", a(0))):
                case.add(name, value)
            expected = np.clip(np.rint(expected / scale), np.iinfo(a).min, np.iinfo(a).max)
        else:
            case.add("w", w, constant=constant)
            if seed > 3:
                case.add("xz", zeros[0])
                case.add("wz", zeros[1])
        element = helper.np_dtype_to_tensor_dtype(np.dtype(a)) if linear else TensorProto.INT32
        model = case.model(element, expected.shape)
        exact = exact_products(model)
        onnx.checker.check_model(exact)
        assert (exact is model) == (a == b)
        assert np.array_equal(run(exact, case.given), expected)


@pytest.mark.parametrize("operator", ["MatMulIntegerToFloat", "QGemm", "DynamicQuantizeMatMul"])
def test_fused_products(operator: str) -> None:
    """ONNX Runtime's own operators, with numbers large enough to saturate 16 bits."""
    rng = np.random.default_rng(3)
    x, w = draw_bytes(rng, np.uint8, (4, 64), large=True), draw_bytes(rng, np.int8, (64, 8), large=True)
    expected = x.astype(np.int64) @ w.astype(np.int64)
    case = Case(operator, {}, "com.microsoft")
    one = np.float32(1)
    if operator == "DynamicQuantizeMatMul":  # whose quantisation is that of bytes
        floats = x.astype(np.float32)
        floats[0, :2] = 0, 255
        expected = floats.astype(np.int64) @ w.astype(np.int64)
        case.add("x", floats, constant=False)
        case.add("w", w)
        case.add("ws", one)
    elif operator == "QGemm":
        for name, value in (
            ("x", x),
            ("xs", one),
            ("xz", np.uint8(0)),
            ("w", w),
            ("ws", one),
            ("wz", np.int8(0)),
        ):
            case.add(name, value, constant=name != "x")
    else:
        for name, value in (("x", x), ("w", w), ("xs", one), ("ws", one)):
            case.add(name, value, constant=name != "x")
    assert np.array_equal(
        run(exact_products(case.model(TensorProto.FLOAT, expected.shape)), case.given), expected
    )


def test_a_constant_that_others_read_stays() -> None:
    """Two products and a sum read it; one unsigned copy is made."""
    w = np.full((4, 4), 127, np.int8)
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["p"]),
        helper.make_node("MatMulInteger", ["x", "w"], ["q"]),
        helper.make_node("Cast", ["w"], ["r"], to=TensorProto.INT32),
        helper.make_node("Add", ["p", "q"], ["pq"]),
        helper.make_node("Add", ["pq", "r"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, (4, 4))],
        [helper.make_tensor_value_info("y", TensorProto.INT32, (4, 4))], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=8)
    exact, x = exact_products(model), np.full((4, 4), 255, np.uint8)
    assert [node.op_type for node in exact.graph.node] == [node.op_type for node in nodes]
    assert len([tensor for tensor in exact.graph.initializer if tensor.dims == [4, 4]]) == 2
    assert (run(exact, {"x": x}) == 2 * 255 * 127 * 4 + 127).all()
    assert model.graph.node[0].input[1] == "w"  # the model is unchanged


def test_bodies_of_control_flow() -> None:
    """A branch multiplies a value of the surrounding graph."""
    inside = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["p"])], "then", [],
        [helper.make_tensor_value_info("p", TensorProto.INT32, (1, 8))],
    )  # fmt: skip
    node = helper.make_node("If", ["yes"], ["y"], then_branch=inside, else_branch=inside)
    arguments = [
        helper.make_tensor_value_info(name, element, shape)
        for name, element, shape in (
            ("yes", TensorProto.BOOL, ()), ("x", TensorProto.UINT8, (1, 64)), ("w", TensorProto.INT8, (64, 8)),
        )
    ]  # fmt: skip
    output = helper.make_tensor_value_info("y", TensorProto.INT32, (1, 8))
    graph = helper.make_graph([node], "g", arguments, [output])
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=8)
    feeds = {
        "yes": np.array(True),
        "x": np.full((1, 64), 255, np.uint8),
        "w": np.full((64, 8), -128, np.int8),
    }
    assert (run(exact_products(model), feeds) == -255 * 128 * 64).all()
