"""Text to tokens and back, with special tokens, and token by token."""

from __future__ import annotations

import codecs
import functools
from collections.abc import Iterable, Iterator, Mapping

from weft.extras.language.compiler.encoders import SPACE, BytePairs, Encoder, Pieces, TokenError
from weft.extras.language.compiler.vocabulary import Kind, Vocabulary
from weft.hdl.schema import short_repr


class Tokenizer:
    """The tokenizer of a vocabulary.

    Texts come back as they were: ``decode(encode(text)) == text`` where the vocabulary has all characters of a text or
    all bytes, but for U+2581, which is how SentencePiece writes spaces.

    Parameters
    ----------
    vocabulary : Vocabulary
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        pieces = vocabulary.model == "llama"
        self._encoder: Encoder = Pieces(vocabulary) if pieces else BytePairs(vocabulary)
        self._defined = _Names(self._named(Kind.USER_DEFINED, SPACE if pieces else ""))
        self._control = _Names(self._named(Kind.CONTROL))

    def _named(self, kind: Kind, space: str = "") -> dict[str, int]:
        """Tokens of a kind by their text; of those that are written alike the last one counts, as everywhere."""
        kinds = enumerate(self.vocabulary.kinds)
        found = ((self.vocabulary.tokens[at], at) for at, item in kinds if item is kind)
        return {text.replace(space, " ") if space else text: at for text, at in found if text}

    @functools.cached_property
    def controls(self) -> tuple[int, ...]:
        """All control tokens."""
        return tuple(at for at, kind in enumerate(self.vocabulary.kinds) if kind is Kind.CONTROL)

    @functools.cached_property
    def longest(self) -> int:
        """Characters of a text that a single token stands for at most."""
        # A byte's character in a vocabulary of bytes is a character of a text or a part of one; names of control tokens
        # and of single bytes are counted in full, which makes the number larger than need be.
        return max(map(len, self.vocabulary.tokens))

    def encode(
        self, text: str, *, special: bool = False, begin: bool | None = None, end: bool | None = None
    ) -> list[int]:
        """The tokens of a text; see `tokens`."""
        return list(self.tokens(text, special=special, begin=begin, end=end))

    def tokens(
        self, text: str, *, special: bool = False, begin: bool | None = None, end: bool | None = None
    ) -> Iterator[int]:
        """Yield the tokens of a text, word by word: the caller may stop early.

        Parameters
        ----------
        text : str
        special : bool
            Take the names of control tokens, such as ``<s>``, for these tokens; else they are text like any other.
        begin, end : bool
            Whether the tokens for the begin and the end are added; by default as the vocabulary has it.

        Raises
        ------
        TokenError
            If the vocabulary cannot write the text.
        """
        _check_text(text)
        known = self.vocabulary
        if known.begin is not None and (known.add_begin if begin is None else begin):
            yield known.begin
        starts = True
        for part in self._parts(text, special):
            if isinstance(part, str):
                yield from self._plain(part, starts)
                starts = False
            else:
                yield part
                starts = True
        if known.end is not None and (known.add_end if end is None else end):
            yield known.end

    def _parts(self, text: str, special: bool) -> Iterator[str | int]:
        """Text, and control tokens in it."""
        if not special:
            yield text
            return
        yield from self._control.split(text)

    def _plain(self, text: str, starts: bool) -> Iterator[int]:
        """Tokens of text without control tokens; at the start it may have a space put in front."""
        if not text:
            return
        if starts and self.vocabulary.add_space:
            text = f" {text}"
        for part in self._defined.split(text):
            if isinstance(part, str):
                yield from self._encoder.encode(part)
            else:
                yield part

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD.

        Parameters
        ----------
        tokens : iterable of int
        special : bool
            Whether control tokens are shown by their names; else they are left out.

        Raises
        ------
        TokenError
            If there is no such token.
        """
        decoder = self.decoder(special=special, starts=True)
        return "".join(map(decoder.feed, tokens)) + decoder.end()

    def decoder(self, *, special: bool = False, starts: bool = False) -> Decoder:
        """For the text of tokens that come one after the other.

        Parameters
        ----------
        special : bool
            As in `decode`.
        starts : bool
            Whether the first token starts a text; else it goes on with one, and keeps a space in front.
        """
        return Decoder(self, special, starts)

    def content(self, token: int) -> bytes:
        """The bytes of text that a token stands for; none for a control token."""
        if not 0 <= token < len(self.vocabulary.tokens):
            raise TokenError(f"there is no token {token}; the vocabulary has {len(self.vocabulary.tokens):,}")
        return b"" if self.vocabulary.kinds[token] is Kind.CONTROL else self._encoder.content(token)


class Decoder:
    """The text of tokens that come one after the other; no half of a character is ever given.

    What `feed` and at last `end` return is together what `Tokenizer.decode` returns.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool, starts: bool) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._starts = starts
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The characters that are complete with this token.

        Raises
        ------
        TokenError
            If there is no such token.
        """
        content = self._tokenizer.content(token)
        vocabulary = self._tokenizer.vocabulary
        if vocabulary.kinds[token] is Kind.CONTROL:
            self._starts = True
            return self.end() + (vocabulary.tokens[token] if self._special else "")
        if content and self._starts:
            self._starts = False
            if vocabulary.add_space:
                content = content.removeprefix(b" ")
        return self._utf8.decode(content)

    def end(self) -> str:
        """What is left when nothing follows: U+FFFD for a part of a character."""
        return self._utf8.decode(b"", final=True)


class _Names:
    """Finds the texts of tokens in a text: at every place the longest one."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        lengths: dict[str, set[int]] = {}
        for text in tokens:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def split(self, text: str) -> Iterator[str | int]:
        """Tokens, and the text before, between and behind them, unless it is empty."""
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
            f"character {error.start} of the text is {short_repr(text[error.start])}, half of a pair, which is no "
            "character"
        ) from None
