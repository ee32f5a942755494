"""Low-rank adapters: they do not change the network at first, and merged weights compute the same results."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from support import trained_nets
from support.ort_sessions import plain_session

from weft.compiler.host.onnx_model import model_of
from weft.compiler.ir.network import Network
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.reader import read
from weft.extras.training.gradient.derivative import GradientError
from weft.extras.training.gradient.training import with_adapters
from weft.extras.training.trainer import layers_of

NETS = [lambda rng: trained_nets.perceptron(rng, (7, 9, 4))] + [
    lambda rng, kind=kind: trained_nets.convolutional(rng, kind) for kind in (0, 2, 3)
]


def outputs(network: Network, x: np.ndarray) -> np.ndarray:
    session = plain_session(model_of(resolve(network).network))
    return np.concatenate([session.run(None, {"x": sample[None]})[0] for sample in x])


@pytest.mark.parametrize("kind", range(len(NETS)))
def test_merged_adapters(kind: int) -> None:
    rng = np.random.default_rng([81, kind])
    model = NETS[kind](rng)
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
