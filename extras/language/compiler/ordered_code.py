"""Instruction stream with loops, in which instructions wait for their dependencies, and its registers.

====  =============================================================================
0     constants
1     record of the current block: parameters, weights; after all blocks the head's
2     frame
3     pages of keys and values, of the current block
4     temporaries: queries, keys, values and results of all tokens
5     logits
====  =============================================================================

The frame begins with the number of tokens. After `HEADER_BYTES` it holds words of 32 bits: for each row the offset of
the token's embedding among the constants, then for each row the offset of its position's row (angles, or an embedding).
At `descriptors` each text's descriptor of `DESCRIPTOR_WORDS` follows. It holds the address of the page table, the
number of visible keys, the number of pages, and the offset of the token's own keys from the page register.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.compiler.machine.emit import ceil_div
from weft.hdl.isa import Instruction, LoopNext, LoopStart, Mode, Queue
from weft.hdl.isa.loops import READ_BYTES, READ_WORDS, slots

_QUEUES = len(Queue)
FIRST_FREE = _QUEUES * (_QUEUES - 1)
"""First semaphore that belongs to no pair of queues."""


class OrderedCode:
    """Instructions in program order, with semaphores between dependent instructions of different queues.

    Each ordered pair of queues has a semaphore. Queues work in order, so that waiting for an instruction also waits for
    all earlier ones of its queue. A wait that an earlier one covers is omitted, and therefore the k-th wait takes the
    k-th signal. Semaphores from `FIRST_FREE` on are for dependencies that `add` cannot express, such as those on
    another turn of a loop; instructions bring these along.

    Parameters
    ----------
    idle : Instruction
        Instruction of some queue without an effect.

    Attributes
    ----------
    instructions : list of Instruction
    last : int
        Index of the instruction that the next one waits for by default; -1 if there is none.
    """

    def __init__(self, idle: Instruction) -> None:
        self.instructions: list[Instruction] = []
        self.last = -1
        self._idle = idle
        self._newest: dict[Queue, int] = {}
        # The newest instruction of the first queue that the second waits for.
        self._latest_waited: dict[tuple[Queue, Queue], int] = {}

    def add(self, instruction: Instruction, *after: int) -> int:
        """Append an instruction that waits for those at the indices `after`, or by default for `last`; it becomes
        `last`.

        Negative indices are ignored. Fetch executes instructions without a queue, which wait for none. Return the
        index.
        """
        index = self.add_parallel(instruction, *(after or (self.last,)))
        if instruction.QUEUE is not None:
            self.last = index
        return index

    def add_parallel(self, instruction: Instruction, *after: int) -> int:
        """Append an instruction that waits only for those at the indices `after`, and does not become `last`."""
        index = len(self.instructions)
        self.instructions.append(instruction)
        if instruction.QUEUE is not None:
            self._newest[instruction.QUEUE] = index
            for other in after:
                self._wait(index, other)
        return index

    def pause(self, *after: int) -> int:
        return self.add(self._idle, *after)

    def newest(self, queue: Queue) -> int:
        """Return the index of a queue's newest instruction, -1 if there is none."""
        return self._newest.get(queue, -1)

    def _wait(self, index: int, other: int) -> None:
        """Make an instruction wait for another one, unless an earlier wait covers it."""
        if other < 0:
            return
        earlier, later = self.instructions[other], self.instructions[index]
        first_queue, second_queue = earlier.QUEUE, later.QUEUE
        assert first_queue is not None
        assert second_queue is not None
        # An earlier wait for a later instruction of the same queue covers this one.
        if first_queue == second_queue or self._latest_waited.get((first_queue, second_queue), -1) >= other:
            return
        semaphore = 1 << _semaphore(first_queue, second_queue)
        assert not earlier.signal & semaphore
        assert not later.wait & semaphore
        self.instructions[other] = dataclasses.replace(earlier, signal=earlier.signal | semaphore)
        self.instructions[index] = dataclasses.replace(later, wait=later.wait | semaphore)
        self._latest_waited[first_queue, second_queue] = other

    @contextmanager
    def loop(self, register: int, steps: dict[int, int]) -> Iterator[None]:
        """Loop while a register is above 0; after each turn registers grow by `steps`.

        An idle instruction is `last` before the loop, at the start and the end of its body, and after it. Waits
        therefore never cross turns of the loop.
        """
        self._end_on_idle_queue()
        with self.free_loop(register, steps):
            self.pause()
            yield
            self._end_on_idle_queue()
        self.pause()

    @contextmanager
    def free_loop(self, register: int, steps: dict[int, int]) -> Iterator[None]:
        """Loop whose body neither waits for earlier instructions nor is waited for by later ones."""
        start = len(self.instructions)
        self.instructions.append(LoopStart(register=register))
        yield
        size = len(self.instructions) - start
        changes = [(number, Mode.ADD, step) for number, step in steps.items()]
        self.instructions.append(LoopNext(back=size, **slots(*changes)))
        # The length of the loop is known only now.
        self.instructions[start] = LoopStart(register=register, skip=size)

    def _end_on_idle_queue(self) -> None:
        """Make `last` an instruction of the idle instruction's queue."""
        if self.last < 0 or self.instructions[self.last].QUEUE != self._idle.QUEUE:
            self.pause()


def copies(*pairs: tuple[int, int]) -> Sequence[tuple[int, Mode, int]]:
    """Return the changes that copy registers: pairs of (destination, source)."""
    return [
        change
        for register, other in pairs
        for change in ((register, Mode.SET, 0), (register, Mode.ADD_REGISTER, other))
    ]


def _semaphore(first: Queue, second: Queue) -> int:
    """Return the semaphore from one queue to another."""
    return (_QUEUES - 1) * int(first) + int(second) - (second > first)


CONSTANTS, BLOCK, FRAME, PAGES, TEMPORARIES, LOGITS = range(6)
LAYERS, DESCRIPTOR, ROWS_LEFT, ROWS, TABLE, LENGTH, BLOCKS, PLACE, TOKEN, RESULT = range(6, 16)
"""Other registers of the program. Those from TABLE to PLACE are read from descriptors. TOKEN is the address of one
token's queries, keys and values; RESULT, at the same place, is that of its results. LAYERS also counts the turns of the
loop over the head, which advances BLOCK and LOGITS."""
DESCRIPTOR_WORDS = READ_WORDS
"""Words of a descriptor, of which the first four are used."""
HEADER_BYTES = READ_BYTES
"""Bytes before the offsets."""


def descriptors(rows: int) -> int:
    """Return the offset of descriptors in the frame of a program with so many rows."""
    return ceil_div(HEADER_BYTES + 8 * rows, READ_BYTES) * READ_BYTES
