"""Byte-pair encoding without any thought of time: look at all pairs, merge one, begin again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence


def merge(symbols: Sequence[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Of all pairs the leftmost one of the lowest rank merges, until there is none."""
    found = list(symbols)
    while True:
        ranks = [rank(*found[at : at + 2]) for at in range(len(found) - 1)]
        allowed = [item for item in ranks if item is not None]
        if not allowed:
            return found
        at = ranks.index(min(allowed))
        found[at : at + 2] = ["".join(found[at : at + 2])]


def train(words: Iterable[Sequence[str]], count: int) -> list[tuple[str, str]]:
    """Merges of a vocabulary: again and again the pair of neighbours that is most frequent in the words."""
    texts, merges = [list(word) for word in words], []
    for _ in range(count):
        pairs = Counter(pair for text in texts for pair in itertools.pairwise(text))
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        texts = [_merged(text, best) for text in texts]
    return merges


def _merged(text: list[str], pair: tuple[str, str]) -> list[str]:
    return merge(text, lambda *found: 0 if found == pair else None)
