"""Which earlier tasks a task has to wait for: for whole programs at once, as columns of numbers.

Addresses between any two neighbouring bounds of ranges are touched alike. So ranges are cut at all bounds of a stretch
of tasks, and of each piece the tasks that touch it follow one another; what stretches before did to it is kept in a
table of all addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.tasks import Task
from weft.hdl.isa import Queue

GRANULE = 64
"""DRAM bytes that count as one address; coarser only orders more than necessary."""

_QUEUES = len(Queue)
_STRETCH = 1 << 14  # tasks at a time
_PIECES = 1 << 21  # and parts of their ranges, about


@dataclass(frozen=True)
class _Uses:
    """Ranges of one space in order of their tasks: an array each; `kind` is 2 * queue + whether it is written."""

    task: np.ndarray
    kind: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    def part(self, chosen: slice) -> _Uses:
        return _Uses(self.task[chosen], self.kind[chosen], self.start[chosen], self.stop[chosen])


def conflicts(tasks: Sequence[Task]) -> np.ndarray:
    """For every task and queue the latest earlier task of that queue, if it is another, that must be done before the
    task may start: it wrote what the task touches, or read what the task writes. (tasks, queues) int64; -1 for none.
    """
    latest = np.full((len(tasks), _QUEUES), -1, np.int64)
    for uses in _by_space(tasks):
        table = np.full((2 * _QUEUES, int(uses.stop.max())), -1, np.int64)
        for part in _stretches(uses):
            _visit(part, table, latest)
    return latest


def _by_space(tasks: Sequence[Task]) -> Iterator[_Uses]:
    """Uses of each space in which any can conflict: it is written, and more than one queue uses it."""
    columns: dict[str, list[tuple[int, int, int, int]]] = {}
    for index, task in enumerate(tasks):
        kind = 2 * int(task.queue)
        for written, items in enumerate((task.reads, task.writes)):
            for space, start, stop in items:
                column = columns.get(space)
                if column is None:
                    column = columns[space] = []
                column.append((index, kind + written, start, stop))
    for space, column in columns.items():
        task, kinds, start, stop = np.array(column, np.int64).T
        if not (kinds & 1).any() or (kinds >> 1 == kinds[0] >> 1).all():
            continue
        if space.startswith("dram"):
            start, stop = start // GRANULE, -(-stop // GRANULE)
        some = stop > start
        yield _Uses(task[some], kinds[some], start[some], stop[some])


def _stretches(uses: _Uses) -> Iterator[_Uses]:
    """The uses in parts whose ranges have not too many pieces."""
    todo = [slice(at, min(at + _STRETCH, len(uses.task))) for at in range(0, len(uses.task), _STRETCH)][::-1]
    while todo:
        chosen = todo.pop()
        part = uses.part(chosen)
        bounds = np.unique(np.concatenate([part.start, part.stop]))
        pieces = np.searchsorted(bounds, part.stop) - np.searchsorted(bounds, part.start)
        count = chosen.stop - chosen.start
        if pieces.sum() > _PIECES and count > 256:
            middle = chosen.start + count // 2
            todo += [slice(middle, chosen.stop), slice(chosen.start, middle)]
        else:
            yield part


def _visit(uses: _Uses, table: np.ndarray, latest: np.ndarray) -> None:
    """Raise `latest` by what is in `table` and by the uses before each, and enter these into the table."""
    bounds = np.unique(np.concatenate([uses.start, uses.stop]))
    first = np.searchsorted(bounds, uses.start)
    counts = np.searchsorted(bounds, uses.stop) - first
    starts = np.cumsum(counts) - counts
    use = np.repeat(np.arange(len(counts)), counts)
    piece = first[use] + np.arange(len(use)) - starts[use]
    order = np.argsort(piece, kind="stable")
    piece, use = piece[order], use[order]
    task, kind = uses.task[use], uses.kind[use]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    ends = np.flatnonzero(np.append(piece[1:] != piece[:-1], True))
    begins = np.append(0, ends[:-1] + 1)
    step = int(task.max()) + 2
    lift = piece * step  # so that a running maximum starts anew with every piece
    area = slice(int(bounds[0]), int(bounds[-1]))
    cells = bounds[:-1] - bounds[0]
    for known in range(2 * _QUEUES):
        mine = kind == known
        past = np.maximum.reduceat(table[known, area], cells)
        if not mine.any() and past.max(initial=-1) < 0:
            continue
        # The latest use of this kind up to here, or before this stretch.
        value = np.where(mine, task, -1)
        value[begins] = np.maximum(value[begins], past[piece[begins]])
        upto = np.maximum.accumulate(value + lift) - lift
        bound = (kind >> 1 != known >> 1) & ((kind & 1 == 1) | (known & 1 == 1))
        found = np.maximum.reduceat(np.where(bound, upto, -1)[back], starts)
        np.maximum.at(latest[:, known >> 1], uses.task, found)
        last = past.copy()
        last[piece[ends]] = upto[ends]
        table[known, area] = np.repeat(last, np.diff(bounds))
