"""What a task has to wait for, against a comparison of every task with every other, address by address."""

from __future__ import annotations

import numpy as np
import pytest

from weft.hdl.checker import conflicts as module
from weft.hdl.checker.conflicts import DRAM, GRANULE, Uses, conflicts
from weft.hdl.isa import Queue

QUEUES = len(Queue)


def drawn(rng: np.random.Generator) -> tuple[int, np.ndarray, Uses]:
    """Tasks with their queues, and what they use, in no order: few addresses or many, empty ranges among them."""
    count = int(rng.integers(1, 40))
    queues = rng.integers(0, QUEUES, count) if rng.random() < 0.9 else np.full(count, rng.integers(0, QUEUES))
    uses = int(rng.integers(0, 4 * count))
    task = rng.integers(0, count, uses)
    space = rng.choice([0, 1, 2, DRAM, DRAM + 3], uses)
    size = int(rng.choice([5, 40, 3000]))
    start = rng.integers(0, size, uses) + rng.choice([0, 1 << 20])
    stop = start + rng.integers(0, rng.choice([2, 9, size]), uses)
    return count, queues, Uses(task, 2 * queues[task] + rng.integers(0, 2, uses), space, start, stop)


def one_by_one(count: int, queues: np.ndarray, uses: Uses) -> np.ndarray:
    """The same from the definition."""
    latest = np.full((count, QUEUES), -1)
    rows = list(
        zip(
            *(column.tolist() for column in (uses.task, uses.kind, uses.space, uses.start, uses.stop)),
            strict=True,
        )
    )
    rows = [row for row in rows if row[4] > row[3]]
    for task, kind, space, start, stop in rows:
        for other, past, where, first, last in rows:
            unit = GRANULE if space >= DRAM else 1
            meet = max(start // unit, first // unit) < min(-(-stop // unit), -(-last // unit))
            apart = other < task and queues[other] != queues[task]
            if where == space and apart and (kind | past) & 1 and meet:
                latest[task, queues[other]] = max(latest[task, queues[other]], other)
    return latest


@pytest.mark.parametrize("seed", range(300))
def test_against_a_comparison_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(module, "_STRETCH", int(rng.choice([3, 16, 1 << 14])))
    count, queues, uses = drawn(rng)
    assert np.array_equal(conflicts(count, uses), one_by_one(count, queues, uses))


def test_stretches_of_many_pieces_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    count = 1500
    task, start = np.arange(count), rng.integers(0, 500, count)
    queues = rng.integers(0, QUEUES, count)
    uses = Uses(
        task, 2 * queues + rng.integers(0, 2, count), 0 * task, start, start + rng.integers(1, 500, count)
    )
    whole = conflicts(count, uses)
    monkeypatch.setattr(module, "_PIECES", 1000)
    assert len(list(module._stretches(uses))) > 1
    assert np.array_equal(conflicts(count, uses), whole)
