"""Tokenisers against SentencePiece, tiktoken and an unoptimised implementation."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import regex
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from weft.compiler.errors import CompileError
from weft.extras.language.compiler import encoders
from weft.extras.language.compiler.encoders import (
    CHARACTERS,
    PATTERNS,
    SPACE,
    BytePairs,
    Pieces,
    TokenError,
    merge,
    split,
)
from weft.extras.language.compiler.model import Kind, Vocabulary
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.tests.support import language_models, plain_merging, trained_vocabularies

SYMBOLS = ("<tag>", "é", "ll")
FRAGMENTS = [
    *trained_vocabularies.WORDS,
    " ",
    "  ",
    "\n",
    "\t",
    "\0",
    "<s>",
    "<unk>",
    "🦊",
    "e\u0301",
    "<0x41>",
    "ab",
]
ANY = (
    st.text()
    | st.lists(st.sampled_from(FRAGMENTS)).map("".join)
    | st.lists(st.sampled_from(FRAGMENTS)).map(" ".join)
)
TEXTS = ANY.filter(lambda text: SPACE not in text)
NATURAL = trained_vocabularies.lines(50, seed=9)


@pytest.mark.parametrize("space", [True, False])
@pytest.mark.parametrize("symbols", [(), SYMBOLS])
@pytest.mark.parametrize("fallback", [True, False])
def test_against_sentencepiece(space: bool, symbols: tuple[str, ...], fallback: bool) -> None:
    content = trained_vocabularies.pieces(space=space, symbols=symbols, fallback=fallback)
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    vocabulary = trained_vocabularies.of_sentencepiece(content, space=space)
    assert vocabulary.kinds.count(Kind.USER_DEFINED) == len(symbols)
    tokenizer = Tokenizer(vocabulary)
    for text in NATURAL:
        assert join_unknown(tokenizer.encode(text), vocabulary.unknown) == model.encode(text)

    @settings(max_examples=200, deadline=None)
    @given(TEXTS)
    @example(" leading and  trailing  ")
    @example("<tag>all<tag><tag> éll")
    def check(text: str) -> None:
        text = text.replace("\0", "")  # at which SentencePiece ends
        actual = tokenizer.encode(text)
        assert join_unknown(actual, vocabulary.unknown) == model.encode(text)
        if fallback:
            assert tokenizer.decode(actual) == text == model.decode(actual)

    check()


def join_unknown(tokens: list[int], unknown: int | None) -> list[int]:
    """Join adjacent unknown tokens as SentencePiece does."""
    before = [None, *tokens]
    return [token for token, last in zip(tokens, before, strict=False) if token != unknown or last != unknown]


def test_pieces_that_are_not_used() -> None:
    """Unused pieces take part in merging and are then split."""
    content = trained_vocabularies.without(
        trained_vocabularies.pieces(), lambda piece: len(piece) > 3 or sum(map(ord, piece)) % 3 == 0
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    vocabulary = trained_vocabularies.of_sentencepiece(content)
    assert vocabulary.kinds.count(Kind.UNUSED) > 100
    tokenizer = Tokenizer(vocabulary)

    @settings(max_examples=100, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        text = text.replace("\0", "")
        assert tokenizer.encode(text) == model.encode(text)

    check()
    for text in NATURAL:
        assert tokenizer.encode(text) == model.encode(text)


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_against_tiktoken(pre: str) -> None:
    expression = {
        "gpt-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+$|\s+(?!\S)|\s",
        "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    }[pre]
    vocabulary, encoding = trained_vocabularies.byte_pairs(pre, expression)
    tokenizer = Tokenizer(vocabulary)
    for text in NATURAL:
        assert tokenizer.encode(text) == encoding.encode(text)

    @settings(max_examples=200, deadline=None)
    @given(ANY)
    @example("It's 12345 o'clock,  I'LL\r\n\n go \t there...<|endoftext|>")
    def check(text: str) -> None:
        actual = tokenizer.encode(text)
        assert actual == encoding.encode(text, disallowed_special=())
        assert tokenizer.encode(text, special=True) == encoding.encode(text, allowed_special="all")
        assert tokenizer.decode(actual) == text

    check()


@pytest.mark.parametrize("make", [language_models.pieces, language_models.byte_pairs])
@given(text=TEXTS)
def test_against_plain_merging(make: Callable[[], Vocabulary], text: str) -> None:
    vocabulary = make()
    numbers = {token: at for at, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
               if kind is Kind.NORMAL}  # fmt: skip
    if vocabulary.model == "llama":
        actual = plain_merging.merge(
            text.replace(" ", SPACE),
            lambda *pair: -vocabulary.scores[numbers["".join(pair)]] if "".join(pair) in numbers else None,
        )
        wanted = [
            number
            for piece in actual
            for number in ([numbers[piece]] if piece in numbers else [3 + byte for byte in piece.encode()])
        ]
        assert list(Pieces(vocabulary).encode(text)) == wanted
        return
    ranks = {pair: at for at, pair in enumerate(vocabulary.merges)}
    wanted = []
    for word in encoders.split(text, vocabulary.pre):
        written = [CHARACTERS[byte] for byte in word.encode()]
        wanted += [numbers[item] for item in plain_merging.merge(written, lambda *pair: ranks.get(pair))]
    assert list(BytePairs(vocabulary).encode(text)) == wanted


def test_a_word_that_is_a_token() -> None:
    """The token wins over merges where the vocabulary's kind says so."""
    vocabulary = replace(language_models.byte_pairs(), merges=())
    word = CHARACTERS[ord(" ")] + "quick"
    for pre, wanted in {
        "llama-bpe": [vocabulary.tokens.index(word)],
        "gpt-2": list(map(vocabulary.tokens.index, word)),
    }.items():
        assert list(BytePairs(replace(vocabulary, pre=pre)).encode(" quick")) == wanted


def test_bytes_as_gpt2_characters() -> None:
    assert len(set(CHARACTERS.values())) == len(CHARACTERS) == 256
    assert [CHARACTERS[byte] for byte in b" \n\0a\xad\xff"] == ["Ġ", "Ċ", "Ā", "a", "Ń", "ÿ"]
    assert all(len(character) == 1 and character.isprintable() for character in CHARACTERS.values())


def test_text_that_cannot_be_written() -> None:
    small = Vocabulary("llama", "", ("a", SPACE), (Kind.NORMAL,) * 2, scores=(0.0, 0.0))
    assert list(Pieces(small).encode("a a")) == [0, 1, 0]
    with pytest.raises(TokenError, match=r"^the vocabulary has no token for 'b' and no unknown token$"):
        list(Pieces(small).encode("ab"))
    assert list(Pieces(replace(small, unknown=1)).encode("ab")) == [0, 1]
    pairs = Vocabulary("gpt2", "gpt-2", ("a", "b"), (Kind.NORMAL,) * 2)
    message = "the vocabulary has no token for the byte 0x63, which the text holds"
    with pytest.raises(TokenError, match=f"^{re.escape(message)}$"):
        list(BytePairs(pairs).encode("abc"))
    assert list(BytePairs(replace(pairs, unknown=1)).encode("abc")) == [0, 1, 1]


def test_control_tokens_are_never_made_of_text() -> None:
    """Even where merges would form one."""
    tokens = ("<", "s", ">", "<s", "<s>")
    kinds = (Kind.NORMAL,) * 4 + (Kind.CONTROL,)
    merges = (("<", "s"), ("<s", ">"))
    vocabulary = Vocabulary("gpt2", "gpt-2", tokens, kinds, merges=merges)
    assert list(BytePairs(vocabulary).encode("<s>")) == [0, 1, 2]
    pieces = Vocabulary("llama", "", tokens, kinds, scores=(0.0,) * 5)
    assert list(Pieces(pieces).encode("<s>")) == [3, 2]


def test_contents() -> None:
    vocabulary = replace(
        language_models.byte_pairs(), tokens=("Ġa", "Ã", "Ġ中", "Ġb", "<|end|>"), merges=(),
        kinds=(Kind.NORMAL, Kind.NORMAL, Kind.NORMAL, Kind.USER_DEFINED, Kind.CONTROL),
    )  # fmt: skip
    assert [BytePairs(vocabulary).content(at) for at in range(4)] == [
        b" a",
        b"\xc3",
        "Ġ中".encode(),
        "Ġb".encode(),
    ]
    pieces = language_models.pieces()
    assert Pieces(pieces).content(pieces.tokens.index(f"{SPACE}the")) == b" the"
    assert Pieces(pieces).content(3 + 0xC3) == b"\xc3"
    assert Pieces(pieces).content(0) == " ⁇ ".encode()


@pytest.mark.parametrize("make", [language_models.pieces, language_models.byte_pairs])
def test_the_cache_of_words_is_bounded(
    make: Callable[[], Vocabulary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.extras.language.compiler.encoders._CACHED_WORDS", 10)
    encoder = (Pieces if make is language_models.pieces else BytePairs)(make())
    text = " ".join(map(str, range(100)))
    assert list(encoder.encode(text)) == list(encoder.encode(text))
    assert encoder._cached_merge.cache_info().currsize == 10


@pytest.mark.parametrize("make", [language_models.pieces, language_models.byte_pairs])
def test_long_words_are_not_cached(make: Callable[[], Vocabulary]) -> None:
    encoder = (Pieces if make is language_models.pieces else BytePairs)(make())
    assert list(encoder.encode("a" * 1000)) == list(encoder.encode("a" * 1000))
    assert encoder._cached_merge.cache_info().currsize == 0


def test_pieces_across_words() -> None:
    """Words do not merge independently if a piece spans two."""
    model = sentencepiece_model_pb2.ModelProto.FromString(trained_vocabularies.pieces())
    for text in (f"e{SPACE}", f"e{SPACE}t", f"d{SPACE}{SPACE}", f"of{SPACE}"):
        model.pieces.add(piece=text, score=-0.5)
    content = model.SerializeToString()
    oracle = sentencepiece.SentencePieceProcessor(model_proto=content)
    tokenizer = Tokenizer(trained_vocabularies.of_sentencepiece(content))
    actual = [tokenizer.encode(text) for text in NATURAL]
    assert actual == [oracle.encode(text) for text in NATURAL]
    assert {token for tokens in actual for token in tokens} & set(
        range(len(model.pieces) - 4, len(model.pieces))
    )


MERGED_TEXTS = st.text("abc", max_size=24)
PAIRS = st.dictionaries(
    st.tuples(st.text("abc", min_size=1, max_size=4), st.text("abc", min_size=1, max_size=4)),
    st.integers(-3, 3),
    max_size=30,
)
"""Ranks with many ties."""


@given(MERGED_TEXTS, PAIRS)
def test_ranks_of_pairs(text: str, ranks: dict[tuple[str, str], int]) -> None:
    def rank(*pair: str) -> float | None:
        return ranks.get(pair)  # type: ignore[call-overload, no-any-return]

    actual = merge(text, rank)
    assert actual == plain_merging.merge(text, rank)
    assert "".join(actual) == text


@given(MERGED_TEXTS, st.dictionaries(st.text("abc", min_size=2, max_size=5), st.floats(-2, 2), max_size=30))
def test_ranks_of_merged_pieces(text: str, scores: dict[str, float]) -> None:
    def rank(left: str, right: str) -> float | None:
        score = scores.get(left + right)
        return None if score is None else -score

    assert merge(text, rank) == plain_merging.merge(text, rank)


def test_examples_of_merging() -> None:
    assert merge("", lambda *pair: 0) == []
    assert merge("a", lambda *pair: 0) == ["a"]
    assert merge("aaaaa", lambda *pair: 0 if pair == ("a", "a") else None) == ["aa", "aa", "a"]
    ranks = {("b", "a"): 0, ("a", "b"): 1, ("a", "ba"): 2}
    assert merge("abab", lambda *pair: ranks.get(pair)) == ["aba", "b"]


def test_long_texts() -> None:
    start = time.process_time()
    assert merge("a" * 100_000, lambda left, right: len(left + right)) == ["a" * 100_000]
    assert time.process_time() - start < 10


GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+$|\s+(?!\S)|\s"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
ORIGINALS = {"gpt-2": GPT2, "llama-bpe": LLAMA3, "llama3": LLAMA3, "qwen2": LLAMA3.replace("{1,3}", "")}
"""Expressions published with the models."""
WORD_TEXTS = st.text() | st.lists(
    st.sampled_from([*"aZ9é中\n\r\t .,'$<|\u3000\u0301", "'s", "'LL", "  ", "12345"])
).map("".join)


@pytest.mark.parametrize("name", ORIGINALS)
@settings(max_examples=200, deadline=None)
@given(text=WORD_TEXTS)
@example("It's 12345 o'clock,  I'LL\r\n\n go \t there...")
def test_against_published_expressions(name: str, text: str) -> None:
    """These match whole texts; tests of `encoders` cover the differences of another engine."""
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
def test_examples_of_words(name: str, text: str, wanted: list[str]) -> None:
    assert list(split(text, name)) == wanted


@pytest.mark.parametrize("name", PATTERNS)
@given(text=WORD_TEXTS)
def test_words_join_to_the_text(name: str, text: str) -> None:
    actual = list(split(text, name))
    assert "".join(actual) == text
    assert all(actual)


@pytest.mark.parametrize("name", PATTERNS)
def test_long_texts_of_one_kind(name: str) -> None:
    """No expression backtracks excessively."""
    for text in (" " * 100_000, "a" * 100_000, "\n" * 100_000, "1" * 100_000, "." * 100_000, " \n" * 50_000):
        assert "".join(split(text, name)) == text


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    encoders._compile.cache_clear()
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(CompileError) as caught:
        list(split("a", "gpt-2"))
    assert str(caught.value) == (
        "language models need the Python package 'regex', which is not installed: pip install 'weft[lm]'"
    )
