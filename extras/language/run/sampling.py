"""Which token comes next: chosen on the host, in float64."""

from __future__ import annotations

import numpy as np

from weft.arguments import SEED, integer, number

TEMPERATURE = (0, 100)
"""Limits of temperatures."""
TOP_K = (1, 1 << 30)
"""Limits of how many tokens are in question."""


class Sampler:
    """Draws tokens from logits; each text has one of its own, so that no other text changes what it draws.

    Parameters
    ----------
    temperature : float
        Logits are divided by it; at 0 the largest one is chosen.
    top_k : int, optional
        Only so many tokens with the largest logits are in question; all if None.
    seed : int
        Of numpy's default generator.

    Raises
    ------
    weft.errors.InputError
        If one of them is of another type or out of its limits.
    """

    def __init__(self, temperature: float = 0.0, top_k: int | None = None, seed: int = 0) -> None:
        self._temperature = number("temperature", temperature, *TEMPERATURE)
        self._top_k = None if top_k is None else integer("top_k", top_k, *TOP_K)
        self._random = np.random.default_rng(integer("seed", seed, *SEED))

    def __call__(self, logits: np.ndarray) -> int:
        """A token; of several with equal logits, the lowest comes first. `logits` are float64 (vocabulary,)."""
        if self._temperature == 0:
            return int(logits.argmax())
        tokens = np.argsort(-logits, kind="stable")[: self._top_k]
        chosen = logits[tokens].astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            ends = np.cumsum(np.exp((chosen - chosen[0]) / self._temperature))
        # Behind the last end there may be nothing where the random number is nearly 1.
        drawn = min(int(np.searchsorted(ends, self._random.random() * ends[-1], side="right")), len(ends) - 1)
        return int(tokens[drawn])
