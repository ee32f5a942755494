"""Which earlier tasks a task has to wait for: for whole programs at once, as columns of numbers.

Addresses between any two neighbouring bounds of ranges are touched alike. So ranges are cut at all bounds of a stretch
of tasks, and of each piece the tasks that touch it follow one another; what stretches before did to it is kept in a
table of all addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from weft.hdl.isa import Instruction, Memory, Operand, Queue

SCRATCHPAD, ACCUMULATOR, ALIGNMENTS, DRAM = range(4)
"""Spaces of addresses; what is behind base register b is space ``DRAM + b``, in bytes."""
SPACES = {Memory.SCRATCHPAD: SCRATCHPAD, Memory.ACCUMULATOR: ACCUMULATOR, Memory.ALIGNMENTS: ALIGNMENTS}
"""Memories on the chip that more than one queue uses."""
GRANULE = 64
"""DRAM bytes that count as one address; coarser only orders more than necessary."""

_QUEUES = len(Queue)
_STRETCH = 1 << 10  # uses at a time: of few, ranges have few pieces
_NARROW = 1 << 17  # or more of them, of so many addresses together
_DENSE = 1 << 16  # addresses of a space above which only bounds of ranges count
_PIECES = 1 << 21  # and parts of their ranges, about
_ADDRESSES = 1 << 22  # at which ranges of a space are taken as a whole


@dataclass(frozen=True)
class Uses:
    """Ranges of addresses that tasks read or write, a column each, int64: the task's number, 2 * its queue + whether it
    writes, the space, first address, one past the last, and which of these it touches at most: from the first on every
    `step`-th. In DRAM all steps are 1."""

    task: np.ndarray
    kind: np.ndarray
    space: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    step: np.ndarray

    def part(self, chosen: slice | np.ndarray) -> Uses:
        return Uses(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def ordered(self, order: np.ndarray) -> Uses:
        """The same of tasks in another order: `order` has their numbers."""
        return replace(self, task=inverse(order)[self.task])


def of_forms(
    form: np.ndarray, known: Sequence[Sequence[Sequence[int]]], width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers for tasks, one task behind the other, from those of their forms.

    `form` has the form of each task, and `known` the rows of `width` numbers of each form. The result is the task of
    each row, and the rows, (count, width) int64.
    """
    counts = np.array([len(rows) for rows in known], np.int64)
    flat = np.array([row for rows in known for row in rows], np.int64).reshape(-1, width)
    task = np.repeat(np.arange(len(form)), counts[form])
    ahead = np.cumsum(counts[form]) - counts[form]
    row = (np.cumsum(counts) - counts)[form][task] + np.arange(len(task)) - ahead[task]
    return task, flat[row]


def space_of(operand: Operand, instruction: Instruction) -> int | None:
    """The space that an operand lies in; None for memories that only one queue uses."""
    if operand.register is not None:
        return DRAM + int(getattr(instruction, operand.register))
    return SPACES.get(operand.memory)


def inverse(order: np.ndarray) -> np.ndarray:
    """The permutation that undoes `order`."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place


def conflicts(count: int, uses: Uses) -> np.ndarray:
    """For each of `count` tasks and every queue the latest earlier task of that queue, if it is another, that must be
    done before the task may start: it wrote what the task touches, or read what the task writes. (count, queues)
    int64; -1 for none. Uses may come in any order.
    """
    latest = np.full((_QUEUES, count), -1, np.int64)
    for mine in _by_space(uses):
        size = int(mine.stop.max())
        if size > _DENSE:
            bounds = np.unique(np.concatenate([mine.start, mine.stop]))
            start, stop = (np.searchsorted(bounds, item) for item in (mine.start, mine.stop))
            mine, size = replace(mine, start=start, stop=stop), len(bounds)
        table: dict[int, np.ndarray] = {}
        stretches = list(_stretches(mine))
        for number, part in enumerate(stretches):
            _visit(part, table, latest, size, more=number + 1 < len(stretches))
    return np.ascontiguousarray(latest.T)


def step_of(addresses: np.ndarray) -> int:
    """The largest step at which some addresses, sorted, follow the first one."""
    return int(np.gcd.reduce(np.diff(addresses))) or 1


def _by_space(uses: Uses) -> Iterator[Uses]:
    """Uses of each space in which any can conflict, in order of their tasks, from address 0 on: it is written, and
    more than one queue uses it."""
    for space in np.unique(uses.space).tolist():
        mine = uses.part(np.flatnonzero(uses.space == space))
        if not (mine.kind & 1).any() or (mine.kind >> 1 == mine.kind[0] >> 1).all():
            continue
        start, stop = mine.start, mine.stop
        if space >= DRAM:
            start, stop = start // GRANULE, -(-stop // GRANULE)
        some = np.flatnonzero(mine.stop > mine.start)
        if some.size:
            some = some[np.argsort(mine.task[some], kind="stable")]
            low = start[some].min()
            yield _apart(replace(mine.part(some), start=start[some] - low, stop=stop[some] - low))


def _apart(uses: Uses) -> Uses:
    """The same, address by address where this may tell uses of two queues apart: where both have the same step, as a
    depthwise convolution reads one of the vectors of each pixel, and the requantisation ahead of it writes another."""
    chosen = np.zeros(len(uses.task), bool)
    for step in np.unique(uses.step[uses.step > 1]).tolist():
        mine = np.flatnonzero(uses.step == step)
        chosen[mine] = _meets(uses.part(mine))
    counts = np.where(chosen, -(-(uses.stop - uses.start) // uses.step), 1)
    if not chosen.any() or counts.sum() > _ADDRESSES:
        return uses
    use = np.repeat(np.arange(len(counts)), counts)
    ahead = np.arange(len(use)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = uses.start[use] + ahead * uses.step[use]
    fine = uses.part(use)
    return replace(fine, start=start, stop=np.where(chosen[use], start + 1, fine.stop))


def _meets(uses: Uses) -> np.ndarray:
    """Of each use whether the range of one of another queue meets its own, one of them writing: (count,) bool."""
    covered = np.zeros((2 * _QUEUES, int(uses.stop.max()) + 1), np.int64)
    np.add.at(covered, (uses.kind, uses.start), 1)
    np.add.at(covered, (uses.kind, uses.stop), -1)
    upto = np.pad(np.cumsum(np.cumsum(covered, axis=1) > 0, axis=1), ((0, 0), (1, 0)))
    found = np.zeros(len(uses.task), bool)
    for kind in range(2 * _QUEUES):
        other = (uses.kind >> 1 != kind >> 1) & ((uses.kind | kind) & 1 == 1)
        found |= other & (upto[kind, uses.stop] > upto[kind, uses.start])
    return found


def _stretches(uses: Uses) -> Iterator[Uses]:
    """The uses in parts whose ranges have not too many pieces."""
    widths = uses.stop - uses.start
    todo = _cut(widths)[::-1]
    while todo:
        chosen = todo.pop()
        part = uses.part(chosen)
        if widths[chosen].sum() <= _PIECES:  # no more pieces than addresses
            yield part
            continue
        bounds = np.unique(np.concatenate([part.start, part.stop]))
        pieces = np.searchsorted(bounds, part.stop) - np.searchsorted(bounds, part.start)
        count = chosen.stop - chosen.start
        if pieces.sum() > _PIECES and count > 256:
            middle = chosen.start + count // 2
            todo += [slice(middle, chosen.stop), slice(chosen.start, middle)]
        else:
            yield part


def _cut(widths: np.ndarray) -> list[slice]:
    """Parts of `_STRETCH` uses, or as many of these together as have few addresses: what is done for all addresses of a
    space is done once for each part."""
    found: list[slice] = []
    total = 0
    for at in range(0, len(widths), _STRETCH):
        part = slice(at, min(at + _STRETCH, len(widths)))
        addresses = int(widths[part].sum())
        if found and total + addresses <= _NARROW:
            found[-1], total = slice(found[-1].start, part.stop), total + addresses
        else:
            found.append(part)
            total = addresses
    return found


def _visit(uses: Uses, table: dict[int, np.ndarray], latest: np.ndarray, size: int, *, more: bool) -> None:
    """Raise `latest`, (queues, count), by what is in `table` and by the uses before each; if there is `more` to come,
    enter these into the table: for each kind the latest task at each of the `size` addresses."""
    low, high = int(uses.start.min()), int(uses.stop.max())
    edges = np.zeros(high - low + 1, bool)
    edges[uses.start - low] = edges[uses.stop - low] = True
    bounds, number = np.flatnonzero(edges), np.cumsum(edges) - 1
    first = number[uses.start - low]
    counts = number[uses.stop - low] - first
    use = np.repeat(np.arange(len(counts)), counts)
    piece = (first - np.cumsum(counts) + counts)[use] + np.arange(len(use))
    # By piece, and those of a piece as they follow one another: the order of numbers that hold both.
    bits = len(counts).bit_length()
    both = np.sort(piece << bits | use)
    piece, use = both >> bits, both & ((1 << bits) - 1)
    task, kind = uses.task[use], uses.kind[use]
    for known in range(2 * _QUEUES):
        mine = kind == known
        places, before = np.flatnonzero(mine), table.get(known)
        if not places.size and before is None:
            continue
        others = kind >> 1 != known >> 1
        bound = np.flatnonzero(others if known & 1 else others & (kind & 1 == 1))
        where = piece[bound]
        found = np.full(len(bound), -1, np.int64)
        if before is not None:
            found = np.maximum.reduceat(before[low:high], bounds[:-1])[where]
        if places.size:  # the latest use of this kind up to here, or before this stretch
            nearest = np.cumsum(mine)[bound] - 1
            ahead = places[np.maximum(nearest, 0)]
            found = np.where((nearest >= 0) & (piece[ahead] == where), task[ahead], found)
        waiting, row = task[bound], latest[known >> 1]
        later = found > row[waiting]
        np.maximum.at(row, waiting[later], found[later])
        if more and places.size:
            last = np.full(len(bounds) - 1, -1, np.int64)
            last[piece[places]] = task[places]  # the last one of each piece
            cell = np.repeat(last, np.diff(bounds))
            # Of a piece that nothing of this kind touches now, some addresses may have been touched before, some not.
            into = table.setdefault(known, np.full(size, -1, np.int64))[low:high]
            np.copyto(into, cell, where=cell >= 0)
