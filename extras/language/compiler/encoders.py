"""Encoders from text to tokens, and from a token to its bytes, for both kinds of vocabularies.

An encoder ignores special tokens, which `weft.extras.language.compiler.tokenizer` handles.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Protocol

from weft.extras.language.compiler.merging import merge
from weft.extras.language.compiler.vocabulary import Kind, Vocabulary
from weft.extras.language.compiler.words import PATTERNS, split
from weft.hdl.errors import WeftError
from weft.hdl.schema import short_repr

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
            whole = left + right
            token = self._pieces.get(whole)
            if token is None:
                return None
            # Unused pieces take part in merging and are split again later.
            if whole in self._unused:
                parts[whole] = left, right
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
    rest = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(rest)}


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
