"""Perplexity of a language model on a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.language.compiler.encoders import TokenError


@dataclass(frozen=True)
class Perplexity:
    """Perplexity: the exponential of the mean negative log-likelihood over `tokens` tokens."""

    value: float
    tokens: int


def perplexity(
    logits: Callable[[Sequence[int]], np.ndarray],
    tokens: Sequence[int],
    *,
    window: int,
    stride: int | None = None,
) -> Perplexity:
    """Return the perplexity of a text, computed in overlapping windows.

    Parameters
    ----------
    logits : callable
        Returns the logits after each token of a text, shape (tokens, vocabulary), for example
        `weft.extras.language.compiler.reference.Reference.logits`.
    tokens : sequence of int
        At least two; the first one is not predicted.
    window : int
        Tokens of a window; at most the model's context.
    stride : int
        Distance of windows, by default half a window. Every token counts once, with at least ``window - stride`` tokens
        before it, except at the start of the text.

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
        window_tokens = tokens[start : start + window]
        # Tokens that an earlier window has counted are context only.
        new_tokens = start + len(window_tokens) - counted
        total += float(_token_losses(logits(window_tokens[:-1]), window_tokens[1:])[-new_tokens:].sum())
        counted += new_tokens
        if counted == len(tokens):
            break
    return Perplexity(math.exp(total / (counted - 1)), counted - 1)


def _token_losses(logits: np.ndarray, targets: Sequence[int]) -> np.ndarray:
    """Return the negative log-likelihoods of tokens: float64 of shape (tokens,)."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    target_logits = np.take_along_axis(logits, np.asarray(targets, np.int64)[:, None], axis=-1)[:, 0]
    losses: np.ndarray = np.log(np.exp(logits).sum(axis=-1)) - target_logits
    return losses
