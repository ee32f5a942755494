"""Control flow: which instructions of a program run, in which order, and what registers hold for each of them.

Fetch carries out SET, LOOP, NEXT and READ by itself and in program order, and hands every other instruction to its
queue with what registers hold then. None of that depends on what units do, so a program can be followed to its END
before any of it runs, as here.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.hdl.isa import (
    PROGRAM_REGISTERS,
    Instruction,
    LoopNext,
    LoopStart,
    Mode,
    ReadRegisters,
    SlotInstruction,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.loops import READ_BYTES, fault
from weft.sim.device import EXECUTED_MOST, DeviceError

_WORD = (1 << 32) - 1


@dataclass(frozen=True)
class Stretch:
    """Instructions `first` to before `stop`, which run one after the other with the same content of all registers."""

    first: int
    stop: int
    registers: tuple[int, ...]


class Walk:
    """Follows a program to its END.

    Parameters
    ----------
    config : Config
    control : mapping of int to Instruction
        The instructions without a queue by their index, without END.
    end : int
        Index of the program's END.
    bases : sequence of int
        What the host set base registers to.
    memory : callable
        Reads an address and a number of bytes; raises `DeviceError` if they do not lie in memory.

    Attributes
    ----------
    stretches : list of Stretch
        Those of instructions that have a queue, in the order in which they run.
    reads : list of (int, int)
        First address and one past the last of what READs read; a program must not write there.

    Raises
    ------
    DeviceError
        Naming the instruction: what the configuration does not have, a rule broken, a jump out of the program, or more
        than `EXECUTED_MOST` instructions, as in a loop whose register never falls to 0.
    """

    def __init__(
        self,
        config: Config,
        control: Mapping[int, Instruction],
        end: int,
        bases: Sequence[int],
        memory: Callable[[int, int], bytes],
    ) -> None:
        self._config, self._control, self._end, self._memory = config, control, end, memory
        self._registers = [*bases, *[0] * (PROGRAM_REGISTERS - len(bases))]
        self.stretches: list[Stretch] = []
        self.reads: list[tuple[int, int]] = []
        self._follow()

    def _follow(self) -> None:
        order, at, executed = sorted(self._control), 0, 0
        held = tuple(self._registers)
        while True:
            place = bisect.bisect_left(order, at)
            stop = order[place] if place < len(order) else self._end
            if at < stop:
                self.stretches.append(Stretch(at, stop, held))
            executed += stop - at + 1
            if stop == self._end:
                return
            if executed > EXECUTED_MOST:
                raise DeviceError(
                    f"the program goes on after {EXECUTED_MOST} instructions, the last of them instruction {stop} "
                    f"({self._control[stop].OPCODE.name}): does the register of a loop never fall to 0?"
                )
            try:
                at = self._carry_out(stop, self._control[stop])
            except DeviceError as error:
                raise DeviceError(
                    f"instruction {stop} ({self._control[stop].OPCODE.name}): {error}"
                ) from None
            held = tuple(self._registers)

    def _carry_out(self, at: int, instruction: Instruction) -> int:
        """Execute an instruction; returns the index of the next one."""
        if reason := fault(instruction, self._config):
            raise DeviceError(reason)
        if isinstance(instruction, SlotInstruction):
            self._change(instruction)
        if isinstance(instruction, ReadRegisters):
            self._read(instruction)
        if isinstance(instruction, LoopNext):
            return self._back(at - instruction.back)
        if isinstance(instruction, LoopStart) and not 0 < self._registers[instruction.register] <= _WORD >> 1:
            target = at + 1 + instruction.skip
            if target > self._end:
                raise DeviceError(f"it passes over {instruction.skip} instructions, and END is among them")
            return target
        return at + 1

    def _back(self, target: int) -> int:
        if not isinstance(self._control.get(target), LoopStart):
            raise DeviceError(f"it goes back to instruction {target}, which is no LOOP")
        return target

    def _change(self, instruction: SlotInstruction) -> None:
        for number, mode, value in instruction.slots:
            before = 0 if mode == Mode.SET else self._registers[number]
            added = self._registers[value % PROGRAM_REGISTERS] if mode == Mode.ADD_REGISTER else value
            self._registers[number] = (before + added) & _WORD

    def _read(self, instruction: ReadRegisters) -> None:
        check_read(instruction)
        start = (self._registers[instruction.base] + instruction.offset) & _WORD
        if start % READ_BYTES:
            raise DeviceError(f"DRAM address {start:#x} is no multiple of {READ_BYTES} bytes")
        words = np.frombuffer(self._memory(start, 4 * instruction.count), "<u4").tolist()
        self._registers[instruction.first : instruction.first + len(words)] = words
        self.reads.append((start, start + 4 * len(words)))


def check_read(instruction: ReadRegisters) -> None:
    """Raises `DeviceError` if a READ names more words or registers than there are."""
    last = instruction.first + instruction.count
    if not 1 <= instruction.count <= READ_BYTES // 4:
        raise DeviceError(f"'count' is {instruction.count}, outside 1 to {READ_BYTES // 4}")
    if last > PROGRAM_REGISTERS:
        raise DeviceError(f"it reads registers up to {last - 1}; there are {PROGRAM_REGISTERS}")


def passed(stretches: Sequence[Stretch]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Index of each instruction that goes to its queue, and what registers hold then, in order."""
    for stretch in stretches:
        for index in range(stretch.first, stretch.stop):
            yield index, stretch.registers
