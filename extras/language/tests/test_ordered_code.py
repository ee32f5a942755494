"""Semaphores of automatically ordered code, counted by the program checker and by the test."""

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


def _instruction(queue: Queue, at: int) -> Instruction:
    """Return an instruction that reads or writes vector `at`."""
    operands = {
        Queue.LOAD: Load(base=1, run=4, length=4, dst=at),
        Queue.MM: Mm(a=at, b=800),
        Queue.VEC: Vec(source=Source.SCRATCHPAD, src=at, dst=at + 1, params=902),
        Queue.STORE: Store(base=2, length=4, src=at),
    }
    return operands[queue]


def find_races(code: OrderedCode) -> None:
    check([*code.instructions, End()], CONFIG)


@repeated("seed", range(20))
def test_everything_in_turn_is_ordered(seed: int) -> None:
    """Instructions on shared vectors have no race on any queues, also in loops."""
    rng = random.Random(seed)
    code = OrderedCode(_IDLE)

    def some() -> None:
        for _ in range(rng.randint(0, 4)):
            code.add(_instruction(rng.choice(list(Queue)), rng.randint(0, 1)))

    def body(depth: int) -> None:
        some()
        for _ in range(rng.randint(0, 2) if depth else 0):
            with code.loop(8 + depth, {8 + depth: -1}):
                body(depth - 1)
            some()

    body(2)
    find_races(code)


def test_independent_instructions_do_not_wait() -> None:
    code = OrderedCode(_IDLE)
    first = code.add(_instruction(Queue.LOAD, 0))
    code.add(_instruction(Queue.VEC, 0))
    assert code.add_parallel(_instruction(Queue.STORE, 40)) == 2
    assert code.last == 1
    assert code.instructions[2].wait == 0
    assert code.newest(Queue.STORE) == 2
    assert code.newest(Queue.MM) == -1
    code.add(_instruction(Queue.MM, 0), first)
    assert bin(code.instructions[first].signal).count("1") == 2
    find_races(code)


def test_one_wait_is_enough() -> None:
    """Queues are in order: later instructions of a queue, and earlier dependences, need no further wait."""
    code = OrderedCode(_IDLE)
    loads = [code.add_parallel(_instruction(Queue.LOAD, at)) for at in range(3)]
    code.add(_instruction(Queue.MM, 2), loads[2])
    code.add(_instruction(Queue.MM, 0), loads[0], loads[2])
    assert [load.signal for load in code.instructions[:3]] == [0, 0, code.instructions[3].wait]
    assert code.instructions[4].wait == 0
    find_races(code)


def test_waits_in_loops_for_code_outside_are_refused() -> None:
    """Such a wait is signalled once but taken in every iteration."""
    code = OrderedCode(_IDLE)
    code.add(_instruction(Queue.LOAD, 0))
    with code.free_loop(8, {8: -1}):
        code.add(_instruction(Queue.VEC, 0))
    with pytest.raises(ProgramError, match="waits for semaphore"):
        find_races(code)


def test_semaphores_that_are_free_belong_to_no_pair() -> None:
    code = OrderedCode(_IDLE)
    for first in Queue:
        for then in Queue:
            code.add(_instruction(first, 0))
            code.add(_instruction(then, 0))
    used = 0
    for instruction in code.instructions:
        used |= instruction.wait | instruction.signal
    assert used == (1 << FIRST_FREE) - 1


def test_loops_count_and_registers_are_copied() -> None:
    code = OrderedCode(_IDLE)
    code.add(SetRegisters(**slots(*copies((8, 3), (9, 2)))))
    with code.loop(8, {8: -1, 9: 64}):
        code.add(_instruction(Queue.LOAD, 0))
    end = next(item for item in code.instructions if isinstance(item, LoopNext))
    assert end.slots == [(8, 2, -1), (9, 2, 64)]
    first = code.instructions[0]
    assert isinstance(first, SetRegisters)
    assert first.slots == [(8, 1, 0), (8, 3, 3), (9, 1, 0), (9, 3, 2)]
    find_races(code)
