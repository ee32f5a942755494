"""Order and semaphores of random tasks: what must not be passed is not, every dependency is kept, and no more."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from support.repeated import repeated

from weft.compiler.machine.schedule import schedule
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task, Tasks
from weft.hdl.checker.conflicts import conflicts
from weft.hdl.isa import End, Load, Mm, Queue, Store, Vec
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import PRESETS

QUEUES = len(Queue)


TINY = PRESETS["tiny"]
FAST, SLOW = Target(TINY), Target(dataclasses.replace(TINY, queue_depth=1), 0.5)
"""Programs for slow memories are in another order; short queues make its rules matter."""


def drawn(rng: random.Random) -> Tasks:
    """Tasks on few addresses; `layer` tells them apart."""
    tasks = []
    for index in range(rng.randint(1, 60)):
        count = rng.randint(1, 4)
        instruction = rng.choice([
            Load(base=1, offset=64 * rng.randrange(6), rows=count, row_pitch=64, dst=rng.randrange(12), dst_row=1),
            Load(base=2, dst=rng.randrange(12)),
            Mm(ox=count, a=rng.randrange(12), a_ox=1, w=9, b=rng.randrange(12), c=rng.randrange(12), c_ox=1),
            Vec(ox=count, src=rng.randrange(12), src_ox=1, w=9, dst=rng.randrange(12), dst_ox=1, params=20),
            Store(base=1, offset=64 * rng.randrange(6), rows=count, row_pitch=64, src=rng.randrange(12), src_row=1),
        ])  # fmt: skip
        cycles = rng.choice([1, 50, 900])
        tasks.append(Task(instruction, index, cycles, paces=isinstance(instruction, Mm)))
    return Tasks.of(tasks, TINY)


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


@pytest.mark.parametrize("target", [FAST, SLOW], ids=["fast", "slow"])
@repeated("seed", range(150))
def test_random_tasks(seed: int, target: Target) -> None:
    tasks = drawn(random.Random(seed))
    before = conflicts(len(tasks), tasks.uses)
    ordered, code, _ = schedule(tasks, target)
    assert code[-1] == End()
    place = np.empty(len(tasks), np.int64)
    place[ordered.layer] = np.arange(len(tasks))
    # LOADs and products only move up, past nothing that they conflict with; each queue keeps its order, and so do
    # those that the vector unit and STORE have in common.
    for queues in ({Queue.LOAD}, {Queue.MM}, {Queue.VEC, Queue.STORE}):
        kept = [layer for layer, queue in zip(ordered.layer, ordered.queue, strict=True) if queue in queues]
        assert kept == sorted(kept)
    after = conflicts(len(tasks), ordered.uses)
    assert np.array_equal(after[place], np.where(before < 0, -1, place[before]))
    done = happened(code[:-1])
    for index, causes in enumerate(after.tolist()):
        assert {cause for cause in causes if cause >= 0} <= done[index]


def test_no_semaphores_without_need() -> None:
    chain = [
        Task(Load(rows=12, dst_row=1), 0, 9),
        Task(Mm(b=4, b_row=1), 0, 9, paces=True),
        Task(Vec(params=4, dst=20), 0, 9),
        Task(Store(src=20), 0, 9),
    ]
    code = schedule(Tasks.of(chain, TINY), FAST).code
    # VEC reads what LOAD wrote, too: it waits for MM, which waited for LOAD.
    assert [bin(item.wait).count("1") for item in code] == [0, 1, 1, 1, 0]
    assert [bin(item.signal).count("1") for item in code] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("cycles", [10, 300, 1000])
def test_loads_run_ahead_of_compute(cycles: int) -> None:
    tasks = []
    for slot in range(8):
        tasks.append(Task(Load(rows=4, dst=4 * slot, dst_row=1), 2 * slot, 9))
        tasks.append(Task(Mm(a=4 * slot, b=4 * slot, b_row=1, c=slot), 2 * slot + 1, cycles, paces=True))
    order = schedule(Tasks.of(tasks, TINY), FAST)[0].layer.tolist()
    # Each LOAD stands right behind an MM: of long ones that of two slots before, of short ones the first of all.
    assert order[:4] == [0, 1, 2, 4]
    for slot in range(3, 8):
        before = [layer for layer in order[: order.index(2 * slot)] if layer % 2]
        assert before == ([1] if cycles == 10 else list(range(1, 2 * slot - 2, 2)))


@pytest.mark.parametrize(("depth", "slots"), [(1, 2), (4, 2), (4, 4), (8, 2), (16, 3)])
def test_products_come_before_the_queue_of_the_vector_unit_is_full(depth: int, slots: int) -> None:
    """Blocks of 12 VECs with sums in so many slots: the array gets the next product when a slot is free and its queue
    has room, not when all VECs of the block before have left theirs."""
    config = dataclasses.replace(TINY, queue_depth=depth)
    tasks = []
    for block in range(8):
        sums = 16 * (block % slots)
        tasks.append(Task(Mm(nt=12, c=sums, c_nt=1, a=0, b=4), 100 + block, 240, paces=True))
        tasks += [Task(Vec(src=sums + tile, dst=40, params=20), block, 20) for tile in range(12)]
    order = schedule(Tasks.of(tasks, config), Target(config)).tasks.layer.tolist()
    for block in range(8):
        vecs = sum(item < 100 for item in order[: order.index(100 + block)])
        needed = 12 * max(block - slots + 1, 0)
        room = 12 * max(block - depth, 0) + 1  # the product so many before has started
        assert max(needed, 0) <= vecs <= max(needed, room + depth)
