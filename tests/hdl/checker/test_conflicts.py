"""Dependencies of tasks, compared with a comparison of every task with every other, address by address."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.repeated import repeated

from weft.hdl.checker import conflicts as module
from weft.hdl.checker.conflicts import DRAM, GRANULE, Uses, conflicts
from weft.hdl.isa import Queue

QUEUES = len(Queue)


def draw_tasks(rng: np.random.Generator, steps: list[int]) -> tuple[int, np.ndarray, Uses]:
    """Draw tasks with their queues and accesses, in no order: few addresses or many, some ranges empty, and on chip
    some of these `steps`."""
    count = int(rng.integers(1, 40))
    queues = rng.integers(0, QUEUES, count) if rng.random() < 0.9 else np.full(count, rng.integers(0, QUEUES))
    uses = int(rng.integers(0, 4 * count))
    task = rng.integers(0, count, uses)
    space = rng.choice([0, 1, 2, DRAM, DRAM + 3], uses)
    size = int(rng.choice([5, 40, 3000]))
    start = rng.integers(0, size, uses) + rng.choice([0, 1 << 20])
    stop = start + rng.integers(0, rng.choice([2, 9, size]), uses)
    step = np.where(space < DRAM, rng.choice(steps, uses), 1)
    return count, queues, Uses(task, 2 * queues[task] + rng.integers(0, 2, uses), space, start, stop, step)


def one_by_one(count: int, queues: np.ndarray, uses: Uses) -> np.ndarray:
    """Return the dependencies by definition, address by address."""
    latest = np.full((count, QUEUES), -1)
    columns = (uses.task, uses.kind, uses.space, uses.start, uses.stop, uses.step)
    rows = [row for row in zip(*(column.tolist() for column in columns), strict=True) if row[4] > row[3]]
    for task, kind, space, start, stop, step in rows:
        for other, past, where, first, last, pace in rows:
            unit = GRANULE if space >= DRAM else 1
            meet = max(start // unit, first // unit) < min(-(-stop // unit), -(-last // unit))
            if meet and max(step, pace) > 1:
                meet = not set(range(start, stop, step)).isdisjoint(range(first, last, pace))
            apart = other < task and queues[other] != queues[task]
            if where == space and apart and (kind | past) & 1 and meet:
                latest[task, queues[other]] = max(latest[task, queues[other]], other)
    return latest


def cut_at(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """Stretches of few uses or many, of few addresses together or many; all addresses, or bounds of ranges alone."""
    for name, values in (
        ("_BATCH_USES", [3, 16, 1 << 14]),
        ("_BATCH_ADDRESSES", [0, 50, 1 << 17]),
        ("_MAX_DENSE_SIZE", [10, 1 << 16]),
    ):
        monkeypatch.setattr(module, name, int(rng.choice(values)))


@repeated("seed", range(300))
def test_against_a_comparison_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one step of all ranges, 1 or another."""
    rng = np.random.default_rng(seed)
    cut_at(monkeypatch, rng)
    count, queues, uses = draw_tasks(rng, [int(rng.choice([1, rng.integers(1, 40)]))])
    assert np.array_equal(conflicts(count, uses), one_by_one(count, queues, uses))


@repeated("seed", range(300))
def test_ranges_of_several_steps_are_never_taken_for_less(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for more than all between their ends."""
    rng = np.random.default_rng(1000 + seed)
    cut_at(monkeypatch, rng)
    monkeypatch.setattr(module, "_MAX_SPLIT_ADDRESSES", int(rng.choice([100, 1 << 22])))
    count, queues, uses = draw_tasks(rng, [1, 1, 2, 3, 3, int(rng.integers(1, 40))])
    found = conflicts(count, uses)
    whole = one_by_one(count, queues, dataclasses.replace(uses, step=np.ones_like(uses.step)))
    assert (one_by_one(count, queues, uses) <= found).all()
    assert (found <= whole).all()


def test_a_vector_of_each_pixel_is_no_other_one() -> None:
    """Two tiles of four vectors a pixel are requantised, and one is read: that waits for its own tile alone."""
    columns = [
        (0, 2 * Queue.VEC + 1, 0, 100, 161, 4),
        (1, 2 * Queue.VEC + 1, 0, 101, 162, 4),
        (2, 2 * Queue.MM, 0, 100, 161, 4),
    ]
    uses = Uses(*np.array(columns, np.int64).T)
    assert conflicts(3, uses)[2, Queue.VEC] == 0
    assert conflicts(3, dataclasses.replace(uses, step=np.ones(3, np.int64)))[2, Queue.VEC] == 1


def test_batches_of_many_pieces_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    count = 1500
    task, start = np.arange(count), rng.integers(0, 500, count)
    queues = rng.integers(0, QUEUES, count)
    uses = Uses(
        task, 2 * queues + rng.integers(0, 2, count), 0 * task, start, start + rng.integers(1, 500, count),
        0 * task + 1,
    )  # fmt: skip
    whole = conflicts(count, uses)
    monkeypatch.setattr(module, "_MAX_PIECES", 1000)
    assert len(list(module._batches(uses))) > 1
    assert np.array_equal(conflicts(count, uses), whole)
