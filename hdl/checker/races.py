"""Accesses of different queues to the same address that no semaphore orders."""

from __future__ import annotations

import numpy as np

from weft.hdl.checker.accesses import Cells, Dram, OnChip, ProgramError, name, verb
from weft.hdl.checker.conflicts import DRAM, SPACES, Uses, conflicts
from weft.hdl.checker.forms import Forms
from weft.hdl.checker.order import Clock, Order
from weft.hdl.isa import Queue
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config

_QUEUES = len(Queue)
_DRAM_SPAN = 1 << 28
"""Bytes that one base register may span if it is both loaded from and stored to: the tables have an entry a byte."""


def check_races(code: Code, config: Config, forms: Forms, order: Order) -> None:
    """Raises `ProgramError` for two instructions of different queues that touch the same address, one of them writing,
    if no semaphore orders them.

    All instructions are compared at once as if they touched all between the first and the last of their addresses,
    DRAM in steps of `weft.hdl.checker.conflicts.GRANULE` bytes. If that finds a race, it need not be one: each
    instruction is then compared with those before it, address by address.
    """
    if _ordered(forms, order):
        return
    races = _Races(code, config, forms)
    for index, clock in zip(order.visited, order.clocks, strict=True):
        races.visit(index, int(order.positions[index]), clock, *forms.accesses(index))


def _ordered(forms: Forms, order: Order) -> bool:
    """Whether semaphores order all instructions whose ranges of addresses meet."""
    visited = np.array(order.visited, np.int64)
    _spans(forms.uses)
    latest = conflicts(len(visited), forms.uses.ordered(visited))
    done = np.where(latest < 0, 0, order.positions[visited[latest]] + 1)
    return not (done > np.array(order.clocks, np.int64).reshape(-1, _QUEUES)).any()


def _spans(uses: Uses) -> dict[int, tuple[int, int]]:
    """First byte and one past the last of base registers that are loaded from and stored to."""
    found = {}
    for space in np.unique(uses.space[uses.space >= DRAM]).tolist():
        mine = uses.part(np.flatnonzero(uses.space == space))
        if len(np.unique(mine.kind & 1)) == 2:
            low, high = int(mine.start.min()), int(mine.stop.max())
            if high - low > _DRAM_SPAN:
                raise ProgramError(
                    f"base register {space - DRAM} is loaded from and stored to over {high - low} bytes:"
                    f" more than the {_DRAM_SPAN} that can be checked"
                )
            found[space - DRAM] = low, high
    return found


class _Races:
    """For every address, place in its queue (from 1; 0: none) of the last reader and writer from each queue.

    Instructions are visited in a legal order, and those of a queue in their order, so the last one stands for all.
    """

    def __init__(self, code: Code, config: Config, forms: Forms) -> None:
        self._body = code
        self._owners = code.queues.tolist()
        self._queues = [np.flatnonzero(code.queues == queue) for queue in range(_QUEUES)]
        # Axes: read or write, queue, address.
        self._chip = {memory: np.zeros((2, _QUEUES, memory.size(config)), np.int32) for memory in SPACES}
        # For base registers that are loaded from and stored to: lowest byte, and tables (read or write, byte).
        self._dram = {
            base: (low, np.zeros((2, high - low), np.int32))
            for base, (low, high) in _spans(forms.uses).items()
        }

    def visit(self, index: int, position: int, clock: Clock, chip: list[OnChip], memory: list[Dram]) -> None:
        """Compare an instruction with all visited before, then enter it into the tables."""
        own = self._owners[index]
        limits = np.array(clock, np.int32)
        limits[own] = np.iinfo(np.int32).max
        shared = [access for access in chip if access.memory in self._chip]
        for access in shared:
            table = self._chip[access.memory][:, :, access.cells]
            latest = np.maximum.reduce(table if access.write else table[1], axis=-1, initial=0)
            if (latest > limits).any():
                self._refuse_chip(index, access, table, limits)
        for run in memory:
            if run.base in self._dram:
                self._visit_dram(index, position, limits, run)
        for access in shared:
            self._chip[access.memory][int(access.write), own, access.cells] = position + 1

    def _refuse_chip(self, index: int, access: OnChip, table: np.ndarray, limits: np.ndarray) -> None:
        """`table` has what was done to the cells of `access` that comes too late for some queue."""
        past = int((table[1].max(axis=1) > limits).any())
        other = int(np.argmax(table[past].max(axis=1) > limits))
        cell = int(np.argmax(table[past, other] > limits[other]))
        where = f"{access.memory.value} {_address(access.cells, cell)}"
        self._refuse(index, access.write, where, other, int(table[past, other, cell]), past)

    def _visit_dram(self, index: int, position: int, limits: np.ndarray, memory: Dram) -> None:
        """LOADs read and STOREs write, so a LOAD only meets STOREs before it, and a STORE only LOADs."""
        low, tables = self._dram[memory.base]
        other = Queue.LOAD if memory.write else Queue.STORE
        past = int(not memory.write)
        cells = memory.cells(tables[past], low)
        if cells.max() > limits[other]:
            late = np.unravel_index(np.argmax(cells > limits[other]), cells.shape)
            where = f"byte {memory.address(late)} of base register {memory.base}"
            self._refuse(index, memory.write, where, other, int(cells[late]), past)
        memory.cells(tables[int(memory.write)], low)[...] = position + 1

    def _refuse(self, index: int, write: bool, where: str, queue: int, place: int, past_write: int) -> None:
        other = int(self._queues[queue][place - 1])
        (first, past), (second, now) = sorted([(other, past_write), (index, write)])
        raise ProgramError(
            f"race: {name(second, self._body[second])} {verb(now)} {where}, which {name(first, self._body[first])}"
            f" {verb(past)}, and no semaphore orders them"
        )


def _address(cells: Cells, index: int) -> int:
    return cells.start + index if isinstance(cells, slice) else int(cells[index])
