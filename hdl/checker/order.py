"""A legal order of a program's instructions, and what each knows to be done when it starts.

What is known is a vector clock over the four queues: for each, how many of its instructions are known to be done.
Instructions of a queue start in order and take effect in order, but they may overlap: to start behind another is not
to know that it is done. A signal carries the clock of its instruction's end to the start of the one that waits.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from functools import cache

import numpy as np

from weft.hdl.checker.conflicts import DRAM, SPACES, Uses, conflicts
from weft.hdl.checker.extents import Cells, Dram, OnChip, ProgramError, name, verb
from weft.hdl.checker.forms import Forms
from weft.hdl.isa import SEMAPHORE_MAX, SEMAPHORES, Instruction, Queue
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config

_QUEUES = len(Queue)
Clock = tuple[int, ...]


@cache
def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(SEMAPHORES) if mask >> bit & 1)


class Order:
    """Runs the queues of `code`, which has no END, and their semaphores without time.

    What can run does not depend on the order chosen, as every semaphore and queue has one producer and one consumer:
    if this run does not deadlock, none does.

    Attributes
    ----------
    visited : list of int
        The instructions' indices in the order in which this run executed them.
    clocks : list of tuple
        For each of these what it knows when it starts.
    positions : ndarray
        Place of each instruction in its queue, from 0, by index.

    Raises
    ------
    ProgramError
        If a semaphore has two producers or consumers, could pass its largest count, or if there is a deadlock.
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
        self._given: list[list[Clock]] = [[] for _ in range(SEMAPHORES)]
        self._taken = [0] * SEMAPHORES
        self.visited: list[int] = []
        self.clocks: list[Clock] = []
        self._run(queues.tolist(), waits.tolist(), signals.tolist())

    def _check_users(self, queues: np.ndarray) -> None:
        """One producer queue and one consumer queue for each semaphore."""
        wrong = []
        for role, users in (("signalled", self._signallers), ("waited for", self._waiters)):
            for semaphore, rows in enumerate(users):
                others = rows[queues[rows] != queues[rows[0]]] if rows.size else rows
                if others.size:
                    wrong.append((int(others[0]), role, semaphore, int(rows[0])))
        if wrong:
            index, role, semaphore, first = min(wrong)
            raise ProgramError(
                f"semaphore {semaphore} is {role} by {self._name(first)} and by {self._name(index)}:"
                " it must have one producer queue and one consumer queue"
            )

    def _name(self, index: int) -> str:
        return name(index, self._code[index])

    def _run(self, queues: list[int], waits: list[int], signals: list[int]) -> None:
        heads, ends = [0] * _QUEUES, [0] * _QUEUES  # of what is in each queue
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
                        # What earlier instructions of the queue knew is in `start`, as clocks of starts only grow.
                        self._give(index, signals[index], (*start[:queue], head, *start[queue + 1 :]))
                heads[queue], starts[queue] = head, start
            if before == (fetched, len(visited)):
                break
        if len(visited) < count:
            stuck = [
                self._lists[queue][heads[queue]] for queue in range(_QUEUES) if heads[queue] < ends[queue]
            ]
            raise ProgramError(self._deadlock(min(stuck), fetched))

    def _ready(self, wait: int) -> bool:
        return all(self._taken[s] < len(self._given[s]) for s in _bits(wait))

    def _take(self, wait: int, start: Clock) -> Clock:
        for semaphore in _bits(wait):
            start = tuple(map(max, start, self._given[semaphore][self._taken[semaphore]]))
            self._taken[semaphore] += 1
        return start

    def _give(self, index: int, signal: int, end: Clock) -> None:
        for semaphore in _bits(signal):
            given = self._given[semaphore]
            given.append(end)
            if len(given) > SEMAPHORE_MAX:
                self._check_count(semaphore, index, end)

    def _check_count(self, semaphore: int, index: int, end: Clock) -> None:
        """Refuse a signal before which too few waits are known to have started."""
        started = bisect.bisect_left(self._wait_positions[semaphore], end[self._consumers[semaphore]])
        if len(self._given[semaphore]) - started > SEMAPHORE_MAX:
            raise ProgramError(
                f"{self._name(index)} may signal semaphore {semaphore} beyond its largest count {SEMAPHORE_MAX}"
            )

    def _deadlock(self, index: int, fetched: int) -> str:
        """Why the earliest instruction that cannot start never will."""
        wait = self._code[index].wait
        semaphore = next(s for s in _bits(wait) if self._taken[s] == len(self._given[s]))
        text = f"deadlock: {self._name(index)} waits for semaphore {semaphore}, "
        signallers, number = self._signallers[semaphore], self._taken[semaphore]
        if number >= len(signallers):
            return f"{text}which is signalled {len(signallers)} times only"
        cause = int(signallers[number])
        giver = self._name(cause)
        if cause < fetched:
            return f"{text}but {giver}, which signals it, cannot start before"
        return f"{text}but {giver}, which signals it, is not fetched before, as instruction queues hold {self._depth}"


def check_sequence(instructions: Sequence[Instruction]) -> None:
    """Check that every signal that an instruction waits for is of an instruction in front of it.

    `weft.hdl.checker.program.check` finds that some order of a program is right, and that all orders that its
    semaphores allow have the same results. The order in which the program is fetched is one of these exactly if this
    holds.

    Parameters
    ----------
    instructions : sequence of Instruction
        A program without loops, which the sequential core does not have.

    Raises
    ------
    ProgramError
        With one sentence that names the first instruction that comes too early.
    """
    code = Code.of(instructions)
    waits, signals = code.field("wait"), code.field("signal")
    early: list[tuple[int, int]] = []
    for semaphore in range(SEMAPHORES):
        given, taken = signals >> semaphore & 1, waits >> semaphore & 1
        # What is left behind each wait; what an instruction gives comes behind its own wait.
        left = np.cumsum(given) - given - np.cumsum(taken)
        wrong = np.flatnonzero(taken & (left < 0))
        if wrong.size:
            early.append((int(wrong[0]), semaphore))
    if early:
        index, semaphore = min(early)
        raise ProgramError(
            f"{name(index, code[index])} waits for semaphore {semaphore}, which no instruction in front of it has"
            " signalled: the sequential core carries out instructions in the order of the program"
        )


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
