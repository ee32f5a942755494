"""Tasks: instructions with what they touch, before semaphores are assigned; one by one, and as columns of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from weft.hdl.code import Code, pack
from weft.hdl.conflicts import ACCUMULATOR, ALIGNMENTS, DRAM, SCRATCHPAD, Uses
from weft.hdl.isa import WORD_BYTES, Instruction, Opcode, places

Range = tuple[int, int, int]
"""Addresses that a task reads or writes: the space (those of `weft.hdl.conflicts`), the first, one past the last."""

ADDRESSES = {
    Opcode.LOAD: ("offset", "dst"),
    Opcode.STORE: ("offset", "src"),
    Opcode.MM: ("a", "b", "c"),
    Opcode.VEC: ("src", "dst", "params"),
}
"""The fields that `Task.addresses` are for."""


class Task(NamedTuple):
    """One instruction (its semaphores still empty), the ranges it touches and the layer it belongs to.

    Ranges may be larger than what is touched, never smaller. `dram_bytes` is what crosses the bus for the task,
    `cycles` its time in its unit without stalls, an estimate. Of a layer, the tasks with `paces` set are its
    compute: what loads are scheduled against.

    `addresses`, if there are any, take the place of what the instruction has in its `ADDRESSES`: tasks that differ in
    nothing else share one instruction, as making instructions takes long.

    A LOAD or STORE may stand for several, `times`, one behind the other: each has its place in DRAM `dram_step` bytes
    further than the one before, and that in the scratchpad `vector_step` vectors further.
    """

    instruction: Instruction
    reads: Sequence[Range]
    writes: Sequence[Range]
    layer: int
    cycles: int
    dram_bytes: int = 0
    paces: bool = False
    addresses: tuple[int, ...] = ()
    times: int = 1
    dram_step: int = 0
    vector_step: int = 0


def scratchpad(start: int, size: int) -> Range:
    return SCRATCHPAD, start, start + size


def accumulator(start: int, size: int) -> Range:
    return ACCUMULATOR, start, start + size


def alignment_entries(start: int, size: int) -> Range:
    return ALIGNMENTS, start, start + size


def dram(base: int, start: int, size: int) -> Range:
    return DRAM + base, start, start + size


@dataclass(frozen=True)
class Tasks:
    """Tasks in order: the words of their instructions without semaphores, (count, 8) uint64, and a column each of
    int64 (`paces`: bool) for what `Task` holds besides."""

    words: np.ndarray
    queue: np.ndarray
    layer: np.ndarray
    cycles: np.ndarray
    dram_bytes: np.ndarray
    paces: np.ndarray
    uses: Uses

    def __len__(self) -> int:
        return len(self.queue)

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Tasks:
        """The columns of `tasks`, each as often as it says.

        Raises
        ------
        IsaError
            For a value that does not fit its instruction's field.
        """
        given = list(tasks)
        columns = dict(
            zip(Task._fields, zip(*given, strict=True) if given else [()] * len(Task._fields), strict=True)
        )
        times = np.array(columns["times"], np.int64)
        whose = np.repeat(np.arange(len(given)), times)
        first = np.cumsum(times) - times
        turn = np.arange(len(whose)) - first[whose]
        steps = np.array([columns["dram_step"], columns["vector_step"]], np.int64)
        words = _words(columns["instruction"], columns["addresses"], whose, turn * steps[:, whose])
        queue = Code(words).queues.astype(np.int64)
        layer, cycles, dram_bytes = (
            np.array(columns[name], np.int64) for name in ("layer", "cycles", "dram_bytes")
        )
        uses = _uses(columns["reads"], columns["writes"], times, steps)
        return cls(
            words, queue, layer[whose], cycles[whose], dram_bytes[whose], np.array(columns["paces"], bool)[whose],
            dataclasses.replace(uses, kind=2 * queue[uses.task] + uses.kind),
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence[Tasks]) -> Tasks:
        """Several one behind the other."""
        ahead = np.cumsum([0, *map(len, parts)]).tolist()
        moved = [
            dataclasses.replace(part.uses, task=part.uses.task + start)
            for part, start in zip(parts, ahead, strict=False)
        ]

        def column(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        return cls(
            column("words"), column("queue"), column("layer"), column("cycles"), column("dram_bytes"), column("paces"),
            Uses(*(np.concatenate([getattr(use, field.name) for use in moved]) for field in fields(Uses))),
        )  # fmt: skip

    def ordered(self, order: np.ndarray) -> Tasks:
        """The same tasks in another order: `order` has their numbers."""
        return Tasks(
            self.words[order], self.queue[order], self.layer[order], self.cycles[order], self.dram_bytes[order],
            self.paces[order], self.uses.ordered(order),
        )  # fmt: skip


def _words(
    instructions: Sequence[Instruction],
    addresses: Sequence[tuple[int, ...]],
    whose: np.ndarray,
    moved: np.ndarray,
) -> np.ndarray:
    """The words of tasks: task i has ``instructions[whose[i]]`` with the addresses at the same place, moved by
    ``moved[:, i]`` DRAM bytes and vectors."""
    known: dict[int, int] = {}
    form = np.array([known.setdefault(id(item), len(known)) for item in instructions], np.int64)
    distinct = [instructions[index] for index in np.unique(form, return_index=True)[1].tolist()]
    opcodes = np.array([int(item.OPCODE) for item in distinct], np.int64)
    words = np.zeros((len(whose), WORD_BYTES // 8), "<u8")
    for opcode in map(Opcode, np.unique(opcodes).tolist()):
        mine = np.flatnonzero(opcodes == int(opcode))
        owners = np.flatnonzero(opcodes[form] == int(opcode))
        rows = np.flatnonzero(opcodes[form[whose]] == int(opcode))
        read = attrgetter(*places(opcode))
        values = np.array([read(distinct[index]) for index in mine.tolist()], np.int64).T
        source = np.searchsorted(mine, form[whose[rows]])
        columns = {name: item[source] for name, item in zip(places(opcode), values, strict=True)}
        names = ADDRESSES.get(opcode, ())
        given = [addresses[index] or (-1,) * len(names) for index in owners.tolist()]
        at = np.array(given, np.int64).T[:, np.searchsorted(owners, whose[rows])]
        for name, own in zip(names, at, strict=True):
            columns[name] = np.where(own < 0, columns[name], own)
        if opcode in (Opcode.LOAD, Opcode.STORE):
            for name, further in zip(names, moved[:, rows], strict=True):
                columns[name] = columns[name] + further
        words[rows] = pack(opcode, columns, len(rows))
    return words


def _uses(
    reads: Sequence[Sequence[Range]], writes: Sequence[Sequence[Range]], times: np.ndarray, steps: np.ndarray
) -> Uses:
    """What tasks touch, each as often as `times` says and moved by `steps`, (2, count); `kind` only tells writes."""
    rows = [
        (index, written, *item)
        for written, side in enumerate((reads, writes))
        for index, items in enumerate(side)
        for item in items
    ]
    flat = np.array(rows, np.int64).reshape(-1, 5)
    repeats = times[flat[:, 0]]
    turn = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    source, written, space, start, stop = np.repeat(flat, repeats, axis=0).T
    moved = turn * np.where(
        space >= DRAM, steps[0, source], np.where(space == SCRATCHPAD, steps[1, source], 0)
    )
    return Uses((np.cumsum(times) - times)[source] + turn, written, space, start + moved, stop + moved)
