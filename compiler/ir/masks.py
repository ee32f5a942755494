"""Which keys the queries of attention see."""

from __future__ import annotations

import numpy as np


def causal(queries: int, keys: int, offset: int | np.ndarray = 0) -> np.ndarray:
    """bool (..., queries, keys): query i sees the keys up to i + `offset`, an int or an array (..., 1, 1)."""
    return np.arange(keys) <= np.arange(queries)[:, None] + offset
