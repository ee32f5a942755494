"""Programs as arrays of instruction words, and assembly text.

A program may have millions of instructions, and an `Instruction` object takes about 2 KB and several microseconds.
`Code` stores the words that the hardware reads, and decodes instructions on demand.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, overload

import numpy as np

from weft.hdl.errors import AsmError, IsaError
from weft.hdl.isa import (
    INSTRUCTIONS,
    SEMAPHORES,
    WORD_BYTES,
    Instruction,
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
"""64-bit parts of an instruction word."""
_DECODE_BATCH = 1 << 12
"""Instructions that an iterator decodes together."""


@cache
def _reserved_mask(opcode: Opcode) -> np.ndarray:
    """Return the bits of an instruction word after the last field: (8,) uint64."""
    free = (1 << 8 * WORD_BYTES) - (1 << used_bits(opcode))
    return np.frombuffer(free.to_bytes(WORD_BYTES, "little"), "<u8")


@cache
def field_mask(opcode: Opcode, names: tuple[str, ...]) -> np.ndarray:
    """Return the bits of an instruction word that belong to the named fields: (8,) uint64."""
    mask = sum((1 << place.width) - 1 << place.position for place in map(places(opcode).get, names) if place)
    return np.frombuffer(mask.to_bytes(WORD_BYTES, "little"), "<u8")


class Code(Sequence[Instruction]):
    """Sequence of a program's instructions, stored as an array of words.

    Parameters
    ----------
    words : ndarray
        (count, 8) uint64: the little-endian 64-bit parts of each instruction word.
    """

    def __init__(self, words: np.ndarray) -> None:
        assert words.dtype == np.dtype("<u8")
        assert words.shape[1:] == (_PARTS,)
        self.words = words

    @classmethod
    def of(cls, instructions: Iterable[Instruction]) -> Code:
        """Encode instructions. Raises `IsaError` for the first one with a value that does not fit its field."""
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
        """Read a program as it is in memory. Raises `IsaError` with the index of the first invalid word."""
        if len(raw) % WORD_BYTES:
            raise IsaError(f"a program is a multiple of {WORD_BYTES} bytes, not {len(raw)}")
        code = cls(np.frombuffer(raw, "<u8").reshape(-1, _PARTS))
        invalid = code._invalid_words()
        if invalid.any():
            index = int(np.argmax(invalid))
            try:
                decode(raw[index * WORD_BYTES : (index + 1) * WORD_BYTES])
            except IsaError as error:
                raise IsaError(f"instruction {index}: {error}") from None
            raise AssertionError(f"instruction {index} is wrongly taken for an invalid one")
        return code

    def _invalid_words(self) -> np.ndarray:
        """Return a mask of the words that `decode` rejects: (count,) bool."""
        invalid = ~np.isin(self.opcodes, list(INSTRUCTIONS))
        for opcode, rows in self.by_opcode():
            words = self.words[rows]
            bad = (words & _reserved_mask(opcode)).any(axis=1)
            for place in places(opcode).values():
                if place.low > 0:
                    bad |= _read_field(words, place) < place.low
            invalid[rows[bad]] = True
        return invalid

    @property
    def opcodes(self) -> np.ndarray:
        return (self.words[:, 0] & np.uint64(0xFF)).astype(np.uint8)

    def by_opcode(self) -> Iterator[tuple[Opcode, np.ndarray]]:
        """Yield the opcodes that occur, each with the indices of its instructions."""
        opcodes = self.opcodes
        for opcode in INSTRUCTIONS:
            rows = np.flatnonzero(opcodes == int(opcode))
            if rows.size:
                yield opcode, rows

    @property
    def queues(self) -> np.ndarray:
        """Queue of each instruction, -1 for instructions without one: (count,) int8."""
        table = np.full(256, -1, np.int8)
        for opcode, kind in INSTRUCTIONS.items():
            table[int(opcode)] = -1 if kind.QUEUE is None else int(kind.QUEUE)
        return table[self.opcodes]

    def field(
        self, name: str, opcode: Opcode = Opcode.END, rows: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """Return a field of the instructions `rows`: (count,) int64.

        All of them must have opcode `opcode`, unless all instructions have the field.
        """
        return _read_field(self.words[rows], places(opcode)[name])

    def tobytes(self) -> bytes:
        """Return the program as it is in memory."""
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
        for first in range(0, len(self), _DECODE_BATCH):
            yield from self[first : first + _DECODE_BATCH]._decode_all()

    def _decode_all(self) -> list[Instruction]:
        by_row: dict[int, Instruction] = {}
        for opcode, rows in self.by_opcode():
            kind, words = INSTRUCTIONS[opcode], self.words[rows]
            columns = [_read_field(words, place).tolist() for place in places(opcode).values()]
            for row, values in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
                by_row[row] = kind(*values)
        return [by_row[row] for row in range(len(self))]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Code):
            return np.array_equal(self.words, other.words)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Code({len(self)} instructions)"


def pack(opcode: Opcode, columns: Mapping[str, Sequence[int] | np.ndarray], count: int) -> np.ndarray:
    """Encode `count` instructions of one opcode from arrays of field values: (count, 8) uint64.

    Missing fields get their defaults.

    Raises
    ------
    IsaError
        Naming the first field with a value that does not fit.
    """
    words = np.zeros((count, _PARTS), "<u8")
    words[:, 0] = int(opcode)
    defaults = {field.name: field.default for field in dataclasses.fields(INSTRUCTIONS[opcode])}
    for name, place in places(opcode).items():
        column = columns.get(name, defaults[name])
        # As objects, integers of any size reach the check below instead of wrapping.
        values = column if isinstance(column, np.ndarray) else np.asarray(column, object)
        invalid = (values < place.low) | (values > place.high)
        if invalid.any():
            value = values[np.argmax(invalid)] if values.ndim else values
            raise IsaError(f"{opcode.name} field {name!r} is {value}, outside {place.low} to {place.high}")
        write_field(words, place, values.astype(np.int64))
    return words


def write_field(words: np.ndarray, place: Place, values: np.ndarray) -> None:
    """Write a field of the (count, 8) `words` in place; it must be 0 before."""
    part, shift = divmod(place.position, 64)
    bits = values.astype(np.uint64) & np.uint64((1 << place.width) - 1)
    words[:, part] |= bits << np.uint64(shift)
    if shift + place.width > 64:
        words[:, part + 1] |= bits >> np.uint64(64 - shift)


def _read_field(words: np.ndarray, place: Place) -> np.ndarray:
    part, shift = divmod(place.position, 64)
    bits = words[:, part] >> np.uint64(shift)
    if shift + place.width > 64:
        bits = bits | words[:, part + 1] << np.uint64(64 - shift)
    values = (bits & np.uint64((1 << place.width) - 1)).astype(np.int64)
    if place.signed:
        half = 1 << place.width - 1
        values = (values ^ half) - half  # sign extension
    return values


_MASKS = ("wait", "signal")
_NAMES: dict[str, type[enum.IntEnum]] = {"source": Source, "reduce": Reduce} | {
    f"mode{slot}": Mode for slot in range(SLOTS)
}
_HEXADECIMAL = ("offset", "a", "b", "c", "src", "dst", "params", "state", "alignment")


def assemble(text: str) -> list[Instruction]:
    """Parse assembly text and check the values of all fields.

    Raises
    ------
    AsmError
        With the line, counted from 1: unknown mnemonic or field, duplicate field, or a value that is no number or does
        not fit its field.
    """
    instructions = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.replace(";", "#").split("#", 1)[0].split()
        if not words:
            continue
        try:
            instructions.append(_parse_instruction(words))
        except (AsmError, IsaError) as error:
            raise AsmError(f"line {number}: {error}") from None
    return instructions


def disassemble(instructions: Iterable[Instruction], *, numbered: bool = False) -> str:
    """Format instructions as text that `assemble` reads, one per line; `numbered` adds their indices as comments."""
    lines = []
    for index, instruction in enumerate(instructions):
        line = format_instruction(instruction)
        lines.append(f"{line}  # {index}" if numbered else line)
    return "".join(f"{line}\n" for line in lines)


def format_instruction(instruction: Instruction) -> str:
    """Format an instruction as text: ``wait`` first, ``signal`` last, and fields with their default omitted."""
    fields = [field for field in dataclasses.fields(instruction) if field.name != "signal"]
    fields += [field for field in dataclasses.fields(instruction) if field.name == "signal"]
    words = [instruction.OPCODE.name.lower()]
    for field in fields:
        value = getattr(instruction, field.name)
        if value != field.default:
            words.append(f"{field.name}={_format_value(field.name, value)}")
    return " ".join(words)


def _format_value(name: str, value: int) -> str:
    if name in _MASKS:
        return ",".join(f"s{bit}" for bit in range(SEMAPHORES) if value >> bit & 1)
    if name in _NAMES and value in set(_NAMES[name]):
        return _NAMES[name](value).name.lower()
    return f"{value:#x}" if name in _HEXADECIMAL else str(value)


def _parse_instruction(words: list[str]) -> Instruction:
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
        values[name] = _parse_value(mnemonic, name, text)
    instruction = cls(**values)
    instruction.check()
    return instruction


def _parse_value(mnemonic: str, name: str, text: str) -> int:
    # Besides numbers: "s0,s3" for a semaphore mask, and the member's name for an enumerated field.
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
