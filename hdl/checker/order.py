"""Order of a program's instructions by vector clocks, and the check for races.

The clock of an instruction's start has for each queue the number of instructions known to be done. Instructions of a
queue start and take effect in order, but they overlap: an instruction that starts after another does not know that it
is done. A signal carries the clock of its instruction's end to the start of the instruction that waits for it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from functools import cache

import numpy as np

from weft.hdl.checker.conflicts import DRAM, SPACES, Uses, conflicts
from weft.hdl.checker.extents import Cells, DramAccess, OnChipAccess, describe, verb
from weft.hdl.checker.forms import Forms
from weft.hdl.errors import ProgramError
from weft.hdl.isa import SEMAPHORE_MAX, SEMAPHORES, Instruction, Queue
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config

_QUEUES = len(Queue)
Clock = tuple[int, ...]


@cache
def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(SEMAPHORES) if mask >> bit & 1)


class Order:
    """Untimed run of the queues and semaphores of `code`, which has no END.

    Every semaphore and queue has one producer and one consumer, so progress does not depend on the chosen order: if
    this run does not deadlock, none does.

    Attributes
    ----------
    visited : list of int
        Indices of the instructions in the order of this run.
    clocks : list of tuple
        Clock of each of these instructions at its start.
    positions : ndarray
        Position of each instruction in its queue, from 0, by index.

    Raises
    ------
    ProgramError
        If a semaphore has several producers or consumers or could exceed its largest count, or for a deadlock.
    """

    def __init__(self, code: Code, depth: int) -> None:
        self._code, self._depth = code, depth
        queues = code.queues
        self.positions = np.zeros(len(code), np.int64)
        self._lists: list[list[int]] = []
        for queue in range(_QUEUES):
            rows = np.flatnonzero(queues == queue)
            self.positions[rows] = np.arange(rows.size)
            self._lists.append(rows.tolist())
        waits, signals = code.field("wait"), code.field("signal")
        self._signallers = [np.flatnonzero(signals >> s & 1) for s in range(SEMAPHORES)]
        self._waiters = [np.flatnonzero(waits >> s & 1) for s in range(SEMAPHORES)]
        self._check_users(queues)
        self._consumers = [int(queues[rows[0]]) if rows.size else 0 for rows in self._waiters]
        self._wait_positions = [self.positions[rows].tolist() for rows in self._waiters]
        self._signal_clocks: list[list[Clock]] = [[] for _ in range(SEMAPHORES)]
        self._wait_counts = [0] * SEMAPHORES
        self.visited: list[int] = []
        self.clocks: list[Clock] = []
        self._run(queues.tolist(), waits.tolist(), signals.tolist())

    def _check_users(self, queues: np.ndarray) -> None:
        """Check that each semaphore has one producer queue and one consumer queue."""
        conflicting = []
        for role, users in (("signalled", self._signallers), ("waited for", self._waiters)):
            for semaphore, rows in enumerate(users):
                others = rows[queues[rows] != queues[rows[0]]] if rows.size else rows
                if others.size:
                    conflicting.append((int(others[0]), role, semaphore, int(rows[0])))
        if conflicting:
            index, role, semaphore, first = min(conflicting)
            raise ProgramError(
                f"semaphore {semaphore} is {role} by {self._describe(first)} and by {self._describe(index)}:"
                " it must have one producer queue and one consumer queue"
            )

    def _describe(self, index: int) -> str:
        return describe(index, self._code[index])

    def _run(self, queues: list[int], waits: list[int], signals: list[int]) -> None:
        # Positions of each queue's oldest instruction and of its end.
        heads, ends = [0] * _QUEUES, [0] * _QUEUES
        starts: list[Clock] = [(0,) * _QUEUES] * _QUEUES
        fetched, count, depth = 0, len(queues), self._depth
        visited, clocks = self.visited, self.clocks
        while True:
            before = fetched, len(visited)
            while fetched < count and ends[queues[fetched]] - heads[queues[fetched]] < depth:
                ends[queues[fetched]] += 1
                fetched += 1
            for queue, indices in enumerate(self._lists):
                head, end, start = heads[queue], ends[queue], starts[queue]
                while head < end:
                    index = indices[head]
                    if waits[index]:
                        if not self._ready(waits[index]):
                            break
                        start = self._take(waits[index], start)
                    visited.append(index)
                    clocks.append(start)
                    head += 1
                    if signals[index]:
                        # `start` includes the clocks of the queue's earlier instructions because it only grows.
                        self._give(index, signals[index], (*start[:queue], head, *start[queue + 1 :]))
                heads[queue], starts[queue] = head, start
            if before == (fetched, len(visited)):
                break
        if len(visited) < count:
            stuck = [
                self._lists[queue][heads[queue]] for queue in range(_QUEUES) if heads[queue] < ends[queue]
            ]
            raise ProgramError(self._describe_deadlock(min(stuck), fetched))

    def _ready(self, wait: int) -> bool:
        return all(self._wait_counts[s] < len(self._signal_clocks[s]) for s in _bits(wait))

    def _take(self, wait: int, start: Clock) -> Clock:
        for semaphore in _bits(wait):
            start = tuple(map(max, start, self._signal_clocks[semaphore][self._wait_counts[semaphore]]))
            self._wait_counts[semaphore] += 1
        return start

    def _give(self, index: int, signal: int, end: Clock) -> None:
        for semaphore in _bits(signal):
            clocks = self._signal_clocks[semaphore]
            clocks.append(end)
            if len(clocks) > SEMAPHORE_MAX:
                self._check_count(semaphore, index, end)

    def _check_count(self, semaphore: int, index: int, end: Clock) -> None:
        """Check that the count stays in range even if only the waits known to have started have taken a signal."""
        started = bisect.bisect_left(self._wait_positions[semaphore], end[self._consumers[semaphore]])
        if len(self._signal_clocks[semaphore]) - started > SEMAPHORE_MAX:
            raise ProgramError(
                f"{self._describe(index)} may signal semaphore {semaphore} beyond its largest count {SEMAPHORE_MAX}"
            )

    def _describe_deadlock(self, index: int, fetched: int) -> str:
        """Return why the instruction, the earliest that cannot start, never starts."""
        wait = self._code[index].wait
        semaphore = next(s for s in _bits(wait) if self._wait_counts[s] == len(self._signal_clocks[s]))
        text = f"deadlock: {self._describe(index)} waits for semaphore {semaphore}, "
        signallers, number = self._signallers[semaphore], self._wait_counts[semaphore]
        if number >= len(signallers):
            return f"{text}which is signalled {len(signallers)} times only"
        cause = int(signallers[number])
        signaller = self._describe(cause)
        if cause < fetched:
            return f"{text}but {signaller}, which signals it, cannot start before"
        text += f"but {signaller}, which signals it, is not fetched before"
        return f"{text}: queues hold {self._depth} instructions"


def check_sequence(instructions: Sequence[Instruction]) -> None:
    """Check that a program runs in program order, as the sequential core executes it.

    Every wait must take a signal of an earlier instruction. `weft.hdl.checker.program.check` proves that all orders
    that semaphores allow have equal results; this check proves that program order is one of them.

    Parameters
    ----------
    instructions : sequence of Instruction
        A straight-line program; the sequential core has no loops.

    Raises
    ------
    ProgramError
        With the first instruction that comes too early.
    """
    code = Code.of(instructions)
    waits, signals = code.field("wait"), code.field("signal")
    early: list[tuple[int, int]] = []
    for semaphore in range(SEMAPHORES):
        signal, wait = signals >> semaphore & 1, waits >> semaphore & 1
        # Count after each instruction's wait and before its own signal.
        level = np.cumsum(signal) - signal - np.cumsum(wait)
        unsatisfied = np.flatnonzero(wait & (level < 0))
        if unsatisfied.size:
            early.append((int(unsatisfied[0]), semaphore))
    if early:
        index, semaphore = min(early)
        raise ProgramError(
            f"{describe(index, code[index])} waits for semaphore {semaphore}, which no earlier instruction has"
            " signalled: the sequential core executes instructions in program order"
        )


_MAX_DRAM_SPAN = 1 << 28
"""Maximum span in bytes of a base register that is both loaded from and stored to: the race tables have an entry per
byte."""


def check_races(code: Code, config: Config, forms: Forms, order: Order) -> None:
    """Check that semaphores order all pairs of instructions that access one address from different queues, at least one
    of them writing.

    A fast check compares all instructions at once, taking the addresses between the first and the last of an operand as
    accessed, and DRAM in units of `weft.hdl.checker.conflicts.GRANULE` bytes. If it finds a race, which may be a false
    alarm, each instruction is compared with all earlier ones, address by address.

    Raises
    ------
    ProgramError
        With the two instructions and the address.
    """
    if _are_ordered(forms, order):
        return
    races = _Races(code, config, forms)
    for index, clock in zip(order.visited, order.clocks, strict=True):
        races.visit(index, int(order.positions[index]), clock, *forms.accesses(index))


def _are_ordered(forms: Forms, order: Order) -> bool:
    """Check that semaphores order all instructions with conflicting address ranges."""
    visited = np.array(order.visited, np.int64)
    _spans(forms.uses)  # raises an error if DRAM is too large for the exact check
    latest = conflicts(len(visited), forms.uses.reorder(visited))
    required = np.where(latest < 0, 0, order.positions[visited[latest]] + 1)
    return not (required > np.array(order.clocks, np.int64).reshape(-1, _QUEUES)).any()


def _spans(uses: Uses) -> dict[int, tuple[int, int]]:
    """Return the first byte and the last + 1 of each base register that is both loaded from and stored to."""
    spans = {}
    for space in np.unique(uses.space[uses.space >= DRAM]).tolist():
        mine = uses.select(np.flatnonzero(uses.space == space))
        if len(np.unique(mine.kind & 1)) == 2:
            low, high = int(mine.start.min()), int(mine.stop.max())
            if high - low > _MAX_DRAM_SPAN:
                raise ProgramError(
                    f"base register {space - DRAM} is loaded from and stored to over {high - low} bytes:"
                    f" more than the {_MAX_DRAM_SPAN} that can be checked"
                )
            spans[space - DRAM] = low, high
    return spans


class _Races:
    """Tables with the last reader and writer of every address from each queue, as position in the queue + 1 (0: none).

    Instructions are visited in a legal order. An instruction after the last access of a queue is also after the earlier
    ones, so the last one suffices.
    """

    def __init__(self, code: Code, config: Config, forms: Forms) -> None:
        self._body = code
        self._owners = code.queues.tolist()
        self._queues = [np.flatnonzero(code.queues == queue) for queue in range(_QUEUES)]
        # Axes: read or write, queue, address.
        self._chip = {memory: np.zeros((2, _QUEUES, memory.size(config)), np.int32) for memory in SPACES}
        # By base register: lowest byte, and table (axes: read or write, byte).
        self._dram = {
            base: (low, np.zeros((2, high - low), np.int32))
            for base, (low, high) in _spans(forms.uses).items()
        }

    def visit(
        self, index: int, position: int, clock: Clock, chip: list[OnChipAccess], memory: list[DramAccess]
    ) -> None:
        """Compare an instruction with all earlier ones, then enter it into the tables."""
        queue = self._owners[index]
        limits = np.array(clock, np.int32)
        limits[queue] = np.iinfo(np.int32).max  # instructions of one queue take effect in order
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
            self._chip[access.memory][int(access.write), queue, access.cells] = position + 1

    def _refuse_chip(self, index: int, access: OnChipAccess, table: np.ndarray, limits: np.ndarray) -> None:
        """Raise the error for an access whose part of the tables has an entry above `limits`."""
        past = int((table[1].max(axis=1) > limits).any())
        other = int(np.argmax(table[past].max(axis=1) > limits))
        cell = int(np.argmax(table[past, other] > limits[other]))
        location = f"{access.memory.value} {_address(access.cells, cell)}"
        self._refuse(index, access.write, location, other, int(table[past, other, cell]), past)

    def _visit_dram(self, index: int, position: int, limits: np.ndarray, memory: DramAccess) -> None:
        # LOADs read and STOREs write DRAM, so a LOAD is compared with STOREs, and a STORE with LOADs.
        low, tables = self._dram[memory.base]
        other = Queue.LOAD if memory.write else Queue.STORE
        past = int(not memory.write)
        cells = memory.cells(tables[past], low)
        if cells.max() > limits[other]:
            late = np.unravel_index(np.argmax(cells > limits[other]), cells.shape)
            location = f"byte {memory.address(late)} of base register {memory.base}"
            self._refuse(index, memory.write, location, other, int(cells[late]), past)
        memory.cells(tables[int(memory.write)], low)[...] = position + 1

    def _refuse(
        self, index: int, write: bool, location: str, queue: int, place: int, past_write: int
    ) -> None:
        other = int(self._queues[queue][place - 1])
        (first, past), (second, now) = sorted([(other, past_write), (index, write)])
        raise ProgramError(
            f"race: {describe(second, self._body[second])} {verb(now)} {location}, which"
            f" {describe(first, self._body[first])} {verb(past)}, and no semaphore orders them"
        )


def _address(cells: Cells, index: int) -> int:
    return cells.start + index if isinstance(cells, slice) else int(cells[index])
