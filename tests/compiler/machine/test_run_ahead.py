"""LOADs behind a slow memory: as far ahead as slots allow, and nothing waits for them in the stream of instructions."""

from __future__ import annotations

import dataclasses

import pytest

from weft.compiler.machine.schedule import schedule
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task, Tasks
from weft.hdl.isa import Load, Mm
from weft.hdl.isa.config import PRESETS

TINY = PRESETS["tiny"]
SLOW = Target(TINY, 1)


def order(loads: list[int], compute: int, target: Target, slots: int) -> list[int]:
    """Numbers of pairs of a LOAD and the MM that uses it, in the order of a program; LOADs as -1 and less. LOADs take
    `loads` cycles each, and each MM `compute`."""
    tasks = []
    for index, cycles in enumerate(loads):
        slot = 8 * (index % slots)
        tasks.append(Task(Load(rows=4, dst=slot, dst_row=1), ~index, cycles))
        tasks.append(Task(Mm(a=slot, b=slot, b_row=1, c=index % 2), index, compute, paces=True))
    return schedule(Tasks.of(tasks, target.config), target)[0].layer.tolist()


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_long_loads_come_under_the_first_products(depth: int) -> None:
    """Seven short LOADs, then seven long ones: these start when the short ones are done, with their fetches in some
    1,200 cycles, when the second product runs. Two have left the queue then, and `depth` more have room there."""
    target = Target(dataclasses.replace(TINY, queue_depth=depth), 1)
    found = order([100] * 7 + [2000] * 7, 1000, target, slots=14)
    assert [item for item in found[: found.index(~7)] if item >= 0] == list(range(min(depth + 2, 7)))


def test_a_slot_in_use_is_not_filled() -> None:
    found = order([900] * 8, 1000, SLOW, slots=2)
    for index in range(2, 8):
        assert found.index(~index) > found.index(index - 2)


def test_products_do_not_wait_for_loads_in_front_of_them() -> None:
    """Where LOADs take longer than products, each MM stands ahead of the LOADs that start when it could be fetched."""
    found = order([1000] * 12, 10, SLOW, slots=12)
    for index in range(12 - TINY.queue_depth):
        assert found.index(index) < found.index(~(index + TINY.queue_depth))
