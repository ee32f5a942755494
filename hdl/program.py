"""The program checker: what the hardware does not check, because the compiler decides all overlap.

A program that passes computes the same whatever the timing of memory and units:

- every field fits, every address lies inside its memory, and the configuration has what an instruction needs;
- each semaphore has one producer queue and one consumer queue, so that the k-th wait takes the k-th signal; no
  wait is for ever, with instruction queues of the configured depth; no semaphore passes `SEMAPHORE_MAX`;
- every access lies within a piece of memory (a buffer, the constants) that the instruction may read or write: none
  reads or writes code, none writes constants or inputs;
- any two instructions of different queues that touch the same vector, row, alignment or DRAM byte, one of them
  writing, are ordered by semaphores; what paged loads read, nobody writes.

Order is tracked with vector clocks over the four queues: a clock holds, for each queue, how many of its instructions
are known to be done. Instructions of a queue start in order and take effect in order, but they may overlap: to start
behind another is not to know that it is done. A signal carries the clock of its instruction's end to the start of the
one that waits.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache

from weft.hdl.accesses import Dram, ProgramError, name, queue_of
from weft.hdl.config import Config
from weft.hdl.extents import Extent, Extents
from weft.hdl.isa import SEMAPHORE_MAX, SEMAPHORES, End, Instruction, IsaError, Load, Queue, Store
from weft.hdl.races import Races
from weft.hdl.rules import check_instruction

__all__ = ["Extent", "Extents", "ProgramError", "check"]

_QUEUES = len(Queue)


def check(instructions: Sequence[Instruction], config: Config, *, extents: Extents | None = None) -> None:
    """Check a whole program, END included.

    Parameters
    ----------
    instructions : sequence of Instruction
        The program in order of fetching.
    config : Config
        The accelerator it is for.
    extents : Extents, optional
        What memory holds, the code included. Without it offsets are only checked to be within 32 bits, and different
        base registers are taken to address different memory, none of them the code.

    Raises
    ------
    ProgramError
        With one sentence that names the first instruction found at fault and the reason.
    """
    _check_end(instructions)
    if extents is not None:
        extents.check()
    body = instructions[:-1]
    accesses = []
    for index, instruction in enumerate(body):
        try:
            accesses.append(check_instruction(instruction, config, extents))
        except (IsaError, ProgramError) as error:
            raise ProgramError(f"{name(index, instruction)}: {error}") from None
    _check_pages(body)
    order = _Order(body, config.queue_depth)
    runs: list[Dram] = [run for _, memory in accesses for run in memory]
    races = Races(body, config, runs)
    for index in order:
        races.visit(index, order.position(index), order.clock(index), *accesses[index])


def _check_end(instructions: Sequence[Instruction]) -> None:
    ends = [index for index, instruction in enumerate(instructions) if isinstance(instruction, End)]
    if not ends:
        raise ProgramError("the program has no END")
    if ends[0] != len(instructions) - 1:
        raise ProgramError(f"instruction {ends[0]} (END) is not the last: {len(instructions)} instructions")
    if instructions[-1].wait or instructions[-1].signal:
        raise ProgramError(f"instruction {ends[0]} (END) has semaphores, but it belongs to no queue")


def _check_pages(body: Sequence[Instruction]) -> None:
    """Nobody knows where paged LOADs read, so no STORE may write to what they are relative to."""
    pages: dict[int, tuple[str, str]] = {}
    for index, instruction in enumerate(body):
        if isinstance(instruction, Load) and instruction.paged:
            who = name(index, instruction)
            pages.setdefault(instruction.base, ("pages", who))
            pages.setdefault(instruction.table, ("the page table", who))
    for index, instruction in enumerate(body):
        if isinstance(instruction, Store) and instruction.base in pages:
            what, who = pages[instruction.base]
            raise ProgramError(
                f"{name(index, instruction)} writes to base register {instruction.base}, from which {who} reads {what}:"
                " no order of the two can be checked"
            )


@cache
def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(SEMAPHORES) if mask >> bit & 1)


class _Order:
    """Runs the queues and their semaphores without time; iterating yields indices in a legal order of execution.

    What can run does not depend on the order chosen, as every semaphore and queue has one producer and one consumer:
    if this run does not deadlock, none does.
    """

    def __init__(self, body: Sequence[Instruction], depth: int) -> None:
        self._body = body
        self._depth = depth
        self._position: list[int] = []
        counts = [0] * _QUEUES
        self._signallers: list[list[int]] = [[] for _ in range(SEMAPHORES)]
        self._waiters: list[list[int]] = [[] for _ in range(SEMAPHORES)]
        for index, instruction in enumerate(body):
            queue = queue_of(instruction)
            self._position.append(counts[queue])
            counts[queue] += 1
            for users, mask, role in (
                (self._signallers, instruction.signal, "signalled"),
                (self._waiters, instruction.wait, "waited for"),
            ):
                for semaphore in _bits(mask):
                    self._one_queue(users[semaphore], index, semaphore, role)
        self._starts = [[0] * _QUEUES for _ in range(_QUEUES)]
        self._given: list[list[list[int]]] = [[] for _ in range(SEMAPHORES)]
        self._taken = [0] * SEMAPHORES
        self._clocks: dict[int, list[int]] = {}
        self._wait_positions = [[self._position[index] for index in users] for users in self._waiters]

    def _one_queue(self, users: list[int], index: int, semaphore: int, role: str) -> None:
        instruction = self._body[index]
        if users and queue_of(self._body[users[0]]) != queue_of(instruction):
            other = name(users[0], self._body[users[0]])
            raise ProgramError(
                f"semaphore {semaphore} is {role} by {other} and by {name(index, instruction)}:"
                " it must have one producer queue and one consumer queue"
            )
        users.append(index)

    def position(self, index: int) -> int:
        """Place of an instruction in its queue, from 0."""
        return self._position[index]

    def clock(self, index: int) -> list[int]:
        """For each queue, how many instructions are known to be done when this one starts; valid once yielded."""
        return self._clocks.pop(index)

    def __iter__(self) -> Iterator[int]:
        queues: list[deque[int]] = [deque() for _ in range(_QUEUES)]
        fetched = 0
        while True:
            progress = False
            while fetched < len(self._body):
                queue = queues[queue_of(self._body[fetched])]
                if len(queue) == self._depth:
                    break
                queue.append(fetched)
                fetched += 1
                progress = True
            for queue in queues:
                while queue and self._ready(queue[0]):
                    index = queue.popleft()
                    self._run(index)
                    progress = True
                    yield index
            if not progress:
                break
        if any(queues):
            raise ProgramError(self._deadlock(min(queue[0] for queue in queues if queue), fetched))

    def _ready(self, index: int) -> bool:
        return all(self._taken[s] < len(self._given[s]) for s in _bits(self._body[index].wait))

    def _run(self, index: int) -> None:
        """Move the clocks over one instruction."""
        instruction = self._body[index]
        queue = queue_of(instruction)
        start = self._starts[queue]
        for semaphore in _bits(instruction.wait):
            start = _join(start, self._given[semaphore][self._taken[semaphore]])
            self._taken[semaphore] += 1
        self._starts[queue] = start
        self._clocks[index] = start
        # What earlier instructions of the queue knew is in `start`, as clocks of starts only grow.
        end = list(start)
        end[queue] = self._position[index] + 1
        for semaphore in _bits(instruction.signal):
            self._given[semaphore].append(end)
            self._check_count(semaphore, index, end)

    def _check_count(self, semaphore: int, index: int, end: list[int]) -> None:
        """Refuse a signal before which too few waits are known to have started."""
        given = len(self._given[semaphore])
        if given <= SEMAPHORE_MAX:
            return
        waits = self._wait_positions[semaphore]
        consumer = queue_of(self._body[self._waiters[semaphore][0]]) if waits else 0
        if given - bisect.bisect_left(waits, end[consumer]) > SEMAPHORE_MAX:
            who = name(index, self._body[index])
            raise ProgramError(
                f"{who} may signal semaphore {semaphore} beyond its largest count {SEMAPHORE_MAX}"
            )

    def _deadlock(self, index: int, fetched: int) -> str:
        """Why the earliest instruction that cannot start never will."""
        wait = self._body[index].wait
        semaphore = next(s for s in _bits(wait) if self._taken[s] == len(self._given[s]))
        text = f"deadlock: {name(index, self._body[index])} waits for semaphore {semaphore}, "
        signallers, number = self._signallers[semaphore], self._taken[semaphore]
        if number >= len(signallers):
            return f"{text}which is signalled {len(signallers)} times only"
        cause = signallers[number]
        giver = name(cause, self._body[cause])
        if cause < fetched:
            return f"{text}but {giver}, which signals it, cannot start before"
        return f"{text}but {giver}, which signals it, is not fetched before, as instruction queues hold {self._depth}"


def _join(left: list[int], right: list[int]) -> list[int]:
    return [max(a, b) for a, b in zip(left, right, strict=True)]
