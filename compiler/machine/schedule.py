"""Order and synchronise tasks: products and loads move up, then semaphores make every dependency explicit.

The lowering emits tasks in plain sequential order: executed one after the other they are correct. Three passes turn
that into overlap. `weft.compiler.machine.run_ahead.products_first` moves products up to where there is room for them
in the queue of the array. `hoist` moves every LOAD up to just behind the last task it conflicts with, so that the
in-order fetch reaches it early; where memory is slower than the bus, `weft.compiler.machine.run_ahead` does.
`synchronise` then finds, for each task and each other queue, the latest earlier task it depends on (read after write,
write after read, write after write), drops what is already implied (vector clocks over the four queues), and turns the
rest into tokens of one semaphore per pair of queues.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.compiler.machine.run_ahead import products_first, run_ahead
from weft.compiler.machine.sequential_forms import sequential_forms
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Tasks
from weft.hdl.checker.conflicts import conflicts, inverse
from weft.hdl.isa import End, Opcode, Queue, places
from weft.hdl.isa.code import Code, write

Known = tuple[int, ...]

_QUEUES = len(Queue)
_MARGIN = 3  # how many times its own duration a LOAD runs ahead
_LATENCY = 500  # and so many cycles more
_LEAST = 2  # but at least past so many compute tasks


def semaphore(producer: Queue, consumer: Queue) -> int:
    """The semaphore that carries tokens from `producer` to `consumer`: 12 of the 16."""
    return int(producer) * (_QUEUES - 1) + int(consumer) - int(consumer > producer)


def hoist(tasks: Tasks, latest: np.ndarray) -> np.ndarray:
    """The order of tasks with LOADs moved up, each at most to behind the last task it conflicts with and the compute
    task after that one.

    The compute task behind it goes first because fetch is in order: a LOAD that waits must not keep the next MM from
    its queue. For the same reason a LOAD moves no further than it takes to hide it: past `_MARGIN` times its own time
    in compute. LOADs stay in order among themselves. `latest` is what `conflicts` finds.
    """
    paces = np.flatnonzero(tasks.paces)
    elapsed = np.concatenate([[0], np.cumsum(tasks.cycles[paces])])
    loads = np.flatnonzero(tasks.queue == int(Queue.LOAD))
    last = latest[loads].max(axis=1)
    behind = last.copy()
    if len(paces):
        following = np.searchsorted(paces, last, "right")
        some = (last >= 0) & (following < len(paces))
        behind[some] = paces[following[some]]
        before = np.searchsorted(paces, loads)
        spent = elapsed[before] - _MARGIN * tasks.cycles[loads]
        early = np.searchsorted(elapsed, spent - _LATENCY, "right") - 1
        # Not needed by the very first compute task: leave that one in front.
        early = paces[np.maximum(0, np.minimum(early, before - _LEAST))]
        behind = np.where(before > 0, np.maximum(behind, early), behind)
    keys, moved = 2 * np.arange(len(tasks)), np.maximum.accumulate(np.minimum(behind, loads - 1))
    keys[loads] = 2 * moved + 1
    return np.argsort(keys, kind="stable")


_BITS = [[1 << semaphore(producer, consumer) for consumer in Queue] for producer in Queue]


def synchronise(tasks: Tasks, latest: np.ndarray) -> Code:
    """The instructions of `tasks` with `wait` and `signal` set, and END behind them."""
    waits = [0] * len(tasks)
    signals = [0] * len(tasks)
    # What is known done, for each queue the latest task: when the last task of a queue started, and when each task did.
    started: list[Known] = [(-1,) * _QUEUES] * _QUEUES
    before: list[Known] = []
    for index, (queue, causes) in enumerate(zip(tasks.queue.tolist(), latest.tolist(), strict=True)):
        known = started[queue]
        a, b, c, d = known
        if causes[0] > a or causes[1] > b or causes[2] > c or causes[3] > d:
            # The nearest dependency first: what it implies may make the others redundant.
            for cause in sorted(causes, reverse=True):
                other = causes.index(cause)
                if cause > known[other]:
                    bit = _BITS[other][queue]
                    signals[cause] |= bit
                    waits[index] |= bit
                    known = tuple(map(max, known, before[cause]))
                    known = (*known[:other], cause, *known[other + 1 :])
            started[queue] = known
        before.append(known)
    words = tasks.words.copy()
    for name, values in (("wait", waits), ("signal", signals)):
        write(words, places(Opcode.END)[name], np.array(values, np.int64))
    return Code(np.concatenate([words, Code.of([End()]).words]))


class Scheduled(NamedTuple):
    """Tasks in program order, the program, and for memories slower than the bus the cycles that it takes by estimate,
    else 0."""

    tasks: Tasks
    code: Code
    cycles: int


def schedule(tasks: Tasks, target: Target) -> Scheduled:
    """Hoist and synchronise; for the sequential core, in the form that is fastest there.

    As no LOAD passes a task that it conflicts with, and tasks of a queue keep their order, what a task has to wait for
    is the same before and after.
    """
    if target.sequential:
        tasks = replace(tasks, words=sequential_forms(tasks.words, target.config.n))
    latest = conflicts(len(tasks), tasks.uses)
    if not target.sequential:
        tasks, latest = _in_order(tasks, latest, products_first(tasks, latest, target))
    slow = target.beat > 1.0
    order, cycles = run_ahead(tasks, latest, target) if slow else (hoist(tasks, latest), 0)
    ordered, latest = _in_order(tasks, latest, order)
    return Scheduled(ordered, synchronise(ordered, latest), cycles)


def _in_order(tasks: Tasks, latest: np.ndarray, order: np.ndarray) -> tuple[Tasks, np.ndarray]:
    """Tasks in another order, and what they conflict with there."""
    later = latest[order]
    return tasks.ordered(order), np.where(later < 0, -1, inverse(order)[later])
