"""Decoders read from ONNX graphs match ONNX Runtime on the graphs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from weft.compiler.host import evaluate
from weft.extras.language.compiler.model import BlockTensor, LanguageModel, Rotary, Sizes, dense
from weft.extras.language.compiler.reference import Reference
from weft.extras.language.compiler.weights import is_in_blocks
from weft.extras.language.onnx.reader import read
from weft.extras.language.tests.support.language_models import SIZES, byte_pairs, pieces, random_model
from weft.extras.language.tests.support.onnx_decoders import Form, run_onnxruntime, write

SIXTEEN = dataclasses.replace(SIZES, key_length=16, value_length=16)
"""Sizes with head lengths that ONNX Runtime's operators accept."""
LOOSE = {"half": 0.03, "dynamic": 0.4}
"""Tolerance of logits relative to their standard deviation, where the graph itself rounds."""


def draw_sizes(rng: np.random.Generator, style: str) -> tuple[Sizes, Rotary]:
    groups, shared = (int(rng.integers(1, 4)) for _ in range(2))
    length = int(rng.choice([8, 16, 32]))
    multiple = 16 if style == "grouped" else 1  # required by ONNX Runtime's rotation
    length = max(length, multiple)
    sizes = Sizes(
        context=int(rng.integers(12, 80)),
        width=int(rng.choice([32, 64, 96, 128])),
        blocks=int(rng.integers(1, 4)),
        heads=groups * shared,
        key_value_heads=groups,
        key_length=length,
        value_length=length,
        feed_forward=int(rng.choice([64, 128, 192])),
        vocabulary=0,
    )
    base = float(rng.choice([10000.0, 500000.0, 1234.5]))
    return sizes, Rotary(length, base)


def check_logits(
    path: Path, model: LanguageModel, rng: np.random.Generator, tolerance: float
) -> LanguageModel:
    """Read the graph and compare it with ONNX Runtime: a prompt, then single tokens with the cache."""
    actual = read(path)
    reference = Reference(actual)
    cache, past = reference.start(), None
    left = model.sizes.context
    for count in (5, 1, 3):
        count = min(count, left - 1)
        tokens = [int(token) for token in rng.integers(0, model.sizes.vocabulary, count)]
        wanted, past = run_onnxruntime(path, tokens, past)
        logits = reference.logits(tokens, cache)
        assert np.abs(logits - wanted).max() <= tolerance * wanted.std()
        left -= count
    return actual


FORMS = [
    Form(),
    Form(packed=True, neighbours=True),
    Form(apart=True),
    Form(apart=True, packed=True, neighbours=True),
    Form(weights="half", packed=True),
    Form(weights="bits", packed=True),
    Form(weights="bits", block=64, zeros=True),
    Form(weights="bits", block=128, apart=True),
    Form(weights="bits", bits=8, zeros=True),
    Form(weights="dynamic"),
    Form(style="plain"),
    Form(style="plain", neighbours=True, packed=True),
    Form(style="plain", weights="channels"),
    Form(style="plain", weights="blocks"),
    Form(style="plain", weights="dynamic", packed=True),
    Form(style="plain", weights="half"),
    Form(style="standard"),
    Form(style="standard", neighbours=True, packed=True),
    Form(style="standard", weights="bits", zeros=True),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_logits_match_onnx_runtime(form: Form, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([seed, FORMS.index(form)])
    sizes, rotary = draw_sizes(rng, form.style)
    vocabulary = pieces() if rng.integers(2) else byte_pairs()
    model = random_model(
        rng,
        sizes=sizes,
        rotary=rotary,
        tied=bool(rng.integers(2)),
        biases=bool(rng.integers(2)),
        vocabulary=vocabulary,
    )
    path = write(tmp_path, model, form, rng)
    actual = check_logits(path, model, rng, LOOSE.get(form.weights, 2e-4))
    assert actual.sizes == model.sizes
    assert actual.architecture == "llama"
    assert actual.epsilon == pytest.approx(model.epsilon, rel=2e-3 if form.weights == "half" else 1e-5)
    assert actual.rotary is not None
    assert actual.rotary.dimensions == rotary.dimensions
    if form.weights not in ("half",):
        assert (actual.rotary.base, actual.rotary.scale, actual.rotary.factors) == (rotary.base, 1.0, None)
    assert actual.notes == ()


@pytest.mark.parametrize("weights", ["float", "channels", "bits"])
def test_gpt2(weights: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    model = random_model(rng, "gpt2", tied=True)
    form = Form(style="plain", weights=weights, packed=True)
    path = write(tmp_path, model, form, rng)
    actual = check_logits(path, model, rng, 2e-4)
    assert (actual.architecture, actual.sizes, actual.rotary) == ("gpt2", model.sizes, None)
    assert actual.positions is not None
    assert model.positions is not None
    assert np.array_equal(dense(actual.positions), dense(model.positions))
    assert actual.tied == (weights == "float")


@pytest.mark.parametrize(
    ("form", "rotary"),
    [
        (Form(style="plain"), Rotary(4, 10000.0)),
        (Form(style="plain", neighbours=True), Rotary(4, 10000.0)),
        (Form(style="standard"), Rotary(6, 777.0)),
        (Form(style="plain"), Rotary(8, 10000.0, scale=4.0)),
        (Form(style="standard"), Rotary(8, 10000.0, 1.0, np.array([1, 1, 2.5, 8], np.float32))),
    ],
    ids=str,
)
def test_rotations(form: Form, rotary: Rotary, tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    model = random_model(rng, rotary=rotary)
    actual = check_logits(write(tmp_path, model, form, rng), model, rng, 2e-4).rotary
    assert actual is not None
    assert (actual.dimensions, actual.base, actual.scale) == (rotary.dimensions, rotary.base, rotary.scale)
    factors = np.ones(rotary.dimensions // 2) if rotary.factors is None else rotary.factors
    assert np.allclose(1.0 if actual.factors is None else actual.factors, factors, rtol=1e-3)


@pytest.mark.parametrize(
    "form",
    [
        Form(),
        Form(apart=True, packed=True),
        Form(style="plain"),
        Form(weights="bits"),
        Form(weights="dynamic"),
    ],
    ids=str,
)
def test_onnx_runtime_is_not_needed(form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    model = random_model(rng, sizes=SIXTEEN)
    path = write(tmp_path, model, form, rng)
    wanted = read(path)
    monkeypatch.setattr(evaluate, "runtime", lambda: None)
    actual = read(path)
    assert (actual.sizes, actual.epsilon) == (wanted.sizes, wanted.epsilon)
    for one, other in zip(actual.blocks, wanted.blocks, strict=True):
        assert np.array_equal(dense(one.query.weight), dense(other.query.weight))
        assert np.array_equal(one.attention_norm.weight, other.attention_norm.weight)


def test_nothing_is_rounded(tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    model = random_model(rng, sizes=SIXTEEN)
    for form in (Form(), Form(style="plain", packed=True), Form(style="standard", neighbours=True)):
        actual = read(write(tmp_path, model, form, rng))
        for one, other in zip(actual.blocks, model.blocks, strict=True):
            for name in ("query", "key", "value", "attention_output", "gate", "up", "down"):
                assert np.array_equal(getattr(one, name).weight, getattr(other, name).weight), (form, name)
            assert np.array_equal(one.feed_forward_norm.weight, other.feed_forward_norm.weight)
        assert np.array_equal(dense(actual.output.weight), dense(model.output.weight))
        assert np.array_equal(dense(actual.token_embedding), dense(model.token_embedding))
        assert actual.output_norm.bias is None


@pytest.mark.parametrize(
    ("block", "bits", "zeros"), [(16, 4, False), (32, 4, False), (128, 4, False), (64, 8, True)]
)
def test_blocks_stay_blocks(block: int, bits: int, zeros: bool, tmp_path: Path) -> None:
    """Blocks that the device supports in 4 bits are kept; larger ones are split, with equal scales."""
    rng = np.random.default_rng(11)
    sizes = dataclasses.replace(SIXTEEN, width=128, feed_forward=256)
    model = random_model(rng, sizes=sizes)
    actual = read(write(tmp_path, model, Form(weights="bits", block=block, bits=bits, zeros=zeros), rng))
    weight = actual.blocks[0].down.weight
    assert isinstance(weight, BlockTensor)
    assert (weight.block, weight.minimums) == (min(block, 32), None)
    assert weight.scales.shape == (128, 256 // min(block, 32))
    if block > 32:
        assert np.array_equal(weight.scales[:, ::2], weight.scales[:, 1::2])
    largest = int(np.abs(weight.values).max())
    assert largest <= 8 if bits == 4 else 100 < largest <= 128
    assert is_in_blocks(weight) == (block >= 32 and bits == 4)


def test_a_block_that_columns_do_not_fill(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    sizes = dataclasses.replace(SIXTEEN, width=80, feed_forward=48)
    model = random_model(rng, sizes=sizes)
    path = write(tmp_path, model, Form(weights="bits", block=32, zeros=True), rng)
    actual = check_logits(path, model, rng, 2e-4)
    assert isinstance(actual.blocks[0].down.weight, np.ndarray)
