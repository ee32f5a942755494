"""Masks that are computed from inputs: one form of all that exporters write, and encoders whole on the device."""

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


def unified(model: onnx.ModelProto, samples: dict[str, np.ndarray]) -> tuple[onnx.ModelProto, masks.Masks]:
    prepared, _ = float_model.prepare(model, {})
    return masks.unify(prepared, runs(samples))


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_become_one(kind: str, opset: int) -> None:
    """One value masks the scores of all layers, and results are the same to what float32 rounds."""
    shape = dataclasses.replace(TINY, mask=kind, batch=2, opset=opset)
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape)
    made, found = unified(model, samples)
    (mask,) = found.values
    users = [node for node in made.graph.node if mask in node.input]
    assert [node.op_type for node in users] == ["Add"] * shape.layers
    (value,) = (value for value in made.graph.value_info if value.name == mask)
    assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [2, 1, 1, 6]
    assert set(found.nodes) <= {node.name for node in made.graph.node}
    for given in runs(samples):
        wanted, got = run(model, **given), run(made, **given)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


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
    """The host makes the mask of the input, and nothing that comes behind the look-up of words."""
    shape = Shape(mask=kind, pool=pool, tokens=10, width=32, wide=64, opset=17 if pool == "none" else 13)
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape, 6)
    made = weft.quantise(model, samples, method=method)
    graph = import_model(made.model)
    assert [type(op) for op in device_ops(graph)].count(Attention) == shape.layers
    host = [name for name, _, place, _ in graph.assignment if place == "host"]
    makers = {output: node for node in made.model.graph.node for output in node.output}
    nodes = {node.name: node for node in made.model.graph.node}

    def sources(name: str) -> set[str]:
        node = makers.get(name)
        return {name} if node is None else set().union(*map(sources, node.input))

    constants = {tensor.name for tensor in made.model.graph.initializer}
    (last,) = (name for name in host if nodes[name].output[0] == "y")
    for name in host:
        if name != last:
            assert set().union(*map(sources, nodes[name].input)) - constants == {"mask"}, name
    assert all(layer.snr > 10 for layer in made.accuracy.layers)


@pytest.mark.parametrize(("tokens", "batch", "heads"), [(5, 2, 1), (33, 1, 4)])
def test_the_device_is_near_float(tokens: int, batch: int, heads: int) -> None:
    shape = Shape(tokens=tokens, heads=heads, batch=batch, pool="mean", mask="added")
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape, 6)
    made = weft.quantise(model, samples)
    program = weft.compile(made.model)
    for given in runs(samples)[:2]:
        wanted, got = run(model, **given), program.run(given).outputs["y"]
        cosines = (wanted * got).sum(1) / np.linalg.norm(wanted, axis=1) / np.linalg.norm(got, axis=1)
        assert cosines.min() > 0.997


def test_what_is_masked_does_not_matter() -> None:
    """Ids of masked tokens change no byte of the others' results."""
    shape = Shape(tokens=12, mask="where")
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape, 6)
    program = weft.compile(weft.quantise(model, samples).model, "small")
    given = runs(samples)[0]
    here = given["mask"].astype(bool)
    assert not here.all()
    other = given | {"ids": np.where(here, given["ids"], 3), "types": np.where(here, given["types"], 1)}
    first, second = (program.run(item).outputs["y"] for item in (given, other))
    np.testing.assert_array_equal(first[here], second[here])
    assert (first[~here] != second[~here]).any()


def test_masks_that_no_sample_uses() -> None:
    """Samples of full length make no other quantised model: the range of a mask is known."""
    shape = Shape(tokens=8, mask="added")
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape, 6)
    full = samples | {"mask": np.ones_like(samples["mask"])}
    made = weft.quantise(model, full).model
    assert [type(op) for op in device_ops(import_model(made))].count(Attention) == shape.layers
    program = weft.compile(made)
    for given in runs(samples)[:3]:
        here = given["mask"].astype(bool)
        wanted, got = run(model, **given)[here], program.run(given).outputs["y"][here]
        assert (wanted * got).sum() / np.linalg.norm(wanted) / np.linalg.norm(got) > 0.99


def scores_with(value: str, net: float_nets.FloatNet) -> onnx.ModelProto:
    """Attention to whose scores a value is added that is made of an input of integers."""
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
    """What is no mask in some sample, or is another for each query, is not touched."""
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
    made, found = unified(model, samples)
    assert bool(found.values) == (factor < -9999 and not by_query)
    if not found.values:
        assert found == masks.Masks()
        assert made == float_model.prepare(model, {})[0]
    for given in runs(samples):
        np.testing.assert_allclose(run(made, **given), run(model, **given), rtol=1e-5, atol=1e-6)
