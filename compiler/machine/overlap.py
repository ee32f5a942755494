"""Two operators at a time: tasks of one that fill the pauses of the other.

The units of the machine take tasks in order, each from a queue of its own. Where one operator keeps the array busy and
the one next to it the vector unit, the tasks of both are merged in the order in which they would start: the program is
simulated with the tasks' own cycles. What the vector unit does for the other operator is spread over the array's time.
That is list scheduling (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969) of sequences that keep their
orders: what the array's operator moves to it and multiplies, what becomes of its results, and the other operator.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

from weft.compiler.machine.tasks import Tasks
from weft.hdl.checker.conflicts import Uses, conflicts
from weft.hdl.isa import Queue

_LOAD, _MM, _VEC = int(Queue.LOAD), int(Queue.MM), int(Queue.VEC)


def overlapped(tasks: Tasks, firsts: Sequence[int]) -> Tasks:
    """The tasks with those of layers `firsts` and of the layer behind each of them merged.

    The two layers must use parts of the scratchpad of their own, and no tables or kernels that the other one replaces.
    """
    if not firsts:
        return tasks
    order, paces = np.arange(len(tasks)), tasks.paces.copy()
    for first in firsts:
        start, middle, stop = np.searchsorted(tasks.layer, (first, first + 1, first + 2)).tolist()
        order[start:stop] = _merged(tasks, start, middle, stop)
        paces[start:stop] &= tasks.queue[start:stop] == _MM  # loads are scheduled against the array alone
    return dataclasses.replace(tasks, paces=paces).ordered(order)


def _merged(tasks: Tasks, start: int, middle: int, stop: int) -> list[int]:
    """Tasks from `start` on, of one layer, and from `middle` to `stop`, of the next one, in an order for both."""
    merge = _Merge(tasks, start, middle, stop)
    while (task := merge.choose()) is not None:
        merge.take(task)
    return [start + task for task in merge.order]


def _causes(uses: Uses, start: int, middle: int, stop: int) -> list[list[int]]:
    """For each task what must be done before: of its own layer and of the one before the latest tasks of each queue."""
    mine = uses.part((uses.task >= start) & (uses.task < stop))
    mine = dataclasses.replace(mine, task=mine.task - start)
    count, second = stop - start, mine.task >= middle - start
    found = [conflicts(count, mine.part(chosen)) for chosen in (~second, second)]
    # The second layer as if in one queue, and in another one: in all others there are only tasks of the first.
    for queue in range(2):
        kind = np.where(second, 2 * queue + (mine.kind & 1), mine.kind)
        across = conflicts(count, dataclasses.replace(mine, kind=kind))
        across[: middle - start] = -1
        found.append(across[:, 1:] if queue == 0 else across[:, :1])
    return [[cause for cause in row if cause >= 0] for row in np.concatenate(found, axis=1).tolist()]


class _Merge:
    """Tasks of two layers by their numbers from the first one's first task on. `order` has those that were taken."""

    def __init__(self, tasks: Tasks, start: int, middle: int, stop: int) -> None:
        self.queue, self.cycles = tasks.queue[start:stop].tolist(), tasks.cycles[start:stop].tolist()
        self.causes = _causes(tasks.uses, start, middle, stop)
        one, two = range(middle - start), range(middle - start, stop - start)
        own, other = (one, two) if any(self.queue[task] == _MM for task in one) else (two, one)
        self.sequences = [
            deque(task for task in own if self.queue[task] in (_LOAD, _MM)),
            deque(task for task in own if self.queue[task] not in (_LOAD, _MM)),
            deque(other),
        ]
        self.finish, self.free = [0] * (stop - start), [0] * len(Queue)
        self.taken, self.order = [False] * (stop - start), list[int]()
        kernels = [self.cycles[task] for task in other if self.queue[task] == _VEC]
        self.work, self.most = sum(kernels), max(kernels, default=0)
        self.left = sum(self.cycles[task] for task in own if self.queue[task] == _MM)
        """Cycles of the array that are left."""
        self.rate, self.due = 0.0, 0.0
        """What the other operator takes the vector unit for a cycle of the array, once both run, and what is due of it:
        at most one task."""
        self.alone = False
        """Whether nothing but the task chosen last could come next."""

    def begin(self, task: int) -> int:
        """When a task could start: once its unit is free, and what it waits for done."""
        return max([self.free[self.queue[task]], *(self.finish[cause] for cause in self.causes[task])])

    def choose(self) -> int | None:
        """The task that comes next; None if none is left."""
        heads = [sequence[0] for sequence in self.sequences if sequence]
        ready = [task for task in heads if all(self.taken[cause] for cause in self.causes[task])]
        self.alone, other = len(ready) == 1, list(self.sequences[2])[:1]
        if len(ready) > 1 and ready[-1] in other:
            self.rate = self.rate or self.work / max(self.left, 1)
            if self.queue[ready[-1]] == _VEC and self.due <= 0:
                ready.pop()
        # Of those that start together the other operator's, which moves less, and results behind the next products.
        return min(sorted(ready, key=lambda task: task not in other), key=self.begin, default=None)

    def take(self, task: int) -> None:
        queue = self.queue[task]
        sequence = next(item for item in self.sequences if item and item[0] == task)
        sequence.popleft()
        if queue == _MM:
            self.left -= self.cycles[task]
            self.due = min(self.due + self.cycles[task] * self.rate, self.most)
        elif queue == _VEC and sequence is self.sequences[2] and not self.alone:
            self.due -= self.cycles[task]
        self.finish[task] = self.free[queue] = self.begin(task) + self.cycles[task]
        self.taken[task] = True
        self.order.append(task)
