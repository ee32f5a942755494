"""Encoders from text to tokens, and from a token to its bytes, for both kinds of vocabularies.

An encoder ignores special tokens, which `weft.extras.language.compiler.tokenizer` handles. Text is split into words by
the rules that GGUF files name. The regular expressions are those of the tokenizers that the names stand for, from
llama.cpp (src/llama-vocab.cpp). Each expression splits the parts of the previous one; text between matches is a part,
too.

All byte-pair encodings share the merging of pairs. Of all adjacent pairs that may merge, the one with the lowest rank
merges first, and of equal ranks the leftmost. This is the algorithm of Sennrich, Haddow and Birch, "Neural Machine
Translation of Rare Words with Subword Units" (2016), with SentencePiece's heap of candidates, which takes time n log n
for n symbols.
"""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weft.extras.language.compiler.libraries import import_library
from weft.extras.language.compiler.model import Kind, Vocabulary
from weft.hdl.errors import WeftError
from weft.hdl.schema import short_repr


def merge(symbols: Sequence[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Merge adjacent symbols until no pair has a rank.

    Parameters
    ----------
    symbols : sequence of str
        Non-empty symbols.
    rank : callable
        Returns the rank of two adjacent symbols, or None if they do not merge.
    """
    texts: list[str] = list(symbols)
    next_index = [*range(1, len(texts)), -1]
    previous_index = list(range(-1, len(texts) - 1))
    heap: list[tuple[float, int, int, str, str]] = []

    def push_pair(left: int, right: int) -> None:
        if left >= 0 and right >= 0 and (pair_rank := rank(texts[left], texts[right])) is not None:
            heapq.heappush(heap, (pair_rank, left, right, texts[left], texts[right]))

    for at in range(len(texts) - 1):
        push_pair(at, at + 1)
    while heap:
        _, left, right, first, second = heapq.heappop(heap)
        if texts[left] != first or texts[right] != second:
            continue  # outdated candidate: one of the two has merged since
        # The left symbol takes over the pair; the right one becomes empty.
        texts[left], texts[right] = first + second, ""
        next_index[left] = next_index[right]
        if next_index[left] >= 0:
            previous_index[next_index[left]] = left
        push_pair(previous_index[left], left)
        push_pair(left, next_index[left])
    return [text for text in texts if text]


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"


@dataclass(frozen=True)
class Pattern:
    """Rule for splitting text.

    Attributes
    ----------
    expressions : tuple of str
        Regular expressions, in the order of application.
    keep_whole : bool
        Whether a word that is a token becomes this token, whatever the merges say.
    adds_begin : bool
        Whether texts start with the begin token, unless the file says otherwise.
    """

    expressions: tuple[str, ...]
    keep_whole: bool = False
    adds_begin: bool = False


_LLAMA3 = Pattern((_HEAD + r"\p{N}{1,3}" + _TAIL,), keep_whole=True, adds_begin=True)
_QWEN2 = Pattern((_HEAD + r"\p{N}" + _TAIL,))
PATTERNS = {
    "default": Pattern((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": Pattern((_GPT2,)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "smollm": Pattern((r"\p{N}", _GPT2)),
}
"""Rules by name."""


def split(text: str, name: str) -> Iterator[str]:
    """Return the words of a text, which concatenate to the text."""
    parts: Iterator[str] = iter([text] if text else [])
    for expression in _compile(name):
        parts = _split_each(expression, parts)
    return parts


def _split_each(expression: Any, texts: Iterator[str]) -> Iterator[str]:
    for text in texts:
        yield from _split_one(expression, text)


def _split_one(expression: Any, text: str) -> Iterator[str]:
    """Yield the matches of an expression, and the texts between them."""
    at = 0
    for match in expression.finditer(text):
        if match.start() > at:
            yield text[at : match.start()]
        yield match[0]
        at = match.end()
    if at < len(text):
        yield text[at:]


@functools.cache
def _compile(name: str) -> tuple[Any, ...]:
    regex = import_library("regex")
    return tuple(regex.compile(expression) for expression in PATTERNS[name].expressions)


SPACE = "\u2581"
"""Character for a space in SentencePiece's tokens."""
_BOUNDARY = re.compile(f"(?<=[^{SPACE}])(?={SPACE})")
"""Position between a word and the spaces after it."""
_CACHED_WORDS = 1 << 15
"""Number of words whose tokens are cached."""
_MAX_CACHED_LENGTH = 64
"""Characters of the longest word that is cached."""


class TokenError(WeftError, ValueError):
    """Text that a vocabulary cannot represent, or tokens outside the vocabulary."""


class Encoder(Protocol):
    """Interface of encoders."""

    def encode(self, text: str) -> Iterator[int]:
        """Yield the tokens of a text without special tokens, word by word."""
        ...

    def content(self, token: int) -> bytes:
        """Return the UTF-8 bytes of a token, which may be part of a character."""
        ...


class Pieces:
    """SentencePiece's byte-pair encoding, which merges characters to pieces, highest score first.

    Spaces are written as U+2581, so that this character in a text decodes as a space. Characters without a piece become
    byte tokens if the vocabulary has them, else the unknown token. The algorithm is that of SentencePiece's
    src/bpe_model.cc, without its normalisation of texts.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        entries = list(enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)))
        mergeable = (Kind.NORMAL, Kind.USER_DEFINED, Kind.UNUSED)
        self._pieces = {text: at for at, (text, kind) in entries if kind in mergeable}
        self._unused = {text for text, at in self._pieces.items() if vocabulary.kinds[at] is Kind.UNUSED}
        self._bytes = {int(text[3:5], 16): at for at, (text, kind) in entries if kind is Kind.BYTE}

        # If no piece has a space after another character, words can be merged separately.
        crossing = any(_BOUNDARY.search(text) for text in self._pieces)
        self._boundary = re.compile(r"(?!)") if crossing else _BOUNDARY
        self._cached_merge = functools.lru_cache(_CACHED_WORDS)(self._merge_word)

    def encode(self, text: str) -> Iterator[int]:
        for word in self._words(text.replace(" ", SPACE)):
            yield from self._cached_merge(word) if len(word) <= _MAX_CACHED_LENGTH else self._merge_word(word)

    def _words(self, text: str) -> Iterator[str]:
        start = 0
        for match in self._boundary.finditer(text):
            yield text[start : match.start()]
            start = match.start()
        yield text[start:]

    def _merge_word(self, word: str) -> tuple[int, ...]:
        parts: dict[str, tuple[str, str]] = {}
        scores = self._vocabulary.scores

        def rank(left: str, right: str) -> float | None:
            merged = left + right
            token = self._pieces.get(merged)
            if token is None:
                return None
            # Unused pieces take part in merging and are split again later.
            if merged in self._unused:
                parts[merged] = left, right
            return -scores[token]

        tokens: list[int] = []
        for piece in merge(word, rank):
            self._append_tokens(piece, parts, tokens)
        return tuple(tokens)

    def _append_tokens(self, piece: str, parts: dict[str, tuple[str, str]], tokens: list[int]) -> None:
        """Append the tokens of a piece; pieces that are marked unused are split again."""
        stack = [piece]
        while stack:
            text = stack.pop()
            if text in parts:
                stack += reversed(parts[text])
            elif text in self._pieces and text not in self._unused:
                tokens.append(self._pieces[text])
            else:
                tokens += self._spell(text)

    def _spell(self, text: str) -> list[int]:
        """Return the tokens of a character without a usable piece."""
        raw = text.encode()
        if all(byte in self._bytes for byte in raw):
            return [self._bytes[byte] for byte in raw]
        if self._vocabulary.unknown is None:
            raise TokenError(f"the vocabulary has no token for {short_repr(text)} and no unknown token")
        return [self._vocabulary.unknown]

    def content(self, token: int) -> bytes:
        text, kind = self._vocabulary.tokens[token], self._vocabulary.kinds[token]
        if kind is Kind.BYTE:
            return bytes([int(text[3:5], 16)])
        # SentencePiece decodes an unknown token like this.
        return (" \u2047 " if kind is Kind.UNKNOWN else text.replace(SPACE, " ")).encode()


def _byte_characters() -> dict[int, str]:
    """Return GPT-2's character for each byte: itself if it is printable in Latin-1, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}


CHARACTERS = _byte_characters()
"""Character for each byte in tokens and merges."""
_BYTES = {character: byte for byte, character in CHARACTERS.items()}


class BytePairs:
    """GPT-2's byte-pair encoding, which merges the bytes of words in the order of a list."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # Added tokens are matched in the text beforehand, and their texts are not in byte characters.
        added = (Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED)
        self._tokens = {
            text: at
            for at, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
            if kind not in added
        }
        self._ranks: dict[tuple[str, str], float] = {}
        for at, pair in enumerate(vocabulary.merges):
            if "".join(pair) in self._tokens:
                self._ranks.setdefault(pair, at)
        self._cached_merge = functools.lru_cache(_CACHED_WORDS)(self._merge_word)

    def encode(self, text: str) -> Iterator[int]:
        for word in split(text, self._vocabulary.pre):
            yield from self._cached_merge(word) if len(word) <= _MAX_CACHED_LENGTH else self._merge_word(word)

    def _merge_word(self, word: str) -> tuple[int, ...]:
        characters = "".join(CHARACTERS[byte] for byte in word.encode())
        if PATTERNS[self._vocabulary.pre].keep_whole and characters in self._tokens:
            return (self._tokens[characters],)
        return tuple(map(self._token_of, merge(characters, lambda *pair: self._ranks.get(pair))))

    def _token_of(self, text: str) -> int:
        """Return the token of a merged text; only single bytes can be missing."""
        token = self._tokens.get(text, self._vocabulary.unknown)
        if token is None:
            raise TokenError(
                f"the vocabulary has no token for the byte 0x{_BYTES[text]:02x}, which the text holds"
            )
        return token

    def content(self, token: int) -> bytes:
        text, kind = self._vocabulary.tokens[token], self._vocabulary.kinds[token]
        # The texts of added tokens are not in byte characters.
        if kind is Kind.USER_DEFINED or not all(character in _BYTES for character in text):
            return text.encode()
        return bytes(_BYTES[character] for character in text)
