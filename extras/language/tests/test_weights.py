"""Matrices and biases after norms."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import weft.extras.language.run.lm
from weft.compiler.errors import CompileError, KernelError
from weft.compiler.kernel.expressions import DIGITS, digits
from weft.extras.language.compiler.model import Linear, Norm
from weft.extras.language.compiler.reference import Reference
from weft.extras.language.compiler.weights import (
    Biases,
    Scaled,
    Weights,
    bias_after_norm,
    has_blocks,
    power_of_two,
    scale_blocks,
)
from weft.extras.language.tests.support.language_models import random_model, write


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_norms_are_folded_into_the_next_product(architecture: str, own: bool) -> None:
    """A plain row times folded weights plus folded biases matches the reference."""
    rng = np.random.default_rng(2)
    model = random_model(rng, architecture, biases=own)
    norm, linear = model.blocks[0].attention_norm, model.blocks[0].query
    x, reference = rng.normal(2, 3, (7, model.sizes.width)).astype(np.float32), Reference(model)
    exact = reference._linear(linear, reference._norm(norm, x))
    width = model.sizes.width
    plain = Norm(np.ones(width, np.float32), None if norm.bias is None else np.zeros(width, np.float32))
    weights = Weights.after_norm(linear, norm)
    rows = reference._norm(plain, x)
    actual = rows @ (weights.values * weights.scales[:, None]).T + bias_after_norm(linear, norm)
    assert np.abs(actual - exact).max() < 0.06  # what int8 is off
    without = rows @ (weights.values * weights.scales[:, None]).T
    assert (np.abs(without - exact).max() < 0.06) == (not own and architecture == "llama")


def test_gains_stay_beside_weights() -> None:
    rng = np.random.default_rng(3)
    linear = Linear(rng.normal(0, 1, (4, 32)).astype(np.float32))
    norm = Norm(rng.uniform(0.5, 2, 32).astype(np.float32))
    for gains, exact in ((True, linear.weight), (False, linear.weight * norm.weight)):
        actual = Weights.after_norm(linear, norm, gains=gains)
        assert np.abs(actual.values * actual.scales[:, None] - exact).max() <= actual.scales.max() / 2 * 1.001
    one = Weights.after_norm(linear, norm, shared_scale=True)
    assert len(set(one.scales)) == 1
    assert not has_blocks(random_model(rng))


@pytest.mark.parametrize(("architecture", "field", "factor", "message"), [
    ("llama", "key", 1e3, r"the scores of block 1 reach [\d.e+]+ with 'blk.1.attn_q.weight' and 'blk.1.attn_k.weight': "
     "1.25 times that must be at most 166, because the device clamps larger scores"),
    ("gpt2", "query", 1e15, r"the scores of block 1 reach [\d.e+]+ with 'blk.1.attn_qkv.weight': 1.25 times .*"),
    ("llama", "value", 1e15, r"tensor 'blk.1.attn_v.weight' has values up to [\d.]+e\+15, while the median over "
     r"matrices is 0.\d+: the device's arithmetic cannot represent both"),
    ("gpt2", "attention_output", 1e15, r"tensor 'blk.1.attn_output.weight' has values up to [\d.]+e\+1[45], .*"),
])  # fmt: skip
def test_values_that_do_not_fit(
    tmp_path: Path, architecture: str, field: str, factor: float, message: str
) -> None:
    model = random_model(np.random.default_rng(0), architecture)
    first, last = model.blocks
    linear = getattr(last, field)
    linear = dataclasses.replace(linear, weight=linear.weight * np.float32(factor))
    blocks = (first, dataclasses.replace(last, **{field: linear}))
    write(dataclasses.replace(model, blocks=blocks), tmp_path / "model.gguf", "F32")
    with pytest.raises(CompileError, match=f"^{message}$") as caught:
        weft.extras.language.run.lm.load(tmp_path / "model.gguf", "small")
    assert not isinstance(caught.value, KernelError)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("largest", [0.3, 100.5, 32639.0, 32640.0, 1e5, 8355584.0, 8355585.0, 3e9])
def test_biases_are_as_fine_as_digits_allow(count: int, largest: float) -> None:
    rng = np.random.default_rng(int(largest))
    parts = [rng.uniform(-1, 1, 40) * largest, rng.uniform(-1, 1, 3) * largest]
    parts[1][0] = -largest
    actual = Biases.of(parts, count)
    most = DIGITS << 8 * (count - 2)
    assert actual.shift == next(shift for shift in range(40) if largest / 2**shift <= most)
    for exact, numbers in zip(parts, actual.numbers, strict=True):
        assert np.array_equal(numbers, np.rint(exact / 2**actual.shift))
        assert len(digits(numbers, count)) == count  # they fit


def test_no_bias_is_zero() -> None:
    actual = Biases.of([np.zeros(3)])
    assert actual.shift == 0
    assert not actual.numbers[0].any()


def test_blocks_have_one_shift() -> None:
    rng = np.random.default_rng(1)
    matrices = [Weights.quantise(rng.normal(0, scale, (5, 32)).astype(np.float32)) for scale in (0.1, 2.0)]
    scaled = scale_blocks(matrices, [3.0, 0.01])
    assert len({(each.shift, each.max_sum, each.max_result) for each in scaled}) == 1
    for each, matrix, factor in zip(scaled, matrices, (3.0, 0.01), strict=True):
        assert isinstance(each, Scaled)
        np.testing.assert_allclose(each.factors, matrix.scales * factor, rtol=2**-8)


def test_powers_of_two() -> None:
    assert [power_of_two(value) for value in (0.25, 0.26, 1.0, 3.0)] == [0.25, 0.5, 1.0, 4.0]
