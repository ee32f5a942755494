"""Nodes that the quantiser leaves unquantised, because their neighbours are quantised."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.float_nets import FloatNet, separable, transformer

from weft.quantiser import float_model
from weft.quantiser.quantise_plan import Plan, operators


def excluded(model: onnx.ModelProto, *keep: str) -> set[str]:
    return set(Plan(float_model.infer_types(model), keep).excluded)


def after(net: FloatNet, value: str) -> str:
    return net.add("Conv", value, net.weight(4, 8, 1, 1), name="after")


def direct(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove the Identity at the model's end."""
    end = model.graph.node.pop()
    model.graph.node[-1].output[0] = end.output[0]
    return model


@pytest.mark.parametrize("follows", [True, False])
def test_averages(follows: bool) -> None:
    """An average at the end of a model stays quantised, because no other node quantises its result."""
    net = FloatNet()
    value = net.add("Conv", "x", net.weight(8, 3, 3, 3))
    value = net.add("AveragePool", value, kernel_shape=[2, 2], strides=[2, 2], name="average")
    shape = (1, 8, 5, 5)
    if follows:
        value, shape = after(net, value), (1, 4, 5, 5)
    names = excluded(direct(net.model({"x": (1, 3, 12, 12)}, value, shape)))
    assert names == ({"average"} if follows else set())


def test_an_average_after_a_function() -> None:
    """One node quantises the value between: the average, which gains more by its scale."""
    net = FloatNet()
    value = net.add("Conv", "x", net.weight(8, 3, 3, 3))
    value = net.add("Mul", value, net.add("Sigmoid", value, name="sigmoid"), name="product")
    value = net.add("AveragePool", value, kernel_shape=[2, 2], name="average")
    names = excluded(net.model({"x": (1, 3, 12, 12)}, after(net, value), (1, 4, 9, 9)))
    assert names == {"average"}


def test_averages_in_a_row() -> None:
    """One of two averages quantises the value between."""
    net = FloatNet()
    value = net.add("Conv", "x", net.weight(8, 3, 3, 3))
    for name in ("one", "two"):
        value = net.add("AveragePool", value, kernel_shape=[2, 2], name=name)
    names = excluded(net.model({"x": (1, 3, 12, 12)}, after(net, value), (1, 4, 8, 8)))
    assert names == {"one"}


def test_readers_of_the_model_input_are_quantised() -> None:
    net = FloatNet()
    value = net.add("AveragePool", "x", kernel_shape=[2, 2], name="average")
    value = net.add("Conv", value, net.weight(4, 3, 1, 1))
    assert excluded(net.model({"x": (1, 3, 12, 12)}, value, (1, 4, 11, 11))) == set()


def test_clamps_do_not_quantise_their_input() -> None:
    """The quantiser skips a Relu whose input no other node quantises."""
    net = FloatNet()
    value = net.add("Conv", "x", net.weight(4, 3, 3, 3))
    value = net.add("AveragePool", value, kernel_shape=[2, 2], name="average")
    value = net.add("Relu", value)
    assert excluded(net.model({"x": (1, 3, 12, 12)}, value, (1, 4, 9, 9))) == set()


def test_functions_of_one_activation() -> None:
    """Chains of two and more; a second activation, a constant array or a clamp ends a chain."""
    net = FloatNet()
    value = net.add("Conv", "x", net.weight(8, 3, 3, 3))
    first = net.add("Relu", value, name="clamp")
    inside = net.add("Sigmoid", first, name="sigmoid")
    value = net.add("Mul", first, inside, name="product")
    value = net.add("Mul", value, net.weight(8, 1, 1), name="by channel")
    value = net.add("Tanh", value, name="alone")
    other = net.add("Conv", "x", net.weight(8, 3, 3, 3))
    value = after(net, net.add("Add", value, other, name="two"))
    names = excluded(net.model({"x": (1, 3, 12, 12)}, value, (1, 4, 10, 10)))
    assert names == {"sigmoid", "product"}


def test_written_out_functions_of_networks() -> None:
    names = excluded(separable())
    assert {"add9", "clip10", "mul11", "div12"} <= names
    assert {"sigmoid2", "mul3"} <= names
    assert "average" in names
    kept = excluded(separable(), "sigmoid2")
    assert "sigmoid2" in kept
    assert "mul3" not in kept


@pytest.mark.parametrize("masked", [False, True])
def test_attention(masked: bool) -> None:
    prepared, _ = float_model.prepare(transformer(masked), {})
    names = set(Plan(prepared).excluded)
    attention = [node for node in prepared.graph.node if node.name in names]
    assert {"scores", "attention"} <= names
    assert ("mask" in names) == masked
    assert {node.op_type for node in attention} == {"MatMul", "Mul", "Softmax", "LayerNormalization"} | (
        {"Add"} if masked else set()
    )
    # The addition quantises its input, which the first normalisation reads too.
    assert sum(node.op_type == "LayerNormalization" for node in attention) == 2


def test_scores_with_a_bias_are_quantised() -> None:
    """The device has no attention with a bias: products run separately and need quantised operands."""
    names = excluded(float_model.prepare(transformer(biased=True), {})[0])
    assert not names & {"scores", "bias", "attention"}


def test_attention_next_to_a_node_in_float() -> None:
    """A float node quantises nothing for its neighbours."""
    prepared, _ = float_model.prepare(transformer(), {})
    makers = {node.output[0]: node for node in prepared.graph.node}
    (scores,) = (node for node in prepared.graph.node if node.name == "scores")
    keep = makers[scores.input[0]].name
    names = set(Plan(prepared, [keep]).excluded)
    assert keep in names
    assert "attention" not in names or makers[scores.input[0]].op_type == "Transpose"


def test_operators_equal_those_of_the_device() -> None:
    actual = operators()
    assert {"Conv", "MatMul", "Gemm", "LayerNormalization", "ReduceMean", "Gelu", "Concat", "Resize"} <= set(
        actual
    )
    assert not {"TopK", "Cast", "QuantizeLinear", "com.microsoft.Gelu"} & set(actual)


def test_kept_nodes_are_excluded_once() -> None:
    plan = Plan(float_model.infer_types(separable()), ["average", "sigmoid2"])
    assert len(plan.excluded) == len(set(plan.excluded))


def decomposed_norm(net: FloatNet, value: str, kind: str) -> str:
    """Decomposed normalisation over the rows of (1, 6, 16)."""
    add, weight = net.add, net.weight(16)

    def reduce_mean(op: str, of: str, name: str) -> str:
        return add(op, of, net.constant(np.array([-1], np.int64)), name=name)

    if kind == "layer":
        value = add("Sub", value, reduce_mean("ReduceMean", value, "mean"), name="distance")
    if kind == "unit":
        return add("Div", value, reduce_mean("ReduceL2", value, "norm"), name="quotient")
    mean = reduce_mean("ReduceMean", add("Mul", value, value, name="square"), "mean square")
    root = add("Sqrt", add("Add", mean, net.weight(1), name="added"), name="root")
    value = add("Div", value, root, name="quotient")
    return add("Add", add("Mul", value, weight, name="weighted"), net.weight(16), name="shifted")


@pytest.mark.parametrize("kind", ["layer", "rms", "unit"])
@pytest.mark.parametrize("follows", [True, False])
def test_normalisations_written_out(kind: str, follows: bool) -> None:
    """Every node of a normalisation stays unquantised between quantised products."""
    net = FloatNet()
    value = decomposed_norm(net, net.add("MatMul", "x", net.weight(8, 16), name="first"), kind)
    if follows:
        value = net.add("MatMul", value, net.weight(16, 4), name="second")
    model = net.model({"x": (1, 6, 8)}, value, (1, 6, 4 if follows else 16))
    actual = excluded(model if follows else direct(model))
    whole = {"square", "mean square", "added", "root", "quotient", "weighted", "shifted"}
    names = {"unit": {"norm", "quotient"}, "layer": whole | {"mean", "distance"}, "rms": whole}[kind]
    # At the end of a model, a function of one activation stays unquantised.
    alone = set() if kind == "unit" else {"added", "root"}
    assert actual == (names if follows else alone)
