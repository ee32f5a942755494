"""The text of tokens that come one after the other, up to the first stop sequence."""

from __future__ import annotations

from collections.abc import Sequence

from weft.extras.language.compiler.tokenizer import Tokenizer


class Text:
    """Gives text as soon as it is certain that no stop sequence begins in it.

    Parameters
    ----------
    tokenizer : Tokenizer
    stop : sequence of str
        Texts that end it, and do not belong to it; none of them is empty. The name of a control token, such as
        ``<|eot_id|>``, stands for this token, too.

    Attributes
    ----------
    stopped : bool
        Whether a stop sequence has come.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._decoder, self._stop = tokenizer.decoder(), tuple(stop)
        names, controls = tokenizer.vocabulary.tokens, tokenizer.controls if stop else ()
        self._stop_tokens = frozenset(token for token in controls if names[token] in self._stop)
        self._held = ""
        self.stopped = False

    def feed(self, token: int) -> str:
        """Return the text that is certain with another token."""
        if token not in self._stop_tokens:
            return self._more(self._decoder.feed(token))
        text = self.end()
        self.stopped = True
        return text

    def end(self) -> str:
        """Return the rest of the text when no token follows."""
        text = self._more(self._decoder.end())
        held, self._held = self._held, ""
        return text + held

    def _more(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for at in map(text.find, self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        held = max((_begun(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of a text a stop sequence begins with."""
    sizes = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
