"""Order and semaphores of random tasks: what must not be passed is not, every dependency is kept, and no more."""

from __future__ import annotations

import random

import numpy as np
import pytest

from weft.compiler.machine.schedule import schedule
from weft.compiler.machine.tasks import Task, Tasks, accumulator, dram, scratchpad
from weft.hdl.checker.conflicts import conflicts
from weft.hdl.isa import End, Load, Mm, Queue, Store, Vec
from weft.hdl.isa.code import Code

QUEUES = len(Queue)


def drawn(rng: random.Random) -> Tasks:
    """Tasks on few addresses; `layer` tells them apart."""
    tasks = []
    for index in range(rng.randint(1, 60)):
        instruction = rng.choice([Load(), Load(), Mm(), Vec(), Store()])
        ranges = [
            tuple(
                rng.choice([scratchpad, accumulator, lambda start, size: dram(1, 64 * start, 64 * size)])(
                    rng.randrange(12), rng.randint(0, 4)
                )
                for _ in range(rng.randint(0, 2))
            )
            for _ in range(2)
        ]
        cycles = rng.choice([1, 50, 900])
        tasks.append(Task(instruction, *ranges, index, cycles, paces=isinstance(instruction, Mm)))
    return Tasks.of(tasks)


def happened(code: Code) -> list[set[int]]:
    """For each instruction those that are done when it starts, from semaphores alone: the k-th wait takes the k-th
    signal, and what was done when an earlier one of the queue started still is."""
    given: dict[int, list[set[int]]] = {}
    taken: dict[int, int] = {}
    started: list[set[int]] = [set() for _ in range(QUEUES)]
    found = []
    for index, instruction in enumerate(code):
        assert instruction.QUEUE is not None
        known = set(started[instruction.QUEUE])
        for semaphore in range(16):
            if instruction.wait >> semaphore & 1:
                at = taken.get(semaphore, 0)
                taken[semaphore] = at + 1
                known |= given[semaphore][at]
        started[instruction.QUEUE] = known
        found.append(known)
        before = {other for other in range(index) if code[other].QUEUE == instruction.QUEUE}
        for semaphore in range(16):
            if instruction.signal >> semaphore & 1:
                given.setdefault(semaphore, []).append(known | before | {index})
    return found


@pytest.mark.parametrize("seed", range(150))
def test_random_tasks(seed: int) -> None:
    tasks = drawn(random.Random(seed))
    before = conflicts(len(tasks), tasks.uses)
    ordered, code = schedule(tasks)
    assert code[-1] == End()
    place = np.empty(len(tasks), np.int64)
    place[ordered.layer] = np.arange(len(tasks))
    # LOADs only move up, past nothing that they conflict with; all others keep their order, and so do LOADs.
    for queues in ({Queue.LOAD}, {Queue.MM, Queue.VEC, Queue.STORE}):
        kept = [layer for layer, queue in zip(ordered.layer, ordered.queue, strict=True) if queue in queues]
        assert kept == sorted(kept)
    after = conflicts(len(tasks), ordered.uses)
    assert np.array_equal(after[place], np.where(before < 0, -1, place[before]))
    done = happened(code[:-1])
    for index, causes in enumerate(after.tolist()):
        assert {cause for cause in causes if cause >= 0} <= done[index]


def test_no_semaphores_without_need() -> None:
    chain = [
        Task(Load(), (), (scratchpad(0, 4),), 0, 9),
        Task(Mm(), (scratchpad(0, 4),), (accumulator(0, 4),), 0, 9, paces=True),
        Task(Vec(), (accumulator(0, 4), scratchpad(0, 1)), (scratchpad(8, 4),), 0, 9),
        Task(Store(), (scratchpad(8, 4),), (), 0, 9),
    ]
    _, code = schedule(Tasks.of(chain))
    # VEC reads what LOAD wrote, too: it waits for MM, which waited for LOAD.
    assert [bin(item.wait).count("1") for item in code] == [0, 1, 1, 1, 0]
    assert [bin(item.signal).count("1") for item in code] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("cycles", [10, 300, 1000])
def test_loads_run_ahead_of_compute(cycles: int) -> None:
    tasks = []
    for slot in range(8):
        at = scratchpad(4 * slot, 4)
        tasks.append(Task(Load(), (), (at,), 2 * slot, 9))
        tasks.append(Task(Mm(), (at,), (accumulator(slot, 1),), 2 * slot + 1, cycles, paces=True))
    order = schedule(Tasks.of(tasks))[0].layer.tolist()
    # Each LOAD stands right behind an MM: of long ones that of two slots before, of short ones the first of all.
    assert order[:4] == [0, 1, 2, 4]
    for slot in range(3, 8):
        before = [layer for layer in order[: order.index(2 * slot)] if layer % 2]
        assert before == ([1] if cycles == 10 else list(range(1, 2 * slot - 2, 2)))
