"""Tasks as columns against the same tasks one by one."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from weft.compiler.machine.tasks import (
    ADDRESSES,
    Range,
    Task,
    Tasks,
    accumulator,
    alignment_entries,
    dram,
    scratchpad,
)
from weft.hdl.isa import Instruction, IsaError, Load, Mm, Softmax, Store, Vec
from weft.hdl.isa.code import Code

KINDS: tuple[type[Instruction], ...] = (Load, Mm, Vec, Store, Softmax)


def drawn(rng: random.Random) -> list[Task]:
    """Tasks that share instructions, and have addresses of their own or not."""
    shared = [rng.choice(KINDS)() for _ in range(3)]
    tasks = []
    for layer in range(rng.randint(0, 30)):
        instruction = rng.choice([*shared, Load(dst=rng.randrange(99)), Vec(src=7, params=rng.randrange(9))])
        names = ADDRESSES.get(instruction.OPCODE, ())
        ranges = [
            [rng.choice([scratchpad, accumulator, alignment_entries])(rng.randrange(99), rng.randrange(5))
             for _ in range(rng.randint(0, 2))] for _ in range(2)
        ]  # fmt: skip
        ranges[1] += [dram(rng.randrange(3), rng.randrange(1 << 30), 9)]
        tasks.append(Task(
            instruction, tuple(ranges[0]), ranges[1], layer, rng.randrange(99), rng.randrange(99), rng.random() < 0.3,
            tuple(rng.randrange(999) for _ in names) if rng.random() < 0.5 else (),
        ))  # fmt: skip
    return tasks


def apart(task: Task) -> tuple[Instruction, list[tuple[bool, Range]], tuple[int, int, int, bool]]:
    """The instruction with its addresses, ranges with whether they are written, and the rest."""
    names = ADDRESSES.get(task.instruction.OPCODE, ())
    instruction = (
        dataclasses.replace(task.instruction, **dict(zip(names, task.addresses, strict=True)))
        if task.addresses
        else task.instruction
    )
    ranges = [
        (written, item) for written, items in ((False, task.reads), (True, task.writes)) for item in items
    ]
    return instruction, ranges, (task.layer, task.cycles, task.dram_bytes, task.paces)


def compare(tasks: Tasks, wanted: list) -> None:
    assert len(tasks) == len(wanted)
    assert list(Code(tasks.words)) == [instruction for instruction, _, _ in wanted]
    assert tasks.queue.tolist() == [int(instruction.QUEUE) for instruction, _, _ in wanted]
    columns = (tasks.layer, tasks.cycles, tasks.dram_bytes, tasks.paces)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [rest for _, _, rest in wanted]
    uses = tasks.uses
    found = zip(
        *(column.tolist() for column in (uses.task, uses.kind, uses.space, uses.start, uses.stop)),
        strict=True,
    )
    assert sorted(found) == sorted(
        (index, 2 * int(instruction.QUEUE) + written, *item)
        for index, (instruction, ranges, _) in enumerate(wanted)
        for written, item in ranges
    )


@pytest.mark.parametrize("seed", range(100))
def test_columns(seed: int) -> None:
    rng = random.Random(seed)
    parts = [drawn(rng) for _ in range(rng.randint(1, 3))]
    wanted = [apart(task) for part in parts for task in part]
    joined = Tasks.joined([Tasks.of(part) for part in parts])
    compare(joined, wanted)
    order = list(range(len(wanted)))
    rng.shuffle(order)
    compare(joined.ordered(np.array(order, np.int64)), [wanted[index] for index in order])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task(Load(dst=1 << 16), (), (), 0, 1), "LOAD field 'dst' is 65536, outside 0 to 65535"),
        (Task(Load(), (), (), 0, 1, addresses=(5, 1 << 16)), "LOAD field 'dst' is 65536, outside 0 to 65535"),
        (Task(Store(src=1 << 16), (), (), 0, 1), "STORE field 'src' is 65536, outside 0 to 65535"),
    ],
)
def test_values_that_do_not_fit(task: Task, message: str) -> None:
    with pytest.raises(IsaError) as caught:
        Tasks.of([task])
    assert str(caught.value) == message
