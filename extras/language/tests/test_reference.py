"""The float32 reference against a plain float64 one, whole and in parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.extras.language.compiler import reference
from weft.extras.language.compiler.encoders import TokenError
from weft.extras.language.compiler.model import LanguageModel, Linear, Rotary, Sizes
from weft.extras.language.compiler.reference import Perplexity, Reference, measure_ranges, perplexity
from weft.extras.language.tests.support import language_models, plain_language
from weft.extras.language.tests.support.language_models import SIZES, random_model

FACTORS = np.array([1.0, 1.5, 8.0], np.float32)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "gpt2": ("gpt2", {}),
    "tied": ("llama", {"tied": True}),
    "biases": ("llama", {"biases": True}),
    "a head of keys for each of queries": ("llama", {"sizes": replace(SIZES, key_value_heads=4)}),
    "one head of keys": ("llama", {"sizes": replace(SIZES, key_value_heads=1)}),
    "lengths of their own": ("llama", {"sizes": replace(SIZES, key_length=6, value_length=10, heads=6)}),
    "a part is turned": ("llama", {"rotary": Rotary(6, 500.0, 4.0, FACTORS)}),
    "one block, one head": (
        "gpt2",
        {"sizes": replace(SIZES, blocks=1, heads=1, key_length=32, value_length=32)},
    ),
    "odd sizes": (
        "llama",
        {"sizes": replace(SIZES, width=21, feed_forward=35, heads=3, key_value_heads=3, blocks=3)},
    ),
}


def case(name: str) -> LanguageModel:
    architecture, options = CASES[name]
    return language_models.random_model(np.random.default_rng(len(name)), architecture, **options)


def tokens_of(model: LanguageModel, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.sizes.vocabulary, count).tolist()


@pytest.mark.parametrize("name", CASES)
def test_matches_plain_float64(name: str) -> None:
    model = case(name)
    tokens = tokens_of(model, 9)
    actual, wanted = Reference(model).logits(tokens), plain_language.logits(model, tokens)
    assert actual.dtype == np.float32
    assert wanted.std() > 0.3
    np.testing.assert_allclose(actual, wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_weights_in_blocks(architecture: str, kind: str, tmp_path: Path) -> None:
    model = language_models.write_random(tmp_path / "x", np.random.default_rng(7), architecture, kind)
    tokens = tokens_of(model, 5)
    wanted = plain_language.logits(model, tokens)
    np.testing.assert_allclose(Reference(model).logits(tokens), wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", CASES)
def test_parts_match_the_whole_up_to_rounding(name: str) -> None:
    model = case(name)
    tokens = tokens_of(model, 24)
    reference = Reference(model)
    expected = reference.logits(tokens)
    for cuts in ([1, 2, 3, 4, 5, 6], [23], [10, 11], list(range(1, 24))):
        cache = reference.start()
        parts = []
        for start, stop in zip([0, *cuts], [*cuts, 24], strict=True):
            parts.append(reference.logits(tokens[start:stop], cache))
            assert cache.length == stop
        np.testing.assert_allclose(np.concatenate(parts), expected, atol=2e-5 * np.abs(expected).max())


def test_texts_longer_than_a_chunk() -> None:
    """Also with only the last logits."""
    sizes = replace(SIZES, context=700, blocks=1)
    model = language_models.random_model(np.random.default_rng(8), sizes=sizes)
    tokens, reference = tokens_of(model, 600), Reference(model)
    expected, cache = reference.logits(tokens), reference.start()
    assert expected.shape == (600, model.sizes.vocabulary)
    parts = [reference.logits(tokens[start : start + 100], cache) for start in range(0, 600, 100)]
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-4)
    for count in (1, 255, 256, 257, 512, 600):
        last = reference.logits(tokens[:count], last=True)
        assert last.shape == (1, model.sizes.vocabulary)
        np.testing.assert_allclose(last[0], expected[count - 1], atol=1e-4)


def test_texts_do_not_affect_each_other() -> None:
    model = case("llama")
    reference, (one, two) = Reference(model), (tokens_of(model, 8, 1), tokens_of(model, 8, 2))
    first, second = reference.start(), reference.start()
    actual = [np.concatenate([reference.logits([a], first), reference.logits([b], second)])
             for a, b in zip(one, two, strict=True)]  # fmt: skip
    np.testing.assert_allclose(np.array(actual)[:, 0], reference.logits(one), atol=1e-4)
    np.testing.assert_allclose(np.array(actual)[:, 1], reference.logits(two), atol=1e-4)


def test_large_values_do_not_overflow() -> None:
    """Gates far below zero and scores far above it."""
    model = case("llama")
    blocks = tuple(
        replace(block, query=replace(block.query, weight=block.query.weight * np.float32(1000)),  # type: ignore[operator]
                gate=replace(block.gate, weight=block.gate.weight * np.float32(1000)))  # type: ignore
        for block in model.blocks
    )  # fmt: skip
    assert np.isfinite(Reference(replace(model, blocks=blocks)).logits(tokens_of(model, 20))).all()


def test_tokens_are_refused() -> None:
    model = case("gpt2")
    reference, count = Reference(model), model.sizes.vocabulary
    cache = reference.start()
    reference.logits(tokens_of(model, 20), cache)
    for tokens, why in {
        (): "there are no tokens; a model needs at least one",
        (0, -1): f"there is no token -1; the vocabulary has {count}",
        (count, 0): f"there is no token {count}; the vocabulary has {count}",
        (0,) * 5: "the text has 25 tokens; the model's context is 24",
    }.items():
        with pytest.raises(TokenError) as caught:
            reference.logits(tokens, cache)
        assert str(caught.value) == why
        assert cache.length == 20
    assert reference.logits((0,) * 4, cache).shape == (4, count)


def test_weights_that_are_too_large() -> None:
    model = case("tied")
    huge = replace(model, output_norm=replace(model.output_norm, weight=np.full(32, 3e38, np.float32)))
    with pytest.raises(TokenError) as caught:
        Reference(huge).logits([1])
    assert str(caught.value) == ("the model's logits are not finite: its weights are too large, or damaged")


def test_functions_of_one_number() -> None:
    """Tighter than comparing logits."""
    x = np.linspace(-8, 8, 401, dtype=np.float32)
    tanh = [math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)) for value in x.tolist()]
    gelu = [value / 2 * (1 + other) for value, other in zip(x.tolist(), tanh, strict=True)]
    np.testing.assert_allclose(reference._gelu(x), gelu, atol=1e-6)
    silu = [value / (1 + math.exp(-value)) for value in x.tolist()]
    np.testing.assert_allclose(reference._silu(x), silu, atol=1e-6)


_SIZES = Sizes(
    context=24, width=32, blocks=2, heads=4, key_value_heads=2, key_length=8, value_length=8, feed_forward=48,
    vocabulary=0,
)  # fmt: skip


def measure_heads(
    model: LanguageModel, texts: list[list[int]], patch: pytest.MonkeyPatch
) -> dict[int, list[float]]:
    """Return the largest elements of heads before and after rotation, by source product."""
    result: dict[int, list[float]] = {}
    heads = plain_language._heads

    def watched(
        model: LanguageModel, linear: Linear, x: list[float], count: int, at: int
    ) -> list[list[float]]:
        rotated = heads(model, linear, x, count, at)
        seen = result.setdefault(id(linear), [0.0, 0.0])
        for index, values in enumerate((plain_language._product(linear, x), np.ravel(rotated))):
            seen[index] = max(seen[index], float(np.abs(values).max()))
        return rotated

    patch.setattr(plain_language, "_heads", watched)
    for text in texts:
        plain_language.logits(model, text)
    return result


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_ranges_cover_rotated_queries_and_keys(
    architecture: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, architecture, _SIZES, biases=bool(seed % 2))
    count = len(model.vocabulary.tokens)
    texts = [rng.integers(0, count, length).tolist() for length in (1, 7, 24)]
    seen = measure_heads(model, texts, monkeypatch)
    actual = measure_ranges(model, texts)
    for block, query, key in zip(model.blocks, actual.query, actual.key, strict=True):
        assert query == pytest.approx(max(seen[id(block.query)]), rel=1e-4)
        assert key == pytest.approx(max(seen[id(block.key)]), rel=1e-4)


COUNT = 7


def uniform(tokens: Sequence[int]) -> np.ndarray:
    return np.full((len(tokens), COUNT), 1000.0, np.float32)


@given(st.integers(2, 60), st.integers(2, 20), st.data())
def test_every_token_counts_once(length: int, window: int, data: st.DataObject) -> None:
    """Checked with logits that encode the preceding tokens."""
    stride = data.draw(st.integers(1, window - 1))
    tokens = [at % COUNT for at in range(length)]
    seen: list[int] = []

    def logits(context: Sequence[int]) -> np.ndarray:
        assert 0 < len(context) < window
        seen.append(len(context))
        return np.random.default_rng(len(context)).normal(size=(len(context), COUNT)).astype(np.float32)

    actual = perplexity(logits, tokens, window=window, stride=stride)
    total, at = 0.0, 1
    while at < length:  # the plain meaning: for each token, the window that counts it first
        index = 0 if at < window else math.ceil((at - window + 1) / stride)
        start = index * stride
        size = min(start + window, length) - start
        row = (
            np.random.default_rng(size - 1).normal(size=(size - 1, COUNT)).astype(np.float32)[at - start - 1]
        )
        assert at - start >= min(at, window - stride)
        total -= float(row[tokens[at]]) - math.log(sum(math.exp(value) for value in row))
        at += 1
    assert actual.tokens == length - 1
    assert actual.value == pytest.approx(math.exp(total / (length - 1)), rel=1e-6)


def test_a_uniform_model() -> None:
    actual = perplexity(uniform, [0, 1, 2, 3, 4] * 3, window=4)
    assert actual == Perplexity(pytest.approx(COUNT), 14)


def test_refused_perplexity() -> None:
    for tokens, window, stride, why in [
        ([1], 4, None, "a perplexity needs two tokens at least; the text has 1"),
        (
            [1, 2],
            1,
            None,
            "the window has 1 tokens and moves by 1; it must have two at least, and move by fewer",
        ),
        (
            [1, 2],
            4,
            4,
            "the window has 4 tokens and moves by 4; it must have two at least, and move by fewer",
        ),
        (
            [1, 2],
            4,
            0,
            "the window has 4 tokens and moves by 0; it must have two at least, and move by fewer",
        ),
    ]:
        with pytest.raises(TokenError) as caught:
            perplexity(uniform, tokens, window=window, stride=stride)
        assert str(caught.value) == why
