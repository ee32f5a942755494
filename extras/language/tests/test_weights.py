"""Matrices and biases behind norms."""

from __future__ import annotations

import numpy as np
import pytest

from weft.extras.language.compiler.model import Linear, Norm
from weft.extras.language.compiler.reference import Reference
from weft.extras.language.compiler.weights import Weights, bias_after_norm, has_blocks
from weft.extras.language.tests.support.language_models import random_model


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_norms_become_part_of_what_is_behind_them(architecture: str, own: bool) -> None:
    """A row without gain and bias, times weights and plus biases that have both: what the reference computes."""
    rng = np.random.default_rng(2)
    model = random_model(rng, architecture, biases=own)
    norm, linear = model.blocks[0].attention_norm, model.blocks[0].query
    x, reference = rng.normal(2, 3, (7, model.sizes.width)).astype(np.float32), Reference(model)
    exact = reference._linear(linear, reference._norm(norm, x))
    width = model.sizes.width
    plain = Norm(np.ones(width, np.float32), None if norm.bias is None else np.zeros(width, np.float32))
    weights = Weights.after_norm(linear, norm)
    rows = reference._norm(plain, x)
    found = rows @ (weights.values * weights.scales[:, None]).T + bias_after_norm(linear, norm)
    assert np.abs(found - exact).max() < 0.06  # what int8 is off
    without = rows @ (weights.values * weights.scales[:, None]).T
    assert (np.abs(without - exact).max() < 0.06) == (not own and architecture == "llama")


def test_gains_stay_beside_weights() -> None:
    rng = np.random.default_rng(3)
    linear = Linear(rng.normal(0, 1, (4, 32)).astype(np.float32))
    norm = Norm(rng.uniform(0.5, 2, 32).astype(np.float32))
    for gains, exact in ((True, linear.weight), (False, linear.weight * norm.weight)):
        found = Weights.after_norm(linear, norm, gains=gains)
        assert np.abs(found.values * found.scales[:, None] - exact).max() <= found.scales.max() / 2 * 1.001
    one = Weights.after_norm(linear, norm, shared_scale=True)
    assert len(set(one.scales)) == 1
    assert not has_blocks(random_model(rng))
