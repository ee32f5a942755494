"""Generated texts: an iterator of pieces, and the completion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.extras.language.run.batch import End, Request
from weft.extras.language.run.lm_text import TextStream

if TYPE_CHECKING:
    from weft.extras.language.run.lm import Model


@dataclass(frozen=True)
class Completion:
    """Text that has ended.

    Attributes
    ----------
    text : str
        Text after the prompt.
    prompt, tokens : tuple of int
        Tokens of the prompt and generated tokens, including the end token.
    reason : End
    """

    text: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    reason: End


class Generation(Iterator[str]):
    """Iterator of a text's pieces, each as soon as it is complete. See `Model.generate`.

    Attributes
    ----------
    ended : bool
        Whether the iterator has returned all pieces.
    """

    def __init__(self, model: Model, request: Request, text: TextStream) -> None:
        self._model, self._request, self._text = model, request, text
        self._consumed, self._text_so_far = 0, ""
        self.ended = False

    def __next__(self) -> str:
        while (piece := self.poll()) is None and not self.ended:
            self._model.step()
        if piece is None:
            raise StopIteration
        return piece

    def poll(self) -> str | None:
        """Return the next piece, or None if it needs another step or the text has ended."""
        request = self._request
        while not self.ended:
            if self._consumed < len(request.generated_tokens):
                piece = self._feed(request.generated_tokens[self._consumed])
            elif request.reason is not None:
                self.ended, piece = True, self._text.end()
            else:
                return None
            self._text_so_far += piece
            if piece:
                return piece
        return None

    def _feed(self, token: int) -> str:
        """Return the text that a token completes; the model's end token has no text."""
        self._consumed += 1
        if self._request.reason is End.MODEL and self._consumed == len(self._request.generated_tokens):
            return ""
        piece = self._text.feed(token)
        if self._text.stopped:
            self.ended = True
            self._model._batch.cancel(self._request, End.STOP)
        return piece

    def close(self) -> None:
        """End the text now, unless it has ended."""
        self._model._batch.cancel(self._request)

    @property
    def result(self) -> Completion:
        """The completion; computes the remaining tokens first."""
        for _ in self:
            pass
        request = self._request
        reason = End.STOP if self._text.stopped else request.reason
        assert reason is not None
        prompt = tuple(request.tokens[: request.prompt_length])
        tokens = tuple(request.generated_tokens[: self._consumed])
        return Completion(self._text_so_far, prompt, tokens, reason)
