"""Tasks as columns against tasks as objects."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
from support.repeated import repeated

from weft.compiler.machine.tasks import ADDRESSES, Task, Tasks
from weft.hdl.checker.conflicts import ACCUMULATOR, ALIGNMENTS, DRAM, SCRATCHPAD
from weft.hdl.checker.extents import dram_accesses, on_chip_accesses
from weft.hdl.errors import IsaError
from weft.hdl.isa import Instruction, Load, Memory, Mm, Softmax, Store, Vec
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import PRESETS

TINY = PRESETS["tiny"]
SPACES = {Memory.SCRATCHPAD: SCRATCHPAD, Memory.ACCUMULATOR: ACCUMULATOR, Memory.ALIGNMENTS: ALIGNMENTS}


def instruction(rng: random.Random) -> Instruction:
    """A small instruction with addresses anywhere in memory."""
    count, address = rng.randint(1, 3), rng.randrange(10, 99)
    return rng.choice([
        Load(base=1, offset=500, rows=count, row_pitch=rng.randint(-9, 9), dst=address, dst_row=rng.randint(1, 9)),
        Load(rows=4, length=2, dst=address, dst_row=4, dst_vector=-1, transpose=1, paged=1, table=2, page=count),
        Mm(kc=count, a=address, a_kc=2, ox=2, a_ox=-3, h=1, w=2, x_ox=1, b=2, b_row=1, c=address % 9, c_ox=1),
        Mm(oy=count, c_oy=1, c=3, a=address, h=0, align=1, alignment=7),
        Vec(src=address, oy=count, src_oy=rng.randint(-2, 2), dst=4, dst_oy=1, add=rng.randrange(2), b=9, params=40),
        Store(base=3, offset=70, src=address, length=count, pixels=2, pitch=5),
        Softmax(oy=count, src_oy=1, dst=address, dst_oy=1, state_oy=1, alignment=3, alignment_oy=2),
    ])  # fmt: skip


def draw_tasks(rng: random.Random) -> list[Task]:
    """Draw tasks that share instructions, with addresses of their own or not."""
    shared = [instruction(rng) for _ in range(3)]
    tasks = []
    for layer in range(rng.randint(0, 30)):
        chosen = rng.choice([*shared, instruction(rng)])
        names = ADDRESSES.get(chosen.OPCODE, ())
        own = tuple(rng.choice([-1, rng.randrange(10, 99)]) for _ in names) if rng.random() < 0.5 else ()
        tasks.append(
            Task(chosen, layer, rng.randrange(99), rng.randrange(99), rng.random() < 0.3, addresses=own)
        )
    return tasks


def ranges(item: Instruction) -> list[tuple[bool, int, int, int, int]]:
    """(written, space, first address, end address, step) of each access, as the program checker sees them."""
    result = []
    for access in on_chip_accesses(item, TINY):
        cells = np.arange(1 << 16)[access.cells]
        if access.memory in SPACES and cells.size:
            first, *others = cells.tolist()
            step = math.gcd(*(cell - first for cell in others)) or 1
            result.append((access.write, SPACES[access.memory], first, int(cells[-1]) + 1, step))
    return result + [(run.write, DRAM + run.base, run.low, run.high, 1) for run in dram_accesses(item, TINY)]


def split(task: Task) -> tuple[Instruction, tuple[int, int, int, bool]]:
    """Split an instruction into its addresses and the rest."""
    names = ADDRESSES.get(task.instruction.OPCODE, ())
    own = {name: value for name, value in zip(names, task.addresses, strict=False) if value >= 0}
    rest = (task.layer, task.cycles, task.dram_bytes, task.paces)
    return dataclasses.replace(task.instruction, **own), rest


def compare(tasks: Tasks, expected: list) -> None:
    assert len(tasks) == len(expected)
    assert list(Code(tasks.words)) == [item for item, _ in expected]
    assert tasks.queue.tolist() == [int(item.QUEUE) for item, _ in expected]
    columns = (tasks.layer, tasks.cycles, tasks.dram_bytes, tasks.paces)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [rest for _, rest in expected]
    uses = tasks.uses
    columns = (uses.task, uses.kind, uses.space, uses.start, uses.stop, uses.step)
    actual = zip(*(column.tolist() for column in columns), strict=True)
    assert sorted(actual) == sorted(
        (index, 2 * int(item.QUEUE) + written, *span)
        for index, (item, _) in enumerate(expected)
        for written, *span in ranges(item)
    )


@repeated("seed", range(100))
def test_columns(seed: int) -> None:
    rng = random.Random(seed)
    parts = [draw_tasks(rng) for _ in range(rng.randint(1, 3))]
    expected = [split(task) for part in parts for task in part]
    joined = Tasks.concatenate([Tasks.of(part, TINY) for part in parts])
    compare(joined, expected)
    order = list(range(len(expected)))
    rng.shuffle(order)
    compare(joined.reorder(np.array(order, np.int64)), [expected[index] for index in order])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task(Load(dst=1 << 16), 0, 1), "LOAD field 'dst' is 65536, outside 0 to 65535"),
        (Task(Load(), 0, 1, addresses=(5, 1 << 16)), "LOAD field 'dst' is 65536, outside 0 to 65535"),
        (Task(Store(src=1 << 16), 0, 1), "STORE field 'src' is 65536, outside 0 to 65535"),
    ],
)
def test_values_beyond_fields_are_refused(task: Task, message: str) -> None:
    with pytest.raises(IsaError) as caught:
        Tasks.of([task], TINY)
    assert str(caught.value) == message
