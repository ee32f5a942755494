"""The merging of neighbours that all byte-pair encodings have in common.

Of all pairs of neighbours that may merge the one with the lowest rank does so, of several the leftmost, until none may.
This is the algorithm of Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units"
(2016), with a heap of candidates as SentencePiece has it, so that a text of n symbols takes time n log n.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence


def merge(symbols: Sequence[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Merge neighbours.

    Parameters
    ----------
    symbols : sequence of str
        None of them empty.
    rank : callable
        The rank of two symbols side by side; None if they do not merge.
    """
    texts: list[str] = list(symbols)
    after = [*range(1, len(texts)), -1]
    before = list(range(-1, len(texts) - 1))
    heap: list[tuple[float, int, int, str, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right >= 0 and (found := rank(texts[left], texts[right])) is not None:
            heapq.heappush(heap, (found, left, right, texts[left], texts[right]))

    for at in range(len(texts) - 1):
        offer(at, at + 1)
    while heap:
        _, left, right, first, second = heapq.heappop(heap)
        if texts[left] != first or texts[right] != second:
            continue  # one of them has merged meanwhile
        texts[left], texts[right] = first + second, ""
        after[left] = after[right]
        if after[left] >= 0:
            before[after[left]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [text for text in texts if text]
