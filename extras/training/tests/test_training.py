"""A training step in real numbers, with adapters: gradients against differences of the loss, and updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support import trained_nets
from support.ort_sessions import plain_session

from weft.compiler.host.onnx_model import model_of
from weft.compiler.ir.network import Network
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.reader import read
from weft.extras.training.gradient.derivative import GradientError
from weft.extras.training.gradient.expression import evaluate
from weft.extras.training.gradient.meaning import meanings
from weft.extras.training.gradient.network import for_batch, with_variables
from weft.extras.training.gradient.training import (
    MOMENTUM,
    PROBABILITIES,
    TARGET,
    Step,
    training_step,
    with_adapters,
)
from weft.extras.training.trainer import layers_of

BATCH = 5
NETS = [lambda rng: trained_nets.perceptron(rng, (7, 9, 4))] + [
    lambda rng, kind=kind: trained_nets.convolutional(rng, kind) for kind in range(4)
]


def constants_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}


def step_of(model: onnx.ModelProto, rate: float = 0.5, momentum: float = 0.75) -> Step:
    names = list(constants_of(model))
    return training_step(for_batch(read(model), BATCH), names, rate=rate, momentum=momentum)


def step_inputs(model: onnx.ModelProto, step: Step, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return inputs of a step: samples, and non-zero momenta."""
    x, labels = trained_nets.samples(model, BATCH, 3)
    classes = step.network.types[TARGET].shape[1]
    feed = {"x": x, TARGET: np.eye(classes, dtype=np.float32)[labels]}
    values = constants_of(model)
    for variable in step.variables:
        feed[variable.name] = variable.to_state(values[variable.name])
        feed[MOMENTUM.format(variable.name)] = rng.normal(size=variable.state).astype(np.float32)
    return feed


def losses(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> Callable[[dict[str, np.ndarray]], float]:
    """Return the mean cross entropy, in float64, as a function of changed constants."""
    values = constants_of(model)
    network = with_variables(for_batch(read(model), BATCH), values)
    logits = meanings(network, values).values[network.outputs[0]]

    def loss(changed: dict[str, np.ndarray]) -> float:
        rows = evaluate([logits], {"x": feed["x"], **values, **changed})[0]
        rows = rows - rows.max(1, keepdims=True)
        logs = rows - np.log(np.exp(rows).sum(1, keepdims=True))
        return float(-(logs * feed[TARGET]).sum() / BATCH)

    return loss


@pytest.mark.parametrize("kind", range(len(NETS)))
def test_gradients_are_differences_of_the_loss(kind: int) -> None:
    rng = np.random.default_rng([31, kind])
    model = NETS[kind](rng)
    step = step_of(model)
    feed = step_inputs(model, step, rng)
    session = plain_session(model_of(step.network))
    results = dict(zip([item.name for item in session.get_outputs()], session.run(None, feed), strict=True))
    values, loss = constants_of(model), losses(model, feed)
    for variable in step.variables:
        own = MOMENTUM.format(variable.name)
        after = results[step.states[own]]
        gradient = variable.from_state((after - 0.75 * feed[own]) / BATCH)
        np.testing.assert_allclose(
            results[step.states[variable.name]], feed[variable.name] - 0.5 / BATCH * after, atol=1e-5
        )
        direction = rng.normal(size=variable.shape)
        ends = [loss({variable.name: values[variable.name] + side * direction}) for side in (1e-6, -1e-6)]
        slope = (ends[0] - ends[1]) / 2e-6
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-3, abs=1e-4), variable.name


def test_probabilities_match_the_model() -> None:
    model = NETS[1](np.random.default_rng(5))
    step = step_of(model)
    feed = step_inputs(model, step, np.random.default_rng(6))
    session = plain_session(model_of(step.network))
    actual = session.run([PROBABILITIES], feed)[0]
    plain = plain_session(model)
    rows = np.concatenate([plain.run(None, {"x": row[None]})[0] for row in feed["x"]])
    expected = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_operators_without_gradient() -> None:
    rng = np.random.default_rng(7)
    model = trained_nets.perceptron(rng, (4, 3))
    network = for_batch(read(model), BATCH)
    with pytest.raises(GradientError, match="'x2' is neither a constant nor an input"):
        training_step(network, ["x2"], rate=0.1, momentum=0.0)
    net = trained_nets.Net(rng, (1, 6))
    product = net.node("Gemm", [net.node("Round", ["x"]), net.weights(3, 6)], transB=1)
    odd = net.model(net.node("Round", [product]), 3)
    with pytest.raises(GradientError, match=r"\(Round\) is an operator that has no gradient here"):
        training_step(for_batch(read(odd), BATCH), ["constant0"], rate=0.1, momentum=0.0)


def test_operators_before_trained_ones_need_no_gradient() -> None:
    net = trained_nets.Net(np.random.default_rng(8), (1, 6))
    rounded = net.node("Round", ["x"])
    model = net.model(net.node("Gemm", [rounded, net.weights(3, 6)], transB=1), 3)
    step = training_step(for_batch(read(model), BATCH), ["constant0"], rate=0.1, momentum=0.0)
    feed = step_inputs(model, step, np.random.default_rng(9))
    (actual,) = plain_session(model_of(step.network)).run(["constant0/next"], feed)
    logits = np.rint(feed["x"]) @ feed["constant0"].T
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = feed["constant0"] - 0.1 / BATCH * (p - feed[TARGET]).T @ np.rint(feed["x"])
    np.testing.assert_allclose(actual, expected, atol=1e-5)


UNGROUPED_NETS = [lambda rng: trained_nets.perceptron(rng, (7, 9, 4))] + [
    lambda rng, kind=kind: trained_nets.convolutional(rng, kind) for kind in (0, 2, 3)
]


def outputs(network: Network, x: np.ndarray) -> np.ndarray:
    session = plain_session(model_of(resolve(network).network))
    return np.concatenate([session.run(None, {"x": sample[None]})[0] for sample in x])


@pytest.mark.parametrize("kind", range(len(UNGROUPED_NETS)))
def test_merged_adapters(kind: int) -> None:
    rng = np.random.default_rng([81, kind])
    model = UNGROUPED_NETS[kind](rng)
    network = read(model)
    layers = [(node, names[0]) for node, names in layers_of(network)]
    adapted, adapters = with_adapters(network, layers, 3, rng)
    x, _ = trained_nets.samples(model, 4)
    np.testing.assert_allclose(outputs(adapted, x), outputs(network, x), atol=1e-5)

    values = {
        name: (0.3 * rng.normal(size=adapted.constants[name].shape)).astype(np.float32)
        for adapter in adapters
        for name in adapter.constants
    }
    moved = dataclasses.replace(adapted, constants={**adapted.constants, **values})
    merged = {adapter.name: adapter.merge(network.constants[adapter.name], values) for adapter in adapters}
    plain = dataclasses.replace(network, constants={**network.constants, **merged})
    assert np.abs(outputs(plain, x) - outputs(network, x)).max() > 0.01
    np.testing.assert_allclose(outputs(moved, x), outputs(plain, x), atol=1e-4, rtol=1e-4)


def test_products_without_transposing() -> None:
    rng = np.random.default_rng(82)
    net = trained_nets.Net(rng, (1, 6))
    model = net.model(net.node("MatMul", ["x", net.weights(6, 4)]), 4)
    network = read(model)
    layers = [(node, names[0]) for node, names in layers_of(network)]
    adapted, (adapter,) = with_adapters(network, layers, 2, rng)
    values = {
        name: rng.normal(size=adapted.constants[name].shape).astype(np.float32) for name in adapter.constants
    }
    moved = dataclasses.replace(adapted, constants={**adapted.constants, **values})
    merged = {adapter.name: adapter.merge(network.constants[adapter.name], values)}
    x, _ = trained_nets.samples(model, 4)
    plain = dataclasses.replace(network, constants=merged)
    np.testing.assert_allclose(outputs(moved, x), outputs(plain, x), atol=1e-4)


def test_grouped_convolutions_are_refused() -> None:
    network = read(trained_nets.convolutional(np.random.default_rng(83), 1))
    layers = [(node, names[0]) for node, names in layers_of(network)]
    with pytest.raises(GradientError, match="takes no adapter: convolutions without groups and products"):
        with_adapters(network, layers, 2, np.random.default_rng(0))


def test_models_stay_valid() -> None:
    rng = np.random.default_rng(84)
    network = read(trained_nets.convolutional(rng, 2))
    layers = [(node, names[0]) for node, names in layers_of(network)]
    adapted, _ = with_adapters(network, layers, 2, rng)
    onnx.checker.check_model(model_of(resolve(adapted).network), full_check=True)
