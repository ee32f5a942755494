"""From text to tokens, and from a token to the bytes that it stands for, for both kinds of vocabularies.

An encoder knows nothing of special tokens; `weft.extras.language.compiler.tokenizer` puts them around and between.
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
"""What stands for a space in SentencePiece's tokens."""
_BOUNDARY = re.compile(f"(?<=[^{SPACE}])(?={SPACE})")
"""In front of the spaces behind a word."""
_CACHE, _CACHED = 1 << 15, 64
"""Number of words whose tokens are remembered, and their length in characters at most."""


class TokenError(WeftError, ValueError):
    """Text that a vocabulary cannot write, or tokens that it does not have."""


class Encoder(Protocol):
    """What a kind of vocabulary does."""

    def encode(self, text: str) -> Iterator[int]:
        """Yield the tokens of a text without special tokens, word by word."""
        ...

    def content(self, token: int) -> bytes:
        """The UTF-8 bytes of a token, perhaps a part of a character's."""
        ...


class Pieces:
    """SentencePiece's byte-pair encoding: characters merge to pieces, those with the highest score first.

    Spaces are written as U+2581, so that such a character in a text becomes a space. Characters that are no piece are
    written as bytes, if the vocabulary has those, else as the unknown token. The algorithm is that of SentencePiece's
    src/bpe_model.cc, without its normalisation of texts.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        entries = list(enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)))
        merging = (Kind.NORMAL, Kind.USER_DEFINED, Kind.UNUSED)
        self._pieces = {text: at for at, (text, kind) in entries if kind in merging}
        self._unused = {text for text, at in self._pieces.items() if vocabulary.kinds[at] is Kind.UNUSED}
        self._bytes = {int(text[3:5], 16): at for at, (text, kind) in entries if kind is Kind.BYTE}

        # Where no piece has a space behind another character, words merge on their own.
        crossing = any(_BOUNDARY.search(text) for text in self._pieces)
        self._boundary = re.compile(r"(?!)") if crossing else _BOUNDARY
        self._word = functools.lru_cache(_CACHE)(self._merged)

    def encode(self, text: str) -> Iterator[int]:
        for word in self._words(text.replace(" ", SPACE)):
            yield from self._word(word) if len(word) <= _CACHED else self._merged(word)

    def _words(self, text: str) -> Iterator[str]:
        start = 0
        for match in self._boundary.finditer(text):
            yield text[start : match.start()]
            start = match.start()
        yield text[start:]

    def _merged(self, word: str) -> tuple[int, ...]:
        parts: dict[str, tuple[str, str]] = {}
        scores = self._vocabulary.scores

        def rank(left: str, right: str) -> float | None:
            whole = left + right
            token = self._pieces.get(whole)
            if token is None:
                return None
            if whole in self._unused:
                parts[whole] = left, right
            return -scores[token]

        found: list[int] = []
        for piece in merge(word, rank):
            self._write(piece, parts, found)
        return tuple(found)

    def _write(self, piece: str, parts: dict[str, tuple[str, str]], found: list[int]) -> None:
        """A piece; those that are not to be used are taken apart again."""
        waiting = [piece]
        while waiting:
            text = waiting.pop()
            if text in parts:
                waiting += reversed(parts[text])
            elif text in self._pieces and text not in self._unused:
                found.append(self._pieces[text])
            else:
                found += self._spelled(text)

    def _spelled(self, text: str) -> list[int]:
        """A character that is no piece, or one that is not to be used."""
        raw = text.encode()
        if all(byte in self._bytes for byte in raw):
            return [self._bytes[byte] for byte in raw]
        if self._vocabulary.unknown is None:
            raise TokenError(
                f"the vocabulary has no token for {short_repr(text)}, and none for what it does not know"
            )
        return [self._vocabulary.unknown]

    def content(self, token: int) -> bytes:
        text, kind = self._vocabulary.tokens[token], self._vocabulary.kinds[token]
        if kind is Kind.BYTE:
            return bytes([int(text[3:5], 16)])
        # As SentencePiece shows it.
        return (" \u2047 " if kind is Kind.UNKNOWN else text.replace(SPACE, " ")).encode()


def _characters() -> dict[int, str]:
    """How GPT-2 writes bytes: those that can be printed as Latin-1 does, all others from U+0100 on, in their order."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + at) for at, byte in enumerate(others)}


CHARACTERS = _characters()
"""The character that stands for a byte in tokens and merges."""
_BYTES = {character: byte for byte, character in CHARACTERS.items()}


class BytePairs:
    """GPT-2's byte-pair encoding: text is split into words, whose bytes merge in the order of a list."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # Those that are added are found in texts before, and are not written in bytes.
        others = (Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED)
        self._tokens = {
            text: at
            for at, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
            if kind not in others
        }
        self._ranks: dict[tuple[str, str], float] = {}
        for at, pair in enumerate(vocabulary.merges):
            if "".join(pair) in self._tokens:
                self._ranks.setdefault(pair, at)
        self._word = functools.lru_cache(_CACHE)(self._merged)

    def encode(self, text: str) -> Iterator[int]:
        for word in split(text, self._vocabulary.pre):
            yield from self._word(word) if len(word) <= _CACHED else self._merged(word)

    def _merged(self, word: str) -> tuple[int, ...]:
        written = "".join(CHARACTERS[byte] for byte in word.encode())
        if PATTERNS[self._vocabulary.pre].whole and written in self._tokens:
            return (self._tokens[written],)
        return tuple(map(self._number, merge(written, lambda *pair: self._ranks.get(pair))))

    def _number(self, text: str) -> int:
        """Single bytes may be missing; what merges made is a token."""
        token = self._tokens.get(text, self._vocabulary.unknown)
        if token is None:
            raise TokenError(
                f"the vocabulary has no token for the byte 0x{_BYTES[text]:02x}, which the text holds"
            )
        return token

    def content(self, token: int) -> bytes:
        text, kind = self._vocabulary.tokens[token], self._vocabulary.kinds[token]
        # Tokens that somebody has added are written as they are.
        if kind is Kind.USER_DEFINED or not all(character in _BYTES for character in text):
            return text.encode()
        return bytes(_BYTES[character] for character in text)
