"""The program checker: what the hardware does not check, because the compiler decides all overlap.

A program that passes computes the same whatever the timing of memory and units:

- every field fits and every address lies inside its memory;
- each semaphore has one producer queue and one consumer queue, so that the k-th wait takes the k-th signal; no
  wait is for ever, with instruction queues of the configured depth; no semaphore passes `SEMAPHORE_MAX`;
- any two instructions of different queues that touch the same vector, row or DRAM byte, one of them writing, are
  ordered by semaphores.

Order is tracked with vector clocks over the four queues: a clock holds, for each queue, how many of its instructions
are known to be done. Instructions of a queue start in order and take effect in order, but they may overlap: to start
behind another is not to know that it is done. A signal carries the clock of its instruction's end to the start of the
one that waits.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from weft.hdl.accesses import (
    Cells,
    Dram,
    OnChip,
    ProgramError,
    distinct,
    dram,
    name,
    on_chip,
    pixel_loops,
    queue_of,
    sequence,
    verb,
)
from weft.hdl.config import Config
from weft.hdl.isa import (
    SEMAPHORE_MAX,
    SEMAPHORES,
    End,
    Instruction,
    IsaError,
    Load,
    Mm,
    Queue,
    Reduce,
    Store,
    Vec,
)
from weft.hdl.races import Races

__all__ = ["ProgramError", "check"]

_QUEUES = len(Queue)


def check(
    instructions: Sequence[Instruction], config: Config, *, extents: Mapping[int, int] | None = None
) -> None:
    """Check a whole program, END included.

    Parameters
    ----------
    instructions : sequence of Instruction
        The program in order of fetching.
    config : Config
        The accelerator it is for.
    extents : mapping, optional
        Bytes that each base register may address, by its index; without it offsets are only checked to be within
        32 bits. Different base registers are taken to address different memory.

    Raises
    ------
    ProgramError
        With one sentence that names the first instruction found at fault and the reason.
    """
    _check_end(instructions)
    body = instructions[:-1]
    accesses = []
    for index, instruction in enumerate(body):
        try:
            accesses.append(_check_one(instruction, config, extents))
        except (IsaError, ProgramError) as error:
            raise ProgramError(f"{name(index, instruction)}: {error}") from None
    order = _Order(body, config.queue_depth)
    races = Races(body, config, [access for _, access in accesses])
    for index in order:
        races.visit(index, order.position(index), order.clock(index), *accesses[index])


def _check_end(instructions: Sequence[Instruction]) -> None:
    ends = [index for index, instruction in enumerate(instructions) if isinstance(instruction, End)]
    if not ends:
        raise ProgramError("the program has no END")
    if ends[0] != len(instructions) - 1:
        raise ProgramError(f"instruction {ends[0]} (END) is not the last: {len(instructions)} instructions")
    if instructions[-1].wait or instructions[-1].signal:
        raise ProgramError(f"instruction {ends[0]} (END) has semaphores, but it belongs to no queue")


def _check_one(
    instruction: Instruction, config: Config, extents: Mapping[int, int] | None
) -> tuple[list[OnChip], Dram | None]:
    """Check what one instruction shows by itself; its accesses."""
    instruction.check()
    if isinstance(instruction, Store) and instruction.pixels > 1 and instruction.pitch < instruction.length:
        raise ProgramError(f"'pitch' {instruction.pitch} is less than 'length' {instruction.length}")
    if isinstance(instruction, Load) and not distinct(pixel_loops(instruction, config.n)):
        raise ProgramError("two vectors go to one scratchpad address")
    if isinstance(instruction, Mm) and not distinct(
        ((instruction.oy, instruction.c_oy), (instruction.ox, instruction.c_ox))
    ):
        raise ProgramError("two rows of A in a tile add to one accumulator row")
    if isinstance(instruction, (Mm, Vec)):
        for field in ("h", "w"):
            if getattr(instruction, field) > 1 << 15:
                raise ProgramError(
                    f"{field!r} is {getattr(instruction, field)}, but coordinates end at 32767"
                )
    chip, memory = on_chip(instruction, config), dram(instruction)
    if isinstance(instruction, Vec):
        _check_vec(instruction, config, chip)
    if memory is not None:
        _check_dram(memory, extents)
    return chip, memory


def _check_vec(i: Vec, config: Config, chip: list[OnChip]) -> None:
    if i.reduce not in set(Reduce):
        raise ProgramError(f"'reduce' is {i.reduce}, outside 0 to {max(Reduce)}")
    if i.reduce == Reduce.NONE and (i.ry, i.rx) != (1, 1):
        raise ProgramError(f"'ry' and 'rx' are {i.ry} and {i.rx}, but without a reduction they must be 1")
    if i.b_mantissa >> config.mantissa_bits:
        raise ProgramError(f"'b_mantissa' is {i.b_mantissa}, but mantissas have {config.mantissa_bits} bits")
    if i.low > i.high:
        raise ProgramError(f"'low' {i.low} is above 'high' {i.high}")
    written = _present(chip[-1].cells, config.scratchpad_size)
    for access in chip[:-1]:
        if not access.accumulator and written[access.cells].any():
            _check_in_place(i, access.field)


def _present(cells: Cells, size: int) -> np.ndarray:
    present = np.zeros(size, bool)
    present[cells] = True
    return present


def _check_in_place(i: Vec, field: str) -> None:
    """`Vec` reads and writes the same vectors: legal only if no output overwrites what a later one reads."""
    loops = tuple(zip((i.ob, i.oy, i.ox), (i.dst_ob, i.dst_oy, i.dst_ox), strict=True))
    write = sequence(i.dst, loops)
    if field == "params":
        raise ProgramError("'dst' writes into the parameter block")
    start, strides = (
        (i.b, (i.b_ob, i.b_oy, i.b_ox)) if field == "b" else (i.src, (i.src_ob, i.src_oy, i.src_ox))
    )
    reduction = () if field == "b" else ((i.ry, i.src_ry), (i.rx, i.src_rx))
    read = sequence(start, (*zip((i.ob, i.oy, i.ox), strides, strict=True), *reduction))
    last_read = np.full(1 << 16, -1)
    np.maximum.at(last_read, read, np.repeat(np.arange(write.size), read.size // write.size))
    late = np.flatnonzero(last_read[write] > np.arange(write.size))
    if late.size:
        raise ProgramError(
            f"'dst' writes scratchpad vector {write[late[0]]}, which a later output reads as {field!r}"
        )


def _check_dram(memory: Dram, extents: Mapping[int, int] | None) -> None:
    if extents is None:
        limit = 1 << 32
    elif memory.base in extents:
        limit = extents[memory.base]
    else:
        raise ProgramError(f"base register {memory.base} is not set for this program")
    if memory.low < 0 or memory.high > limit:
        raise ProgramError(
            f"{verb(memory.write)} bytes {memory.low} to {memory.high - 1} of base register {memory.base},"
            f" which has {limit}"
        )


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(SEMAPHORES) if mask >> bit & 1] if mask else []


class _Order:
    """Runs the queues and their semaphores without time; iterating yields indices in a legal order of execution.

    What can run does not depend on the order chosen, as every semaphore and queue has one producer and one consumer:
    if this run does not deadlock, none does.
    """

    def __init__(self, body: Sequence[Instruction], depth: int) -> None:
        self._body = body
        self._depth = depth
        self._position: list[int] = []
        counts = [0] * _QUEUES
        self._signallers: list[list[int]] = [[] for _ in range(SEMAPHORES)]
        self._waiters: list[list[int]] = [[] for _ in range(SEMAPHORES)]
        for index, instruction in enumerate(body):
            queue = queue_of(instruction)
            self._position.append(counts[queue])
            counts[queue] += 1
            for users, mask, role in (
                (self._signallers, instruction.signal, "signalled"),
                (self._waiters, instruction.wait, "waited for"),
            ):
                for semaphore in _bits(mask):
                    self._one_queue(users[semaphore], index, semaphore, role)
        self._starts = [[0] * _QUEUES for _ in range(_QUEUES)]
        self._given: list[list[list[int]]] = [[] for _ in range(SEMAPHORES)]
        self._taken = [0] * SEMAPHORES
        self._clocks: dict[int, list[int]] = {}
        self._wait_positions = [[self._position[index] for index in users] for users in self._waiters]

    def _one_queue(self, users: list[int], index: int, semaphore: int, role: str) -> None:
        instruction = self._body[index]
        if users and queue_of(self._body[users[0]]) != queue_of(instruction):
            other = name(users[0], self._body[users[0]])
            raise ProgramError(
                f"semaphore {semaphore} is {role} by {other} and by {name(index, instruction)}:"
                " it must have one producer queue and one consumer queue"
            )
        users.append(index)

    def position(self, index: int) -> int:
        """Place of an instruction in its queue, from 0."""
        return self._position[index]

    def clock(self, index: int) -> list[int]:
        """For each queue, how many instructions are known to be done when this one starts; valid once yielded."""
        return self._clocks.pop(index)

    def __iter__(self) -> Iterator[int]:
        queues: list[deque[int]] = [deque() for _ in range(_QUEUES)]
        fetched = 0
        while True:
            progress = False
            while fetched < len(self._body):
                queue = queues[queue_of(self._body[fetched])]
                if len(queue) == self._depth:
                    break
                queue.append(fetched)
                fetched += 1
                progress = True
            for queue in queues:
                while queue and self._ready(queue[0]):
                    index = queue.popleft()
                    self._run(index)
                    progress = True
                    yield index
            if not progress:
                break
        if any(queues):
            raise ProgramError(self._deadlock(min(queue[0] for queue in queues if queue), fetched))

    def _ready(self, index: int) -> bool:
        return all(self._taken[s] < len(self._given[s]) for s in _bits(self._body[index].wait))

    def _run(self, index: int) -> None:
        """Move the clocks over one instruction."""
        instruction = self._body[index]
        queue = queue_of(instruction)
        start = self._starts[queue]
        for semaphore in _bits(instruction.wait):
            start = _join(start, self._given[semaphore][self._taken[semaphore]])
            self._taken[semaphore] += 1
        self._starts[queue] = start
        self._clocks[index] = start
        # What earlier instructions of the queue knew is in `start`, as clocks of starts only grow.
        end = list(start)
        end[queue] = self._position[index] + 1
        for semaphore in _bits(instruction.signal):
            self._given[semaphore].append(end)
            self._check_count(semaphore, index, end)

    def _check_count(self, semaphore: int, index: int, end: list[int]) -> None:
        """Refuse a signal before which too few waits are known to have started."""
        given = len(self._given[semaphore])
        if given <= SEMAPHORE_MAX:
            return
        waits = self._wait_positions[semaphore]
        consumer = queue_of(self._body[self._waiters[semaphore][0]]) if waits else 0
        if given - bisect.bisect_left(waits, end[consumer]) > SEMAPHORE_MAX:
            who = name(index, self._body[index])
            raise ProgramError(
                f"{who} may signal semaphore {semaphore} beyond its largest count {SEMAPHORE_MAX}"
            )

    def _deadlock(self, index: int, fetched: int) -> str:
        """Why the earliest instruction that cannot start never will."""
        wait = self._body[index].wait
        semaphore = next(s for s in _bits(wait) if self._taken[s] == len(self._given[s]))
        text = f"deadlock: {name(index, self._body[index])} waits for semaphore {semaphore}, "
        signallers, number = self._signallers[semaphore], self._taken[semaphore]
        if number >= len(signallers):
            return f"{text}which is signalled {len(signallers)} times only"
        cause = signallers[number]
        giver = name(cause, self._body[cause])
        if cause < fetched:
            return f"{text}but {giver}, which signals it, cannot start before"
        return f"{text}but {giver}, which signals it, is not fetched before, as instruction queues hold {self._depth}"


def _join(left: list[int], right: list[int]) -> list[int]:
    return [max(a, b) for a, b in zip(left, right, strict=True)]
