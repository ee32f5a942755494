"""How well a model foretells a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.language.compiler.encoders import TokenError


@dataclass(frozen=True)
class Perplexity:
    """``value`` is the exponential of the mean negative logarithm of the probabilities that `tokens` tokens had."""

    value: float
    tokens: int


def perplexity(
    logits: Callable[[Sequence[int]], np.ndarray],
    tokens: Sequence[int],
    *,
    window: int,
    stride: int | None = None,
) -> Perplexity:
    """The perplexity of a text.

    Parameters
    ----------
    logits : callable
        The logits behind each token of a text, shape (tokens, vocabulary), such as
        `weft.extras.language.compiler.reference.Reference.logits`.
    tokens : sequence of int
        Two at least. The first one is given, and not counted.
    window : int
        Tokens that are seen at once; at most the model's context.
    stride : int
        By how many tokens the window moves on. A window's tokens that the one before has counted are only seen again,
        so that every token is counted once, with ``window - stride`` tokens or more in front of it (but at the start).
        By default half a window.

    Raises
    ------
    TokenError
        If there are too few tokens, or if window and stride do not fit.
    """
    stride = max(window // 2, 1) if stride is None else stride
    if len(tokens) < 2:
        raise TokenError(f"a perplexity needs two tokens at least; the text has {len(tokens)}")
    if window < 2 or not 0 < stride < window:
        raise TokenError(
            f"the window has {window} tokens and moves by {stride}; it must have two at least, and move by fewer"
        )
    total, counted = 0.0, 1
    for start in range(0, len(tokens), stride):
        seen = tokens[start : start + window]
        fresh = start + len(seen) - counted
        total += float(_losses(logits(seen[:-1]), seen[1:])[-fresh:].sum())
        counted += fresh
        if counted == len(tokens):
            break
    return Perplexity(math.exp(total / (counted - 1)), counted - 1)


def _losses(logits: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
    """Negative logarithms of the probabilities of tokens: float64 of shape (tokens,)."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(logits, np.asarray(wanted, np.int64)[:, None], axis=-1)[:, 0]
    losses: np.ndarray = np.log(np.exp(logits).sum(axis=-1)) - chosen
    return losses
