"""Perplexities of models whose probabilities are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.extras.language.compiler.encoders import TokenError
from weft.extras.language.compiler.perplexity import Perplexity, perplexity

COUNT = 7


def even(tokens: Sequence[int]) -> np.ndarray:
    return np.full((len(tokens), COUNT), 1000.0, np.float32)


@given(st.integers(2, 60), st.integers(2, 20), st.data())
def test_every_token_counts_once(length: int, window: int, data: st.DataObject) -> None:
    """With logits that tell which tokens were seen in front."""
    stride = data.draw(st.integers(1, window - 1))
    tokens = [at % COUNT for at in range(length)]
    seen: list[int] = []

    def logits(given: Sequence[int]) -> np.ndarray:
        assert 0 < len(given) < window
        seen.append(len(given))
        return np.random.default_rng(len(given)).normal(size=(len(given), COUNT)).astype(np.float32)

    found = perplexity(logits, tokens, window=window, stride=stride)
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
    assert found.tokens == length - 1
    assert found.value == pytest.approx(math.exp(total / (length - 1)), rel=1e-6)


def test_an_even_model() -> None:
    found = perplexity(even, [0, 1, 2, 3, 4] * 3, window=4)
    assert found == Perplexity(pytest.approx(COUNT), 14)


def test_what_is_refused() -> None:
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
            perplexity(even, tokens, window=window, stride=stride)
        assert str(caught.value) == why
