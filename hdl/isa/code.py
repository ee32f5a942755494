"""Programs as columns of numbers: the words of all instructions, and fields of many at once.

A program has up to millions of instructions, and one as an object of `weft.hdl.isa` takes some two thousand bytes and
several microseconds. `Code` keeps the words that the hardware reads, and makes objects of those that are asked for.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, overload

import numpy as np

from weft.hdl.errors import WeftError
from weft.hdl.isa import (
    INSTRUCTIONS,
    SEMAPHORES,
    WORD_BYTES,
    Instruction,
    IsaError,
    Mode,
    Opcode,
    Place,
    Reduce,
    Source,
    decode,
    places,
    used_bits,
)
from weft.hdl.isa.loops import SLOTS

_PARTS = WORD_BYTES // 8
"""64-bit parts of a word."""
_AT_ONCE = 1 << 12
"""Instructions that an iteration decodes at once."""


@cache
def _reserved(opcode: Opcode) -> np.ndarray:
    """The bits of a word that belong to no field: (8,) uint64."""
    free = (1 << 8 * WORD_BYTES) - (1 << used_bits(opcode))
    return np.frombuffer(free.to_bytes(WORD_BYTES, "little"), "<u8")


@cache
def mask(opcode: Opcode, names: tuple[str, ...]) -> np.ndarray:
    """The bits of a word that belong to these fields: (8,) uint64."""
    chosen = sum(
        (1 << place.width) - 1 << place.position for place in map(places(opcode).get, names) if place
    )
    return np.frombuffer(chosen.to_bytes(WORD_BYTES, "little"), "<u8")


class Code(Sequence[Instruction]):
    """The instructions of a program.

    Parameters
    ----------
    words : ndarray
        (count, 8) uint64: little-endian parts of each word.
    """

    def __init__(self, words: np.ndarray) -> None:
        assert words.dtype == np.dtype("<u8")
        assert words.shape[1:] == (_PARTS,)
        self.words = words

    @classmethod
    def of(cls, instructions: Iterable[Instruction]) -> Code:
        """The words of instructions. Raises `IsaError` for the first that has a value that does not fit its field."""
        if isinstance(instructions, Code):
            return instructions
        raw = []
        for index, instruction in enumerate(instructions):
            try:
                raw.append(instruction.encode())
            except IsaError as error:
                raise IsaError(f"instruction {index} ({instruction.OPCODE.name}): {error}") from None
        return cls(np.frombuffer(b"".join(raw), "<u8").reshape(-1, _PARTS))

    @classmethod
    def from_bytes(cls, raw: bytes) -> Code:
        """A program as it is in memory. `IsaError` names the index of the first word that is no instruction."""
        if len(raw) % WORD_BYTES:
            raise IsaError(f"a program is a multiple of {WORD_BYTES} bytes, not {len(raw)}")
        code = cls(np.frombuffer(raw, "<u8").reshape(-1, _PARTS))
        wrong = code._wrong()
        if wrong.any():
            index = int(np.argmax(wrong))
            try:
                decode(raw[index * WORD_BYTES : (index + 1) * WORD_BYTES])
            except IsaError as error:
                raise IsaError(f"instruction {index}: {error}") from None
            raise AssertionError(f"instruction {index} is taken for a wrong one")
        return code

    def _wrong(self) -> np.ndarray:
        """Which words are no instructions: (count,) bool."""
        wrong = ~np.isin(self.opcodes, list(INSTRUCTIONS))
        for opcode, rows in self.by_opcode():
            words = self.words[rows]
            bad = (words & _reserved(opcode)).any(axis=1)
            for place in places(opcode).values():
                if place.low > 0:
                    bad |= _read(words, place) < place.low
            wrong[rows[bad]] = True
        return wrong

    @property
    def opcodes(self) -> np.ndarray:
        return (self.words[:, 0] & np.uint64(0xFF)).astype(np.uint8)

    def by_opcode(self) -> Iterator[tuple[Opcode, np.ndarray]]:
        """The opcodes that there are, each with the indices of its instructions."""
        opcodes = self.opcodes
        for opcode in INSTRUCTIONS:
            rows = np.flatnonzero(opcodes == int(opcode))
            if rows.size:
                yield opcode, rows

    @property
    def queues(self) -> np.ndarray:
        """The queue of each instruction, -1 for END: (count,) int8."""
        table = np.full(256, -1, np.int8)
        for opcode, kind in INSTRUCTIONS.items():
            table[int(opcode)] = -1 if kind.QUEUE is None else int(kind.QUEUE)
        return table[self.opcodes]

    def field(
        self, name: str, opcode: Opcode = Opcode.END, rows: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """A field of the instructions `rows`: (count,) int64. All are `opcode`, if not all instructions have it."""
        return _read(self.words[rows], places(opcode)[name])

    def tobytes(self) -> bytes:
        """The program as it is in memory."""
        return self.words.tobytes()

    def __len__(self) -> int:
        return len(self.words)

    @overload
    def __getitem__(self, index: int) -> Instruction: ...
    @overload
    def __getitem__(self, index: slice) -> Code: ...
    def __getitem__(self, index: int | slice) -> Instruction | Code:
        if isinstance(index, slice):
            return Code(self.words[index])
        return decode(self.words[index].tobytes())

    def __iter__(self) -> Iterator[Instruction]:
        for first in range(0, len(self), _AT_ONCE):
            yield from self[first : first + _AT_ONCE]._objects()

    def _objects(self) -> list[Instruction]:
        made: dict[int, Instruction] = {}
        for opcode, rows in self.by_opcode():
            kind, words = INSTRUCTIONS[opcode], self.words[rows]
            columns = [_read(words, place).tolist() for place in places(opcode).values()]
            for row, values in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
                made[row] = kind(*values)
        return [made[row] for row in range(len(self))]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Code):
            return np.array_equal(self.words, other.words)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Code({len(self)} instructions)"


def pack(opcode: Opcode, columns: Mapping[str, Sequence[int] | np.ndarray], count: int) -> np.ndarray:
    """The words of `count` instructions of one opcode, whose fields are given one value each: (count, 8) uint64.

    Fields that are missing have their default.

    Raises
    ------
    IsaError
        Naming the first field with a value that does not fit.
    """
    words = np.zeros((count, _PARTS), "<u8")
    words[:, 0] = int(opcode)
    defaults = {field.name: field.default for field in dataclasses.fields(INSTRUCTIONS[opcode])}
    for name, place in places(opcode).items():
        given = columns.get(name, defaults[name])
        values = given if isinstance(given, np.ndarray) else np.asarray(given, object)
        wrong = (values < place.low) | (values > place.high)
        if wrong.any():
            value = values[np.argmax(wrong)] if values.ndim else values
            raise IsaError(f"{opcode.name} field {name!r} is {value}, outside {place.low} to {place.high}")
        write(words, place, values.astype(np.int64))
    return words


def write(words: np.ndarray, place: Place, values: np.ndarray) -> None:
    """Set a field that is 0 in (count, 8) `words`."""
    part, shift = divmod(place.position, 64)
    bits = values.astype(np.uint64) & np.uint64((1 << place.width) - 1)
    words[:, part] |= bits << np.uint64(shift)
    if shift + place.width > 64:
        words[:, part + 1] |= bits >> np.uint64(64 - shift)


def _read(words: np.ndarray, place: Place) -> np.ndarray:
    """A field of (count, 8) words: (count,) int64."""
    part, shift = divmod(place.position, 64)
    value = words[:, part] >> np.uint64(shift)
    if shift + place.width > 64:
        value = value | words[:, part + 1] << np.uint64(64 - shift)
    found = (value & np.uint64((1 << place.width) - 1)).astype(np.int64)
    if place.signed:
        half = 1 << place.width - 1
        found = (found ^ half) - half
    return found


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
