"""Decoders in ONNX graphs: what is read of them computes what ONNX Runtime makes of the graphs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from support.language_models import byte_pairs, pieces, random_model
from support.onnx_decoders import Form, outside, write

from weft.compiler.language.model import BlockTensor, LanguageModel, Rotary, Sizes
from weft.compiler.language.reference import Reference
from weft.compiler.onnx_language.reader import read

LOOSE = {"half": 0.03, "dynamic": 0.4}
"""How far logits may be off, relative to their deviation, where the graph itself rounds."""


def drawn(rng: np.random.Generator, style: str) -> tuple[Sizes, Rotary]:
    groups, shared = (int(rng.integers(1, 4)) for _ in range(2))
    length = int(rng.choice([8, 16, 32]))
    multiple = 16 if style == "grouped" else 1  # of which ONNX Runtime's rotation wants lengths
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


def compared(path: Path, model: LanguageModel, rng: np.random.Generator, tolerance: float) -> LanguageModel:
    """What is read, held to ONNX Runtime: a prompt, and then a token and more with what is kept."""
    found = read(path)
    reference = Reference(found)
    cache, past = reference.start(), None
    left = model.sizes.context
    for count in (5, 1, 3):
        count = min(count, left - 1)
        tokens = [int(token) for token in rng.integers(0, model.sizes.vocabulary, count)]
        wanted, past = outside(path, tokens, past)
        logits = reference.logits(tokens, cache)
        assert np.abs(logits - wanted).max() <= tolerance * wanted.std()
        left -= count
    return found


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
def test_logits_are_those_of_onnx_runtime(form: Form, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([seed, FORMS.index(form)])
    sizes, rotary = drawn(rng, form.style)
    known = pieces() if rng.integers(2) else byte_pairs()
    model = random_model(
        rng, sizes=sizes, rotary=rotary, tied=bool(rng.integers(2)), biases=bool(rng.integers(2)), vocabulary=known
    )
    path = write(tmp_path, model, form, rng)
    found = compared(path, model, rng, LOOSE.get(form.weights, 2e-4))
    assert found.sizes == model.sizes
    assert found.architecture == "llama"
    assert found.epsilon == pytest.approx(model.epsilon, rel=2e-3 if form.weights == "half" else 1e-5)
    assert found.rotary is not None
    assert found.rotary.dimensions == rotary.dimensions
    if form.weights not in ("half",):
        assert (found.rotary.base, found.rotary.scale, found.rotary.factors) == (rotary.base, 1.0, None)
    assert found.notes == ()
