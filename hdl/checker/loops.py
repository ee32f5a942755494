"""Programs with loops: their structure, and the straight programs that stand for all that they can become.

How often a loop turns is known only when the program runs. What is checked are programs without loops that come of some
numbers of turns. These stand for all numbers, as addresses on the chip do not depend on registers, so iterations of a
loop are alike:

- An iteration gives and takes each semaphore equally often, so that every iteration starts with the same counts. A wait
  in one takes the signal of the same instruction as in the one before, some fixed number of iterations ahead: `_turns`
  finds how many, and loops are unrolled that much further than the three iterations that it takes to have a first one,
  one in the middle and a last one.
- If an instruction is ordered behind another of the iteration before, so it is behind that of all earlier iterations:
  instructions of a queue start and take effect in order, and what one of them knew, later ones know.
- Loops in loops and behind each other: all combinations of no turn, one turn, and as many as above, and of nested
  loops also different ones in turns of the outer loop; with more than `_MOST` combinations those of every two loops,
  where the others turn as often as above.

DRAM: where a register that a program changes points to, nobody knows. Accesses relative to it are taken to be where the
caller says that they may be (`weft.hdl.checker.extents.Extents`), and apart from those relative to any other one. So it
must not be both loaded from and stored to.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.hdl.checker.extents import Dram, Extents, ProgramError, name
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
from weft.hdl.isa.loops import READ_BYTES, READ_WORDS, fault

Straight = Callable[[Code, Config, Extents | None], None]
"""The check of a program without loops."""
_MOST = 125
"""Combinations of turns that are all checked."""
_AHEAD = 6
"""Iterations that a loop's waits may be ahead of their signals, or behind them."""


@dataclass
class _Loop:
    """A loop from its LOOP to its NEXT, and those inside."""

    first: int
    last: int
    inner: list[_Loop] = field(default_factory=list)
    nested: bool = False
    turns: int = 3

    def own(self) -> Iterator[int]:
        """What is in the body, but in no loop inside."""
        at = self.first + 1
        for loop in [*self.inner, None]:
            yield from range(at, loop.first if loop else self.last)
            at = loop.last + 1 if loop else at


def check_loops(body: Code, config: Config, extents: Extents | None, straight: Straight) -> None:
    """Raises `ProgramError` for a program, without its END, that breaks a rule, whatever registers hold when it runs.

    Parameters
    ----------
    body, config, extents
        As of `weft.hdl.checker.program.check`.
    straight : callable
        Checks a program without loops.
    """
    control = {int(index): body[int(index)] for index in np.flatnonzero(body.queues < 0)}
    for index, instruction in control.items():
        try:
            _check_alone(instruction, config, extents)
        except ProgramError as error:
            raise ProgramError(f"{name(index, instruction)}: {error}") from None
    whole = _Loop(-1, len(body))
    whole.inner = list(_pairs(control))
    _check_registers(body, control, config)
    every = list(_all(whole))
    _turns(body, whole)
    for numbers in _combinations(every):
        indices = np.array(
            list(_unrolled(whole, control, dict(zip(map(id, every), numbers, strict=True)))), np.int64
        )
        try:
            straight(Code(body.words[indices]), config, extents)
        except ProgramError as error:
            raise ProgramError(_named(str(error), indices, every, numbers)) from None


def _check_alone(i: Instruction, config: Config, extents: Extents | None) -> None:
    if reason := fault(i, config):
        raise ProgramError(reason)
    if isinstance(i, ReadRegisters):
        if i.count > READ_WORDS:
            raise ProgramError(f"'count' is {i.count}, but at most {READ_WORDS} words are read at a time")
        if i.first + i.count > PROGRAM_REGISTERS:
            raise ProgramError(
                f"'first' and 'count' reach register {i.first + i.count - 1}; there are {PROGRAM_REGISTERS}"
            )
        if extents is not None:
            extents.check_access(Dram(i.base, i.offset, ((4 * i.count, 1),), False))
            start = extents.addresses.get(i.base, 0) + i.offset
            if i.base in extents.addresses and start % READ_BYTES:
                raise ProgramError(f"DRAM address {start:#x} is no multiple of {READ_BYTES} bytes")


def _pairs(control: Mapping[int, Instruction]) -> Iterator[_Loop]:
    """The outermost loops, each with those inside."""
    open_: list[_Loop] = []
    for index, instruction in control.items():
        if isinstance(instruction, LoopStart):
            loop = _Loop(index, index + instruction.skip, nested=bool(open_))
            end = control.get(loop.last)
            if not isinstance(end, LoopNext) or end.back != instruction.skip:
                raise ProgramError(
                    f"{name(index, instruction)} passes over instructions up to {loop.last}, which is no NEXT that goes"
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
                    f"{name(index, instruction)} goes back to instruction {index - instruction.back}, which is no LOOP"
                    " that passes over instructions up to it"
                )
            loop = open_.pop()
            if not open_:
                yield loop


def _all(loop: _Loop) -> Iterator[_Loop]:
    """The loops inside, in order of their beginning."""
    for inner in loop.inner:
        yield inner
        yield from _all(inner)


def _check_registers(body: Code, control: Mapping[int, Instruction], config: Config) -> None:
    """What is relative to registers that change, or from which registers are read."""
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
                f"{name(other, body[other])} writes to base register {instruction.base}, from which"
                f" {name(index, instruction)} reads registers: they must be as the host wrote them"
            )
    changed, odd = _changed(control, config)
    for index in loads:
        load = body[index]
        assert isinstance(load, Load)
        if load.base in changed and load.base in stored:
            other = stored[load.base]
            assert isinstance(body[other], Store)
            raise ProgramError(
                f"{name(index, load)} reads from base register {load.base}, which the program changes, and"
                f" {name(other, body[other])} writes to it: no order of the two can be checked; use two registers"
            )
        if load.int4 and load.base in odd:
            who, register, value = odd[load.base]
            raise ProgramError(
                f"{name(who, control[who])} gives register {register} the value {value}, which is no multiple of the"
                f" {config.bus_bytes} bytes of the bus, where rows with 'int4' of {name(index, load)} begin"
            )


def _changed(
    control: Mapping[int, Instruction], config: Config
) -> tuple[set[int], dict[int, tuple[int, int, int]]]:
    """Registers that a program changes; and those that it moves off the words of the bus, with the instruction, its
    register, and the value."""
    changed: set[int] = set()
    odd: dict[int, tuple[int, int, int]] = {}
    copies: set[tuple[int, int]] = set()  # registers, and those that are added to them
    for index, instruction in control.items():
        if isinstance(instruction, SlotInstruction):
            for register, mode, value in instruction.slots:
                changed.add(register)
                if mode == Mode.ADD_REGISTER:
                    copies.add((register, value % PROGRAM_REGISTERS))
                elif value % config.bus_bytes:
                    odd.setdefault(register, (index, register, value))
        if isinstance(instruction, ReadRegisters):
            changed |= set(range(instruction.first, instruction.first + instruction.count))
    for _ in copies:  # a register may get it from another one that does
        for register, other in copies:
            if other in odd:
                odd.setdefault(register, odd[other])
    return changed, odd


def _turns(body: Code, whole: _Loop) -> None:
    """Check that iterations are balanced, and note how many it takes to see a loop's middle."""
    columns = [
        np.stack([body.field(mask) >> semaphore & 1 for semaphore in range(SEMAPHORES)], axis=1)
        for mask in ("wait", "signal")
    ]
    before = np.cumsum(columns[1] - columns[0], axis=0)
    for loop in _all(whole):
        own = np.array(list(loop.own()), np.int64)
        taken, given = (column[own].sum(axis=0) for column in columns)
        wrong = np.flatnonzero(taken != given)
        if wrong.size:
            semaphore = int(wrong[0])
            raise ProgramError(
                f"the loop from instruction {loop.first} to {loop.last} waits for semaphore {semaphore}"
                f" {taken[semaphore]} times an iteration and signals it {given[semaphore]} times: a loop must leave all"
                " semaphores as they were"
            )
        ahead = np.abs(before[loop.first])
        used = np.flatnonzero((taken > 0) & (ahead > 0))
        lead = -(-ahead[used] // taken[used])
        if lead.size and lead.max() > _AHEAD:
            semaphore = int(used[np.argmax(lead)])
            raise ProgramError(
                f"the loop from instruction {loop.first} to {loop.last} starts with semaphore {semaphore} at"
                f" {int(before[loop.first][semaphore])}, of which it takes {int(taken[semaphore])} an iteration: that"
                f" is more than the {_AHEAD} iterations ahead that can be checked"
            )
        loop.turns = 3 + (int(lead.max()) if lead.size else 0)


Turns = tuple[int, int]
"""How often a loop turns when it runs for the first, third, ... time, and when for the second, fourth, ... time."""


def _combinations(every: Sequence[_Loop]) -> Iterator[Sequence[Turns]]:
    """Numbers of turns for each loop: the largest first, so that all instructions are among them."""
    choices: list[list[Turns]] = []
    for loop in every:
        same = [(turns, turns) for turns in (loop.turns, 1, 0)]
        choices.append(same + ([(loop.turns, 0), (0, loop.turns)] if loop.nested else []))
    if np.prod([len(choice) for choice in choices]) <= _MOST:
        yield from itertools.product(*choices)
        return
    seen = set()
    for one, two in itertools.combinations(range(len(every)), 2):
        for first, second in itertools.product(choices[one], choices[two]):
            numbers = [choice[0] for choice in choices]
            numbers[one], numbers[two] = first, second
            if tuple(numbers) not in seen:
                seen.add(tuple(numbers))
                yield numbers


def _unrolled(loop: _Loop, control: Mapping[int, Instruction], turns: Mapping[int, Turns]) -> Iterator[int]:
    """Indices of the instructions with a queue, as they follow each other when loops turn so often."""
    runs: dict[int, int] = {}

    def body(outer: _Loop) -> Iterator[int]:
        at = outer.first + 1
        for inner in outer.inner:
            yield from (index for index in range(at, inner.first) if index not in control)
            run = runs.get(id(inner), 0)
            runs[id(inner)] = run + 1
            for _ in range(turns[id(inner)][run % 2]):
                yield from body(inner)
            at = inner.last + 1
        yield from (index for index in range(at, outer.last) if index not in control)

    return body(loop)


def _named(message: str, indices: np.ndarray, every: Sequence[_Loop], numbers: Sequence[Turns]) -> str:
    """A message about a program without loops, with indices of the program that has them."""
    text = re.sub(r"instruction (\d+) \(", lambda found: f"instruction {indices[int(found[1])]} (", message)
    turns = ", ".join(
        f"{loop.first} {first}" if first == second else f"{loop.first} {first} and {second} in turn"
        for loop, (first, second) in zip(every, numbers, strict=True)
    )
    return f"{text} (turns of the loop at instruction {turns})" if every else text
