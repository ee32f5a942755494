"""Generated texts: the choice of each token, an iterator of pieces up to a stop sequence, and the completion.

Tokens are chosen from logits on the host, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.arguments import SEED, integer, number
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.run.batch import Batch, End, Request


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
        # The end of the text may be the start of a stop sequence: hold it back.
        overlap = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._pending = text[len(text) - overlap :]
        return text[: len(text) - overlap]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that starts a stop sequence."""
    sizes = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)


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

    def __init__(self, batch: Batch, step: Callable[[], object], request: Request, text: TextStream) -> None:
        self._batch, self._step, self._request, self._text = batch, step, request, text
        self._consumed, self._text_so_far = 0, ""
        self.ended = False

    def __next__(self) -> str:
        while (piece := self.poll()) is None and not self.ended:
            self._step()
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
            self._batch.cancel(self._request, End.STOP)
        return piece

    def close(self) -> None:
        """End the text now, unless it has ended."""
        self._batch.cancel(self._request)

    @property
    def result(self) -> Completion:
        """The completion; computes the remaining tokens first."""
        for _ in self:
            pass
        request = self._request
        # The step that completed the stop sequence may also have reached a limit.
        reason = End.STOP if self._text.stopped else request.reason
        assert reason is not None
        prompt = tuple(request.tokens[: request.prompt_length])
        tokens = tuple(request.generated_tokens[: self._consumed])
        return Completion(self._text_so_far, prompt, tokens, reason)


TEMPERATURE = (0, 100)
"""Limits of `temperature`."""
TOP_K = (1, 1 << 30)
"""Limits of `top_k`."""


class Sampler:
    """Sampler of tokens, one for each text, so that texts do not influence each other's random numbers.

    Parameters
    ----------
    temperature : float
        Divisor of logits; 0 chooses the largest logit.
    top_k : int, optional
        Sample only from this many tokens with the largest logits; None means all.
    seed : int
        Seed of numpy's default generator.

    Raises
    ------
    weft.errors.InputError
        If an argument has a wrong type or is out of its limits.
    """

    def __init__(self, temperature: float = 0.0, top_k: int | None = None, seed: int = 0) -> None:
        self._temperature = number("temperature", temperature, *TEMPERATURE)
        self._top_k = None if top_k is None else integer("top_k", top_k, *TOP_K)
        self._random = np.random.default_rng(integer("seed", seed, *SEED))

    def __call__(self, logits: np.ndarray) -> int:
        """Return a token for `logits`, float64 (vocabulary,); among equal logits the lowest token comes first."""
        if self._temperature == 0:
            return int(logits.argmax())
        tokens = np.argsort(-logits, kind="stable")[: self._top_k]
        candidates = logits[tokens].astype(np.float64)
        # With a tiny temperature, quotients may overflow to -infinity: probability 0.
        with np.errstate(over="ignore", under="ignore"):
            ends = np.cumsum(np.exp((candidates - candidates[0]) / self._temperature))
        # Rounding can place a random number near 1 beyond the last sum.
        index = min(int(np.searchsorted(ends, self._random.random() * ends[-1], side="right")), len(ends) - 1)
        return int(tokens[index])
