"""First fit over time: each range is at the lowest address that is free all the time, as a search of all finds it."""

from __future__ import annotations

import numpy as np

from weft.compiler.machine.memory import Packing


def lowest(size: int, first: int, last: int, placed: list[tuple[int, int, int, int]]) -> int:
    """By a look at all that was placed: (start, size, first, last) each."""
    start = 0
    for other, length, since, until in sorted(placed):
        if since <= last and first <= until and start < other + length and other < start + size:
            start = other + length
    return start


def test_first_fit() -> None:
    """Of ranges of many sizes and lifetimes, most of them short."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        times = int(rng.integers(1, 60))
        packing, placed = Packing(times), list[tuple[int, int, int, int]]()
        for _ in range(60):
            size, first = int(rng.integers(1, 9)), int(rng.integers(times))
            last = min(times - 1, first + int(rng.integers(1 + int(rng.choice([2, times])))))
            start = packing.place(size, first, last)
            assert start == lowest(size, first, last, placed)
            placed.append((start, size, first, last))


def test_one_after_the_other_share_addresses() -> None:
    packing = Packing(4)
    assert [packing.place(3, time, time) for time in range(4)] == [0] * 4
    assert packing.place(2, 0, 3) == 3
    assert packing.place(1, 2, 2) == 5
