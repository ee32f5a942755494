"""Checks of programs with loops, by unrolling them to straight-line programs.

Iteration counts are known only at run time. The checker unrolls loops with a few counts and checks the resulting
straight-line programs. They stand for all counts because on-chip addresses do not depend on registers, so that all
iterations of a loop are alike:

- An iteration signals and waits for each semaphore equally often, so every iteration starts with equal counts. A wait
  takes a signal from a fixed number of iterations before. `_set_unrolling` computes this number and adds it to three
  iterations: a first, a middle and a last one.
- If an instruction is ordered after one of the previous iteration, it is ordered after that of all earlier iterations:
  instructions of a queue start and end in order, and later ones know everything that earlier ones knew.
- For several loops, all combinations of zero, one and the full number of iterations are checked. Nested loops also get
  different counts in alternate runs. With more than `_MAX_COMBINATIONS`, only pairs of loops vary, and the other loops
  have the full number of iterations.

In DRAM, the value of a register that a program changes is unknown. Accesses relative to it are taken to be within the
extents that the caller gives (`weft.hdl.checker.extents.Extents`), and separate from accesses relative to any other
register. So a program must not both load from and store to such a register.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.hdl.checker.extents import DramAccess, Extents, describe
from weft.hdl.errors import ProgramError
from weft.hdl.isa import (
    PROGRAM_REGISTERS,
    SEMAPHORES,
    Instruction,
    Load,
    LoopNext,
    LoopStart,
    Mode,
    Opcode,
    ReadRegisters,
    SlotInstruction,
    Store,
)
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config
from weft.hdl.isa.loops import READ_BYTES, READ_WORDS, find_fault

StraightCheck = Callable[[Code, Config, Extents | None], None]
"""Check of a straight-line program."""
_MAX_COMBINATIONS = 125
"""Up to so many combinations of iteration counts are all checked."""
_MAX_LEAD = 6
"""Maximum distance, in iterations, between a wait in a loop and its signal."""


@dataclass
class _Loop:
    """Loop with the indices of its LOOP and NEXT, the loops inside, and the iterations to unroll."""

    first: int
    last: int
    inner: list[_Loop] = field(default_factory=list)
    nested: bool = False
    turns: int = 3

    def own_instructions(self) -> Iterator[int]:
        """Yield the indices of the body's instructions that are in no inner loop."""
        start = self.first + 1
        for loop in [*self.inner, None]:
            yield from range(start, loop.first if loop else self.last)
            start = loop.last + 1 if loop else start


def check_loops(body: Code, config: Config, extents: Extents | None, check_straight: StraightCheck) -> None:
    """Check a program with loops, without its END, for all register values.

    Parameters
    ----------
    body, config, extents
        As for `weft.hdl.checker.program.check`.
    check_straight : callable
        Checks a straight-line program.

    Raises
    ------
    ProgramError
        For the first broken rule.
    """
    control = {int(index): body[int(index)] for index in np.flatnonzero(body.queues < 0)}
    for index, instruction in control.items():
        try:
            _check_instruction(instruction, config, extents)
        except ProgramError as error:
            raise ProgramError(f"{describe(index, instruction)}: {error}") from None
    program = _Loop(-1, len(body))
    program.inner = list(_find_loops(control))
    _check_registers(body, control, config)
    loops = list(_inner_loops(program))
    _set_unrolling(body, program)
    for counts in _combinations(loops):
        turns = dict(zip(map(id, loops), counts, strict=True))
        indices = np.array(list(_unroll(program, control, turns)), np.int64)
        try:
            check_straight(Code(body.words[indices]), config, extents)
        except ProgramError as error:
            raise ProgramError(_translate_message(str(error), indices, loops, counts)) from None


def _check_instruction(i: Instruction, config: Config, extents: Extents | None) -> None:
    if reason := find_fault(i, config):
        raise ProgramError(reason)
    if isinstance(i, ReadRegisters):
        if i.count > READ_WORDS:
            raise ProgramError(f"'count' is {i.count}, but at most {READ_WORDS} words are read at a time")
        if i.first + i.count > PROGRAM_REGISTERS:
            raise ProgramError(
                f"'first' and 'count' reach register {i.first + i.count - 1}; there are {PROGRAM_REGISTERS}"
            )
        if extents is not None:
            extents.check_access(DramAccess(i.base, i.offset, ((4 * i.count, 1),), False))
            start = extents.addresses.get(i.base, 0) + i.offset
            if i.base in extents.addresses and start % READ_BYTES:
                raise ProgramError(f"DRAM address {start:#x} is no multiple of {READ_BYTES} bytes")


def _find_loops(control: Mapping[int, Instruction]) -> Iterator[_Loop]:
    """Pair LOOPs with NEXTs and yield the outermost loops."""
    open_: list[_Loop] = []
    for index, instruction in control.items():
        if isinstance(instruction, LoopStart):
            loop = _Loop(index, index + instruction.skip, nested=bool(open_))
            end = control.get(loop.last)
            if not isinstance(end, LoopNext) or end.back != instruction.skip:
                raise ProgramError(
                    f"{describe(index, instruction)} skips instructions up to {loop.last}, which is no NEXT that goes"
                    " back to it"
                )
            if open_ and loop.last >= open_[-1].last:
                outer = open_[-1]
                raise ProgramError(
                    f"the loop from instruction {index} to {loop.last} does not end inside the one from instruction"
                    f" {outer.first} to {outer.last}"
                )
            if open_:
                open_[-1].inner.append(loop)
            open_.append(loop)
        elif isinstance(instruction, LoopNext):
            if not open_ or open_[-1].last != index:
                raise ProgramError(
                    f"{describe(index, instruction)} goes back to instruction {index - instruction.back}, which is no"
                    " LOOP that skips instructions up to it"
                )
            loop = open_.pop()
            if not open_:
                yield loop


def _inner_loops(loop: _Loop) -> Iterator[_Loop]:
    """Yield all loops inside, in order of their LOOPs."""
    for inner in loop.inner:
        yield inner
        yield from _inner_loops(inner)


def _check_registers(body: Code, control: Mapping[int, Instruction], config: Config) -> None:
    """Check accesses relative to registers that the program changes, or that READ uses."""
    loads, stores = (
        np.flatnonzero(body.opcodes == int(opcode)).tolist() for opcode in (Opcode.LOAD, Opcode.STORE)
    )
    stored = {
        int(body.field("base", Opcode.STORE, slice(index, index + 1))[0]): index for index in reversed(stores)
    }
    for index, instruction in control.items():
        if isinstance(instruction, ReadRegisters) and instruction.base in stored:
            other = stored[instruction.base]
            raise ProgramError(
                f"{describe(other, body[other])} writes to base register {instruction.base}, from which"
                f" {describe(index, instruction)} reads registers: they must be as the host wrote them"
            )
    changed, misaligned = _changed_registers(control, config)
    for index in loads:
        load = body[index]
        assert isinstance(load, Load)
        if load.base in changed and load.base in stored:
            other = stored[load.base]
            assert isinstance(body[other], Store)
            raise ProgramError(
                f"{describe(index, load)} reads from base register {load.base}, which the program changes, and"
                f" {describe(other, body[other])} writes to it: no order of the two can be checked; use two registers"
            )
        if load.int4 and load.base in misaligned:
            setter, register, value = misaligned[load.base]
            raise ProgramError(
                f"{describe(setter, control[setter])} gives register {register} the value {value}, which is no multiple"
                f" of the bus width of {config.bus_bytes} bytes, which 'int4' of {describe(index, load)} needs"
            )


def _changed_registers(
    control: Mapping[int, Instruction], config: Config
) -> tuple[set[int], dict[int, tuple[int, int, int]]]:
    """Return the registers that a program changes.

    The second result has the registers whose value may become no multiple of the bus width, each with the cause: an
    instruction's index, its register and the value.
    """
    changed: set[int] = set()
    misaligned: dict[int, tuple[int, int, int]] = {}
    additions: set[tuple[int, int]] = set()  # (register, register that is added to it)
    for index, instruction in control.items():
        if isinstance(instruction, SlotInstruction):
            for register, mode, value in instruction.slots:
                changed.add(register)
                if mode == Mode.ADD_REGISTER:
                    additions.add((register, value % PROGRAM_REGISTERS))
                elif value % config.bus_bytes:
                    misaligned.setdefault(register, (index, register, value))
        if isinstance(instruction, ReadRegisters):
            changed |= set(range(instruction.first, instruction.first + instruction.count))
    for _ in additions:  # misalignment spreads by at least one addition per pass
        for register, other in additions:
            if other in misaligned:
                misaligned.setdefault(register, misaligned[other])
    return changed, misaligned


def _set_unrolling(body: Code, program: _Loop) -> None:
    """Check that iterations leave semaphores unchanged, and set the number of iterations to unroll of each loop."""
    columns = [
        np.stack([body.field(mask) >> semaphore & 1 for semaphore in range(SEMAPHORES)], axis=1)
        for mask in ("wait", "signal")
    ]
    # Counts of semaphores after each instruction, in program order.
    counts = np.cumsum(columns[1] - columns[0], axis=0)
    for loop in _inner_loops(program):
        own = np.array(list(loop.own_instructions()), np.int64)
        waits, signals = (column[own].sum(axis=0) for column in columns)
        unbalanced = np.flatnonzero(waits != signals)
        if unbalanced.size:
            semaphore = int(unbalanced[0])
            raise ProgramError(
                f"the loop from instruction {loop.first} to {loop.last} waits for semaphore {semaphore}"
                f" {waits[semaphore]} times an iteration and signals it {signals[semaphore]} times: a loop must leave"
                " all semaphores as they were"
            )
        ahead = np.abs(counts[loop.first])
        used = np.flatnonzero((waits > 0) & (ahead > 0))
        lead = -(-ahead[used] // waits[used])
        if lead.size and lead.max() > _MAX_LEAD:
            semaphore = int(used[np.argmax(lead)])
            raise ProgramError(
                f"the loop from instruction {loop.first} to {loop.last} starts with semaphore {semaphore} at"
                f" {int(counts[loop.first][semaphore])}, of which it takes {int(waits[semaphore])} an iteration: that"
                f" is more than the {_MAX_LEAD} iterations ahead that can be checked"
            )
        loop.turns = 3 + (int(lead.max()) if lead.size else 0)


Turns = tuple[int, int]
"""Iterations of a loop in its odd runs (first, third, ...) and in its even runs."""


def _combinations(loops: Sequence[_Loop]) -> Iterator[Sequence[Turns]]:
    """Yield iteration counts for all loops, the largest first, so that the first program has all instructions."""
    choices: list[list[Turns]] = []
    for loop in loops:
        equal = [(turns, turns) for turns in (loop.turns, 1, 0)]
        choices.append(equal + ([(loop.turns, 0), (0, loop.turns)] if loop.nested else []))
    if np.prod([len(choice) for choice in choices]) <= _MAX_COMBINATIONS:
        yield from itertools.product(*choices)
        return
    seen = set()
    for loop_a, loop_b in itertools.combinations(range(len(loops)), 2):
        for first, second in itertools.product(choices[loop_a], choices[loop_b]):
            counts = [choice[0] for choice in choices]
            counts[loop_a], counts[loop_b] = first, second
            if tuple(counts) not in seen:
                seen.add(tuple(counts))
                yield counts


def _unroll(program: _Loop, control: Mapping[int, Instruction], turns: Mapping[int, Turns]) -> Iterator[int]:
    """Yield the indices of a program's queued instructions in the order of execution."""
    runs: dict[int, int] = {}

    def body(outer: _Loop) -> Iterator[int]:
        start = outer.first + 1
        for inner in outer.inner:
            yield from (index for index in range(start, inner.first) if index not in control)
            run = runs.get(id(inner), 0)
            runs[id(inner)] = run + 1
            for _ in range(turns[id(inner)][run % 2]):
                yield from body(inner)
            start = inner.last + 1
        yield from (index for index in range(start, outer.last) if index not in control)

    return body(program)


def _translate_message(
    message: str, indices: np.ndarray, loops: Sequence[_Loop], counts: Sequence[Turns]
) -> str:
    """Replace indices of the unrolled program in a message by those of the original, and add iteration counts."""
    text = re.sub(r"instruction (\d+) \(", lambda match: f"instruction {indices[int(match[1])]} (", message)
    iterations = ", ".join(
        f"{first} at instruction {loop.first}"
        if first == second
        else f"{first} and {second} in turn at instruction {loop.first}"
        for loop, (first, second) in zip(loops, counts, strict=True)
    )
    return f"{text} (iterations of the loops: {iterations})" if loops else text
