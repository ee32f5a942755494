"""Ranges of queries and keys, held to float64: those of a head are the largest both before and after it is turned."""

from __future__ import annotations

import numpy as np
import pytest

from weft.extras.language.compiler.model import LanguageModel, Linear, Sizes
from weft.extras.language.compiler.ranges import measure_ranges
from weft.extras.language.tests.support import plain_language
from weft.extras.language.tests.support.language_models import random_model

_SIZES = Sizes(
    context=24, width=32, blocks=2, heads=4, key_value_heads=2, key_length=8, value_length=8, feed_forward=48,
    vocabulary=0,
)  # fmt: skip


def largest(
    model: LanguageModel, texts: list[list[int]], patch: pytest.MonkeyPatch
) -> dict[int, list[float]]:
    """The largest elements of heads, before and after they are turned, by the product that they come from."""
    found: dict[int, list[float]] = {}
    heads = plain_language._heads

    def watched(
        model: LanguageModel, linear: Linear, x: list[float], count: int, at: int
    ) -> list[list[float]]:
        made = heads(model, linear, x, count, at)
        seen = found.setdefault(id(linear), [0.0, 0.0])
        for index, values in enumerate((plain_language._product(linear, x), np.ravel(made))):
            seen[index] = max(seen[index], float(np.abs(values).max()))
        return made

    patch.setattr(plain_language, "_heads", watched)
    for text in texts:
        plain_language.logits(model, text)
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_queries_and_keys_as_large_as_they_become(
    architecture: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, architecture, _SIZES, biases=bool(seed % 2))
    count = len(model.vocabulary.tokens)
    texts = [rng.integers(0, count, length).tolist() for length in (1, 7, 24)]
    seen = largest(model, texts, monkeypatch)
    found = measure_ranges(model, texts)
    for block, query, key in zip(model.blocks, found.query, found.key, strict=True):
        assert query == pytest.approx(max(seen[id(block.query)]), rel=1e-4)
        assert key == pytest.approx(max(seen[id(block.key)]), rel=1e-4)
