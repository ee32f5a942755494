"""Tasks as early as queues have room for them: products before what is made of others, and LOADs.

The program is simulated with the tasks' own cycles, as if all of it were in the queues: each unit takes its tasks in
order, and each task starts when those that it conflicts with are done. That tells when LOADs can start at the earliest.
Fetch is in order, and stops at an instruction whose queue is full. So instructions of other units come when there is
room for them in their queues, and LOADs in between, each when it can start: this is for memories slower than the bus,
where the time that the bus is idle is lost.
"""

from __future__ import annotations

import numpy as np

from weft.compiler.machine import overheads
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Tasks
from weft.hdl.isa import WORD_BYTES, Queue

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
