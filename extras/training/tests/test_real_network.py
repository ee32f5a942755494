"""Quantised networks as real networks, and networks for batches, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from support import float_nets, trained_nets
from support.ort_sessions import plain_session

import weft
from weft.compiler.host.onnx_model import model_of
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.reader import read
from weft.extras.training.gradient.derivative import GradientError
from weft.extras.training.gradient.network import for_batch
from weft.extras.training.gradient.real_network import to_real_network


@pytest.mark.parametrize("kind", range(4))
def test_real_numbers_are_near_the_integers(kind: int) -> None:
    model = trained_nets.quantise_by_samples(
        trained_nets.convolutional(np.random.default_rng([51, kind]), kind)
    )
    actual = to_real_network(read(model))
    assert not any("Linear" in node.op for node in actual.network.nodes)
    real = plain_session(model_of(resolve(actual.network).network))
    quantised = plain_session(model)
    x, _ = trained_nets.samples(model, 16)
    step = float(actual.kinds[actual.network.outputs[0]].scale)
    for sample in x:
        off = real.run(None, {"x": sample[None]})[0] - quantised.run(None, {"x": sample[None]})[0]
        assert np.abs(off).max() < 8 * step
    # Without the ReLU implied by the zero point, or without weights, the outputs would be far off.
    assert sum(node.op == "Relu" for node in actual.network.nodes) == 2
    assert len(actual.stored) >= 4


def test_relu_is_not_repeated() -> None:
    model = weft.quantise(float_nets.residual(), float_nets.samples(float_nets.residual(), 4)).model
    nodes = to_real_network(read(model)).network.nodes
    producers = {node.outputs[0]: node for node in nodes}
    for node in nodes:
        if node.op == "Relu":
            assert producers[node.inputs[0]].op != "Relu"


@pytest.mark.parametrize("kind", range(4))
def test_batches_keep_samples_apart(kind: int) -> None:
    model = trained_nets.convolutional(np.random.default_rng([52, kind]), kind)
    many = plain_session(model_of(for_batch(read(model), 3)))
    one = plain_session(model)
    x, _ = trained_nets.samples(model, 3)
    rows = np.concatenate([one.run(None, {"x": sample[None]})[0] for sample in x])
    np.testing.assert_allclose(many.run(None, {"x": x})[0], rows, atol=1e-5)


def test_samples_merged_with_rows() -> None:
    """ONNX Runtime's quantiser merges samples and rows around a product with a bias."""
    rng = np.random.default_rng(54)
    net = trained_nets.Net(rng, (1, 6, 4))
    rows = net.node("Reshape", ["x", net.constant(np.array([6, 4]))])
    rows = net.node("Gemm", [rows, net.weights(5, 4), net.bias(5)], transB=1)
    split = net.node("Reshape", [rows, net.constant(np.array([1, 6, 5]))])
    model = net.model(net.node("Flatten", [split]), 30)
    many, one = plain_session(model_of(for_batch(read(model), 3))), plain_session(model)
    x, _ = trained_nets.samples(model, 3)
    expected = np.concatenate([one.run(None, {"x": sample[None]})[0] for sample in x])
    np.testing.assert_allclose(many.run(None, {"x": x})[0], expected, atol=1e-5)


def test_invalid_batches() -> None:
    rng = np.random.default_rng(53)
    net = trained_nets.Net(rng, (1, 6))
    turned = net.node("Reshape", [net.node("Transpose", ["x"], perm=[1, 0]), net.constant(np.array([-1, 6]))])
    mixed = net.model(net.node("ReduceMean", [turned, net.constant(np.array([0]))]), 6)
    with pytest.raises(GradientError, match=r"output 'y' of shape \(1, 6\) is \(1, 6\) for 3 samples"):
        for_batch(read(mixed), 3)
    net = trained_nets.Net(rng, (2, 6))
    two = net.model(net.node("Relu", ["x"]), 6)
    assert for_batch(read(two), 2).types["x"].shape == (2, 6)
    with pytest.raises(
        GradientError, match=r"input 'x' has shape \(2, 6\): its first axis must be of 1 sample, or"
    ):
        for_batch(read(two), 5)
