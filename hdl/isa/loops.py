"""Loops and registers: instructions without a queue, which fetch carries out by itself, in program order.

None of them takes or gives semaphores: ``wait`` and ``signal`` must be 0. LOOP and NEXT come in pairs that nest
properly: a NEXT goes back to the LOOP of its pair, whose ``skip`` ends at that NEXT. Jumps are relative to the
instruction, and stay within the program.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from weft.hdl.isa.config import Config, Feature
from weft.hdl.isa.encoding import Instruction, Opcode, bits, register, stride

SLOTS = 8
"""Slots of a `SlotInstruction`."""
READ_WORDS = 8
"""Words of 32 bits that a `ReadRegisters` can read."""
READ_BYTES = 4 * READ_WORDS
"""What the address of a `ReadRegisters` is a multiple of."""


class Mode(enum.IntEnum):
    """What a slot does to its register."""

    NONE = 0
    SET = 1
    ADD = 2
    ADD_REGISTER = 3


def slots(*changes: tuple[int, Mode, int]) -> dict[str, int]:
    """Fields of a `SlotInstruction` for at most `SLOTS` changes of registers: (register, mode, value)."""
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
    """What SET and NEXT have in common: up to `SLOTS` registers change, slot after slot.

    Modes have a bit more than they need, so that values are whole words of 32 bits of the instruction: hardware takes
    them up one a cycle, whatever the width of the bus.
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
        """Register, mode and value of each slot that does something, in order."""
        every = [
            tuple(getattr(self, f"{name}{slot}") for name in ("register", "mode", "value"))
            for slot in range(SLOTS)
        ]
        return [(number, mode, value) for number, mode, value in every if mode]


@dataclass(frozen=True)
class SetRegisters(SlotInstruction):
    """Change registers. For each slot, in order: with mode 1 (set) the register becomes the value, with mode 2 (add)
    the value is added to it modulo 2**32, and with mode 3 (add register) what the register holds that the low 4 bits of
    the value name; with mode 0 nothing happens. There are no other modes."""

    OPCODE = Opcode.SET
    REQUIRES = Feature.LOOPS


@dataclass(frozen=True)
class LoopStart(Instruction):
    """If the register, as int32, is above 0, go on with the next instruction, else pass over the next ``skip``
    instructions: the body and its NEXT."""

    OPCODE = Opcode.LOOP
    REQUIRES = Feature.LOOPS

    register: int = register("register that is compared with 0")
    skip: int = bits(16, "instructions to pass over", least=1, default=1)


@dataclass(frozen=True)
class LoopNext(SlotInstruction):
    """Change registers as SET does, and go on with the instruction ``back`` places before this one, a LOOP."""

    OPCODE = Opcode.NEXT
    REQUIRES = Feature.LOOPS

    back: int = bits(16, "instructions to go back", least=1, default=1)


@dataclass(frozen=True)
class ReadRegisters(Instruction):
    """Registers from ``first`` on become the `count` little-endian 32-bit words, 8 at most, in DRAM at ``base[base] +
    offset``, which is a multiple of 32 bytes.

    They are as the host wrote them before the start: a program must not write there.
    """

    OPCODE = Opcode.READ
    REQUIRES = Feature.LOOPS

    base: int = register("base register")
    offset: int = bits(32, "DRAM offset in bytes of the first word")
    first: int = bits(4, "first register")
    count: int = bits(4, "registers", least=1, default=1)


def fault(instruction: Instruction, config: Config) -> str | None:
    """What is wrong with one of these instructions wherever it stands, if anything; of READ not what it reads."""
    if reason := instruction.unsupported(config):
        return reason
    if instruction.wait or instruction.signal:
        return "it has semaphores, but it belongs to no queue"
    if isinstance(instruction, SlotInstruction):
        for _, mode, _ in instruction.slots:
            if mode not in set(Mode):
                return f"the mode of a slot is {mode}, outside 0 to {max(Mode)}"
    return None
