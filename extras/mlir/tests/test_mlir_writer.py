"""Graphs written as TOSA: the text computes the device's bytes, and reads back as an equal graph."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import onnx
import pytest
from support import qdq_models, state_models, tflite_networks
from support.graph_runs import device_ops, on_host, run_graph
from support.op_cases import convolution, random_op, segment_of, whole

import weft
from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Add, Conv, DeviceOp, Multiply, Pad, Pool, Rescale
from weft.compiler.ir.model import Graph
from weft.compiler.ir.windows import Window
from weft.compiler.operators.record import operator_of
from weft.extras.mlir import forms
from weft.extras.mlir.device_text import write_operator
from weft.extras.mlir.program import import_with_xdsl
from weft.extras.mlir.tests.support import tosa_numpy
from weft.extras.mlir.writer import write_tosa

KINDS = ("conv", "dense", "pool", "add", "concat", "rescale", "cnn")


def feeds_of(graph: Graph, rng: np.random.Generator) -> dict[str, np.ndarray]:
    result = {}
    for name, (dtype, shape) in graph.inputs.items():
        if dtype == "float32":
            result[name] = rng.normal(size=shape).astype(np.float32) * 3
        else:
            limits = np.iinfo(dtype)
            result[name] = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return result


def check(source: Any, seed: int = 0) -> str | None:
    """Write a model, and compare its text, read again and by the specification; None if it is refused."""
    graph = import_model(source)
    try:
        text = write_tosa(graph)
    except CompileError:
        return None
    assert text == write_tosa(import_model(source))
    again = import_model(text.encode())
    assert (again.inputs, again.outputs, on_host(again)) == (graph.inputs, graph.outputs, {})
    feeds = feeds_of(graph, np.random.default_rng(seed))
    wanted, actual = run_graph(graph, feeds), run_graph(again, feeds)
    for name in wanted:
        np.testing.assert_array_equal(actual[name], wanted[name], strict=True)
    program = import_with_xdsl("inline").parse_program(text, "the text")
    stored = [_quantise(feeds[str(notes["weft.name"])], notes) for notes in program.argument_notes]
    for notes, value in zip(program.result_notes, tosa_numpy.run(text, *stored), strict=True):
        name = str(notes["weft.name"])
        np.testing.assert_array_equal(value, _quantise(wanted[name], notes), strict=True)
    return text


def _quantise(value: np.ndarray, notes: Any) -> np.ndarray:
    if "weft.scale" not in notes:
        return value
    quotient = np.rint(value / np.float32(notes["weft.scale"])) + notes["weft.zero_point"]
    return np.clip(quotient, -128, 127).astype(np.int8)


@pytest.mark.parametrize("kind", KINDS)
def test_random_models(kind: str) -> None:
    texts = [
        check(getattr(qdq_models, f"random_{kind}")(np.random.default_rng(seed)), seed) for seed in range(6)
    ]
    assert sum(text is not None for text in texts) >= 5


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_models(kind: str) -> None:
    texts = [
        check(getattr(qdq_models, f"random_{kind}")(np.random.default_rng(seed)), seed)
        for seed in range(6, 100)
    ]
    assert sum(text is not None for text in texts) >= 80


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_tflite_models(dtype: str) -> None:
    assert check(tflite_networks.convolutions(softmax=False, dtype=dtype)) is not None
    assert check(tflite_networks.rows(dtype=dtype)) is not None


def test_converted_models_have_equal_outputs() -> None:
    model = qdq_models.random_cnn(np.random.default_rng(3))
    programs = [weft.compile(source, "tiny") for source in (model, weft.convert(model).encode())]
    feeds = feeds_of(import_model(model), np.random.default_rng(0))
    one, other = (program.run(feeds).outputs for program in programs)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], strict=True)


# Operators alone

A, B, Y = (
    whole(name, (1, 3, 4, 5), kind) for name, kind in (("a", "input"), ("b", "input"), ("y", "output"))
)
OPS: dict[str, DeviceOp] = {
    "half": Rescale("x", A, Y, 0.5, 3, -7),
    "twice and a half": Rescale("x", A, Y, 2.5, 3, -7, -100, 90),
    "tiny": Rescale("x", A, Y, 2.0**-50, 3, -7),
    "copy": Rescale("x", A, Y, 1.0, 4, 4, -20, 20),
    "table": Rescale("x", A, Y, 0.3, lookup=np.random.default_rng(0).integers(-128, 128, 256).astype(np.int8)),
    "add": Add("x", A, B, Y, 0.5, 0.5, 3, -4, 5),
    "add of odd scales": Add("x", A, B, Y, 0.7321, 0.01, 3, -4, 5, -90, 127),
    "subtract": Add("x", A, B, Y, 0.25, -0.75, 3, -4, 5),
    "multiply": Multiply("x", A, B, Y, 1 / 128, -128, 7, 0),
    "multiply by odd": Multiply("x", A, B, Y, 0.00731, -128, 7, 0, 0, 127),
    "pad": Pad("x", A, whole("y", (1, 6, 6, 5), "output"), Window(pad=(1, 2, 2, 0)), -3, 0.5, 2, 1),
    "max": Pool("x", A, whole("y", (1, 2, 2, 5), "output"), "max", Window((2, 2), (1, 2)), 0.75, 3, 1),
    "mean": Pool("x", A, whole("y", (1, 1, 2, 5), "output"), "average", Window((2, 2), (2, 2)), 1.0, 3, 1),
    "mean with padding": Pool(
        "x", A, whole("y", (1, 4, 5, 5), "output"), "average", Window((2, 2), pad=(1, 1, 1, 1)), 0.3, 3, 1,
        include_pad=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_every_byte_of_an_operator(name: str) -> None:
    assert _compare_operator(OPS[name], np.random.default_rng(0))


@pytest.mark.parametrize(("one", "other"), [(0.7321, 0.21), (0.003, -0.9), (1.7, 0.4)])
def test_every_pair_of_bytes_is_added_exactly(one: float, other: float) -> None:
    a, b, y = (
        whole(name, (1, 1, 256, 256), kind)
        for name, kind in (("a", "input"), ("b", "input"), ("y", "output"))
    )
    op = Add("x", a, b, y, one, other, 3, -4, 5)
    every = np.arange(-128, 128, dtype=np.int8)
    arrays = [np.broadcast_to(every[:, None], (1, 1, 256, 256)), np.broadcast_to(every, (1, 1, 256, 256))]
    printing = import_with_xdsl("printing")
    body = printing.Body([("int8", (1, 1, 256, 256))] * 2)
    text = printing.module_text(body, [write_operator(body, op, tuple(body.arguments))], [{}] * 2, [{}])
    (actual,) = tosa_numpy.run(text, *arrays)
    np.testing.assert_array_equal(actual, operator_of(op).evaluate(op, tuple(arrays), 24), strict=True)


@pytest.mark.parametrize("seed", range(4))
def test_random_operators(seed: int) -> None:
    rng, count = np.random.default_rng(seed), 0
    for _ in range(25):
        op = random_op(rng)
        try:
            count += _compare_operator(op, rng)
        except CompileError as error:
            message = str(error)
            assert message.startswith(f"operator {op.name!r}"), message
    assert count > 12


def _compare_operator(op: DeviceOp, rng: np.random.Generator) -> int:
    """Write an operator, and compare its text by the specification with the device's result."""
    printing = import_with_xdsl("printing")
    arrays = [rng.integers(-128, 128, view.shape).astype(np.int8) for view in op.sources]
    body = printing.Body([("int8", array.shape) for array in arrays])
    text = printing.module_text(
        body, [write_operator(body, op, tuple(body.arguments))], [{}] * len(arrays), [{}]
    )
    (actual,) = tosa_numpy.run(text, *arrays)
    np.testing.assert_array_equal(actual, operator_of(op).evaluate(op, tuple(arrays), 24), strict=True)
    return 1


def test_ties_go_to_even() -> None:
    """Every other sum times 1/2 is a tie, which a plain rescale would round up."""
    conv = convolution(whole("a", (1, 2, 2, 4), "input"), 3, name="y")
    assert isinstance(conv, Conv)
    op = conv.replace(scale=np.full(3, 0.5), weight=np.ones_like(conv.weight), bias=np.zeros(3, np.int32))
    printing = import_with_xdsl("printing")
    body = printing.Body([("int8", op.src.shape)])
    text = printing.module_text(body, [write_operator(body, op, tuple(body.arguments))], [{}], [{}])
    assert "tosa.bitwise_and" in text
    x = np.random.default_rng(0).integers(-20, 20, op.src.shape).astype(np.int8)
    np.testing.assert_array_equal(tosa_numpy.run(text, x)[0], operator_of(op).evaluate(op, (x,), 24))
    odd = op.replace(scale=np.full(3, 0.50001))
    body = printing.Body([("int8", op.src.shape)])
    text = printing.module_text(body, [write_operator(body, odd, tuple(body.arguments))], [{}], [{}])
    assert "tosa.bitwise_and" not in text


@pytest.mark.parametrize(
    ("mask", "half", "multiplier", "device"),
    [(3, 2, 1 << 30, True), (3, 1, 1 << 30, False), (1, 2, 1 << 30, False), (0, 1, 1431655765, False)],
)
def test_ties_of_other_sums_are_not_requantisations(
    mask: int, half: int, multiplier: int, device: bool
) -> None:
    """Other masks, or multipliers above 24 bits, must not become the device's requantisation, but keep their bytes."""
    conv = convolution(whole("a", (1, 2, 2, 4), "input"), 3, name="y")
    assert isinstance(conv, Conv)
    op = conv.replace(scale=np.full(3, 0.25), weight=np.ones_like(conv.weight), bias=np.zeros(3, np.int32))
    printing, one = import_with_xdsl("printing"), "> : tensor<1x1x1x1xi32>"
    body = printing.Body([("int8", op.src.shape)])
    text: str = printing.module_text(body, [write_operator(body, op, tuple(body.arguments))], [{}], [{}])
    changes = ((f"<3{one}", f"<{mask}{one}"), (f"<2{one}", f"<{half}{one}"), (str(1 << 30), str(multiplier)))
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    graph = import_model(text.encode())
    assert (on_host(graph) == {}) == device
    x = np.random.default_rng(0).integers(-20, 20, op.src.shape).astype(np.int8)
    (actual,) = run_graph(graph, dict.fromkeys(graph.inputs, x)).values()
    np.testing.assert_array_equal(actual, tosa_numpy.run(text, x)[0])


def test_patterns_are_read_as_operators() -> None:
    rng = np.random.default_rng(0)
    text = check(qdq_models.random_add(rng))
    assert text is not None
    assert [type(op) for op in device_ops(import_model(text.encode()))] == [Add]
    assert forms.CONSTANTS["part"] == 4095
    # TOSA shifts an i32 to the right by 31 places at most, and by one at least to have a half.
    assert [shift - forms.PART for shift in forms.SHIFTS] == [1, 31]


@pytest.mark.parametrize("change", [0, 1, -1])
def test_sums_with_other_ties_are_not_additions(change: int) -> None:
    """The value of a tie must be half of the mask plus one."""
    shape = (1, 3, 4, 5)
    op = Add(
        "y",
        whole("a", shape, "input"),
        whole("b", shape, "input"),
        whole("y", shape, "output"),
        0.37,
        0.61,
        3,
        -4,
    )
    printing = import_with_xdsl("printing")
    body = printing.Body([("int8", shape)] * 2)
    text: str = printing.module_text(body, [write_operator(body, op, tuple(body.arguments))], [{}] * 2, [{}])
    numbers = {int(number) for number in re.findall(r"dense<(\d+)> : tensor<1x1x1x1xi32>", text)}
    half = max(number for number in numbers if 2 * number - 1 in numbers)
    old = f"dense<{half}> : tensor<1x1x1x1xi32>"
    assert text.count(old) == 1
    text = text.replace(old, old.replace(str(half), str(half + change)))
    graph = import_model(text.encode())
    assert (on_host(graph) == {}) == (change == 0)
    rng = np.random.default_rng(1)
    feeds = {name: rng.integers(-128, 128, shape).astype(np.int8) for name in graph.inputs}
    (actual,) = run_graph(graph, feeds).values()
    np.testing.assert_array_equal(actual, tosa_numpy.run(text, *feeds.values())[0])


def _check_refusal(source: Any, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        write_tosa(import_model(source))


def test_refusals() -> None:
    softmax = qdq_models.softmax((1, 5), 0.1, 3, False)
    _check_refusal(softmax, r"operator '.*' \(Softmax\) has no TOSA operations")
    _check_refusal(state_models.Ring().build(), "keeps state between runs")


def test_host_nodes_are_named() -> None:
    model = qdq_models.random_rescale(np.random.default_rng(0))
    name = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("Shape", [name], ["sizes"], name="the_host"))
    model.graph.node.append(onnx.helper.make_node("Hardmax", [name], ["hard"], name="hardest"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("hard", 1, None))
    _check_refusal(
        model,
        r"node 'hardest' \(Hardmax\) runs on the host: .*; only nodes that the device runs can be printed as TOSA",
    )


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a\nb", "\u00e4\u2192", "x:0", "/m/a.b", "\x00\x07", "%s {}"]
)
@pytest.mark.parametrize("scale", [1e-30, 3.4e38, 0.1, 1 / 3])
def test_names_and_scales_of_ends_are_kept(name: str, scale: float) -> None:
    printing, notes = (
        import_with_xdsl("printing"),
        {"weft.name": name, "weft.scale": float(np.float32(scale))},
    )
    body = printing.Body([("int8", (1, 1, 1, 4))])
    text = printing.module_text(body, [body.arguments[0]], [notes], [notes])
    program = import_with_xdsl("inline").parse_program(text, "the text")
    assert program.argument_notes == program.result_notes == (notes,)


def test_planned_graphs_are_refused() -> None:
    graph = import_model(qdq_models.random_rescale(np.random.default_rng(0)))
    segments = tuple(
        dataclasses.replace(segment, resident={"x": 0}) if hasattr(segment, "ops") else segment
        for segment in graph.segments
    )
    with pytest.raises(CompileError, match="planned already"):
        write_tosa(dataclasses.replace(graph, segments=segments))
    assert segment_of(convolution(A, 3, name="y")).ops
