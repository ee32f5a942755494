"""Refusals of readable models at loading, with the whole message; and simplifications."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support import qdq_models
from support.graph_runs import run_graph
from support.repeated import repeated
from support.small_models import fails, float_model, small

from weft.compiler.frontend import import_model
from weft.compiler.ir.network import LINKS
from weft.compiler.onnx.model import HOW_TO_QUANTISE, load


def replace_constant(model: onnx.ModelProto, node: str, index: int, value: np.ndarray) -> onnx.ModelProto:
    """Give input `index` of the first node of operator `node` another constant."""
    target = next(item for item in model.graph.node if item.op_type == node)
    model.graph.initializer.append(numpy_helper.from_array(value, "replaced"))
    target.input[index] = "replaced"
    return model


def test_float_model() -> None:
    assert fails(float_model()) == (
        f"the model is not quantised (no QuantizeLinear or DequantizeLinear): {HOW_TO_QUANTISE}"
    )


def test_qoperator_model() -> None:
    model = float_model("DynamicQuantizeLinear")
    model.graph.node[0].output.extend(["scale", "zero"])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    assert fails(model) == (
        "the model is dynamically quantised (with DynamicQuantizeLinear): `weft quantise MODEL.onnx --data "
        "SAMPLES.npz -o QUANTISED.onnx` (in Python weft.quantise) gives its activations fixed ranges, which the device "
        "needs, and keeps the integers of its weights where int8 has them"
    )


def test_shape_that_depends_on_data() -> None:
    model = small()
    last = model.graph.node[-1].output[0]
    model.graph.node.append(helper.make_node("NonZero", [last], ["found"], name="search"))
    model.graph.output.append(helper.make_tensor_value_info("found", TensorProto.INT64, None))
    assert fails(model) == (
        "node 'search' (NonZero) has output 'found' whose shape is only known at run time; "
        "weft needs static shapes"
    )


@pytest.mark.parametrize(
    ("op", "value", "text"),
    [
        ("QuantizeLinear", 0.0, "0"),
        ("QuantizeLinear", np.nan, "nan"),
        ("DequantizeLinear", np.nan, "nan"),
        ("DequantizeLinear", np.inf, "inf"),
    ],
)
def test_impossible_scale(op: str, value: float, text: str) -> None:
    model = small()
    arguments = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    scale = arguments[next(node.input[1] for node in model.graph.node if node.op_type == op)]
    replace_constant(model, op, 1, np.full_like(scale, value))
    name = next(node.name for node in model.graph.node if node.op_type == op)
    assert (
        fails(model)
        == f"node {name!r} ({op}) has scale {text}; scales must be finite, and for QuantizeLinear not zero"
    )


def weights(model: onnx.ModelProto) -> onnx.NodeProto:
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    return next(node for node in model.graph.node if node.output[0] == conv.input[1])


def test_wrong_number_of_channel_scales() -> None:
    model = small()
    node = weights(model)
    for index, value in ((1, np.full(3, 0.1, np.float32)), (2, np.zeros(3, np.int8))):
        model.graph.initializer.append(numpy_helper.from_array(value, f"replaced{index}"))
        node.input[index] = f"replaced{index}"
    assert fails(model) == (
        f"node {node.name!r} (DequantizeLinear) has scales of shape 3 for values of shape 4x3x3x3; it must be one "
        "number, or a list of 4, one for each element along axis 0"
    )


def test_wrong_number_of_zero_points() -> None:
    model = small()
    node = weights(model)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.int8), "replaced"))
    node.input[2] = "replaced"
    assert fails(model) == (
        f"node {node.name!r} (DequantizeLinear) has scales of shape 4, but zero points of shape 3; "
        "the shapes must be equal"
    )


def test_channel_axis_outside() -> None:
    model = small()
    node = weights(model)
    node.attribute[0].i = 7
    assert fails(model) == f"node {node.name!r} (DequantizeLinear) has axis 7, but its input has 4 dimensions"


def test_constants_are_folded() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    source = builder.input((2, 3, 2, 2))
    value = builder.dequantise(source)
    size = builder.node("Shape", [value], end=1)
    shape = builder.node("Concat", [size, builder.constant(np.array([-1], np.int64))], axis=0)
    model = builder.finish(builder.like(builder.node("Reshape", [value, shape]), (2, 12), source))
    loaded = load(model)
    assert {node.op for node in loaded.folded} == {"Shape", "Concat"}
    assert [node.op for node in loaded.nodes] == ["Identity", "Reshape", "Identity"]


def test_quantised_weights_may_be_computed() -> None:
    """Some exporters leave QuantizeLinear on float weights: it is folded, DequantizeLinear never is."""
    model = small()
    node = weights(model)
    initial = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    values = initial[node.input[0]] * initial[node.input[1]][:, None, None, None]
    model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), "floats"))
    quantise = helper.make_node("QuantizeLinear", ["floats", *node.input[1:]], ["integers"], axis=0)
    model.graph.node.insert(0, quantise)
    node.input[0] = "integers"
    loaded = load(model)
    assert np.array_equal(loaded.network.constants["integers"], initial[weights(small()).input[0]])


def tied_model(seed: int) -> onnx.ModelProto:
    """A table of rows that are looked up, and on the way back as columns; quantised again on the way, as ever."""
    rng = np.random.default_rng(seed)
    builder = qdq_models.Builder(rng)
    rows, size = (int(value) for value in rng.integers(2, 40, 2))
    channels = bool(rng.integers(2))
    table, scales = builder.weight((rows, size), 0, per_channel=channels, unsigned=bool(rng.integers(2)))
    looked_up = builder.node("Gather", [table, builder.constant(rng.integers(0, rows, (1, 5)))])
    spread = float(scales.mean()) * 74
    states = builder.dequantise(builder.quantise(looked_up, (1, 5, size), spread / 50, 0, False))
    value = table
    for axis, op in enumerate(("Identity", "Transpose")):
        value = builder.node(op, [value])
        if axis or rng.integers(2):
            scale = (scales if channels else scales[:1]) * np.float32(rng.choice([0.5, 1.0, 1.3]))
            parts = (scale, np.zeros(scale.size, np.int8))
            arguments = [builder.constant(part if channels else part[0]) for part in parts]
            value = builder.node("QuantizeLinear", [value, *arguments], axis=axis)
            value = builder.node("DequantizeLinear", [value, *arguments], axis=axis)
    result = builder.node("MatMul", [states, value])
    step = float(np.float32(spread * spread * size**0.5 / 50))
    return builder.finish(builder.quantise(result, (1, 5, rows), step, 3, False))


@repeated("seed", range(30))
def test_weights_that_are_quantised_again_are_constant(seed: int) -> None:
    """The head of a language model, whose weights are its table of embeddings transposed."""
    model = tied_model(seed)
    graph = import_model(model)
    assert {op for _, op, place, _ in graph.assignment if place == "device"} >= {"MatMul", "Transpose"}
    operators = {node.name for node in model.graph.node if node.op_type not in LINKS}
    assert {name for name, *_ in graph.assignment} >= operators
    arguments, expected = run_graph(graph, {}), ReferenceEvaluator(model).run(None, {})[0]
    (result,) = arguments.values()
    step = numpy_helper.to_array(next(
        item for item in model.graph.initializer if item.name == model.graph.node[-1].input[1]
    ))  # fmt: skip
    difference = np.abs(np.rint((result - expected) / step))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.03


def test_weights_quantised_again_by_nonsense_are_refused() -> None:
    model = tied_model(0)
    bad = next(
        node for node in model.graph.node if node.op_type == "QuantizeLinear" and "transpose" in node.input[0]
    )
    for item in model.graph.initializer:
        if item.name == bad.input[1]:
            item.CopyFrom(numpy_helper.from_array(0 * numpy_helper.to_array(item), item.name))
    assert "has scale 0; scales must be finite, and for QuantizeLinear not zero" in fails(model)


def test_dead_nodes_are_dropped() -> None:
    model = small()
    model.graph.node.append(helper.make_node("Relu", [model.graph.node[-1].output[0]], ["unused"]))
    assert "Relu" not in {node.op for node in load(model).nodes}


def test_names_are_made_unique() -> None:
    model = small()
    for node in model.graph.node:
        node.name = "same"
    names = [node.name for node in load(model).nodes]
    assert len(set(names)) == len(names)
