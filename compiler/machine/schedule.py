"""Scheduling: reorder tasks, then synchronise them with semaphores.

The lowering emits tasks in sequential order: executed one after the other they are correct. Three passes make them
overlap:

- `products_first` moves products up to where the array's queue has room for them.
- `hoist` moves every LOAD up to just after the last task that it conflicts with, so that in-order fetch reaches it
  early. Where memory is slower than the bus, `run_ahead` does so by estimated start times.
- `synchronise` finds, for each task and each other queue, the latest earlier task that it depends on (read after
  write, write after read, write after write). It drops dependencies that others imply, by vector clocks over the four
  queues, and turns the rest into tokens of one semaphore per pair of queues.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.compiler.machine import target as overheads
from weft.compiler.machine.memory import runs
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Tasks
from weft.hdl.checker.conflicts import DRAM, Uses, conflicts, inverse_permutation
from weft.hdl.isa import WORD_BYTES, End, Opcode, Queue, places
from weft.hdl.isa.code import Code, field_mask, write_field

_QUEUES = len(Queue)


def products_first(tasks: Tasks, latest: np.ndarray, target: Target) -> np.ndarray:
    """Return the order of tasks with products, and the LOADs before them, moved up.

    The lowering puts products after all vector work on the previous ones. If that exceeds the vector unit's queue,
    the array gets its products late. So a product moves to where the array's queue has room, before work that the
    vector unit and STORE have no room for yet, but after its conflicts. Each queue keeps its order. `latest` is the
    result of `conflicts`.
    """
    queue = tasks.queue
    results = np.flatnonzero((queue == int(Queue.VEC)) | (queue == int(Queue.STORE)))
    moved = np.flatnonzero((queue == int(Queue.MM)) | (queue == int(Queue.LOAD)))
    products = np.flatnonzero(queue[moved] == int(Queue.MM))
    if not len(products) or not len(results):
        return np.arange(len(tasks))
    starts, _ = _starts(tasks, latest, target)
    room = _room(queue, starts, target.config.queue_depth)
    # Where the array's queue has room, and the earliest place after all conflicts.
    wish = np.searchsorted(np.maximum.accumulate(room[results]), room[moved[products]], "right")
    least = np.searchsorted(
        results, latest[moved][:, [int(Queue.VEC), int(Queue.STORE)]].max(axis=1), "right"
    )
    now = np.searchsorted(results, moved)
    # LOADs go with the products that follow them.
    group = np.searchsorted(products, np.arange(len(moved)))
    last = group == len(products)
    firsts = np.concatenate([[0], products[:-1] + 1])
    limit = np.maximum.reduceat(least[: products[-1] + 1], firsts)
    count_before = np.maximum.accumulate(np.minimum(np.maximum(limit, wish), now[products]))
    keys = np.empty(len(tasks), np.int64)
    # Results have odd keys in their order; a task with key 2 * i comes just before result i.
    keys[results] = 2 * np.arange(len(results)) + 1
    # No task moves down. LOADs after the last product stay.
    keys[moved] = 2 * np.where(last, now, np.minimum(count_before[np.minimum(group, len(products) - 1)], now))
    return np.argsort(keys, kind="stable")


def run_ahead(tasks: Tasks, latest: np.ndarray, target: Target) -> tuple[np.ndarray, int]:
    """Return the order of tasks with LOADs moved up, and an estimate of the total cycles.

    No LOAD passes a task that it conflicts with. LOADs keep their order, and so do all others. `latest` is the result
    of `conflicts`.
    """
    starts, cycles = _starts(tasks, latest, target)
    load = tasks.queue == int(Queue.LOAD)
    loads, others = np.flatnonzero(load), np.flatnonzero(~load)
    room = np.maximum.accumulate(_room(tasks.queue, starts, target.config.queue_depth)[others])
    count_before = np.searchsorted(room, starts[loads], "right")  # number of other tasks before each LOAD
    count_before = np.minimum(count_before, np.searchsorted(others, loads))
    count_before = np.maximum(count_before, np.searchsorted(others, latest[loads].max(axis=1), "right"))
    keys = np.empty(len(tasks), np.int64)
    # As in `products_first`: a LOAD with key 2 * i has i of the other tasks before it.
    keys[others] = 2 * np.arange(len(others)) + 1
    keys[loads] = 2 * np.maximum.accumulate(count_before)
    return np.argsort(keys, kind="stable"), cycles


def _starts(tasks: Tasks, latest: np.ndarray, target: Target) -> tuple[np.ndarray, int]:
    """Return estimates of each task's start and of the end of all, in cycles."""
    # Instructions are fetched over the bus that LOADs use.
    fetch = round(target.transfer_cycles(WORD_BYTES))
    own = {
        Queue.LOAD: overheads.LOAD_GAP_CYCLES + fetch,
        Queue.VEC: round(target.vec_start()),
    }
    beside = [own.get(queue, 0) for queue in Queue]
    free, finish, starts = [0] * _QUEUES, list[int](), list[int]()
    for queue, cycles, causes in zip(
        tasks.queue.tolist(), tasks.cycles.tolist(), latest.tolist(), strict=True
    ):
        start = free[queue]
        for cause in causes:
            if cause >= 0 and finish[cause] > start:
                start = finish[cause]
        starts.append(start)
        # The queue is free after the task and its own overhead; other queues see the end only after the handover.
        free[queue] = start + cycles + beside[queue]
        finish.append(free[queue] + overheads.HANDOVER_CYCLES)
    return np.array(starts, np.int64), max(finish, default=0)


def _room(queue: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
    """Return when each task's queue has room for it: once the task `depth` before it in the queue has started."""
    room = np.zeros(len(starts), np.int64)
    for unit in range(_QUEUES):
        mine = np.flatnonzero(queue == unit)
        room[mine[depth:]] = starts[mine[:-depth]]
    return room


_AXES = (("y", "y_oy", "oy", "ry", "h"), ("x", "x_ox", "ox", "rx", "w"))


def sequential_forms(words: np.ndarray, n: int) -> np.ndarray:
    """Return instruction words in the form that is fastest on the sequential core.

    Where a VEC reads one vector per output, all in range, its coordinates become constant 0. A LOAD whose rows are at
    most one vector gets the row's length as its pitch.

    Parameters
    ----------
    words : ndarray
        uint64 (count, 8).
    n : int
        Columns of the array.
    """
    result = words.copy()
    _fix_coordinates(result)
    _shorten_pitch(result, n)
    return result


def _fix_coordinates(words: np.ndarray) -> None:
    code = Code(words)
    rows = np.flatnonzero(code.opcodes == int(Opcode.VEC))
    inside = np.ones(len(rows), bool)
    for names in _AXES:
        first, step, count, window, bound = (code.field(name, Opcode.VEC, rows) for name in names)
        last = first + step * (count - 1)
        low, high = np.minimum(first, last), np.maximum(first, last)
        # In range for all outputs: the smallest and largest coordinate are within the bounds.
        inside &= (window == 1) & (low >= 0) & (high < np.minimum(bound, 1 << 15))
    _set(words, rows[inside], Opcode.VEC, {"y": 0, "y_oy": 0, "h": 1, "x": 0, "x_ox": 0, "w": 1})


def _shorten_pitch(words: np.ndarray, n: int) -> None:
    code = Code(words)
    rows = np.flatnonzero(code.opcodes == int(Opcode.LOAD))
    pixels, length, transposed = (
        code.field(name, Opcode.LOAD, rows) for name in ("pixels", "length", "transpose")
    )
    short = (pixels == 1) & (length <= n) & (transposed == 0)
    _set(words, rows[short], Opcode.LOAD, {"pitch": length[short]})


def _set(words: np.ndarray, rows: np.ndarray, opcode: Opcode, fields: dict[str, int | np.ndarray]) -> None:
    chosen = words[rows] & ~field_mask(opcode, tuple(fields))
    for name, value in fields.items():
        write_field(chosen, places(opcode)[name], np.broadcast_to(np.asarray(value, np.int64), len(rows)))
    words[rows] = chosen


Known = tuple[int, ...]

# A LOAD runs ahead of its consumer by `_MARGIN` times its own cycles plus `_LATENCY` cycles, and by at least `_LEAST`
# compute tasks.
_MARGIN = 3
_LATENCY = 500
_LEAST = 2


def semaphore(producer: Queue, consumer: Queue) -> int:
    """Return the semaphore that carries tokens from `producer` to `consumer`: 12 of the 16 are used."""
    return int(producer) * (_QUEUES - 1) + int(consumer) - int(consumer > producer)


def hoist(tasks: Tasks, latest: np.ndarray) -> np.ndarray:
    """Return the order of tasks with LOADs moved up, each past no task that it conflicts with.

    The compute task after the last conflict stays ahead of the LOAD: fetch is in order, and a LOAD that waits must
    not keep the next MM from its queue. For the same reason a LOAD moves no further than it takes to hide it:
    `_MARGIN` times its own time in compute, plus `_LATENCY`. LOADs keep their order. `latest` is the result of
    `conflicts`.
    """
    paces = np.flatnonzero(tasks.paces)
    elapsed = np.concatenate([[0], np.cumsum(tasks.cycles[paces])])
    loads = np.flatnonzero(tasks.queue == int(Queue.LOAD))
    last = latest[loads].max(axis=1)
    after = last.copy()
    if len(paces):
        following = np.searchsorted(paces, last, "right")
        some = (last >= 0) & (following < len(paces))
        after[some] = paces[following[some]]
        before = np.searchsorted(paces, loads)
        spent = elapsed[before] - _MARGIN * tasks.cycles[loads]
        early = np.searchsorted(elapsed, spent - _LATENCY, "right") - 1
        # The LOAD is not for the very first compute task: leave that task in front.
        early = paces[np.maximum(0, np.minimum(early, before - _LEAST))]
        after = np.where(before > 0, np.maximum(after, early), after)
    # Key 2 * i + 1 comes just after task i. The accumulated maximum keeps LOADs in order.
    keys, moved = 2 * np.arange(len(tasks)), np.maximum.accumulate(np.minimum(after, loads - 1))
    keys[loads] = 2 * moved + 1
    return np.argsort(keys, kind="stable")


_BITS = [[1 << semaphore(producer, consumer) for consumer in Queue] for producer in Queue]


def synchronise(tasks: Tasks, latest: np.ndarray) -> Code:
    """Return the instructions of `tasks` with `wait` and `signal` set, followed by END."""
    waits = [0] * len(tasks)
    signals = [0] * len(tasks)
    # Vector clocks, the latest task of each queue known to be done: at the start of each queue's last task, and at the
    # start of each task.
    started: list[Known] = [(-1,) * _QUEUES] * _QUEUES
    before: list[Known] = []
    for index, (queue, causes) in enumerate(zip(tasks.queue.tolist(), latest.tolist(), strict=True)):
        known = started[queue]
        a, b, c, d = known
        if causes[0] > a or causes[1] > b or causes[2] > c or causes[3] > d:
            # Nearest dependency first: it may imply the others.
            for cause in sorted(causes, reverse=True):
                other = causes.index(cause)
                if cause > known[other]:
                    bit = _BITS[other][queue]
                    signals[cause] |= bit
                    waits[index] |= bit
                    # All that the cause had waited for is done as well.
                    known = tuple(map(max, known, before[cause]))
                    known = (*known[:other], cause, *known[other + 1 :])
            started[queue] = known
        before.append(known)
    words = tasks.words.copy()
    for name, values in (("wait", waits), ("signal", signals)):
        write_field(words, places(Opcode.END)[name], np.array(values, np.int64))
    return Code(np.concatenate([words, Code.of([End()]).words]))


class Scheduled(NamedTuple):
    """Tasks in program order, the program, and its estimated cycles if memory is slower than the bus (else 0)."""

    tasks: Tasks
    code: Code
    cycles: int


def schedule(tasks: Tasks, target: Target) -> Scheduled:
    """Order and synchronise tasks; for the sequential core, keep the order and rewrite instructions to their fastest
    form.

    No LOAD passes a task that it conflicts with, and queues keep their order. So the reordered tasks have the
    dependencies of the sequential ones.
    """
    if target.sequential:
        tasks = replace(tasks, words=sequential_forms(tasks.words, target.config.n))
    latest = conflicts(len(tasks), tasks.uses)
    if not target.sequential:
        tasks, latest = _in_order(tasks, latest, products_first(tasks, latest, target))
    # With a slow memory loads decide the pace, and are ordered by estimated start times.
    slow = target.beat > 1.0
    order, cycles = run_ahead(tasks, latest, target) if slow else (hoist(tasks, latest), 0)
    ordered, latest = _in_order(tasks, latest, order)
    return Scheduled(ordered, synchronise(ordered, latest), cycles)


def _in_order(tasks: Tasks, latest: np.ndarray, order: np.ndarray) -> tuple[Tasks, np.ndarray]:
    """Return tasks in another order, and their conflicts in it."""
    later = latest[order]
    return tasks.reorder(order), np.where(later < 0, -1, inverse_permutation(order)[later])


_LOAD, _MM, _VEC = (int(queue) for queue in (Queue.LOAD, Queue.MM, Queue.VEC))
_TABLES = -1
"""Number of an address space of its own, for look-up tables."""


def merge_overlapped(tasks: Tasks, firsts: Sequence[int]) -> Tasks:
    """Return the tasks with each layer in `firsts` merged with the layer after it.

    Exactly one of the merged layers has products. They must use disjoint parts of the scratchpad, write disjoint
    bytes of memory, and replace none of each other's kernels.
    """
    if not firsts:
        return tasks
    order, paces = np.arange(len(tasks)), tasks.paces.copy()
    for run in runs(firsts):
        start, stop = np.searchsorted(tasks.layer, (run.start, run.stop)).tolist()
        order[start:stop] = _merge_order(tasks, start, stop)
        paces[start:stop] &= tasks.queue[start:stop] == _MM  # loads are scheduled against the array alone
    return dataclasses.replace(tasks, paces=paces).reorder(order)


def _merge_order(tasks: Tasks, start: int, stop: int) -> list[int]:
    """Return tasks `start` to `stop`, of consecutive layers, in a merged order."""
    merge = _Merge(tasks, start, stop)
    while (task := merge.choose()) is not None:
        merge.take(task)
    return [start + task for task in merge.order]


def _tables(tasks: Tasks, start: int, stop: int) -> Uses:
    """Return which look-up tables tasks fill or read, as ranges of space `_TABLES`. Tasks are numbered from `start`."""
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
    """Return, for each task, the tasks that must be done before it.

    These are the latest tasks of each queue in its own sequence, and tasks of the other sequence. `own` are the tasks
    of the array's operator; all are numbered from `start`.
    """
    uses, count = tasks.uses, stop - start
    mine = uses.select((uses.task >= start) & (uses.task < stop))
    mine = dataclasses.replace(mine, task=mine.task - start)
    inside = (mine.task >= own.start) & (mine.task < own.stop)
    columns = [conflicts(count, mine.select(chosen)) for chosen in (inside, ~inside)]
    tables = _tables(tasks, start, stop)
    # Memory, accumulator and scratchpad uses, and look-up tables as a space of their own.
    every = Uses(
        *(np.concatenate(pair) for pair in zip(vars(mine).values(), vars(tables).values(), strict=True))
    )
    # Order between sequences: the array's operator follows the tasks before it, and later tasks follow the operator.
    for split, part in ((own.start, every.task < own.stop), (own.stop, every.task >= own.start)):
        columns += _cross_dependencies(count, every.select(part), split)
    return [[cause for cause in row if cause >= 0] for row in np.concatenate(columns, axis=1).tolist()]


def _cross_dependencies(count: int, uses: Uses, split: int) -> list[np.ndarray]:
    """Return the tasks before number `split` that the tasks from `split` on must wait for.

    The result is columns of task numbers, -1 for none. The two parts write different bytes of memory, even if in the
    same rows; so their writes do not conflict there.
    """
    second, writes, memory = uses.task >= split, uses.kind & 1 == 1, uses.space >= DRAM
    stored = second & writes & memory
    columns = _across(count, uses.select(~stored), split)
    return columns + _across(count, uses.select(stored | (memory & ~second & ~writes)), split)


def _across(count: int, uses: Uses, split: int) -> list[np.ndarray]:
    columns, second = list[np.ndarray](), uses.task >= split
    # `conflicts` skips tasks of the same queue. So assign the second part to queue 0, then to queue 1: the other queues
    # then hold only tasks of the first part.
    for queue in range(2):
        kind = np.where(second, 2 * queue + (uses.kind & 1), uses.kind)
        across = conflicts(count, dataclasses.replace(uses, kind=kind))
        across[:split] = -1
        columns.append(across[:, 1:] if queue == 0 else across[:, :1])
    return columns


class _Merge:
    """Greedy list scheduler of three sequences of tasks; `order` has the tasks chosen so far.

    Tasks are numbered from the first layer's first task.
    """

    def __init__(self, tasks: Tasks, start: int, stop: int) -> None:
        self.queue, self.cycles = tasks.queue[start:stop].tolist(), tasks.cycles[start:stop].tolist()
        own, other = self._divide(tasks.layer[start:stop])
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
        # Cycles of the array that remain.
        self.left = sum(self.cycles[task] for task in own if self.queue[task] == _MM)
        # Vector cycles of the other operators per array cycle, and how many of them are due now. At most the cycles of
        # one task, or of one product's share, can be due.
        self.rate, self.due = 0.0, 0.0
        self.waits: list[int | None] = [None] * 3
        # Start and sequence of the task chosen last, and whether it was the only candidate.
        self.start, self.chosen = 0, 0
        self.alone = False

    def _divide(self, layer: np.ndarray) -> tuple[range, list[int]]:
        """Return the tasks of the operator with products, and the tasks of the other operators."""
        product = self.queue.index(_MM) if _MM in self.queue else 0
        first, last = np.searchsorted(layer, (layer[product], layer[product] + 1)).tolist()
        own = range(first, last)
        return own, [task for task in range(len(layer)) if task not in own]

    def _ready_time(self, number: int) -> int | None:
        """Return when the next task of a sequence can start, or None if one of its causes is not yet scheduled."""
        if self.waits[number] is None and self.sequences[number]:
            causes = self.causes[self.sequences[number][0]]
            if all(map(self.taken.__getitem__, causes)):
                self.waits[number] = max(map(self.finish.__getitem__, causes), default=0)
        return self.waits[number]

    def choose(self) -> int | None:
        """Return the next task; None if no task is left."""
        # Among tasks that start together prefer the other operators' (they move less), then the next products.
        ready = [
            (max(self.free[self.queue[self.sequences[number][0]]], wait), (number + 1) % 3, number)
            for number in range(3)
            if (wait := self._ready_time(number)) is not None
        ]
        self.alone = len(ready) == 1
        if len(ready) > 1 and ready[-1][2] == 2:
            self.rate = self.rate or self.work / max(self.left, 1)
            # Spread the other operators' vector work evenly over the products, which earn its cycles (see `take`).
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
