"""The merging of neighbours against one that begins again after each."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from weft.extras.language.compiler.merging import merge
from weft.extras.language.tests.support import plain_merging

TEXTS = st.text("abc", max_size=24)
PAIRS = st.dictionaries(
    st.tuples(st.text("abc", min_size=1, max_size=4), st.text("abc", min_size=1, max_size=4)),
    st.integers(-3, 3),
    max_size=30,
)
"""Ranks; many of them are equal."""


@given(TEXTS, PAIRS)
def test_ranks_of_pairs(text: str, ranks: dict[tuple[str, str], int]) -> None:
    def rank(*pair: str) -> float | None:
        return ranks.get(pair)  # type: ignore[call-overload, no-any-return]

    found = merge(text, rank)
    assert found == plain_merging.merge(text, rank)
    assert "".join(found) == text


@given(TEXTS, st.dictionaries(st.text("abc", min_size=2, max_size=5), st.floats(-2, 2), max_size=30))
def test_ranks_of_what_is_made(text: str, scores: dict[str, float]) -> None:
    def rank(left: str, right: str) -> float | None:
        score = scores.get(left + right)
        return None if score is None else -score

    assert merge(text, rank) == plain_merging.merge(text, rank)


def test_examples() -> None:
    assert merge("", lambda *pair: 0) == []
    assert merge("a", lambda *pair: 0) == ["a"]
    assert merge("aaaaa", lambda *pair: 0 if pair == ("a", "a") else None) == ["aa", "aa", "a"]
    ranks = {("b", "a"): 0, ("a", "b"): 1, ("a", "ba"): 2}
    assert merge("abab", lambda *pair: ranks.get(pair)) == ["aba", "b"]


def test_long_texts() -> None:
    start = time.process_time()
    assert merge("a" * 100_000, lambda left, right: len(left + right)) == ["a" * 100_000]
    assert time.process_time() - start < 10
