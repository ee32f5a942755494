"""Incremental text of generated tokens, up to the first stop sequence."""

from __future__ import annotations

from collections.abc import Sequence

from weft.extras.language.compiler.tokenizer import Tokenizer


class TextStream:
    """Stream that returns text as soon as it cannot be the start of a stop sequence.

    Parameters
    ----------
    tokenizer : Tokenizer
    stop : sequence of str
        Stop sequences, none of them empty, which are not part of the text. The name of a control token, such as
        ``<|eot_id|>``, also matches that token.

    Attributes
    ----------
    stopped : bool
        Whether a stop sequence was found.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._decoder, self._stop = tokenizer.decoder(), tuple(stop)
        names, controls = tokenizer.vocabulary.tokens, tokenizer.control_tokens if stop else ()
        self._stop_tokens = frozenset(token for token in controls if names[token] in self._stop)
        self._pending = ""
        self.stopped = False

    def feed(self, token: int) -> str:
        """Add a token and return the text that is now certain."""
        if token not in self._stop_tokens:
            return self._extend(self._decoder.feed(token))
        text = self.end()
        self.stopped = True
        return text

    def end(self) -> str:
        """Return the rest of the text after the last token."""
        text = self._extend(self._decoder.end())
        pending, self._pending = self._pending, ""
        return text + pending

    def _extend(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._pending + text
        matches = [at for at in map(text.find, self._stop) if at >= 0]
        if matches:
            self.stopped, self._pending = True, ""
            return text[: min(matches)]
        overlap = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._pending = text[len(text) - overlap :]
        return text[: len(text) - overlap]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that starts a stop sequence."""
    sizes = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
