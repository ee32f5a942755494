"""Tasks: instructions before semaphores are assigned; one by one, and as columns of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from weft.hdl.checker.conflicts import DRAM, Uses, expand_forms, space_of
from weft.hdl.checker.extents import ADDRESS_WRAP, address_span
from weft.hdl.isa import WORD_BYTES, Instruction, Opcode, places
from weft.hdl.isa.code import Code, pack
from weft.hdl.isa.config import Config

ADDRESSES = {
    Opcode.LOAD: ("offset", "dst"),
    Opcode.STORE: ("offset", "src"),
    Opcode.MM: ("a", "b", "c"),
    Opcode.VEC: ("src", "dst", "params"),
}
"""The fields that `Task.addresses` are for."""


class Task(NamedTuple):
    """One instruction (its semaphores still empty) and the layer it belongs to.

    `dram_bytes` is what crosses the bus for the task, `cycles` its time in its unit without stalls, an estimate. Of a
    layer, the tasks with `paces` set are its compute: what loads are scheduled against.

    `addresses`, if there are any, take the place of what the instruction has in its `ADDRESSES`: tasks that differ in
    nothing else share one instruction, as making instructions takes long.
    """

    instruction: Instruction
    layer: int
    cycles: int
    dram_bytes: int = 0
    paces: bool = False
    addresses: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tasks:
    """Tasks in order: the words of their instructions without semaphores, (count, 8) uint64, and a column each of
    int64 (`paces`: bool) for what `Task` holds besides. `uses` are the addresses that the instructions' operands touch,
    as if each touched all that its step reaches between its first and its last."""

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
    def of(cls, tasks: Iterable[Task], config: Config) -> Tasks:
        """The columns of `tasks`, for a configuration.

        Raises
        ------
        IsaError
            For a value that does not fit its instruction's field.
        """
        given = list(tasks)
        columns = dict(
            zip(Task._fields, zip(*given, strict=True) if given else [()] * len(Task._fields), strict=True)
        )
        known: dict[int, int] = {}
        form = np.array([known.setdefault(id(item), len(known)) for item in columns["instruction"]], np.int64)
        first = np.unique(form, return_index=True)[1].tolist()
        distinct = [columns["instruction"][index] for index in first]
        moved = _moved(columns["addresses"])
        words = _words(form, distinct, moved)
        queue = Code(words).queues.astype(np.int64)
        uses = _uses(form, distinct, moved, config)
        layer, cycles, dram_bytes = (
            np.array(columns[name], np.int64) for name in ("layer", "cycles", "dram_bytes")
        )
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
            self.paces[order], self.uses.reorder(order),
        )  # fmt: skip


def _moved(addresses: Sequence[tuple[int, ...]]) -> np.ndarray:
    """What tasks have in place of their instructions' addresses, (tasks, most) int64; -1 is nothing."""
    most = max(map(len, addresses), default=0)
    rows = [item + (-1,) * (most - len(item)) for item in addresses]
    return np.array(rows, np.int64).reshape(len(rows), most)


def _words(form: np.ndarray, distinct: Sequence[Instruction], moved: np.ndarray) -> np.ndarray:
    """The words of tasks whose instructions are `distinct` ones, with addresses of their own where they have any."""
    opcodes = np.array([int(item.OPCODE) for item in distinct], np.int64)
    words = np.zeros((len(form), WORD_BYTES // 8), "<u8")
    for opcode in map(Opcode, np.unique(opcodes).tolist()):
        mine = np.flatnonzero(opcodes == int(opcode))
        rows = np.flatnonzero(opcodes[form] == int(opcode))
        read = attrgetter(*places(opcode))
        values = np.array([read(distinct[index]) for index in mine.tolist()], np.int64).T
        source = np.searchsorted(mine, form[rows])
        columns = {name: item[source] for name, item in zip(places(opcode), values, strict=True)}
        for name, own in zip(ADDRESSES.get(opcode, ()), moved[rows].T, strict=False):
            columns[name] = np.where(own < 0, columns[name], own)
        words[rows] = pack(opcode, columns, len(rows))
    return words


def _uses(form: np.ndarray, distinct: Sequence[Instruction], moved: np.ndarray, config: Config) -> Uses:
    """What tasks touch; `kind` only tells writes."""
    task, rows = expand_forms(form, [list(_spans(item, config)) for item in distinct], 7)
    write, space, place, first, low, size, step = rows.T
    if moved.shape[1]:
        own = np.where(place < 0, -1, moved[task, np.clip(place, 0, moved.shape[1] - 1)])
        first = np.where((place < moved.shape[1]) & (own >= 0), own, first)
    start = np.where(space < DRAM, (first + low) % ADDRESS_WRAP, first + low)
    return Uses(task, write, space, start, start + size, step)


def _spans(instruction: Instruction, config: Config) -> Iterator[tuple[int, ...]]:
    """Of each operand in a memory that more than one queue uses: whether it is written, the space, the place of its
    first address in `ADDRESSES` or -1, that address, the lowest one and their number relative to it, and their step."""
    places_of = ADDRESSES.get(instruction.OPCODE, ())
    for operand in instruction.OPERANDS:
        if operand.applies(instruction) and (space := space_of(operand, instruction)) is not None:
            low, size, step = address_span(operand, instruction, config)
            place = places_of.index(operand.name) if operand.name in places_of else -1
            if size:
                yield int(operand.write), space, place, operand.first(instruction), low, size, step
