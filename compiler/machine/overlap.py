"""Operators at the same time: tasks of some that fill the pauses of another.

The units of the machine take tasks in order, each from a queue of its own. Where one operator keeps the array busy and
those next to it the vector unit, the tasks of all are merged in the order in which they would start: the program is
simulated with the tasks' own cycles. What the vector unit does for the others is spread over the array's time.
That is list scheduling (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969) of sequences that keep their
orders: what the array's operator moves to it and multiplies, what becomes of its results, and the other operators.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

from weft.compiler.machine.memory import runs
from weft.compiler.machine.tasks import Tasks
from weft.hdl.checker.conflicts import DRAM, Uses, conflicts
from weft.hdl.isa import Opcode, Queue
from weft.hdl.isa.code import Code

_LOAD, _MM, _VEC = (int(queue) for queue in (Queue.LOAD, Queue.MM, Queue.VEC))
_TABLES = -1
"""The space of the look-up tables, by number."""


def overlapped(tasks: Tasks, firsts: Sequence[int]) -> Tasks:
    """The tasks with those of layers `firsts` and of the layer behind each of them merged.

    Of layers that are merged one has products. They must use parts of the scratchpad of their own, no kernels that
    another one replaces, and write no byte of memory that another one writes.
    """
    if not firsts:
        return tasks
    order, paces = np.arange(len(tasks)), tasks.paces.copy()
    for run in runs(firsts):
        start, stop = np.searchsorted(tasks.layer, (run.start, run.stop)).tolist()
        order[start:stop] = _merged(tasks, start, stop)
        paces[start:stop] &= tasks.queue[start:stop] == _MM  # loads are scheduled against the array alone
    return dataclasses.replace(tasks, paces=paces).ordered(order)


def _merged(tasks: Tasks, start: int, stop: int) -> list[int]:
    """Tasks from `start` to `stop`, of layers that follow each other, in an order for all of them."""
    merge = _Merge(tasks, start, stop)
    while (task := merge.choose()) is not None:
        merge.take(task)
    return [start + task for task in merge.order]


def _tables(tasks: Tasks, start: int, stop: int) -> Uses:
    """Look-up tables that tasks fill or read, as ranges of a space of their own. Tasks count from the first one on."""
    code = Code(tasks.words[start:stop])
    rows = dict(code.by_opcode())
    none = np.empty(0, np.int64)
    fills, reads = rows.get(Opcode.LOOKUP, none), rows.get(Opcode.VEC, none)
    reads = reads[code.field("lookup", Opcode.VEC, reads) != 0]
    task = np.concatenate([fills, reads]).astype(np.int64)
    at = np.concatenate([code.field("table", Opcode.LOOKUP, fills), code.field("table", Opcode.VEC, reads)])
    kind = 2 * _VEC + (np.arange(len(task)) < len(fills))
    at, one = at.astype(np.int64), np.ones(len(task), np.int64)
    return Uses(task, kind, one * _TABLES, at, at + 1, one)


def _causes(tasks: Tasks, start: int, stop: int, own: range) -> list[list[int]]:
    """For each task what must be done before: of its own sequence the latest tasks of each queue, and those of the
    other one. `own` are the tasks of the array's operator; all count from `start` on."""
    uses, count = tasks.uses, stop - start
    mine = uses.part((uses.task >= start) & (uses.task < stop))
    mine = dataclasses.replace(mine, task=mine.task - start)
    inside = (mine.task >= own.start) & (mine.task < own.stop)
    found = [conflicts(count, mine.part(chosen)) for chosen in (inside, ~inside)]
    tables = _tables(tasks, start, stop)
    every = Uses(
        *(np.concatenate(pair) for pair in zip(vars(mine).values(), vars(tables).values(), strict=True))
    )
    # What is behind what: the array's operator behind those ahead of it, and those behind it behind it.
    for split, part in ((own.start, every.task < own.stop), (own.stop, every.task >= own.start)):
        found += _behind(count, every.part(part), split)
    return [[cause for cause in row if cause >= 0] for row in np.concatenate(found, axis=1).tolist()]


def _behind(count: int, uses: Uses, split: int) -> list[np.ndarray]:
    """What tasks from number `split` on must wait for of those before, of all queues: columns of tasks, -1 for none.

    Of memory these write other bytes, if in the same rows."""
    second, writes, memory = uses.task >= split, uses.kind & 1 == 1, uses.space >= DRAM
    stored = second & writes & memory
    found = _across(count, uses.part(~stored), split)
    return found + _across(count, uses.part(stored | (memory & ~second & ~writes)), split)


def _across(count: int, uses: Uses, split: int) -> list[np.ndarray]:
    """The same by all uses."""
    found, second = list[np.ndarray](), uses.task >= split
    # The second part as if in one queue, and in another one: in all others there are only tasks of the first.
    for queue in range(2):
        kind = np.where(second, 2 * queue + (uses.kind & 1), uses.kind)
        across = conflicts(count, dataclasses.replace(uses, kind=kind))
        across[:split] = -1
        found.append(across[:, 1:] if queue == 0 else across[:, :1])
    return found


class _Merge:
    """Tasks of layers by their numbers from the first one's first task on. `order` has those that were taken."""

    def __init__(self, tasks: Tasks, start: int, stop: int) -> None:
        self.queue, self.cycles = tasks.queue[start:stop].tolist(), tasks.cycles[start:stop].tolist()
        own, other = self._divided(tasks.layer[start:stop])
        self.causes = _causes(tasks, start, stop, own)
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
        """What the other operators take the vector unit for a cycle of the array, once all run, and what is due of it:
        at most one task, or what is due for a product."""
        self.waits: list[int | None] = [None] * 3
        self.start, self.chosen = 0, 0
        """When the task chosen last starts, and its sequence."""
        self.alone = False
        """Whether nothing but the task chosen last could come next."""

    def _divided(self, layer: np.ndarray) -> tuple[range, list[int]]:
        """The tasks of the operator that has products, and those of the others."""
        product = self.queue.index(_MM) if _MM in self.queue else 0
        first, last = np.searchsorted(layer, (layer[product], layer[product] + 1)).tolist()
        own = range(first, last)
        return own, [task for task in range(len(layer)) if task not in own]

    def _behind(self, number: int) -> int | None:
        """When all is done that the next task of a sequence waits for; None if that is not known yet."""
        if self.waits[number] is None and self.sequences[number]:
            causes = self.causes[self.sequences[number][0]]
            if all(map(self.taken.__getitem__, causes)):
                self.waits[number] = max(map(self.finish.__getitem__, causes), default=0)
        return self.waits[number]

    def choose(self) -> int | None:
        """The task that comes next; None if none is left."""
        # Of those that start together the other operators', which move less, and results behind the next products.
        ready = [
            (max(self.free[self.queue[self.sequences[number][0]]], wait), (number + 1) % 3, number)
            for number in range(3)
            if (wait := self._behind(number)) is not None
        ]
        self.alone = len(ready) == 1
        if len(ready) > 1 and ready[-1][2] == 2:
            self.rate = self.rate or self.work / max(self.left, 1)
            if self.queue[self.sequences[2][0]] == _VEC and self.due <= 0:
                ready.pop()
        if not ready:
            return None
        self.start, _, self.chosen = min(ready)
        return self.sequences[self.chosen][0]

    def take(self, task: int) -> None:
        queue = self.queue[task]
        self.sequences[self.chosen].popleft()
        self.waits[self.chosen] = None
        if queue == _MM:
            self.left -= self.cycles[task]
            due = self.cycles[task] * self.rate
            self.due = min(self.due + due, max(due, self.most))
        elif queue == _VEC and self.chosen == 2 and not self.alone:
            self.due -= self.cycles[task]
        self.finish[task] = self.free[queue] = self.start + self.cycles[task]
        self.taken[task] = True
        self.order.append(task)
