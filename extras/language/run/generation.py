"""Texts of a language model as they come, and what they have come to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.extras.language.run.batch import End, Request
from weft.extras.language.run.lm_text import Text

if TYPE_CHECKING:
    from weft.extras.language.run.lm import Model


@dataclass(frozen=True)
class Completion:
    """A text that has ended.

    Attributes
    ----------
    text : str
        What followed the prompt.
    prompt, tokens : tuple of int
        Tokens of the prompt, and those that followed, with that which ended the text.
    reason : End
    """

    text: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    reason: End


class Generation(Iterator[str]):
    """A text that goes on: gives pieces of it, as soon as they are complete. See `Model.generate`.

    Attributes
    ----------
    ended : bool
        Whether all pieces have been given.
    """

    def __init__(self, model: Model, request: Request, text: Text) -> None:
        self._model, self._request, self._text = model, request, text
        self._seen, self._given = 0, ""
        self.ended = False

    def __next__(self) -> str:
        while (piece := self.poll()) is None and not self.ended:
            self._model.step()
        if piece is None:
            raise StopIteration
        return piece

    def poll(self) -> str | None:
        """The next piece, if it is there without computing anything; None if not, or if it has ended."""
        request = self._request
        while not self.ended:
            if self._seen < len(request.made):
                piece = self._feed(request.made[self._seen])
            elif request.reason is not None:
                self.ended, piece = True, self._text.end()
            else:
                return None
            self._given += piece
            if piece:
                return piece
        return None

    def _feed(self, token: int) -> str:
        """The text with another token; the model's own end is no text."""
        self._seen += 1
        if self._request.reason is End.MODEL and self._seen == len(self._request.made):
            return ""
        piece = self._text.feed(token)
        if self._text.stopped:
            self.ended = True
            self._model._batch.cancel(self._request, End.STOP)
        return piece

    def close(self) -> None:
        """End the text here, if it has not ended."""
        self._model._batch.cancel(self._request)

    @property
    def result(self) -> Completion:
        """What it has come to; computes what is missing."""
        for _ in self:
            pass
        request = self._request
        reason = End.STOP if self._text.stopped else request.reason
        assert reason is not None
        prompt, made = tuple(request.tokens[: request.given]), tuple(request.made[: self._seen])
        return Completion(self._given, prompt, made, reason)
