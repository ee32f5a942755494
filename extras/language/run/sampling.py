"""Choice of the next token from logits, on the host in float64."""

from __future__ import annotations

import numpy as np

from weft.arguments import SEED, integer, number

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
        with np.errstate(over="ignore", under="ignore"):
            ends = np.cumsum(np.exp((candidates - candidates[0]) / self._temperature))
        # Rounding can place a random number near 1 beyond the last sum.
        index = min(int(np.searchsorted(ends, self._random.random() * ends[-1], side="right")), len(ends) - 1)
        return int(tokens[index])
