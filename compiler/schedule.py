"""Order and synchronise tasks: loads move up to run ahead, then semaphores make every dependency explicit.

The lowering emits tasks in plain sequential order: executed one after the other they are correct. Two passes turn that
into overlap. `hoist` moves every LOAD up to just behind the last task it conflicts with, so that the in-order fetch
reaches it early. `synchronise` then finds, for each task and each other queue, the latest earlier task it depends on
(read after write, write after read, write after write), drops what is already implied (vector clocks over the four
queues), and turns the rest into tokens of one semaphore per pair of queues.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from weft.compiler.tasks import Range, Task
from weft.hdl.isa import End, Instruction, Queue

GRANULE = 64
"""DRAM bytes that share one entry of the dependency tables; coarser only orders more than necessary."""

_QUEUES = len(Queue)
_MARGIN = 3  # how many times its own duration a LOAD runs ahead
_LATENCY = 500  # and so many cycles more
_LEAST = 2  # but at least past so many compute tasks


def semaphore(producer: Queue, consumer: Queue) -> int:
    """The semaphore that carries tokens from `producer` to `consumer`: 12 of the 16."""
    return int(producer) * (_QUEUES - 1) + int(consumer) - int(consumer > producer)


class _Tables:
    """For every address of every space and every queue, the last task that read and that wrote it (-1: none)."""

    def __init__(self) -> None:
        self._last: dict[str, np.ndarray] = {}  # (read or write, queue, address)

    def _slice(self, item: Range) -> np.ndarray:
        granule = GRANULE if item.space.startswith("dram") else 1
        start, stop = item.start // granule, -(-item.stop // granule)
        table = self._last.get(item.space)
        if table is None or table.shape[2] < stop:
            grown = np.full((2, _QUEUES, max(1024, 2 * stop)), -1, np.int32)
            if table is not None:
                grown[:, :, : table.shape[2]] = table
            self._last[item.space] = table = grown
        return table[:, :, start:stop]

    def conflicts(self, task: Task) -> np.ndarray:
        """For each queue the latest recorded task that must be done before `task` may start."""
        latest = np.full(_QUEUES, -1, np.int32)
        for item in task.reads:
            np.maximum(latest, self._slice(item)[1].max(axis=1), out=latest)
        for item in task.writes:
            np.maximum(latest, self._slice(item).max(axis=(0, 2)), out=latest)
        return latest

    def record(self, index: int, task: Task) -> None:
        for kind, items in enumerate((task.reads, task.writes)):
            for item in items:
                self._slice(item)[kind, task.queue] = index


def hoist(tasks: Sequence[Task]) -> list[Task]:
    """Move LOADs up, each at most to behind the last task it conflicts with and the compute task after that one.

    The compute task behind it goes first because fetch is in order: a LOAD that waits must not keep the next MM from
    its queue. For the same reason a LOAD moves no further than it takes to hide it: past `_MARGIN` times its own time
    in compute. LOADs stay in order among themselves.
    """
    tables = _Tables()
    paces = [index for index, task in enumerate(tasks) if task.paces]
    elapsed = np.concatenate([[0], np.cumsum([tasks[index].cycles for index in paces])])
    keys: list[tuple[int, int, int]] = []
    previous = -1
    for index, task in enumerate(tasks):
        if task.queue == Queue.LOAD:
            latest = int(tables.conflicts(task)[[Queue.MM, Queue.VEC, Queue.STORE]].max())
            behind = latest
            following = bisect.bisect_right(paces, latest)
            if latest >= 0 and following < len(paces):
                behind = paces[following]
            before = bisect.bisect_left(paces, index)
            if before:  # not needed by the very first compute task: leave that one in front
                early = (
                    int(np.searchsorted(elapsed, elapsed[before] - _MARGIN * task.cycles - _LATENCY, "right"))
                    - 1
                )
                behind = max(behind, paces[max(0, min(early, before - _LEAST))])
            previous = max(previous, min(behind, index - 1))
            keys.append((previous, 1, index))
        else:
            keys.append((index, 0, index))
        tables.record(index, task)
    return [tasks[index] for _, _, index in sorted(keys)]


def synchronise(tasks: Sequence[Task]) -> list[Instruction]:
    """The instructions of `tasks` with `wait` and `signal` set, and END behind them."""
    tables = _Tables()
    waits = [0] * len(tasks)
    signals = [0] * len(tasks)
    started = np.full(
        (_QUEUES, _QUEUES), -1, np.int64
    )  # per queue: what is known done when its last task starts
    done_known = np.full((len(tasks), _QUEUES), -1, np.int64)  # per task: what is known done when it is done
    for index, task in enumerate(tasks):
        queue = task.queue
        known = started[queue]
        latest = tables.conflicts(task)
        # The nearest dependency first: what it implies may make the others redundant.
        for other in sorted((q for q in Queue if q != queue), key=lambda q: -latest[q]):
            cause = int(latest[other])
            if cause > known[other]:
                bit = 1 << semaphore(other, queue)
                signals[cause] |= bit
                waits[index] |= bit
                np.maximum(known, done_known[cause], out=known)
        done_known[index] = known
        done_known[index, queue] = index
        tables.record(index, task)
    return [
        *(
            dataclasses.replace(task.instruction, wait=waits[index], signal=signals[index])
            for index, task in enumerate(tasks)
        ),
        End(),
    ]


def schedule(tasks: Iterable[Task]) -> tuple[list[Task], list[Instruction]]:
    """Hoist and synchronise: the tasks in program order, and the program."""
    ordered = hoist(list(tasks))
    return ordered, synchronise(ordered)
