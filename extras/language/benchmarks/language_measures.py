"""Differences between two arithmetics' logits, on texts and on problems with one right answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.example import measure

Logits = Callable[[Sequence[int]], np.ndarray]
"""Function that returns logits after each token of a text: (tokens, vocabulary)."""
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
EVERY = 5
"""Sampling interval of logit errors for quantiles."""


@dataclass(frozen=True)
class Text:
    """A text in windows, with exact logits; all tokens but the first of each window are predicted."""

    name: str
    windows: list[list[int]]
    exact: list[np.ndarray]

    @classmethod
    def of(cls, name: str, tokens: Sequence[int], exact: Logits, *, window: int = measure.WINDOW) -> Text:
        """Split tokens into windows without overlap; a last window of a single token is dropped."""
        parts = [list(tokens[at : at + window]) for at in range(0, len(tokens) - 1, window)]
        return cls(name, parts, [exact(part) for part in parts])

    @property
    def tokens(self) -> int:
        """Number of predicted tokens."""
        return sum(len(window) - 1 for window in self.windows)


@dataclass(frozen=True)
class Difference:
    """Difference of approximate from exact logits on a text.

    Attributes
    ----------
    perplexity, exact : float
    deviation : float
        Standard error of the logarithm of the ratio of both, from token to token.
    divergence : float
        Mean Kullback-Leibler divergence of the exact probabilities from the others, in nats.
    same : float
        Share of places at which the most probable token is the same.
    error : float
        Root of the mean square of errors, which are divided by the standard deviation of the exact logits.
    errors : numpy.ndarray of float32
        Errors of every `EVERY`-th logit.
    """

    perplexity: float
    exact: float
    deviation: float
    divergence: float
    same: float
    error: float
    errors: np.ndarray

    @property
    def change(self) -> float:
        """Relative increase of the perplexity."""
        return self.perplexity / self.exact - 1


def difference(text: Text, logits: Logits) -> Difference:
    """Measure how far logits are from a text's exact ones."""
    losses: list[np.ndarray] = []
    exact_losses: list[np.ndarray] = []
    divergences, same, errors = [], [], []
    for window, exact in zip(text.windows, text.exact, strict=True):
        result = logits(window)
        a, b = _logarithms(exact)[:-1], _logarithms(result)[:-1]
        places, wanted = np.arange(len(a)), np.asarray(window[1:])
        exact_losses.append(-a[places, wanted])
        losses.append(-b[places, wanted])
        divergences.append((np.exp(a) * (a - b)).sum(axis=1))
        same.append(a.argmax(axis=1) == b.argmax(axis=1))
        errors.append((result - exact).astype(np.float32).ravel())
    loss, exact_loss = np.concatenate(losses), np.concatenate(exact_losses)
    scale = np.concatenate([item.ravel() for item in text.exact]).std()
    every = np.concatenate(errors) / scale
    return Difference(
        perplexity=math.exp(loss.mean()), exact=math.exp(exact_loss.mean()),
        deviation=float((loss - exact_loss).std()) / math.sqrt(len(loss)),
        divergence=float(np.concatenate(divergences).mean()), same=float(np.concatenate(same).mean()),
        error=math.sqrt(float(np.mean(np.square(every, dtype=np.float64)))), errors=every[::EVERY],
    )  # fmt: skip


def _logarithms(logits: np.ndarray) -> np.ndarray:
    """Return log probabilities, float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def answers(logits: Logits, tokenizer: Tokenizer, count: int = measure.COUNT) -> Mapping[str, list[bool]]:
    """Return which problems of each kind are solved."""
    return {
        kind: [measure.solves(logits, tokenizer, problem) for problem in measure.problems(kind, count)]
        for kind in measure.KINDS
    }
