"""Pair merging, which all byte-pair encodings share.

Of all adjacent pairs that may merge, the one with the lowest rank merges first, and of equal ranks the leftmost. This
is the algorithm of Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016),
with SentencePiece's heap of candidates, which takes time n log n for n symbols.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence


def merge(symbols: Sequence[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Merge adjacent symbols until no pair has a rank.

    Parameters
    ----------
    symbols : sequence of str
        Non-empty symbols.
    rank : callable
        Returns the rank of two adjacent symbols, or None if they do not merge.
    """
    texts: list[str] = list(symbols)
    next_index = [*range(1, len(texts)), -1]
    previous_index = list(range(-1, len(texts) - 1))
    heap: list[tuple[float, int, int, str, str]] = []

    def push_pair(left: int, right: int) -> None:
        if left >= 0 and right >= 0 and (pair_rank := rank(texts[left], texts[right])) is not None:
            heapq.heappush(heap, (pair_rank, left, right, texts[left], texts[right]))

    for at in range(len(texts) - 1):
        push_pair(at, at + 1)
    while heap:
        _, left, right, first, second = heapq.heappop(heap)
        if texts[left] != first or texts[right] != second:
            continue  # outdated candidate: one of the two has merged since
        # The left symbol takes over the pair; the right one becomes empty.
        texts[left], texts[right] = first + second, ""
        next_index[left] = next_index[right]
        if next_index[left] >= 0:
            previous_index[next_index[left]] = left
        push_pair(previous_index[left], left)
        push_pair(left, next_index[left])
    return [text for text in texts if text]
