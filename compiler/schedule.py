"""Order and synchronise tasks: loads move up to run ahead, then semaphores make every dependency explicit.

The lowering emits tasks in plain sequential order: executed one after the other they are correct. Two passes turn that
into overlap. `hoist` moves every LOAD up to just behind the last task it conflicts with, so that the in-order fetch
reaches it early. `synchronise` then finds, for each task and each other queue, the latest earlier task it depends on
(read after write, write after read, write after write), drops what is already implied (vector clocks over the four
queues), and turns the rest into tokens of one semaphore per pair of queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from weft.compiler.conflicts import conflicts
from weft.compiler.tasks import Task
from weft.hdl.isa import End, Instruction, Queue

_QUEUES = len(Queue)
_MARGIN = 3  # how many times its own duration a LOAD runs ahead
_LATENCY = 500  # and so many cycles more
_LEAST = 2  # but at least past so many compute tasks


def semaphore(producer: Queue, consumer: Queue) -> int:
    """The semaphore that carries tokens from `producer` to `consumer`: 12 of the 16."""
    return int(producer) * (_QUEUES - 1) + int(consumer) - int(consumer > producer)


def hoist(tasks: Sequence[Task]) -> list[Task]:
    """Move LOADs up, each at most to behind the last task it conflicts with and the compute task after that one.

    The compute task behind it goes first because fetch is in order: a LOAD that waits must not keep the next MM from
    its queue. For the same reason a LOAD moves no further than it takes to hide it: past `_MARGIN` times its own time
    in compute. LOADs stay in order among themselves.
    """
    if not tasks:
        return []
    paces = np.array([index for index, task in enumerate(tasks) if task.paces], np.int64)
    elapsed = np.cumsum([0, *(tasks[index].cycles for index in paces)])
    loads = np.array([index for index, task in enumerate(tasks) if task.queue == Queue.LOAD], np.int64)
    latest = conflicts(tasks)[loads].max(axis=1)
    behind = latest.copy()
    if len(paces):
        following = np.searchsorted(paces, latest, "right")
        some = (latest >= 0) & (following < len(paces))
        behind[some] = paces[following[some]]
        before = np.searchsorted(paces, loads)
        spent = elapsed[before] - _MARGIN * np.array([tasks[index].cycles for index in loads], np.int64)
        early = np.searchsorted(elapsed, spent - _LATENCY, "right") - 1
        # Not needed by the very first compute task: leave that one in front.
        early = paces[np.maximum(0, np.minimum(early, before - _LEAST))]
        behind = np.where(before > 0, np.maximum(behind, early), behind)
    keys, moved = 2 * np.arange(len(tasks)), np.maximum.accumulate(np.minimum(behind, loads - 1))
    keys[loads] = 2 * moved + 1
    return [tasks[index] for index in np.argsort(keys, kind="stable").tolist()]


_BITS = [[1 << semaphore(producer, consumer) for consumer in Queue] for producer in Queue]


def synchronise(tasks: Sequence[Task]) -> list[Instruction]:
    """The instructions of `tasks` with `wait` and `signal` set, and END behind them."""
    waits = [0] * len(tasks)
    signals = [0] * len(tasks)
    # What is known done, for each queue the latest task: when the last task of a queue starts; and when a task is done.
    started = [[-1] * _QUEUES for _ in range(_QUEUES)]
    done: list[list[int]] = []
    for index, (task, latest) in enumerate(zip(tasks, conflicts(tasks).tolist(), strict=True)):
        queue = int(task.queue)
        known = started[queue]
        causes = [
            (cause, other) for other, cause in enumerate(latest) if cause > known[other] and other != queue
        ]
        # The nearest dependency first: what it implies may make the others redundant.
        for cause, other in sorted(causes, key=lambda item: -item[0]):
            if cause > known[other]:
                bit = _BITS[other][queue]
                signals[cause] |= bit
                waits[index] |= bit
                known = [max(pair) for pair in zip(known, done[cause], strict=True)]
        started[queue] = known
        known = list(known)
        known[queue] = index
        done.append(known)
    ordered = (task.instruction for task in tasks)
    return [*map(Instruction.synchronised, ordered, waits, signals), End()]


def schedule(tasks: Iterable[Task]) -> tuple[list[Task], list[Instruction]]:
    """Hoist and synchronise: the tasks in program order, and the program."""
    ordered = hoist(list(tasks))
    return ordered, synchronise(ordered)
