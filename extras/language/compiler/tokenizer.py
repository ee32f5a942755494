"""Tokenizer: text to tokens and back, with special tokens, also incrementally."""

from __future__ import annotations

import codecs
import functools
from collections.abc import Iterable, Iterator, Mapping

from weft.extras.language.compiler.encoders import SPACE, BytePairs, Encoder, Pieces, TokenError
from weft.extras.language.compiler.model import Kind, Vocabulary
from weft.hdl.schema import short_repr


class Tokenizer:
    """Tokenizer of a vocabulary.

    ``decode(encode(text)) == text`` holds if the vocabulary has all characters of the text or all bytes, except for
    U+2581, SentencePiece's character for a space.

    Parameters
    ----------
    vocabulary : Vocabulary
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        pieces = vocabulary.model == "llama"
        self._encoder: Encoder = Pieces(vocabulary) if pieces else BytePairs(vocabulary)
        self._defined = _TokenMatcher(self._tokens_of_kind(Kind.USER_DEFINED, SPACE if pieces else ""))
        self._control = _TokenMatcher(self._tokens_of_kind(Kind.CONTROL))

    def _tokens_of_kind(self, kind: Kind, space: str = "") -> dict[str, int]:
        """Return the tokens of a kind by text; of equal texts the last token wins."""
        kinds = enumerate(self.vocabulary.kinds)
        tokens = ((self.vocabulary.tokens[at], at) for at, item in kinds if item is kind)
        return {text.replace(space, " ") if space else text: at for text, at in tokens if text}

    @functools.cached_property
    def control_tokens(self) -> tuple[int, ...]:
        """All control tokens."""
        return tuple(at for at, kind in enumerate(self.vocabulary.kinds) if kind is Kind.CONTROL)

    @functools.cached_property
    def max_token_characters(self) -> int:
        """Upper bound for the characters of text that one token stands for."""
        # This overestimates: names of control tokens and of single bytes count in full.
        return max(map(len, self.vocabulary.tokens))

    def encode(
        self, text: str, *, special: bool = False, begin: bool | None = None, end: bool | None = None
    ) -> list[int]:
        """Return the tokens of a text; see `tokens`."""
        return list(self.tokens(text, special=special, begin=begin, end=end))

    def tokens(
        self, text: str, *, special: bool = False, begin: bool | None = None, end: bool | None = None
    ) -> Iterator[int]:
        """Yield the tokens of a text, word by word, so that the caller can stop early.

        Parameters
        ----------
        text : str
        special : bool
            Whether names of control tokens, such as ``<s>``, become these tokens; otherwise they are ordinary text.
        begin, end : bool
            Whether to add the tokens for the begin and the end; by default as the vocabulary says.

        Raises
        ------
        TokenError
            If the vocabulary cannot represent the text.
        """
        _check_text(text)
        vocabulary = self.vocabulary
        if vocabulary.begin is not None and (vocabulary.add_begin if begin is None else begin):
            yield vocabulary.begin
        at_start = True
        for part in self._split_controls(text, special):
            if isinstance(part, str):
                yield from self._encode_plain(part, at_start)
                at_start = False
            else:
                yield part
                # Text after a control token counts as the start of a text.
                at_start = True
        if vocabulary.end is not None and (vocabulary.add_end if end is None else end):
            yield vocabulary.end

    def _split_controls(self, text: str, special: bool) -> Iterator[str | int]:
        """Yield text, and control tokens in it."""
        if not special:
            yield text
            return
        yield from self._control.split(text)

    def _encode_plain(self, text: str, at_start: bool) -> Iterator[int]:
        """Yield the tokens of text without control tokens; a text may get a space at its start."""
        if not text:
            return
        if at_start and self.vocabulary.add_space:
            text = f" {text}"
        for part in self._defined.split(text):
            if isinstance(part, str):
                yield from self._encoder.encode(part)
            else:
                yield part

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """Return the text of tokens; bytes that are not UTF-8 become U+FFFD.

        Parameters
        ----------
        tokens : iterable of int
        special : bool
            Whether to write the names of control tokens; otherwise they are omitted.

        Raises
        ------
        TokenError
            If a token is outside the vocabulary.
        """
        decoder = self.decoder(special=special, at_start=True)
        return "".join(map(decoder.feed, tokens)) + decoder.end()

    def decoder(self, *, special: bool = False, at_start: bool = False) -> Decoder:
        """Return an incremental decoder.

        Parameters
        ----------
        special : bool
            As in `decode`.
        at_start : bool
            Whether the first token starts a text, so that a space before it is dropped.
        """
        return Decoder(self, special, at_start)

    def content(self, token: int) -> bytes:
        """Return the bytes of text that a token stands for; none for a control token."""
        if not 0 <= token < len(self.vocabulary.tokens):
            raise TokenError(f"there is no token {token}; the vocabulary has {len(self.vocabulary.tokens):,}")
        return b"" if self.vocabulary.kinds[token] is Kind.CONTROL else self._encoder.content(token)


class Decoder:
    """Incremental decoder of tokens, which never returns part of a character.

    The results of `feed`, and finally of `end`, add up to that of `Tokenizer.decode`.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool, at_start: bool) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._at_start = at_start
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Return the characters that are complete with this token.

        Raises
        ------
        TokenError
            If the token is outside the vocabulary.
        """
        content = self._tokenizer.content(token)
        vocabulary = self._tokenizer.vocabulary
        if vocabulary.kinds[token] is Kind.CONTROL:
            # Bytes before a control token cannot continue after it.
            self._at_start = True
            return self.end() + (vocabulary.tokens[token] if self._special else "")
        if content and self._at_start:
            self._at_start = False
            if vocabulary.add_space:
                # Encoding has added this space.
                content = content.removeprefix(b" ")
        return self._utf8.decode(content)

    def end(self) -> str:
        """Return the rest of the text: U+FFFD for an incomplete character."""
        return self._utf8.decode(b"", final=True)


class _TokenMatcher:
    """Matcher of tokens' texts in a text, at every position the longest one."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        lengths: dict[str, set[int]] = {}
        for text in tokens:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {
            first: sorted(lengths_of_first, reverse=True) for first, lengths_of_first in lengths.items()
        }

    def split(self, text: str) -> Iterator[str | int]:
        """Yield tokens, and the non-empty text before, between and after them."""
        start = at = 0
        while at < len(text):
            ends = (at + length for length in self._lengths.get(text[at], ()))
            end = next((end for end in ends if text[at:end] in self._tokens), None)
            if end is None:
                at += 1
                continue
            if start < at:
                yield text[start:at]
            yield self._tokens[text[at:end]]
            start = at = end
        if start < len(text):
            yield text[start:]


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenError(
            f"character {error.start} of the text is {short_repr(text[error.start])}, half of a surrogate pair"
        ) from None
