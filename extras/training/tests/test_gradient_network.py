"""Gradient networks, run by ONNX Runtime, against gradients of the expressions."""

from __future__ import annotations

import numpy as np
import pytest
from support.ort_sessions import plain_session

from weft.compiler.host.onnx_model import model_of
from weft.compiler.onnx.reader import read
from weft.extras.training.gradient import tensor
from weft.extras.training.gradient.network import gradient_network
from weft.extras.training.tests.support.gradient_cases import CASES, Case, gradients_of


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_networks_of_gradients(case: Case) -> None:
    arrays, seeds, expected = gradients_of(case, np.random.default_rng(4))
    model = model_of(gradient_network(read(case.model())))
    full = {**arrays, **{f"out{index}/gradient": seed for index, seed in enumerate(seeds)}}
    session = plain_session(model)
    feed = {item.name: full[item.name].astype(np.float32) for item in session.get_inputs()}
    names = [item.name for item in session.get_outputs()]
    assert names == [f"{name}/gradient" for name in arrays]
    for actual, wanted in zip(session.run(None, feed), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-4)


def test_equal_nodes_are_shared_unless_named() -> None:
    graph = tensor.Graph()
    one, again = (graph.node("Neg", ["x"]) for _ in range(2))
    assert one == again
    assert graph.node("Neg", ["y"]) != one
    assert graph.node("Softmax", ["x"], axis=1) != graph.node("Softmax", ["x"], axis=0)
    assert graph.node("Neg", ["x"], "wanted") == "wanted"
    assert [node.outputs[0] for node in graph.nodes].count("wanted") == 1
    assert len(graph.nodes) == 5
