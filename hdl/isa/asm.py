"""The textual form of programs: one instruction a line, ``mnemonic field=value ...``.

``;`` and ``#`` start a comment. Mnemonics are the opcodes in lower case, fields are those of `weft.hdl.isa`; a
field left out has its default. Values are integers in Python's notation (``12``, ``-3``, ``0x1f``); the masks
``wait`` and ``signal`` may also be lists of semaphores (``s0,s3``), ``source``, ``reduce`` and the modes of slots names
(``scratchpad``, ``max``, ``add``)::

    load base=1 offset=0x400 length=32 run=32 dst=0x10 dst_vector=1 signal=s0
    mm wait=s0 kc=2 a=0x10 a_kc=1 b=0x80 b_row=2 b_kc=1 signal=s1  # 1 x 32 x N
    set register0=8 mode0=set value0=3
    end
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

from weft.hdl.errors import WeftError
from weft.hdl.isa import INSTRUCTIONS, SEMAPHORES, Instruction, IsaError, Mode, Reduce, Source
from weft.hdl.isa.loops import SLOTS

_MASKS = ("wait", "signal")
_NAMES: dict[str, type[enum.IntEnum]] = {"source": Source, "reduce": Reduce} | {
    f"mode{slot}": Mode for slot in range(SLOTS)
}
_HEXADECIMAL = ("offset", "a", "b", "c", "src", "dst", "params", "state", "alignment")


class AsmError(WeftError, ValueError):
    """Text that is no program; the message names line, field and value."""


def assemble(text: str) -> list[Instruction]:
    """The instructions of a text, checked against their fields.

    Raises
    ------
    AsmError
        Naming the line, counted from 1, for an unknown mnemonic or field, a field given twice, a value that is no
        number, or one that does not fit its field.
    """
    instructions = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.replace(";", "#").split("#", 1)[0].split()
        if not words:
            continue
        try:
            instructions.append(_instruction(words))
        except (AsmError, IsaError) as error:
            raise AsmError(f"line {number}: {error}") from None
    return instructions


def disassemble(instructions: Iterable[Instruction], *, numbered: bool = False) -> str:
    """The text of instructions, one line each; `assemble` reads it back. `numbered` adds indices as comments."""
    lines = []
    for index, instruction in enumerate(instructions):
        line = format_instruction(instruction)
        lines.append(f"{line}  # {index}" if numbered else line)
    return "".join(f"{line}\n" for line in lines)


def format_instruction(instruction: Instruction) -> str:
    """One instruction as text, fields at their default left out, semaphores taken first and given last."""
    fields = [field for field in dataclasses.fields(instruction) if field.name != "signal"]
    fields += [field for field in dataclasses.fields(instruction) if field.name == "signal"]
    words = [instruction.OPCODE.name.lower()]
    for field in fields:
        value = getattr(instruction, field.name)
        if value != field.default:
            words.append(f"{field.name}={_format(field.name, value)}")
    return " ".join(words)


def _format(name: str, value: int) -> str:
    if name in _MASKS:
        return ",".join(f"s{bit}" for bit in range(SEMAPHORES) if value >> bit & 1)
    if name in _NAMES and value in set(_NAMES[name]):
        return _NAMES[name](value).name.lower()
    return f"{value:#x}" if name in _HEXADECIMAL else str(value)


def _instruction(words: list[str]) -> Instruction:
    mnemonic = words[0].lower()
    by_name = {opcode.name.lower(): cls for opcode, cls in INSTRUCTIONS.items()}
    if mnemonic not in by_name:
        raise AsmError(f"unknown instruction {words[0]!r}; choose {', '.join(by_name)}")
    cls = by_name[mnemonic]
    names = [field.name for field in dataclasses.fields(cls)]
    values: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, text = word.partition("=")
        if not equals:
            raise AsmError(f"{mnemonic}: expected field=value, not {word!r}")
        if name not in names:
            raise AsmError(f"{mnemonic} has no field {name!r}; its fields are {', '.join(names)}")
        if name in values:
            raise AsmError(f"{mnemonic} field {name!r} is given twice")
        values[name] = _value(mnemonic, name, text)
    instruction = cls(**values)
    instruction.check()
    return instruction


def _value(mnemonic: str, name: str, text: str) -> int:
    """A number, a list of semaphores for a mask, or a name for an enumerated field."""
    kind = "a number"
    if name in _MASKS:
        bits = [bit for part in text.split(",") for bit in range(SEMAPHORES) if part == f"s{bit}"]
        if len(bits) == len(text.split(",")) == len(set(bits)):
            return sum(1 << bit for bit in bits)
        kind = f"a number or a list of s0 to s{SEMAPHORES - 1}"
    elif name in _NAMES:
        names = {member.name.lower(): int(member) for member in _NAMES[name]}
        if text in names:
            return names[text]
        kind = f"a number or one of {', '.join(names)}"
    try:
        return int(text, 0)
    except ValueError:
        raise AsmError(f"{mnemonic} field {name!r} is {text!r}, not {kind}") from None
