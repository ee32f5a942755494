"""Code with loops whose instructions wait for those they depend on, and overlap with all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.hdl.isa import Instruction, LoopNext, LoopStart, Mode, Queue
from weft.hdl.isa.loops import slots

_QUEUES = len(Queue)
FIRST_FREE = _QUEUES * (_QUEUES - 1)
"""The first semaphore that belongs to no two queues."""


class OrderedCode:
    """Instructions in program order, and semaphores between those that depend on each other.

    Each pair of queues has a semaphore from the one to the other. As a queue is in order, an instruction that waits for
    one of another queue waits for all before it there: what an earlier wait of its queue covers is not waited for
    again, and so the k-th wait takes the k-th signal. Semaphores from `FIRST_FREE` on are for what `add` cannot
    express, as waits for another turn of a loop: instructions bring them along.

    Parameters
    ----------
    idle : Instruction
        One that belongs to a queue and does nothing that matters.

    Attributes
    ----------
    instructions : list of Instruction
    last : int
        The newest instruction that others wait for if nothing else is said; -1 if there is none.
    """

    def __init__(self, idle: Instruction) -> None:
        self.instructions: list[Instruction] = []
        self.last = -1
        self._idle = idle
        self._newest: dict[Queue, int] = {}
        self._waited: dict[tuple[Queue, Queue], int] = {}  # the newest instruction that was waited for

    def add(self, instruction: Instruction, *after: int) -> int:
        """Append an instruction that waits for those at the indices `after`, of which negative ones are none; without
        any, for `last`. It is `last` then.

        Instructions without a queue are carried out by fetch, and wait for none. Returns the index.
        """
        index = self.beside(instruction, *(after or (self.last,)))
        if instruction.QUEUE is not None:
            self.last = index
        return index

    def beside(self, instruction: Instruction, *after: int) -> int:
        """The same for an instruction that waits for these only, and is not `last`."""
        index = len(self.instructions)
        self.instructions.append(instruction)
        if instruction.QUEUE is not None:
            self._newest[instruction.QUEUE] = index
            for other in after:
                self._wait(index, other)
        return index

    def pause(self, *after: int) -> int:
        """Append an idle instruction."""
        return self.add(self._idle, *after)

    def newest(self, queue: Queue) -> int:
        """The index of the newest instruction of a queue, -1 if there is none."""
        return self._newest.get(queue, -1)

    def _wait(self, index: int, other: int) -> None:
        """Let an instruction wait for another one, unless it does so already."""
        if other < 0:
            return
        before, behind = self.instructions[other], self.instructions[index]
        first, then = before.QUEUE, behind.QUEUE
        assert first is not None
        assert then is not None
        if first == then or self._waited.get((first, then), -1) >= other:
            return
        semaphore = 1 << _semaphore(first, then)
        assert not before.signal & semaphore
        assert not behind.wait & semaphore
        self.instructions[other] = dataclasses.replace(before, signal=before.signal | semaphore)
        self.instructions[index] = dataclasses.replace(behind, wait=behind.wait | semaphore)
        self._waited[first, then] = other

    @contextmanager
    def loop(self, register: int, steps: dict[int, int]) -> Iterator[None]:
        """A loop while a register is above 0; behind each turn registers grow by `steps`.

        What is `last` in front of the loop, at the end of its body, and behind the loop, is of the idle instruction's
        queue, and so is the first instruction of the body: what others wait for is then always in the same turn.
        """
        self._settle()
        with self.free_loop(register, steps):
            self.pause()
            yield
            self._settle()
        self.pause()

    @contextmanager
    def free_loop(self, register: int, steps: dict[int, int]) -> Iterator[None]:
        """The same for a body that does not wait for what is in front of it, and for which nothing waits behind it."""
        start = len(self.instructions)
        self.instructions.append(LoopStart(register=register))
        yield
        size = len(self.instructions) - start
        changes = [(number, Mode.ADD, step) for number, step in steps.items()]
        self.instructions.append(LoopNext(back=size, **slots(*changes)))
        self.instructions[start] = LoopStart(register=register, skip=size)

    def _settle(self) -> None:
        """Let `last` be of the idle instruction's queue."""
        if self.last < 0 or self.instructions[self.last].QUEUE != self._idle.QUEUE:
            self.pause()


def copies(*pairs: tuple[int, int]) -> Sequence[tuple[int, Mode, int]]:
    """The changes that give registers what other ones hold: (register, other)."""
    return [
        change
        for register, other in pairs
        for change in ((register, Mode.SET, 0), (register, Mode.ADD_REGISTER, other))
    ]


def _semaphore(first: Queue, then: Queue) -> int:
    """The semaphore that instructions of one queue give to those of another."""
    return (_QUEUES - 1) * int(first) + int(then) - (then > first)
