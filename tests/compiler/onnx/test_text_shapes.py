"""Shapes by the text of ONNX where its shape inference has others: against ONNX Runtime, and on the device."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import one_step
from support.ort_sessions import plain_session
from support.qdq_models import Builder

from weft.compiler.errors import CompileError
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.reader import network_of

Rng = np.random.Generator
Shape = tuple[int, ...]


def some(rng: Rng, low: int, high: int, count: int) -> list[int]:
    return [int(item) for item in rng.integers(low, high + 1, count)]


def pool(rng: Rng, rank: int) -> tuple[str, dict[str, object], list[int]]:
    """With ceil_mode, all padding and all steps, of an input that windows may not fill."""
    kernel = some(rng, 1, 4, rank)
    given = {"kernel_shape": kernel, "strides": some(rng, 1, 6, rank), "ceil_mode": int(rng.random() < 0.8)}
    if rng.random() < 0.6:
        given["pads"] = [int(rng.integers(0, kernel[at % rank])) for at in range(2 * rank)]
    elif rng.random() < 0.3:
        given["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    return str(rng.choice(["MaxPool", "AveragePool"])), given, some(rng, 4, 12, rank)


def spread(rng: Rng, rank: int) -> tuple[str, dict[str, object], list[int]]:
    """ConvTranspose whose size auto_pad defines, with output padding."""
    strides = some(rng, 1, 5, rank)
    given: dict[str, object] = {
        "strides": strides, "dilations": some(rng, 1, 2, rank),
        "auto_pad": str(rng.choice(["SAME_UPPER", "SAME_LOWER"])),
        "output_padding": [int(rng.integers(0, most)) for most in strides],
    }  # fmt: skip
    return "ConvTranspose", given, some(rng, 1, 6, rank)


def model(
    op: str, given: dict[str, object], sizes: list[int], rng: Rng, declared: Shape | None
) -> onnx.ModelProto:
    """The operator between two others, with a shape that the file declares for its result."""
    weights = []
    if op == "ConvTranspose":
        kernel = some(rng, 1, 4, len(sizes))
        weights = [numpy_helper.from_array(np.ones((2, 3, *kernel), np.float32), "w")]
    nodes = [
        helper.make_node("Relu", ["x"], ["before"], name="before"),
        helper.make_node(op, ["before", *(item.name for item in weights)], ["made"], name="made", **given),
        helper.make_node("Relu", ["made"], ["y"], name="behind"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, *sizes))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, declared)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def inferred_shape(made: onnx.ModelProto) -> Shape:
    found = onnx.shape_inference.infer_shapes(made, strict_mode=True)
    return tuple(dim.dim_value for dim in found.graph.output[0].type.tensor_type.shape.dim)


def compare_shapes(seeds: range) -> int:
    """How often shape inference was wrong; nowhere may weft's shapes differ from those of results."""
    wrong = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        op, given, sizes = (pool, spread)[seed % 2](rng, 1 + seed // 2 % 2)
        state = rng.bit_generator.state
        made = model(op, given, sizes, rng, None)
        x = rng.normal(size=(1, 2, *sizes)).astype(np.float32)
        try:
            known = resolve(network_of(made))
        except CompileError:
            continue
        (result,) = plain_session(made).run(None, {"x": x})
        assert known.shapes["made"] == known.shapes["y"] == result.shape, (seed, op, given, sizes)
        other = inferred_shape(made)
        wrong += other != result.shape
        for declared in (other, result.shape):
            rng.bit_generator.state = state
            again = resolve(network_of(model(op, given, sizes, rng, declared)))
            assert again.shapes["y"] == result.shape
    return wrong


def test_shapes_are_those_of_results() -> None:
    assert compare_shapes(range(60)) > 8


@pytest.mark.long
def test_shapes_are_those_of_results_for_long() -> None:
    assert compare_shapes(range(1000, 4000)) > 400


def test_a_shape_that_nobody_makes() -> None:
    """What a file declares is still held against what inference finds, if nothing else is wrong."""
    rng = np.random.default_rng(0)
    given = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    with pytest.raises(CompileError, match="the model is not valid ONNX: "):
        resolve(network_of(model("MaxPool", given, [8], rng, (1, 2, 5))))


@pytest.mark.parametrize("rank", [1, 2])
def test_windows_that_start_behind_are_none(rank: int) -> None:
    """On the device, as ONNX Runtime has them; none of these is left to the host."""
    tally = one_step.Tally()
    for seed in range(10):
        rng = np.random.default_rng([seed, rank])
        op, given, sizes = pool(rng, rank)
        if "auto_pad" in given:
            continue
        built = Builder(rng)
        value = built.input((1, 3, *sizes))
        name = built.node(op, [built.dequantise(value)], **given)
        made = built.quantise(name, built.shape_of(name), value.scale * 0.7183, 3, False)
        one_step.check(built.finish(made), rng, tally)
    assert tally.wrong < 1e-2 * tally.elements


def test_negative_sizes_are_refused() -> None:
    node = helper.make_node("Split", ["x"], ["a", "b", "c"], name="split", axis=1, num_outputs=3)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 1))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "abc"],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(CompileError, match=r"value 'c' would have shape 2x-1: its operator asks for more"):
        resolve(network_of(made))
