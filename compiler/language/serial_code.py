"""Code whose instructions wait for each other, one after the other, with loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from weft.hdl.isa import Instruction, LoopNext, LoopStart, Mode, Queue
from weft.hdl.isa.loops import slots


class SerialCode:
    """Instructions in order: each starts when the one before it, if that is of another queue, is done.

    Parameters
    ----------
    idle : Instruction
        One that belongs to a queue and does nothing that matters.

    Attributes
    ----------
    instructions : list of Instruction
    """

    def __init__(self, idle: Instruction) -> None:
        self.instructions: list[Instruction] = []
        self._idle = idle
        self._last: int | None = None

    def add(self, instruction: Instruction) -> None:
        """Append an instruction. Those without a queue are carried out by fetch, and wait for none."""
        if instruction.QUEUE is not None:
            if self._last is not None:
                instruction = self._behind(self._last, instruction)
            self._last = len(self.instructions)
        self.instructions.append(instruction)

    def _behind(self, last: int, instruction: Instruction) -> Instruction:
        """Let an instruction wait for the one at `last`; those of one queue follow each other by themselves."""
        before = self.instructions[last]
        if before.QUEUE == instruction.QUEUE:
            return instruction
        assert before.QUEUE is not None
        assert instruction.QUEUE is not None
        semaphore = 1 << _semaphore(before.QUEUE, instruction.QUEUE)
        self.instructions[last] = dataclasses.replace(before, signal=before.signal | semaphore)
        return dataclasses.replace(instruction, wait=instruction.wait | semaphore)

    @contextmanager
    def loop(self, register: int, steps: dict[int, int]) -> Iterator[None]:
        """A loop while a register is above 0; behind each turn registers grow by `steps`.

        The instruction before it, the first and the last one of the body are idle ones of one queue, so that turns are
        alike however many there are.
        """
        self.add(self._idle)
        start = len(self.instructions)
        self.instructions.append(LoopStart(register=register))
        self.add(self._idle)
        yield
        self.add(self._idle)
        size = len(self.instructions) - start
        changes = [(number, Mode.ADD, step) for number, step in steps.items()]
        self.instructions.append(LoopNext(back=size, **slots(*changes)))
        self.instructions[start] = LoopStart(register=register, skip=size)


def _semaphore(first: Queue, then: Queue) -> int:
    """The semaphore that instructions of one queue give to those of another."""
    return 3 * int(first) + int(then) - (then > first)
