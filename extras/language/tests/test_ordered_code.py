"""Semaphores of code whose instructions wait for what they depend on: the program checker and its own counts agree."""

from __future__ import annotations

import random

import pytest
from support.repeated import repeated

from weft.extras.language.compiler.ordered_code import FIRST_FREE, OrderedCode, copies
from weft.hdl.checker.program import check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import End, Instruction, Load, Mm, Queue, Source, Store, Vec
from weft.hdl.isa.config import Config
from weft.hdl.isa.loops import LoopNext, SetRegisters, slots

CONFIG = Config.load("tiny").replace(loops=1)
_IDLE = Vec(source=Source.SCRATCHPAD, src=900, dst=901, params=902)


def _of(queue: Queue, at: int) -> Instruction:
    """An instruction that reads or writes vector `at`."""
    made = {
        Queue.LOAD: Load(base=1, run=4, length=4, dst=at),
        Queue.MM: Mm(a=at, b=800),
        Queue.VEC: Vec(source=Source.SCRATCHPAD, src=at, dst=at + 1, params=902),
        Queue.STORE: Store(base=2, length=4, src=at),
    }
    return made[queue]


def checked(code: OrderedCode) -> None:
    check([*code.instructions, End()], CONFIG)


@repeated("seed", range(20))
def test_everything_in_turn_is_ordered(seed: int) -> None:
    """All instructions touch the same vectors: whatever their queues, the checker sees no race, in loops neither."""
    rng = random.Random(seed)
    code = OrderedCode(_IDLE)

    def some() -> None:
        for _ in range(rng.randint(0, 4)):
            code.add(_of(rng.choice(list(Queue)), rng.randint(0, 1)))

    def body(depth: int) -> None:
        some()
        for _ in range(rng.randint(0, 2) if depth else 0):
            with code.loop(8 + depth, {8 + depth: -1}):
                body(depth - 1)
            some()

    body(2)
    checked(code)


def test_what_is_beside_does_not_wait() -> None:
    code = OrderedCode(_IDLE)
    first = code.add(_of(Queue.LOAD, 0))
    code.add(_of(Queue.VEC, 0))
    assert code.add_parallel(_of(Queue.STORE, 40)) == 2
    assert code.last == 1
    assert code.instructions[2].wait == 0
    assert code.newest(Queue.STORE) == 2
    assert code.newest(Queue.MM) == -1
    code.add(_of(Queue.MM, 0), first)
    assert bin(code.instructions[first].signal).count("1") == 2
    checked(code)


def test_one_wait_is_enough() -> None:
    """A queue is in order: who follows in it has waited, and for what came before as well."""
    code = OrderedCode(_IDLE)
    loads = [code.add_parallel(_of(Queue.LOAD, at)) for at in range(3)]
    code.add(_of(Queue.MM, 2), loads[2])
    code.add(_of(Queue.MM, 0), loads[0], loads[2])
    assert [load.signal for load in code.instructions[:3]] == [0, 0, code.instructions[3].wait]
    assert code.instructions[4].wait == 0
    checked(code)


def test_a_loop_without_its_borders_is_seen() -> None:
    """A wait inside for what is in front would be taken once and wanted in every turn."""
    code = OrderedCode(_IDLE)
    code.add(_of(Queue.LOAD, 0))
    with code.free_loop(8, {8: -1}):
        code.add(_of(Queue.VEC, 0))
    with pytest.raises(ProgramError, match="waits for semaphore"):
        checked(code)


def test_semaphores_that_are_free_belong_to_no_pair() -> None:
    code = OrderedCode(_IDLE)
    for first in Queue:
        for then in Queue:
            code.add(_of(first, 0))
            code.add(_of(then, 0))
    used = 0
    for instruction in code.instructions:
        used |= instruction.wait | instruction.signal
    assert used == (1 << FIRST_FREE) - 1


def test_loops_count_and_registers_are_copied() -> None:
    code = OrderedCode(_IDLE)
    code.add(SetRegisters(**slots(*copies((8, 3), (9, 2)))))
    with code.loop(8, {8: -1, 9: 64}):
        code.add(_of(Queue.LOAD, 0))
    end = next(item for item in code.instructions if isinstance(item, LoopNext))
    assert end.slots == [(8, 2, -1), (9, 2, 64)]
    first = code.instructions[0]
    assert isinstance(first, SetRegisters)
    assert first.slots == [(8, 1, 0), (8, 3, 3), (9, 1, 0), (9, 3, 2)]
    checked(code)
