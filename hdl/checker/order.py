"""A legal order of a program's instructions, and what each knows to be done when it starts.

What is known is a vector clock over the four queues: for each, how many of its instructions are known to be done.
Instructions of a queue start in order and take effect in order, but they may overlap: to start behind another is not
to know that it is done. A signal carries the clock of its instruction's end to the start of the one that waits.
"""

from __future__ import annotations

import bisect
from functools import cache

import numpy as np

from weft.hdl.checker.accesses import ProgramError, name
from weft.hdl.isa import SEMAPHORE_MAX, SEMAPHORES, Queue
from weft.hdl.isa.code import Code

_QUEUES = len(Queue)
Clock = tuple[int, ...]


@cache
def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(SEMAPHORES) if mask >> bit & 1)


class Order:
    """Runs the queues of `code`, which has no END, and their semaphores without time.

    What can run does not depend on the order chosen, as every semaphore and queue has one producer and one consumer:
    if this run does not deadlock, none does.

    Attributes
    ----------
    visited : list of int
        The instructions' indices in the order in which this run executed them.
    clocks : list of tuple
        For each of these what it knows when it starts.
    positions : ndarray
        Place of each instruction in its queue, from 0, by index.

    Raises
    ------
    ProgramError
        If a semaphore has two producers or consumers, could pass its largest count, or if there is a deadlock.
    """

    def __init__(self, code: Code, depth: int) -> None:
        self._code, self._depth = code, depth
        queues = code.queues
        self.positions = np.zeros(len(code), np.int64)
        self._lists: list[list[int]] = []
        for queue in range(_QUEUES):
            rows = np.flatnonzero(queues == queue)
            self.positions[rows] = np.arange(rows.size)
            self._lists.append(rows.tolist())
        waits, signals = code.field("wait"), code.field("signal")
        self._signallers = [np.flatnonzero(signals >> s & 1) for s in range(SEMAPHORES)]
        self._waiters = [np.flatnonzero(waits >> s & 1) for s in range(SEMAPHORES)]
        self._check_users(queues)
        self._consumers = [int(queues[rows[0]]) if rows.size else 0 for rows in self._waiters]
        self._wait_positions = [self.positions[rows].tolist() for rows in self._waiters]
        self._given: list[list[Clock]] = [[] for _ in range(SEMAPHORES)]
        self._taken = [0] * SEMAPHORES
        self.visited: list[int] = []
        self.clocks: list[Clock] = []
        self._run(queues.tolist(), waits.tolist(), signals.tolist())

    def _check_users(self, queues: np.ndarray) -> None:
        """One producer queue and one consumer queue for each semaphore."""
        wrong = []
        for role, users in (("signalled", self._signallers), ("waited for", self._waiters)):
            for semaphore, rows in enumerate(users):
                others = rows[queues[rows] != queues[rows[0]]] if rows.size else rows
                if others.size:
                    wrong.append((int(others[0]), role, semaphore, int(rows[0])))
        if wrong:
            index, role, semaphore, first = min(wrong)
            raise ProgramError(
                f"semaphore {semaphore} is {role} by {self._name(first)} and by {self._name(index)}:"
                " it must have one producer queue and one consumer queue"
            )

    def _name(self, index: int) -> str:
        return name(index, self._code[index])

    def _run(self, queues: list[int], waits: list[int], signals: list[int]) -> None:
        heads, ends = [0] * _QUEUES, [0] * _QUEUES  # of what is in each queue
        starts: list[Clock] = [(0,) * _QUEUES] * _QUEUES
        fetched, count, depth = 0, len(queues), self._depth
        visited, clocks = self.visited, self.clocks
        while True:
            before = fetched, len(visited)
            while fetched < count and ends[queues[fetched]] - heads[queues[fetched]] < depth:
                ends[queues[fetched]] += 1
                fetched += 1
            for queue, indices in enumerate(self._lists):
                head, end, start = heads[queue], ends[queue], starts[queue]
                while head < end:
                    index = indices[head]
                    if waits[index]:
                        if not self._ready(waits[index]):
                            break
                        start = self._take(waits[index], start)
                    visited.append(index)
                    clocks.append(start)
                    head += 1
                    if signals[index]:
                        # What earlier instructions of the queue knew is in `start`, as clocks of starts only grow.
                        self._give(index, signals[index], (*start[:queue], head, *start[queue + 1 :]))
                heads[queue], starts[queue] = head, start
            if before == (fetched, len(visited)):
                break
        if len(visited) < count:
            stuck = [
                self._lists[queue][heads[queue]] for queue in range(_QUEUES) if heads[queue] < ends[queue]
            ]
            raise ProgramError(self._deadlock(min(stuck), fetched))

    def _ready(self, wait: int) -> bool:
        return all(self._taken[s] < len(self._given[s]) for s in _bits(wait))

    def _take(self, wait: int, start: Clock) -> Clock:
        for semaphore in _bits(wait):
            start = tuple(map(max, start, self._given[semaphore][self._taken[semaphore]]))
            self._taken[semaphore] += 1
        return start

    def _give(self, index: int, signal: int, end: Clock) -> None:
        for semaphore in _bits(signal):
            given = self._given[semaphore]
            given.append(end)
            if len(given) > SEMAPHORE_MAX:
                self._check_count(semaphore, index, end)

    def _check_count(self, semaphore: int, index: int, end: Clock) -> None:
        """Refuse a signal before which too few waits are known to have started."""
        started = bisect.bisect_left(self._wait_positions[semaphore], end[self._consumers[semaphore]])
        if len(self._given[semaphore]) - started > SEMAPHORE_MAX:
            raise ProgramError(
                f"{self._name(index)} may signal semaphore {semaphore} beyond its largest count {SEMAPHORE_MAX}"
            )

    def _deadlock(self, index: int, fetched: int) -> str:
        """Why the earliest instruction that cannot start never will."""
        wait = self._code[index].wait
        semaphore = next(s for s in _bits(wait) if self._taken[s] == len(self._given[s]))
        text = f"deadlock: {self._name(index)} waits for semaphore {semaphore}, "
        signallers, number = self._signallers[semaphore], self._taken[semaphore]
        if number >= len(signallers):
            return f"{text}which is signalled {len(signallers)} times only"
        cause = int(signallers[number])
        giver = self._name(cause)
        if cause < fetched:
            return f"{text}but {giver}, which signals it, cannot start before"
        return f"{text}but {giver}, which signals it, is not fetched before, as instruction queues hold {self._depth}"
