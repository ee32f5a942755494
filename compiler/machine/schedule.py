"""Order and synchronise tasks: products and loads move up, then semaphores make every dependency explicit.

The lowering emits tasks in plain sequential order: executed one after the other they are correct. Three passes turn
that into overlap. `weft.compiler.machine.schedule.products_first` moves products up to where there is room for them
in the queue of the array. `hoist` moves every LOAD up to just behind the last task it conflicts with, so that the
in-order fetch reaches it early; where memory is slower than the bus, `weft.compiler.machine.schedule` does.
`synchronise` then finds, for each task and each other queue, the latest earlier task it depends on (read after write,
write after read, write after write), drops what is already implied (vector clocks over the four queues), and turns the
rest into tokens of one semaphore per pair of queues.
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
    """The order of tasks with products moved up, and the LOADs in front of them with them.

    Lowering puts products behind all that the vector unit makes of those before. If that is more than its queue holds,
    the array gets them late. So they come once there is room in the queue of the array, before what the vector unit
    and STORE have no room for yet, and behind what they conflict with. All tasks of a queue stay in order. `latest` is
    what `conflicts` finds.
    """
    queue = tasks.queue
    made = np.flatnonzero((queue == int(Queue.VEC)) | (queue == int(Queue.STORE)))
    moved = np.flatnonzero((queue == int(Queue.MM)) | (queue == int(Queue.LOAD)))
    products = np.flatnonzero(queue[moved] == int(Queue.MM))
    if not len(products) or not len(made):
        return np.arange(len(tasks))
    starts, _ = _starts(tasks, latest, target)
    room = _room(queue, starts, target.config.queue_depth)
    wish = np.searchsorted(np.maximum.accumulate(room[made]), room[moved[products]], "right")
    least = np.searchsorted(made, latest[moved][:, [int(Queue.VEC), int(Queue.STORE)]].max(axis=1), "right")
    now = np.searchsorted(made, moved)
    # LOADs go with the products that follow them.
    group = np.searchsorted(products, np.arange(len(moved)))
    last = group == len(products)
    firsts = np.concatenate([[0], products[:-1] + 1])
    limit = np.maximum.reduceat(least[: products[-1] + 1], firsts)
    ahead = np.maximum.accumulate(np.minimum(np.maximum(limit, wish), now[products]))
    keys = np.empty(len(tasks), np.int64)
    keys[made] = 2 * np.arange(len(made)) + 1
    keys[moved] = 2 * np.where(last, now, np.minimum(ahead[np.minimum(group, len(products) - 1)], now))
    return np.argsort(keys, kind="stable")


def run_ahead(tasks: Tasks, latest: np.ndarray, target: Target) -> tuple[np.ndarray, int]:
    """The order of tasks with LOADs moved up, none past a task that it conflicts with, and an estimate of the cycles
    until all are done. LOADs stay in order among themselves, and so do all others. `latest` is what `conflicts`
    finds."""
    starts, cycles = _starts(tasks, latest, target)
    load = tasks.queue == int(Queue.LOAD)
    loads, others = np.flatnonzero(load), np.flatnonzero(~load)
    room = np.maximum.accumulate(_room(tasks.queue, starts, target.config.queue_depth)[others])
    ahead = np.searchsorted(room, starts[loads], "right")  # how many others come before each LOAD
    ahead = np.minimum(ahead, np.searchsorted(others, loads))
    ahead = np.maximum(ahead, np.searchsorted(others, latest[loads].max(axis=1), "right"))
    keys = np.empty(len(tasks), np.int64)
    keys[others] = 2 * np.arange(len(others)) + 1
    keys[loads] = 2 * np.maximum.accumulate(ahead)
    return np.argsort(keys, kind="stable"), cycles


def _starts(tasks: Tasks, latest: np.ndarray, target: Target) -> tuple[np.ndarray, int]:
    """When each task starts, and when all are done, an estimate in cycles."""
    # Instructions take the same bus as LOADs.
    fetch = round(target.moved(WORD_BYTES))
    own = {
        Queue.LOAD: overheads.LOAD + fetch,
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
        free[queue] = start + cycles + beside[queue]
        finish.append(free[queue] + overheads.HANDOVER)
    return np.array(starts, np.int64), max(finish, default=0)


def _room(queue: np.ndarray, starts: np.ndarray, depth: int) -> np.ndarray:
    """When there is room for each task in its queue: once the one `depth` before it has started."""
    room = np.zeros(len(starts), np.int64)
    for unit in range(_QUEUES):
        mine = np.flatnonzero(queue == unit)
        room[mine[depth:]] = starts[mine[:-depth]]
    return room


_AXES = (("y", "y_oy", "oy", "ry", "h"), ("x", "x_ox", "ox", "rx", "w"))


def sequential_forms(words: np.ndarray, n: int) -> np.ndarray:
    """Words of instructions, (count, 8) uint64, for an array of `n` columns.

    Where a VEC reads a vector once for every output, all of them in range, its coordinates are 0, and stay there. Where
    rows of a LOAD are a vector at most, nothing lies behind it.
    """
    made = words.copy()
    _stand(made)
    _shorten(made, n)
    return made


def _stand(words: np.ndarray) -> None:
    code = Code(words)
    rows = np.flatnonzero(code.opcodes == int(Opcode.VEC))
    inside = np.ones(len(rows), bool)
    for names in _AXES:
        first, step, count, window, bound = (code.field(name, Opcode.VEC, rows) for name in names)
        last = first + step * (count - 1)
        low, high = np.minimum(first, last), np.maximum(first, last)
        inside &= (window == 1) & (low >= 0) & (high < np.minimum(bound, 1 << 15))
    _set(words, rows[inside], Opcode.VEC, {"y": 0, "y_oy": 0, "h": 1, "x": 0, "x_ox": 0, "w": 1})


def _shorten(words: np.ndarray, n: int) -> None:
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
        write_field(words, places(Opcode.END)[name], np.array(values, np.int64))
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
    return tasks.ordered(order), np.where(later < 0, -1, inverse_permutation(order)[later])


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
    mine = uses.select((uses.task >= start) & (uses.task < stop))
    mine = dataclasses.replace(mine, task=mine.task - start)
    inside = (mine.task >= own.start) & (mine.task < own.stop)
    found = [conflicts(count, mine.select(chosen)) for chosen in (inside, ~inside)]
    tables = _tables(tasks, start, stop)
    every = Uses(
        *(np.concatenate(pair) for pair in zip(vars(mine).values(), vars(tables).values(), strict=True))
    )
    # What is behind what: the array's operator behind those ahead of it, and those behind it behind it.
    for split, part in ((own.start, every.task < own.stop), (own.stop, every.task >= own.start)):
        found += _behind(count, every.select(part), split)
    return [[cause for cause in row if cause >= 0] for row in np.concatenate(found, axis=1).tolist()]


def _behind(count: int, uses: Uses, split: int) -> list[np.ndarray]:
    """What tasks from number `split` on must wait for of those before, of all queues: columns of tasks, -1 for none.

    Of memory these write other bytes, if in the same rows."""
    second, writes, memory = uses.task >= split, uses.kind & 1 == 1, uses.space >= DRAM
    stored = second & writes & memory
    found = _across(count, uses.select(~stored), split)
    return found + _across(count, uses.select(stored | (memory & ~second & ~writes)), split)


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
