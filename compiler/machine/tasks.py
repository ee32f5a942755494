"""Tasks: instructions with what they touch, before semaphores are assigned; one by one, and as columns of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from weft.hdl.checker.conflicts import ACCUMULATOR, ALIGNMENTS, DRAM, SCRATCHPAD, Uses
from weft.hdl.isa import WORD_BYTES, Instruction, Opcode, places
from weft.hdl.isa.code import Code, pack

Range = tuple[int, int, int]
"""Addresses that a task reads or writes: the space (those of `weft.hdl.checker.conflicts`), the first, one past the
last."""

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
    """

    instruction: Instruction
    reads: Sequence[Range]
    writes: Sequence[Range]
    layer: int
    cycles: int
    dram_bytes: int = 0
    paces: bool = False
    addresses: tuple[int, ...] = ()


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
        """The columns of `tasks`.

        Raises
        ------
        IsaError
            For a value that does not fit its instruction's field.
        """
        given = list(tasks)
        columns = dict(
            zip(Task._fields, zip(*given, strict=True) if given else [()] * len(Task._fields), strict=True)
        )
        words = _words(columns["instruction"], columns["addresses"])
        queue = Code(words).queues.astype(np.int64)
        layer, cycles, dram_bytes = (
            np.array(columns[name], np.int64) for name in ("layer", "cycles", "dram_bytes")
        )
        uses = _uses(columns["reads"], columns["writes"])
        return cls(
            words, queue, layer, cycles, dram_bytes, np.array(columns["paces"], bool),
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


def _words(instructions: Sequence[Instruction], addresses: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The words of `instructions`, with `addresses` in place of their own where there are any."""
    known: dict[int, int] = {}
    form = np.array([known.setdefault(id(item), len(known)) for item in instructions], np.int64)
    distinct = [instructions[index] for index in np.unique(form, return_index=True)[1].tolist()]
    opcodes = np.array([int(item.OPCODE) for item in distinct], np.int64)
    words = np.zeros((len(form), WORD_BYTES // 8), "<u8")
    for opcode in map(Opcode, np.unique(opcodes).tolist()):
        mine = np.flatnonzero(opcodes == int(opcode))
        rows = np.flatnonzero(opcodes[form] == int(opcode))
        read = attrgetter(*places(opcode))
        values = np.array([read(distinct[index]) for index in mine.tolist()], np.int64).T
        source = np.searchsorted(mine, form[rows])
        columns = {name: item[source] for name, item in zip(places(opcode), values, strict=True)}
        names = ADDRESSES.get(opcode, ())
        given = np.array([addresses[index] or (-1,) * len(names) for index in rows.tolist()], np.int64)
        for name, own in zip(names, given.T, strict=True):
            columns[name] = np.where(own < 0, columns[name], own)
        words[rows] = pack(opcode, columns, len(rows))
    return words


def _uses(reads: Sequence[Sequence[Range]], writes: Sequence[Sequence[Range]]) -> Uses:
    """What tasks touch; `kind` only tells writes."""
    rows = [
        (index, written, *item)
        for written, side in enumerate((reads, writes))
        for index, items in enumerate(side)
        for item in items
    ]
    return Uses(*np.array(rows, np.int64).reshape(-1, 5).T)
