"""Two operators at a time: tasks of one that fill the pauses of the other.

The units of the machine take tasks in order, each from a queue of its own. Where one operator keeps the array busy and
the next the vector unit, the tasks of both are put in the order in which they could start; the second one's follow what
they depend on. That is list scheduling (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969) of two
sequences that keep their orders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from weft.compiler.machine.tasks import Tasks
from weft.hdl.checker.conflicts import conflicts
from weft.hdl.isa import Queue


def overlapped(tasks: Tasks, firsts: Sequence[int]) -> Tasks:
    """The tasks with those of layers `firsts` and of the layer behind each of them merged.

    The two layers must use parts of the scratchpad of their own, and no tables or kernels that the other one replaces.
    """
    if not firsts:
        return tasks
    latest = conflicts(len(tasks), tasks.uses)
    order, paces = np.arange(len(tasks)), tasks.paces.copy()
    for first in firsts:
        start, middle, stop = np.searchsorted(tasks.layer, (first, first + 1, first + 2)).tolist()
        order[start:stop] = _merged(tasks, latest, start, middle, stop)
        both = slice(start, stop)
        paces[both] &= tasks.queue[both] == int(Queue.MM)  # loads are scheduled against the array alone
    return dataclasses.replace(tasks, paces=paces).ordered(order)


def _merged(tasks: Tasks, latest: np.ndarray, start: int, middle: int, stop: int) -> list[int]:
    """Tasks from `start` on, of one layer, and from `middle` to `stop`, of the next one, as they could start."""
    queue, cycles = tasks.queue[start:stop].tolist(), tasks.cycles[start:stop].tolist()
    causes = [[cause - start for cause in row if cause >= start] for row in latest[start:stop].tolist()]
    finish, free, order = [0] * (stop - start), [0] * len(Queue), list[int]()
    one, two, between = 0, middle - start, middle - start

    def begin(task: int) -> int:
        """When a task could start: once its unit is free, and what it waits for done."""
        return max([free[queue[task]], *(finish[cause] for cause in causes[task])])

    while one < between or two < stop - start:
        task = one
        if one == between:
            task = two
        elif two < stop - start and all(cause < one or cause >= between for cause in causes[two]):
            task = two if begin(two) < begin(one) else one
        finish[task] = free[queue[task]] = begin(task) + cycles[task]
        order.append(start + task)
        one, two = (one + 1, two) if task == one and one < between else (one, two + 1)
    return order
