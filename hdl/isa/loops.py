"""Instructions for loops and registers, which fetch executes itself, in program order.

They use no semaphores: ``wait`` and ``signal`` must be 0. LOOP and NEXT form pairs that nest properly: a NEXT jumps
back to its LOOP, and the LOOP's ``skip`` ends at that NEXT. Jumps are relative to the instruction and stay within the
program.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from weft.hdl.isa.config import Config, Feature
from weft.hdl.isa.encoding import Instruction, Opcode, bits, register, stride

SLOTS = 8
"""Number of slots in a `SlotInstruction`."""
READ_WORDS = 8
"""Maximum number of 32-bit words in a `ReadRegisters`."""
READ_BYTES = 4 * READ_WORDS
"""Required alignment of a `ReadRegisters` address."""


class Mode(enum.IntEnum):
    """Operation of a slot on its register."""

    NONE = 0
    SET = 1
    ADD = 2
    ADD_REGISTER = 3


def slots(*changes: tuple[int, Mode, int]) -> dict[str, int]:
    """Return `SlotInstruction` fields for up to `SLOTS` register changes: (register, mode, value)."""
    assert len(changes) <= SLOTS
    names = ("register", "mode", "value")
    return {
        f"{name}{slot}": int(value)
        for slot, change in enumerate(changes)
        for name, value in zip(names, change, strict=True)
    }


def _name(slot: int) -> Any:
    return bits(4, f"register of slot {slot}")


def _mode(slot: int) -> Any:
    return bits(3, f"slot {slot}: 0 none, 1 set, 2 add, 3 add a register")


def _value(slot: int) -> Any:
    return stride(f"value of slot {slot}", 32)


@dataclass(frozen=True)
class SlotInstruction(Instruction):
    """Base class of SET and NEXT, which change up to `SLOTS` registers, slot after slot.

    Modes have a spare bit so that values are aligned 32-bit words of the instruction: hardware processes one per cycle
    at any bus width.
    """

    register0: int = _name(0)
    mode0: int = _mode(0)
    register1: int = _name(1)
    mode1: int = _mode(1)
    register2: int = _name(2)
    mode2: int = _mode(2)
    register3: int = _name(3)
    mode3: int = _mode(3)
    register4: int = _name(4)
    mode4: int = _mode(4)
    register5: int = _name(5)
    mode5: int = _mode(5)
    register6: int = _name(6)
    mode6: int = _mode(6)
    register7: int = _name(7)
    mode7: int = _mode(7)
    value0: int = _value(0)
    value1: int = _value(1)
    value2: int = _value(2)
    value3: int = _value(3)
    value4: int = _value(4)
    value5: int = _value(5)
    value6: int = _value(6)
    value7: int = _value(7)

    @property
    def slots(self) -> list[tuple[int, int, int]]:
        """Register, mode and value of each slot whose mode is not 0, in order."""
        all_slots = [
            tuple(getattr(self, f"{name}{slot}") for name in ("register", "mode", "value"))
            for slot in range(SLOTS)
        ]
        return [(number, mode, value) for number, mode, value in all_slots if mode]


@dataclass(frozen=True)
class SetRegisters(SlotInstruction):
    """Change registers, slot after slot.

    The mode of a slot says what happens to its register: 0 nothing, 1 it is set to the value, 2 the value is added,
    3 the register whose number is in the low 4 bits of the value is added. Sums are modulo 2**32; there are no other
    modes.
    """

    OPCODE = Opcode.SET
    REQUIRES = Feature.LOOPS


@dataclass(frozen=True)
class LoopStart(Instruction):
    """Enter a loop body if the register, as int32, is above 0; else skip the next ``skip`` instructions: the body and
    its NEXT."""

    OPCODE = Opcode.LOOP
    REQUIRES = Feature.LOOPS

    register: int = register("register that is compared with 0")
    skip: int = bits(16, "instructions to skip", least=1, default=1)


@dataclass(frozen=True)
class LoopNext(SlotInstruction):
    """Change registers as SET does, then jump back by ``back`` instructions, to the LOOP of this loop."""

    OPCODE = Opcode.NEXT
    REQUIRES = Feature.LOOPS

    back: int = bits(16, "instructions to go back", least=1, default=1)


@dataclass(frozen=True)
class ReadRegisters(Instruction):
    """Load the `count` registers from ``first`` on, at most 8, from little-endian 32-bit words in DRAM.

    The words are at ``base[base] + offset``, a multiple of 32 bytes. The host writes them before the start; the program
    must not write them.
    """

    OPCODE = Opcode.READ
    REQUIRES = Feature.LOOPS

    base: int = register("base register")
    offset: int = bits(32, "DRAM offset in bytes of the first word")
    first: int = bits(4, "first register")
    count: int = bits(4, "registers", least=1, default=1)


def find_fault(instruction: Instruction, config: Config) -> str | None:
    """Return the rule that a loop instruction breaks on its own, or None; a READ's address is not checked."""
    if reason := instruction.unsupported(config):
        return reason
    if instruction.wait or instruction.signal:
        return "it has semaphores, but it belongs to no queue"
    if isinstance(instruction, SlotInstruction):
        for _, mode, _ in instruction.slots:
            if mode not in set(Mode):
                return f"the mode of a slot is {mode}, outside 0 to {max(Mode)}"
    return None
