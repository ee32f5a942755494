"""Texts split into words: against expressions as the makers of models published them, and in detail."""

from __future__ import annotations

import sys

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft.compiler.errors import CompileError
from weft.extras.language.compiler import words
from weft.extras.language.compiler.words import PATTERNS, split

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+$|\s+(?!\S)|\s"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
ORIGINALS = {"gpt-2": GPT2, "llama-bpe": LLAMA3, "llama3": LLAMA3, "qwen2": LLAMA3.replace("{1,3}", "")}
"""As the models' makers published them."""
TEXTS = st.text() | st.lists(
    st.sampled_from([*"aZ9é中\n\r\t .,'$<|\u3000\u0301", "'s", "'LL", "  ", "12345"])
).map("".join)


@pytest.mark.parametrize("name", ORIGINALS)
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
@example("It's 12345 o'clock,  I'LL\r\n\n go \t there...")
def test_against_what_was_published(name: str, text: str) -> None:
    """These match all of a text. Of another engine's opinion are the tests of `encoders`."""
    assert list(split(text, name)) == [match[0] for match in regex.finditer(ORIGINALS[name], text)]


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("gpt-2", "Hello  world's 123\n", ["Hello", " ", " world", "'s", " 123", "\n"]),
        ("gpt-2", "a \n b\n\nc", ["a", " \n", " b", "\n", "\n", "c"]),
        ("gpt-2", "I'LL", ["I", "'", "LL"]),
        ("llama-bpe", "I'LL pay 12345$\n\n", ["I", "'LL", " pay", " ", "123", "45", "$\n\n"]),
        ("qwen2", "(ab) 12", ["(ab", ")", " ", "1", "2"]),
        ("smollm", "x 123's", ["x", " ", "1", "2", "3", "'s"]),
        ("default", "x<=12345, y", ["x", "<=", "123", "45", ",", " y"]),
    ],
)
def test_examples(name: str, text: str, wanted: list[str]) -> None:
    assert list(split(text, name)) == wanted


@pytest.mark.parametrize("name", PATTERNS)
@given(text=TEXTS)
def test_words_are_the_text(name: str, text: str) -> None:
    found = list(split(text, name))
    assert "".join(found) == text
    assert all(found)


@pytest.mark.parametrize("name", PATTERNS)
def test_long_texts_of_one_kind(name: str) -> None:
    """No expression goes back and forth."""
    for text in (" " * 100_000, "a" * 100_000, "\n" * 100_000, "1" * 100_000, "." * 100_000, " \n" * 50_000):
        assert "".join(split(text, name)) == text


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    words._compile.cache_clear()
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(CompileError) as caught:
        list(split("a", "gpt-2"))
    assert str(caught.value) == (
        "language models need the Python package 'regex', which is not installed: pip install 'weft[lm]'"
    )
