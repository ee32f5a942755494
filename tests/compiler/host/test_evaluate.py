"""The host's evaluator against ONNX Runtime on random operators, with ONNX Runtime and without it."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import host_cases
from support.ort_sessions import plain_session

from weft.compiler.errors import CompileError, EvaluationError
from weft.compiler.host import evaluate
from weft.compiler.host.evaluate import Evaluator
from weft.compiler.host.reference import is_wrong
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.reader import network_of
from weft.hdl.cache import cache_root

DRAWS = 30


@pytest.fixture
def hide_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide ONNX Runtime."""
    monkeypatch.setattr(evaluate, "runtime", lambda: None)


def crops(model: onnx.ModelProto, size: tuple[int, ...]) -> bool:
    """Return whether ONNX Runtime crops: it pads SAME_* by less than 0 where windows do not reach the end."""
    (node,) = model.graph.node
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if not given.get("auto_pad", b"").startswith(b"SAME") or node.op_type not in (
        "Conv",
        "ConvInteger",
        "QLinearConv",
    ):
        return False
    ones = [1] * len(size)
    windows = zip(
        size, given["kernel_shape"], given.get("strides", ones), given.get("dilations", ones), strict=True
    )
    return any((-(-n // stride) - 1) * stride + (k - 1) * step + 1 < n for n, k, stride, step in windows)


def oracle(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    if crops(model, feeds["x0"].shape[2:] if "x0" in feeds else ()):
        return None
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 4
    try:
        return plain_session(model).run(None, feeds, quiet)
    except Exception:  # it lacks some types, and the newest versions of some operators
        return None


def compare(kind: str, draws: int) -> collections.Counter[str]:
    """Count right results and refusals ("-" in front) by operator."""
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(draws):
        model, feeds = host_cases.case(np.random.default_rng(seed), kind)
        op = model.graph.node[0].op_type
        try:
            shapes = resolve(network_of(model)).shapes
        except CompileError:  # windows that ONNX and runtimes start differently, or empty windows
            continue
        expected = oracle(model, feeds)
        try:
            outputs = Evaluator(network_of(model)).run(feeds)
        except EvaluationError:
            counts[f"-{op}"] += 1
            continue
        if expected is None:
            continue
        for index, (mine, theirs) in enumerate(zip(outputs, expected, strict=True)):
            assert mine.shape == theirs.shape, (kind, seed)
            assert shapes.get(f"y{index}", theirs.shape) == theirs.shape, (kind, seed)
            if theirs.dtype.kind == "f":
                np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-4, err_msg=f"{kind} {seed}")
            else:
                np.testing.assert_array_equal(mine, theirs, err_msg=f"{kind} {seed}")
        counts[op] += 1
    return counts


@pytest.mark.drawn(5)
@pytest.mark.parametrize("kind", host_cases.KINDS)
def test_agrees_with_onnxruntime(kind: str) -> None:
    counts = compare(kind, DRAWS)
    assert sum(count for op, count in counts.items() if op[0] != "-") > DRAWS / 2


@pytest.mark.usefixtures("hide_onnxruntime")
@pytest.mark.parametrize("kind", host_cases.KINDS)
def test_agrees_or_refuses_without_onnxruntime(kind: str) -> None:
    counts = compare(kind, DRAWS)
    assert sum(counts.values()) > DRAWS / 2
    if kind not in ("sampling", "resize", "convolution", "recurrent"):
        right = sum(count for op, count in counts.items() if op[0] != "-")
        assert right > DRAWS / 2


@pytest.mark.long
@pytest.mark.parametrize("kind", host_cases.KINDS)
def test_agrees_with_onnxruntime_for_long(kind: str) -> None:
    compare(kind, 1000)


@pytest.mark.long
@pytest.mark.usefixtures("hide_onnxruntime")
@pytest.mark.parametrize("kind", host_cases.KINDS)
def test_agrees_or_refuses_without_onnxruntime_for_long(kind: str) -> None:
    compare(kind, 1000)


def one(
    op: str, x: np.ndarray, *more: np.ndarray, opset: int = 21, outputs: int = 1, **attributes: object
) -> list:
    constants = [[value] for value in more]
    model, feeds = host_cases.build(op, [x, *constants], dict(attributes), outputs, opset)
    assert model is not None
    return Evaluator(network_of(model)).run(feeds)


@pytest.mark.usefixtures("hide_onnxruntime")
def test_pool_of_unsigned_bytes_with_pads_below() -> None:
    x = np.array([[[[7], [9], [4]]]], np.uint8)
    (y,) = one("MaxPool", x, kernel_shape=[2, 1], pads=[0, 0, 1, 0])
    assert y.reshape(-1).tolist() == [9, 9, 4]


@pytest.mark.usefixtures("hide_onnxruntime")
def test_average_with_ceil_mode_and_pads() -> None:
    x = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)
    kinds = {"kernel_shape": [3], "strides": [2], "pads": [0, 1], "ceil_mode": 1}
    (left_out,) = one("AveragePool", x, **kinds)
    (counted,) = one("AveragePool", x, count_include_pad=1, **kinds)
    assert left_out.reshape(-1).tolist() == [2, 4, 5]
    assert counted.reshape(-1).tolist() == [2, 4, 2.5]


@pytest.mark.usefixtures("hide_onnxruntime")
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_softmax_over_all_axes_from_one_on(op: str, axis: int | None) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    attributes = host_cases.set_attributes(axis=axis)
    model, feeds = host_cases.build(op, [x], attributes, 1, 12)
    assert model is not None
    expected = oracle(model, feeds)
    assert expected is not None
    np.testing.assert_allclose(Evaluator(network_of(model)).run(feeds)[0], expected[0], rtol=1e-5)


@pytest.mark.usefixtures("hide_onnxruntime")
@pytest.mark.parametrize(
    ("opset", "each"), [(10, False), *((opset, each) for opset in (13, 19, 21) for each in (False, True))]
)
def test_quantised_numbers_of_any_size_saturate(opset: int, each: bool) -> None:
    x = np.array([[np.inf, -np.inf], [3e38, -3e38], [1.0, -1.0]], np.float32)
    scale, zero = (np.array([0.5, 1e-6]), np.array([7, -7])) if each else (np.array(0.5), np.array(7))
    parameters = [[scale.astype(np.float32)], [zero.astype(np.int8)]]
    model, feeds = host_cases.build("QuantizeLinear", [x, *parameters], {"axis": 1} if each else {}, 1, opset)
    assert model is not None
    (y,) = Evaluator(network_of(model)).run(feeds)
    assert y.tolist() == [[127, -128], [127, -128], [9, -128 if each else 5]]


def test_operators_follow_the_text_of_onnx() -> None:
    """Follow ONNX's text: empty axes, the last element and negative padding mean what they say."""
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    assert one("Squeeze", x, np.array([], np.int64))[0].shape == x.shape
    backwards = (np.array([value], np.int64) for value in (3, np.iinfo(np.int64).max, 2, -1))
    assert one("Slice", x, *backwards)[0].size == 0
    weight = np.ones((1, 1, 1), np.float32)
    for auto in ("SAME_UPPER", "SAME_LOWER"):
        (y,) = one("Conv", x, weight, strides=[4], auto_pad=auto, kernel_shape=[1])
        assert y.reshape(-1).tolist() == [0, 4]
    aspect = {"axes": [-1], "keep_aspect_ratio_policy": "not_larger", "mode": "nearest"}
    model, feeds = host_cases.build("Resize", [x, None, None, [np.array([9], np.int64)]], aspect, 1, 21)
    assert model is not None
    with pytest.raises(EvaluationError):
        Evaluator(network_of(model)).run(feeds)


@pytest.mark.usefixtures("hide_onnxruntime")
def test_slice_that_starts_outside() -> None:
    """The slice runs backwards from the first element."""
    places = [np.array([value], np.int64) for value in (-4, -5, 0, -2)]
    assert one("Slice", np.array([5, 6], np.int64), *places)[0].tolist() == [5]


@pytest.mark.usefixtures("hide_onnxruntime")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_by_indices(axis: int) -> None:
    """Indices count from either end: first, last, one beyond each, and none."""
    x = np.arange(6).reshape(2, 3).astype(np.float32)
    size = x.shape[axis]
    for index in (-size, -1, 0, size - 1):
        (y,) = one("GatherElements", x, np.full((1, 1), index), axis=axis)
        assert y.tolist() == [[x.take([index], axis).reshape(-1)[0]]]
    for index in (-size - 1, size):
        with pytest.raises(
            EvaluationError, match=f"GatherElements has indices outside of -{size} .. {size - 1}$"
        ):
            one("GatherElements", x, np.full((1, 1), index), axis=axis)
    assert one("GatherElements", x, np.zeros((0, 2), np.int64), axis=axis)[0].shape == (0, 2)


@pytest.mark.usefixtures("hide_onnxruntime")
def test_huge_window_is_no_work() -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, 900, 900)).astype(np.float32)
    (y,) = one("MaxPool", x, kernel_shape=[900, 900])
    assert y.item() == x.max()


@pytest.mark.usefixtures("hide_onnxruntime")
@pytest.mark.parametrize(
    ("op", "attributes", "inputs"),
    [
        ("ConvTranspose", {}, 2),
        ("RoiAlign", {}, 3),
        ("LSTM", {}, 5),
        ("LpNormalization", {"p": 1}, 1),
        ("Resize", {"coordinate_transformation_mode": "pytorch_half_pixel"}, 1),
        ("Resize", {"coordinate_transformation_mode": "align_corners"}, 3),
    ],
)
def test_invalid_operators_are_refused(op: str, attributes: dict[str, object], inputs: int) -> None:
    node = helper.make_node(op, [f"x{index}" for index in range(inputs)], ["y"], **attributes)
    arguments = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1,)) for name in node.input]
    graph = helper.make_graph(
        [node], "g", arguments, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    assert is_wrong(network_of(model).nodes[0], 11)
    with pytest.raises(
        EvaluationError, match=f"^the onnx package computes {op} wrongly in some cases: install ONNX"
    ):
        Evaluator(network_of(model))


def test_products_of_unsigned_and_signed_bytes_do_not_saturate() -> None:
    """255 * 127 * 2 exceeds the 16 bits that ONNX Runtime's fast kernel accumulates in."""
    x, w = np.full((1, 64), 255, np.uint8), np.full((64, 64), 127, np.int8)
    (y,) = one("MatMulInteger", x, w)
    assert (y == 255 * 127 * 64).all()
    model, _ = host_cases.build("MatMulInteger", [x, w], {}, 1, 21)
    assert model is not None
    options = evaluate._open(model).get_session_options()
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def chain(*nodes: onnx.NodeProto, value_info: bool = True) -> onnx.ModelProto:
    """x float (2, 3) -> nodes -> y."""
    arguments = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))]
    expected = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(
        list(nodes), "g", arguments, expected, [numpy_helper.from_array(np.float32(2), "two")]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model) if value_info else model


X = np.array([[-1, 0, 1], [2, 3, 4]], np.float32)


def test_onnx_package_evaluates_parts_that_onnxruntime_lacks() -> None:
    """ONNX Runtime has no bfloat16 from numpy and no Sub of it; it runs the neighbours."""
    model = chain(
        helper.make_node("Mul", ["x", "two"], ["a"]),
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Neg", ["b"], ["c"]),
        helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["d", "two"], ["y"]),
    )
    evaluator = Evaluator(network_of(model))
    assert len(evaluator._parts) == 3
    assert evaluator.run({"x": X})[0].tolist() == (-4 * X).tolist()


def test_type_that_onnxruntime_lacks_for_an_operator() -> None:
    """ONNX Runtime has no GlobalMaxPool of float64."""
    model = chain(
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.DOUBLE),
        helper.make_node("Unsqueeze", ["a", "first"], ["b"]),
        helper.make_node("GlobalMaxPool", ["b"], ["c"]),
        helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["d", "two"], ["y"]),
        value_info=False,
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "first"))
    evaluator = Evaluator(network_of(onnx.shape_inference.infer_shapes(model)))
    assert [part[1] for part in evaluator._parts] == [("b",), ("c",), ("y",)]
    assert evaluator.run({"x": X})[0].tolist() == [[[2], [8]]]


def test_operator_of_another_domain_is_evaluated() -> None:
    model = chain(helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", alpha=1.0))
    np.testing.assert_allclose(Evaluator(network_of(model)).run({"x": X})[0], X / (1 + np.exp(-X)), rtol=1e-5)


def test_unknown_operator() -> None:
    model = chain(helper.make_node("Frobnicate", ["x"], ["y"], domain="com.microsoft"))
    with pytest.raises(
        EvaluationError, match=r"^operator 'Frobnicate' of domain 'com.microsoft' is not part of ONNX"
    ):
        Evaluator(network_of(model))


@pytest.mark.usefixtures("hide_onnxruntime")
def test_operator_of_another_domain_without_onnxruntime() -> None:
    model = chain(helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft"))
    with pytest.raises(EvaluationError, match=r"install ONNX Runtime \(pip install 'weft\[host\]'\)$"):
        Evaluator(network_of(model))


@pytest.mark.parametrize("installed", [True, False])
def test_failures_are_reported_in_one_sentence(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setattr(evaluate, "runtime", lambda: None)
    model, feeds = host_cases.build("Gather", [X, np.array([9])], {"axis": 0}, 1, 21)
    assert model is not None
    evaluator = Evaluator(network_of(model))
    with pytest.raises(EvaluationError) as caught:
        evaluator.run(feeds)
    assert "\n" not in str(caught.value)


def test_branches_see_the_values_around_them() -> None:
    """Graphs inside If read a value from another part."""
    then, other = (
        helper.make_graph(
            [helper.make_node(op, ["image", "two"], [f"{op}_y"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_y", TensorProto.FLOAT, None)],
        )
        for op in ("Mul", "Add")
    )
    model = chain(
        helper.make_node("Reshape", ["x", "shape"], ["image"]),
        helper.make_node("MaxPool", ["image"], ["p"], kernel_shape=[1, 1]),
        helper.make_node("ReduceMax", ["p"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "two"], ["large"]),
        helper.make_node("If", ["large"], ["y"], then_branch=then, else_branch=other),
        value_info=False,
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 3], np.int64), "shape"))
    evaluator = Evaluator(network_of(onnx.shape_inference.infer_shapes(model)))
    assert len(evaluator._parts) == 3
    assert evaluator.run({"x": X})[0].reshape(2, 3).tolist() == (2 * X).tolist()


def test_nothing_is_printed() -> None:
    """Casting non-finite values warns in numpy only."""
    code = (
        "import numpy as np, onnx; from onnx import helper\n"
        "from weft.compiler.host import evaluate\n"
        "from weft.compiler.onnx.reader import network_of\n"
        "evaluate.runtime = lambda: None\n"
        "v = helper.make_tensor_value_info\n"
        "n = helper.make_node('Cast', ['x'], ['y'], to=6)\n"
        "g = helper.make_graph([n], 'g', [v('x', 1, (1,))], [v('y', 6, (1,))])\n"
        "m = helper.make_model(g, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)\n"
        "evaluate.Evaluator(network_of(m)).run({'x': np.array([np.nan], np.float32)})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


_COMPILE = """
import sys, weft
from pathlib import Path
from weft.examples import digits
program = weft.compile(Path(digits.__file__).with_name("digits.onnx"))
"""
_RUN = """
import numpy as np
program.run({"image": np.zeros((1, 1, 8, 8), np.float32)})
"""
_OF_TELEMETRY = {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"}
_LOADED = "print('onnxruntime' in sys.modules)"


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("code", "loaded"), [(_COMPILE, False), (_COMPILE + _RUN, True)])
@pytest.mark.parametrize("home", ["home", "file"])
def test_onnxruntime_is_loaded_lazily_without_telemetry(
    tmp_path: Path, home: str, code: str, loaded: bool
) -> None:
    """With telemetry ONNX Runtime writes files to the home folder and TMPDIR, or warns if it cannot."""
    (tmp_path / "file").touch()
    (tmp_path / "home").mkdir()
    (tmp_path / "temporary").mkdir()
    before = set(tmp_path.rglob("*"))
    environment = {key: value for key, value in os.environ.items() if key not in _OF_TELEMETRY}
    environment |= {"HOME": str(tmp_path / home), "TMPDIR": str(tmp_path / "temporary")}
    environment["WEFT_CACHE"] = str(cache_root())
    command = [sys.executable, "-c", code + _LOADED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{loaded}\n", "")
    assert set(tmp_path.rglob("*")) == before


def test_onnxruntime_loaded_earlier_by_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(onnxruntime, "disable_telemetry_events", lambda: calls.append(None))
    evaluate.runtime.cache_clear()
    assert evaluate.runtime() is onnxruntime
    assert calls
