"""Byte-pair encoding without optimisation: examine all pairs, merge one, repeat."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence


def merge(symbols: Sequence[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Merge the leftmost pair of the lowest rank until none is left."""
    tokens = list(symbols)
    while True:
        ranks = [rank(*tokens[at : at + 2]) for at in range(len(tokens) - 1)]
        allowed = [item for item in ranks if item is not None]
        if not allowed:
            return tokens
        at = ranks.index(min(allowed))
        tokens[at : at + 2] = ["".join(tokens[at : at + 2])]


def train(words: Iterable[Sequence[str]], count: int) -> list[tuple[str, str]]:
    """Learn a vocabulary's merges: repeatedly take the most frequent pair of neighbours in the words."""
    texts, merges = [list(word) for word in words], []
    for _ in range(count):
        pairs = Counter(pair for text in texts for pair in itertools.pairwise(text))
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        texts = [_merge_pair(text, best) for text in texts]
    return merges


def _merge_pair(text: list[str], pair: tuple[str, str]) -> list[str]:
    return merge(text, lambda *candidate: 0 if candidate == pair else None)
