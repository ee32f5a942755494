"""Measures of a language model, against models with known results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.example import measure
from weft.extras.language.example.corpus import Problem
from weft.extras.language.tests.support.language_models import random_model

PROBLEM = Problem("the quick", " brown fox")


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(random_model(np.random.default_rng(0), "llama").vocabulary)


def test_unigram_of_a_uniform_text_is_the_vocabulary_size() -> None:
    assert measure.unigram(list(range(8)), [3, 3, 5], 8) == pytest.approx(8)
    assert measure.unigram([], [1, 2], 8) == pytest.approx(8)


def test_unigram_by_hand() -> None:
    # Laplace smoothing: 3 of 6, 2 of 6, 1 of 6.
    assert measure.unigram([0, 0, 1], [0, 2], 3) == pytest.approx((2 * 6) ** 0.5)


@pytest.mark.parametrize("wrong", [None, 0, 1, -2, -1])
def test_an_answer_must_be_complete(tokenizer: Tokenizer, wrong: int | None) -> None:
    """One wrong token makes an answer wrong; predictions of the question do not count."""
    question, text = tokenizer.encode(PROBLEM.question), tokenizer.encode(PROBLEM.text)
    best = [0] * (len(question) - 1) + text[len(question) :]
    if wrong is not None:
        best[wrong if wrong < 0 else len(question) - 1 + wrong] = 0

    def logits(tokens: Sequence[int]) -> np.ndarray:
        assert list(tokens) == text[:-1]
        return np.eye(len(tokenizer.vocabulary.tokens))[best]

    assert measure.solves(logits, tokenizer, PROBLEM) is (wrong is None)


def test_a_question_must_keep_its_tokens(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="the tokens of 'the qui' change with what follows it"):
        measure.solves(lambda tokens: np.zeros((1, 1)), tokenizer, Problem("the qui", "ck"))


def test_texts_each_begin_with_the_token_for_it(tokenizer: Tokenizer) -> None:
    assert measure.encode_all(tokenizer, ["the", "quick"]).count(tokenizer.vocabulary.begin or 0) == 2
