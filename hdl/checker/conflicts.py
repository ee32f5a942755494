"""Memory conflicts between tasks, computed for whole programs with arrays.

The bounds of all address ranges divide a memory into pieces, and each range covers whole pieces. So ranges are cut into
pieces, and the accesses of each piece are sorted by task. Tasks are processed in batches; a table with an entry per
address holds the latest accesses of earlier batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from weft.hdl.isa import Instruction, Memory, Operand, Queue

SCRATCHPAD, ACCUMULATOR, ALIGNMENTS, DRAM = range(4)
"""Address spaces. Space ``DRAM + b`` is the memory at base register b, in bytes."""
SPACES = {Memory.SCRATCHPAD: SCRATCHPAD, Memory.ACCUMULATOR: ACCUMULATOR, Memory.ALIGNMENTS: ALIGNMENTS}
"""On-chip memories that more than one queue uses."""
GRANULE = 64
"""DRAM bytes that count as one address. A larger granule is faster and only adds unnecessary conflicts."""

_QUEUES = len(Queue)
# Limits that balance speed against memory:
_BATCH_USES = 1 << 10  # uses in a batch; few uses have few pieces
_BATCH_ADDRESSES = 1 << 17  # batches with fewer addresses together are merged
_MAX_DENSE_SIZE = 1 << 16  # in larger spaces, addresses are numbers of range bounds
_MAX_PIECES = 1 << 21  # pieces in a batch, approximately
_MAX_SPLIT_ADDRESSES = 1 << 22  # above this, strided ranges are not split into addresses


@dataclass(frozen=True)
class Uses:
    """Address ranges that tasks read or write, as int64 arrays with an entry per range.

    Attributes
    ----------
    task : ndarray
        Number of the task.
    kind : ndarray
        2 * queue + 1 for a write, 2 * queue for a read.
    space : ndarray
        Address space.
    start, stop : ndarray
        First address, and last address + 1.
    step : ndarray
        The task accesses at most every `step`-th address from `start` on; 1 in DRAM.
    """

    task: np.ndarray
    kind: np.ndarray
    space: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    step: np.ndarray

    def select(self, chosen: slice | np.ndarray) -> Uses:
        return Uses(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def reorder(self, order: np.ndarray) -> Uses:
        """Renumber tasks: task ``order[i]`` becomes task i."""
        return replace(self, task=inverse_permutation(order)[self.task])


def expand_forms(
    form: np.ndarray, form_rows: Sequence[Sequence[Sequence[int]]], width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the rows of all tasks, where tasks of one form have equal rows.

    Parameters
    ----------
    form : ndarray
        Form of each task.
    form_rows : sequence
        Rows of each form.
    width : int
        Numbers in a row.

    Returns
    -------
    task : ndarray
        Task of each row.
    rows : ndarray
        (count, width) int64.
    """
    counts = np.array([len(rows) for rows in form_rows], np.int64)
    flat = np.array([row for rows in form_rows for row in rows], np.int64).reshape(-1, width)
    task = np.repeat(np.arange(len(form)), counts[form])
    ahead = np.cumsum(counts[form]) - counts[form]
    row = (np.cumsum(counts) - counts)[form][task] + np.arange(len(task)) - ahead[task]
    return task, flat[row]


def space_of(operand: Operand, instruction: Instruction) -> int | None:
    """Return the address space of an operand, or None for memories that only one queue uses."""
    if operand.register is not None:
        return DRAM + int(getattr(instruction, operand.register))
    return SPACES.get(operand.memory)


def inverse_permutation(order: np.ndarray) -> np.ndarray:
    """Return the permutation that undoes `order`."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place


def conflicts(count: int, uses: Uses) -> np.ndarray:
    """Find the tasks that each of `count` tasks must wait for: (count, queues) int64.

    The result has for each task and each other queue the latest earlier task of that queue with a conflict: it wrote
    an address that the task accesses, or read an address that the task writes. -1 stands for none. `uses` may be in any
    order.
    """
    latest = np.full((_QUEUES, count), -1, np.int64)
    for space_uses in _by_space(uses):
        size = int(space_uses.stop.max())
        if size > _MAX_DENSE_SIZE:  # replace addresses by their rank among the bounds
            bounds = np.unique(np.concatenate([space_uses.start, space_uses.stop]))
            start, stop = (np.searchsorted(bounds, item) for item in (space_uses.start, space_uses.stop))
            space_uses, size = replace(space_uses, start=start, stop=stop), len(bounds)
        table: dict[int, np.ndarray] = {}
        batches = list(_batches(space_uses))
        for number, batch in enumerate(batches):
            _process_batch(batch, table, latest, size, more=number + 1 < len(batches))
    return np.ascontiguousarray(latest.T)


def step_of(addresses: np.ndarray) -> int:
    """Return the greatest common divisor of the distances of sorted addresses, at least 1."""
    return int(np.gcd.reduce(np.diff(addresses))) or 1


def _by_space(uses: Uses) -> Iterator[Uses]:
    """Yield the uses of each space where conflicts are possible, in order of tasks, with the lowest address moved to 0.

    Conflicts need a write and more than one queue.
    """
    for space in np.unique(uses.space).tolist():
        mine = uses.select(np.flatnonzero(uses.space == space))
        if not (mine.kind & 1).any() or (mine.kind >> 1 == mine.kind[0] >> 1).all():
            continue
        start, stop = mine.start, mine.stop
        if space >= DRAM:
            start, stop = start // GRANULE, -(-stop // GRANULE)
        nonempty = np.flatnonzero(mine.stop > mine.start)
        if nonempty.size:
            order = nonempty[np.argsort(mine.task[nonempty], kind="stable")]
            low = start[order].min()
            yield _split_strided(
                replace(mine.select(order), start=start[order] - low, stop=stop[order] - low)
            )


def _split_strided(uses: Uses) -> Uses:
    """Split strided ranges into single addresses where this may separate the uses of two queues.

    For example, a depthwise convolution reads one vector of each pixel while a requantisation writes another one.
    """
    chosen = np.zeros(len(uses.task), bool)
    for step in np.unique(uses.step[uses.step > 1]).tolist():
        mine = np.flatnonzero(uses.step == step)
        chosen[mine] = _overlap_other_queues(uses.select(mine))
    counts = np.where(chosen, -(-(uses.stop - uses.start) // uses.step), 1)
    if not chosen.any() or counts.sum() > _MAX_SPLIT_ADDRESSES:
        return uses
    use = np.repeat(np.arange(len(counts)), counts)
    ahead = np.arange(len(use)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = uses.start[use] + ahead * uses.step[use]
    fine = uses.select(use)
    return replace(fine, start=start, stop=np.where(chosen[use], start + 1, fine.stop))


def _overlap_other_queues(uses: Uses) -> np.ndarray:
    """Return a mask of the uses whose range overlaps one of another queue, at least one of them a write."""
    covered = np.zeros((2 * _QUEUES, int(uses.stop.max()) + 1), np.int64)
    np.add.at(covered, (uses.kind, uses.start), 1)
    np.add.at(covered, (uses.kind, uses.stop), -1)
    # Entry [k, a]: number of addresses below a that ranges of kind k cover.
    covered_below = np.pad(np.cumsum(np.cumsum(covered, axis=1) > 0, axis=1), ((0, 0), (1, 0)))
    overlaps = np.zeros(len(uses.task), bool)
    for kind in range(2 * _QUEUES):
        other = (uses.kind >> 1 != kind >> 1) & ((uses.kind | kind) & 1 == 1)
        overlaps |= other & (covered_below[kind, uses.stop] > covered_below[kind, uses.start])
    return overlaps


def _batches(uses: Uses) -> Iterator[Uses]:
    """Yield the uses in batches of about `_MAX_PIECES` pieces at most."""
    widths = uses.stop - uses.start
    todo = _initial_batches(widths)[::-1]
    while todo:
        chosen = todo.pop()
        part = uses.select(chosen)
        if widths[chosen].sum() <= _MAX_PIECES:  # there are no more pieces than addresses
            yield part
            continue
        bounds = np.unique(np.concatenate([part.start, part.stop]))
        pieces = np.searchsorted(bounds, part.stop) - np.searchsorted(bounds, part.start)
        count = chosen.stop - chosen.start
        if pieces.sum() > _MAX_PIECES and count > 256:
            middle = chosen.start + count // 2
            todo += [slice(middle, chosen.stop), slice(chosen.start, middle)]
        else:
            yield part


def _initial_batches(widths: np.ndarray) -> list[slice]:
    """Return batches of `_BATCH_USES` uses, merged while they have few addresses: each batch costs a pass over the
    whole space."""
    batches: list[slice] = []
    total = 0
    for first in range(0, len(widths), _BATCH_USES):
        batch = slice(first, min(first + _BATCH_USES, len(widths)))
        addresses = int(widths[batch].sum())
        if batches and total + addresses <= _BATCH_ADDRESSES:
            batches[-1], total = slice(batches[-1].start, batch.stop), total + addresses
        else:
            batches.append(batch)
            total = addresses
    return batches


def _process_batch(
    uses: Uses, table: dict[int, np.ndarray], latest: np.ndarray, size: int, *, more: bool
) -> None:
    """Update `latest`, (queues, count), with the conflicts of a batch.

    `table` has for each kind the latest task at each of the `size` addresses in earlier batches. If `more` batches
    follow, this one is added to it.
    """
    low, high = int(uses.start.min()), int(uses.stop.max())
    edges = np.zeros(high - low + 1, bool)
    edges[uses.start - low] = edges[uses.stop - low] = True
    bounds, number = np.flatnonzero(edges), np.cumsum(edges) - 1
    first = number[uses.start - low]
    counts = number[uses.stop - low] - first
    use = np.repeat(np.arange(len(counts)), counts)
    # The pieces of a use have consecutive numbers.
    piece = (first - np.cumsum(counts) + counts)[use] + np.arange(len(use))
    # Sort by piece, then by use, with one sort of integers that hold both.
    bits = len(counts).bit_length()
    keys = np.sort(piece << bits | use)
    piece, use = keys >> bits, keys & ((1 << bits) - 1)
    task, kind = uses.task[use], uses.kind[use]
    for earlier_kind in range(2 * _QUEUES):
        mine = kind == earlier_kind
        places, before = np.flatnonzero(mine), table.get(earlier_kind)
        if not places.size and before is None:
            continue
        # Accesses that conflict with one of `earlier_kind`: of another queue, at least one of the two a write.
        others = kind >> 1 != earlier_kind >> 1
        conflicting = np.flatnonzero(others if earlier_kind & 1 else others & (kind & 1 == 1))
        accessed = piece[conflicting]
        earlier = np.full(len(conflicting), -1, np.int64)
        if before is not None:
            # The latest access to any address of the piece.
            earlier = np.maximum.reduceat(before[low:high], bounds[:-1])[accessed]
        if places.size:  # the latest use in this batch counts, else the one of earlier batches
            nearest = np.cumsum(mine)[conflicting] - 1
            ahead = places[np.maximum(nearest, 0)]
            earlier = np.where((nearest >= 0) & (piece[ahead] == accessed), task[ahead], earlier)
        waiting, row = task[conflicting], latest[earlier_kind >> 1]
        later = earlier > row[waiting]
        np.maximum.at(row, waiting[later], earlier[later])
        if more and places.size:
            last = np.full(len(bounds) - 1, -1, np.int64)
            last[piece[places]] = task[places]  # the last assignment of each piece wins
            cell = np.repeat(last, np.diff(bounds))
            # Pieces without a use of this kind keep their entries, which may differ from address to address.
            into = table.setdefault(earlier_kind, np.full(size, -1, np.int64))[low:high]
            np.copyto(into, cell, where=cell >= 0)
