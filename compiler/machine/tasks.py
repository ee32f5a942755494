"""Tasks: instructions before semaphores are assigned, singly and as columns of numbers."""

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
"""Fields that `Task.addresses` replaces."""


class Task(NamedTuple):
    """One instruction, its semaphores still empty, and the layer that it belongs to.

    Attributes
    ----------
    cycles : int
        Estimated cycles in its unit, without stalls.
    dram_bytes : int
        Bytes that cross the bus for the task.
    paces : bool
        Whether it is a compute task, against which loads are scheduled.
    addresses : tuple of int
        Values that replace the instruction's `ADDRESSES`, if not empty. Tasks that differ only in addresses share one
        instruction, because creating instructions is slow.
    """

    instruction: Instruction
    layer: int
    cycles: int
    dram_bytes: int = 0
    paces: bool = False
    addresses: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tasks:
    """Tasks in order, as arrays.

    `words` are the instructions without semaphores, uint64 (count, 8). The other columns are int64 (`paces`: bool),
    as in `Task`. `uses` are the addresses that operands touch, rounded up to all addresses that a step can reach.
    """

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
        """Return the columns of `tasks` for a configuration.

        Raises
        ------
        IsaError
            If a value does not fit its instruction's field.
        """
        task_list = list(tasks)
        columns = dict(
            zip(
                Task._fields,
                zip(*task_list, strict=True) if task_list else [()] * len(Task._fields),
                strict=True,
            )
        )
        # Number the distinct instruction objects: each is encoded once, however many tasks share it.
        known: dict[int, int] = {}
        form = np.array([known.setdefault(id(item), len(known)) for item in columns["instruction"]], np.int64)
        first = np.unique(form, return_index=True)[1].tolist()
        distinct = [columns["instruction"][index] for index in first]
        addresses = _own_addresses(columns["addresses"])
        words = _words(form, distinct, addresses)
        queue = Code(words).queues.astype(np.int64)
        uses = _uses(form, distinct, addresses, config)
        layer, cycles, dram_bytes = (
            np.array(columns[name], np.int64) for name in ("layer", "cycles", "dram_bytes")
        )
        return cls(
            words,
            queue,
            layer,
            cycles,
            dram_bytes,
            np.array(columns["paces"], bool),
            dataclasses.replace(uses, kind=2 * queue[uses.task] + uses.kind),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Tasks]) -> Tasks:
        """Return all tasks of `parts`, one part after the other."""
        ahead = np.cumsum([0, *map(len, parts)]).tolist()
        uses = [
            dataclasses.replace(part.uses, task=part.uses.task + start)
            for part, start in zip(parts, ahead, strict=False)
        ]

        def column(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        return cls(
            column("words"),
            column("queue"),
            column("layer"),
            column("cycles"),
            column("dram_bytes"),
            column("paces"),
            Uses(*(np.concatenate([getattr(use, field.name) for use in uses]) for field in fields(Uses))),
        )

    def reorder(self, order: np.ndarray) -> Tasks:
        """Return the tasks in the order of the indices `order`."""
        return Tasks(
            self.words[order],
            self.queue[order],
            self.layer[order],
            self.cycles[order],
            self.dram_bytes[order],
            self.paces[order],
            self.uses.reorder(order),
        )


def _own_addresses(addresses: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Return the tasks' own addresses, int64 (tasks, most); -1 where a task has none."""
    most = max(map(len, addresses), default=0)
    rows = [item + (-1,) * (most - len(item)) for item in addresses]
    return np.array(rows, np.int64).reshape(len(rows), most)


def _words(form: np.ndarray, distinct: Sequence[Instruction], addresses: np.ndarray) -> np.ndarray:
    """Return the words of tasks: `form` numbers each task's instruction in `distinct`, `moved` has their addresses."""
    opcodes = np.array([int(item.OPCODE) for item in distinct], np.int64)
    words = np.zeros((len(form), WORD_BYTES // 8), "<u8")
    for opcode in map(Opcode, np.unique(opcodes).tolist()):
        mine = np.flatnonzero(opcodes == int(opcode))
        rows = np.flatnonzero(opcodes[form] == int(opcode))
        read = attrgetter(*places(opcode))
        values = np.array([read(distinct[index]) for index in mine.tolist()], np.int64).T
        # Fields of each task from its instruction, then its own addresses on top.
        source = np.searchsorted(mine, form[rows])
        columns = {name: item[source] for name, item in zip(places(opcode), values, strict=True)}
        for name, own in zip(ADDRESSES.get(opcode, ()), addresses[rows].T, strict=False):
            columns[name] = np.where(own < 0, columns[name], own)
        words[rows] = pack(opcode, columns, len(rows))
    return words


def _uses(form: np.ndarray, distinct: Sequence[Instruction], addresses: np.ndarray, config: Config) -> Uses:
    """Return the addresses that tasks touch; `kind` says only whether it is a write."""
    task, rows = expand_forms(form, [list(_spans(item, config)) for item in distinct], 7)
    write, space, place, first, low, size, step = rows.T
    if addresses.shape[1]:
        own = np.where(place < 0, -1, addresses[task, np.clip(place, 0, addresses.shape[1] - 1)])
        first = np.where((place < addresses.shape[1]) & (own >= 0), own, first)
    # On-chip addresses wrap, DRAM offsets do not.
    start = np.where(space < DRAM, (first + low) % ADDRESS_WRAP, first + low)
    return Uses(task, write, space, start, start + size, step)


def _spans(instruction: Instruction, config: Config) -> Iterator[tuple[int, ...]]:
    """Yield the use of each operand in a memory that several queues share.

    A use is (is written, space, index of its first address in `ADDRESSES` or -1, that address, offset of the lowest
    address, number of addresses, step).
    """
    places_of = ADDRESSES.get(instruction.OPCODE, ())
    for operand in instruction.OPERANDS:
        if operand.applies(instruction) and (space := space_of(operand, instruction)) is not None:
            low, size, step = address_span(operand, instruction, config)
            place = places_of.index(operand.name) if operand.name in places_of else -1
            if size:
                yield int(operand.write), space, place, operand.first(instruction), low, size, step
