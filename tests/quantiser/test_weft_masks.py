"""Masks computed from inputs: every exporter's form is unified, and encoders run whole on the device."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import encoder_models, float_nets
from support.encoder_models import Shape
from support.graph_runs import device_ops
from support.integer_nets import run

import weft
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Attention
from weft.quantiser import float_model, masks

KINDS = ["added", "least", "where", "scores", "hidden"]
TINY = Shape(tokens=6, width=16, heads=2, wide=16, layers=2, words=9)


def runs(samples: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    return [
        {name: value[at] for name, value in samples.items()}
        for at in range(len(next(iter(samples.values()))))
    ]


def unify_model(
    model: onnx.ModelProto, samples: dict[str, np.ndarray]
) -> tuple[onnx.ModelProto, masks.Masks]:
    prepared, _ = float_model.prepare(model, {})
    return masks.unify(prepared, runs(samples))


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("kind", KINDS)
def test_all_forms_are_unified(kind: str, opset: int) -> None:
    """One value masks the scores of all layers, and results agree within float32 rounding."""
    shape = dataclasses.replace(TINY, mask=kind, batch=2, opset=opset)
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape)
    result, actual = unify_model(model, samples)
    (mask,) = actual.values
    users = [node for node in result.graph.node if mask in node.input]
    assert [node.op_type for node in users] == ["Add"] * shape.layers
    (value,) = (value for value in result.graph.value_info if value.name == mask)
    assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [2, 1, 1, 6]
    assert set(actual.nodes) <= {node.name for node in result.graph.node}
    for inputs in runs(samples):
        expected, got = run(model, **inputs), run(result, **inputs)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "pool", "method"),
    [
        ("added", "none", "minmax"),
        ("least", "mean", "mse"),
        ("where", "first", "mse"),
        ("scores", "mean", "minmax"),
    ],
)
def test_encoders_run_whole_on_the_device(kind: str, pool: str, method: str) -> None:
    """The host computes the mask from the input, and nothing after the word look-up."""
    shape = Shape(mask=kind, pool=pool, tokens=10, width=32, wide=64, opset=17 if pool == "none" else 13)
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape, 6)
    quantised = weft.quantise(model, samples, method=method)
    graph = import_model(quantised.model)
    assert [type(op) for op in device_ops(graph)].count(Attention) == shape.layers
    host = [name for name, _, place, _ in graph.assignment if place == "host"]
    makers = {output: node for node in quantised.model.graph.node for output in node.output}
    nodes = {node.name: node for node in quantised.model.graph.node}

    def sources(name: str) -> set[str]:
        node = makers.get(name)
        return {name} if node is None else set().union(*map(sources, node.input))

    constants = {tensor.name for tensor in quantised.model.graph.initializer}
    (last,) = (name for name in host if nodes[name].output[0] == "y")
    for name in host:
        if name != last:
            assert set().union(*map(sources, nodes[name].input)) - constants == {"mask"}, name
    assert all(layer.snr > 10 for layer in quantised.accuracy.layers)


@pytest.mark.parametrize(("tokens", "batch", "heads"), [(5, 2, 1), (33, 1, 4)])
def test_the_device_is_near_float(tokens: int, batch: int, heads: int) -> None:
    shape = Shape(tokens=tokens, heads=heads, batch=batch, pool="mean", mask="added")
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape, 6)
    quantised = weft.quantise(model, samples)
    program = weft.compile(quantised.model)
    for inputs in runs(samples)[:2]:
        expected, got = run(model, **inputs), program.run(inputs).outputs["y"]
        cosines = (expected * got).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(got, axis=1)
        assert cosines.min() > 0.997


def test_masked_tokens_have_no_influence() -> None:
    """Ids of masked tokens change no byte of other tokens' results."""
    shape = Shape(tokens=12, mask="where")
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape, 6)
    program = weft.compile(weft.quantise(model, samples).model, "small")
    inputs = runs(samples)[0]
    here = inputs["mask"].astype(bool)
    assert not here.all()
    other = inputs | {"ids": np.where(here, inputs["ids"], 3), "types": np.where(here, inputs["types"], 1)}
    first, second = (program.run(item).outputs["y"] for item in (inputs, other))
    np.testing.assert_array_equal(first[here], second[here])
    assert (first[~here] != second[~here]).any()


def test_masks_that_no_sample_uses() -> None:
    """Samples of full length give an equal model, because a mask's range is known."""
    shape = Shape(tokens=8, mask="added")
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape, 6)
    full = samples | {"mask": np.ones_like(samples["mask"])}
    quantised = weft.quantise(model, full).model
    assert [type(op) for op in device_ops(import_model(quantised))].count(Attention) == shape.layers
    program = weft.compile(quantised)
    for inputs in runs(samples)[:3]:
        here = inputs["mask"].astype(bool)
        expected, got = run(model, **inputs)[here], program.run(inputs).outputs["y"][here]
        assert (expected * got).sum() / np.linalg.norm(expected) / np.linalg.norm(got) > 0.99


def scores_with(value: str, net: float_nets.FloatNet) -> onnx.ModelProto:
    """Attention whose scores get an addend computed from an integer input."""
    q, k, v = (net.add("Reshape", "x", net.constant(np.array([1, 2, 5, 4], np.int64))) for _ in range(3))
    k = net.add("Transpose", k, perm=[0, 1, 3, 2])
    weights = net.add("Softmax", net.add("Add", net.add("MatMul", q, k), value), axis=-1)
    mixed = net.add("MatMul", weights, v)
    net.nodes.append(helper.make_node("Identity", [mixed], ["y"], "end"))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 5, 4)),
        helper.make_tensor_value_info("mask", TensorProto.INT64, (1, 1, 1, 5)),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2, 5, 4))
    graph = helper.make_graph(net.nodes, "net", inputs, [output], net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("factor", [-10000.0, -5.0, 10000.0])
@pytest.mark.parametrize("by_query", [False, True])
def test_other_addends_stay(factor: float, by_query: bool) -> None:
    """An addend that is no mask in some sample, or differs by query, is unchanged."""
    net = float_nets.FloatNet()
    value = net.add("Mul", net.add("Cast", "mask", to=TensorProto.FLOAT), net.constant(np.float32(factor)))
    if by_query:
        value = net.add("Mul", value, net.constant(np.tri(5, dtype=np.float32)))
    model = scores_with(value, net)
    rng = np.random.default_rng(0)
    samples = {
        "x": rng.normal(0, 1, (4, 1, 2, 5, 4)).astype(np.float32),
        "mask": rng.integers(0, 2, (4, 1, 1, 1, 5)),
    }
    result, actual = unify_model(model, samples)
    assert bool(actual.values) == (factor < -9999 and not by_query)
    if not actual.values:
        assert actual == masks.Masks()
        assert result == float_model.prepare(model, {})[0]
    for inputs in runs(samples):
        np.testing.assert_allclose(run(result, **inputs), run(model, **inputs), rtol=1e-5, atol=1e-6)
