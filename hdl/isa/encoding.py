"""The encoding of instructions.

Every instruction is a frozen dataclass whose fields carry their width and sign. From that one definition come the
checked `Instruction.encode` and `decode`, the Amaranth layout (`Instruction.layout`), columns of many instructions
(`weft.hdl.isa.code`) and the textual form (`weft.hdl.isa.code`). An instruction word is `WORD_BITS` wide, little endian
in memory, fields packed from bit 0 in order of definition after the opcode.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from weft.hdl.errors import WeftError
from weft.hdl.isa.config import Config, Feature
from weft.hdl.isa.operands import Operand

WORD_BYTES = 64
WORD_BITS = 8 * WORD_BYTES
SEMAPHORES = 16
SEMAPHORE_MAX = 255
"""Largest count of a semaphore; the program checker refuses programs that could pass it."""
OPCODE_BITS = 8
BASES = 8
"""Base registers that the host sets."""
PROGRAM_REGISTERS = 16
"""Registers that a program with loops has: the base registers, which it may change, and as many of its own."""


class IsaError(WeftError, ValueError):
    """A value that an instruction cannot hold, or a word that is no instruction."""


class Queue(enum.IntEnum):
    """The four in-order queues."""

    LOAD = 0
    MM = 1
    VEC = 2
    STORE = 3


class Opcode(enum.IntEnum):
    END = 0
    LOAD = 1
    MM = 2
    VEC = 3
    STORE = 4
    SOFTMAX = 5
    NORMALISE = 6
    TABLE = 7
    LOOKUP = 8
    MICROCODE = 9
    KERNEL = 10
    SET = 11
    LOOP = 12
    NEXT = 13
    READ = 14


def bits(
    width: int,
    doc: str,
    *,
    signed: bool = False,
    least: int | None = None,
    default: int = 0,
    requires: Feature | None = None,
) -> Any:
    """A field of `width` bits. `least` raises the smallest legal value above what the width allows; without the feature
    that it `requires`, it must be 0."""
    metadata = {"width": width, "signed": signed, "least": least, "doc": doc, "requires": requires}
    return dataclasses.field(default=default, metadata=metadata)


def register(doc: str, *, requires: Feature | None = None) -> Any:
    """A field that names a register whose content an instruction needs: as it is when the instruction passes fetch.
    Without `Feature.LOOPS` there are those of the host only."""
    field = bits((PROGRAM_REGISTERS - 1).bit_length(), doc, requires=requires)
    return dataclasses.field(default=0, metadata={**field.metadata, "register": True})


def count(doc: str, width: int = 12) -> Any:
    return bits(width, doc, least=1, default=1)


def stride(doc: str, width: int = 16) -> Any:
    return bits(width, doc, signed=True)


@dataclass(frozen=True)
class Instruction:
    """The base of all instructions. Constructing one checks nothing; `check` and `encode` do.

    Attributes
    ----------
    OPCODE : Opcode
    QUEUE : Queue or None
        Where it waits for its unit; None for END and the instructions that fetch carries out by itself.
    REQUIRES : Feature or None
        What a configuration must have for it.
    OPERANDS : tuple of Operand
        What it reads and writes: of an operand, reads come before writes.
    """

    OPCODE: ClassVar[Opcode]
    QUEUE: ClassVar[Queue | None] = None
    REQUIRES: ClassVar[Feature | None] = None
    OPERANDS: ClassVar[tuple[Operand, ...]] = ()

    def __init_subclass__(cls) -> None:
        if "OPCODE" in cls.__dict__:
            known = sorted({**INSTRUCTIONS, cls.OPCODE: cls}.items())
            INSTRUCTIONS.clear()
            INSTRUCTIONS.update(known)

    wait: int = bits(SEMAPHORES, "semaphores to take before starting")
    signal: int = bits(SEMAPHORES, "semaphores to give when done")

    def check(self) -> None:
        """Raise `IsaError` naming the first field whose value does not fit."""
        for name, place in places(self.OPCODE).items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise IsaError(f"{self.OPCODE.name} field {name!r} must be an integer, not {value!r}")
            if not place.low <= value <= place.high:
                raise IsaError(
                    f"{self.OPCODE.name} field {name!r} is {value}, outside {place.low} to {place.high}"
                )

    def operand(self, name: str) -> Operand:
        """The operand of this name that the instruction has. Raises `KeyError` if it has none."""
        for operand in self.OPERANDS:
            if operand.name == name and operand.applies(self):
                return operand
        raise KeyError(name)

    def unsupported(self, config: Config) -> str | None:
        """Why a configuration does not have this instruction or a field that it sets, as a sentence; None if it has."""
        if self.REQUIRES and (reason := self.REQUIRES.missing(config)):
            return reason
        for name, feature in required(self.OPCODE).items():
            if getattr(self, name) and (reason := feature.missing(config)):
                return f"{name!r} must be 0, as {reason}"
        for name in registers(self.OPCODE):
            if getattr(self, name) >= BASES and (reason := Feature.LOOPS.missing(config)):
                return f"{name!r} is {getattr(self, name)}, and there are {BASES} base registers, as {reason}"
        return None

    def encode(self) -> bytes:
        """The instruction word. Raises `IsaError` for a value that does not fit its field."""
        self.check()
        word = int(self.OPCODE) | word_of(self, places(self.OPCODE))
        return word.to_bytes(WORD_BYTES, "little")

    @classmethod
    def layout(cls) -> data.StructLayout:
        """The Amaranth layout of the whole word, opcode and padding included."""
        members: dict[str, Any] = {"opcode": unsigned(OPCODE_BITS)}
        for name, place in places(cls.OPCODE).items():
            members[name] = signed(place.width) if place.signed else unsigned(place.width)
        members["reserved"] = unsigned(WORD_BITS - used_bits(cls.OPCODE))
        return data.StructLayout(members)

    @classmethod
    def from_word(cls, word: int) -> Self:
        """The fields of the integer `word`. Raises `IsaError` for bits that belong to no field."""
        used = used_bits(cls.OPCODE)
        if word >> used:
            raise IsaError(f"{cls.OPCODE.name} word has bits set above its last field (bit {used})")
        return cls(**values_of(word, places(cls.OPCODE)))


INSTRUCTIONS: dict[Opcode, type[Instruction]] = {}
"""The instructions by opcode, in that order: every class that has one."""


def kinds_of(queue: Queue, config: Config) -> tuple[type[Instruction], ...]:
    """The instructions of a queue that an accelerator has, by opcode."""
    kinds = (kind for kind in INSTRUCTIONS.values() if kind.QUEUE is queue)
    return tuple(kind for kind in kinds if not (kind.REQUIRES and kind.REQUIRES.missing(config)))


class Place(NamedTuple):
    """The bits of a field in a word, and its smallest and largest value."""

    position: int
    width: int
    signed: bool
    low: int
    high: int


@cache
def places(opcode: Opcode) -> dict[str, Place]:
    """The fields of an instruction by name, in order."""
    return packed(INSTRUCTIONS[opcode], OPCODE_BITS)


def packed(kind: type[Any], position: int = 0) -> dict[str, Place]:
    """The fields of a dataclass by name, one behind the other from a bit on."""
    found = {}
    for field in dataclasses.fields(kind):
        width = field.metadata["width"]
        found[field.name] = Place(position, width, field.metadata["signed"], *limits(field))
        position += width
    return found


def word_of(values: Any, fields: Mapping[str, Place]) -> int:
    """The bits of these fields of an object."""
    return sum(
        (int(getattr(values, name)) & ((1 << place.width) - 1)) << place.position
        for name, place in fields.items()
    )


def values_of(word: int, fields: Mapping[str, Place]) -> dict[str, int]:
    """The fields that a word holds."""
    values = {}
    for name, place in fields.items():
        value = (word >> place.position) & ((1 << place.width) - 1)
        values[name] = value - (1 << place.width) if value > place.high and place.signed else value
    return values


@cache
def required(opcode: Opcode) -> dict[str, Feature]:
    """The fields of an instruction that require something of the configuration, and what."""
    fields = dataclasses.fields(INSTRUCTIONS[opcode])
    return {field.name: field.metadata["requires"] for field in fields if field.metadata["requires"]}


@cache
def registers(opcode: Opcode) -> tuple[str, ...]:
    """The fields of an instruction that are a `register`, in order."""
    fields = dataclasses.fields(INSTRUCTIONS[opcode])
    return tuple(field.name for field in fields if "register" in field.metadata)


def used_bits(opcode: Opcode) -> int:
    """Bits of a word from the first up to its last field."""
    last = list(places(opcode).values())[-1]
    return last.position + last.width


def limits(field: dataclasses.Field[Any]) -> tuple[int, int]:
    """Smallest and largest value a field holds."""
    width = field.metadata["width"]
    if field.metadata["signed"]:
        return -(1 << (width - 1)), (1 << (width - 1)) - 1
    least = field.metadata["least"]
    return (0 if least is None else least), (1 << width) - 1


def decode(word: bytes) -> Instruction:
    """The instruction in `word` (`WORD_BYTES` bytes).

    Raises
    ------
    IsaError
        For a wrong length, an unknown opcode, reserved bits that are set, or a field below its least value.
    """
    if len(word) != WORD_BYTES:
        raise IsaError(f"an instruction word is {WORD_BYTES} bytes, not {len(word)}")
    value = int.from_bytes(word, "little")
    opcode = value & ((1 << OPCODE_BITS) - 1)
    if opcode not in INSTRUCTIONS:
        raise IsaError(f"unknown opcode {opcode}; the opcodes are 0 to {max(INSTRUCTIONS)}")
    instruction = INSTRUCTIONS[Opcode(opcode)].from_word(value)
    instruction.check()
    return instruction


_AS_RESULT = ("$add", "$sub", "$mul", "$and", "$or", "$xor", "$xnor", "$not", "$neg", "$pos")
_AS_EACH_OTHER = ("$eq", "$ne", "$lt", "$le", "$gt", "$ge")
_SHIFTS = ("$shl", "$shr", "$sshl", "$sshr", "$shift", "$shiftx")


def widen(design: Any, yosys: Any) -> None:
    """Extend, or cut where it cannot matter, the operands of every cell of a Yosys design, in place."""
    for module in design.modules_.values():
        for cell in list(module.cells_.values()):
            kind = str(cell.type)
            if kind == "$logic_not":
                _compare_with_zero(cell, yosys)
            elif kind in _AS_RESULT:
                _resize(cell, cell.getPort(yosys.IdString("\\Y")).size(), "AB", yosys)
            elif kind in _AS_EACH_OTHER:
                sizes = [cell.getPort(yosys.IdString(f"\\{name}")).size() for name in "AB"]
                _resize(cell, max(sizes), "AB", yosys)
                _settle(module, cell, yosys)
            elif kind in _SHIFTS:
                # A right shift needs the bits above the result, a left shift does not.
                result, operand = (cell.getPort(yosys.IdString(f"\\{name}")).size() for name in "YA")
                if kind in ("$shl", "$sshl") or result >= operand:
                    _resize(cell, result, "A", yosys)
                else:
                    _keep_all_bits(module, cell, operand, yosys)


def _settle(module: Any, cell: Any, yosys: Any) -> None:
    """Replace comparisons that their limits decide: with all ones or with zero, unsigned."""
    known = {("$le", True): 1, ("$gt", True): 0, ("$ge", False): 1, ("$lt", False): 0}
    limit = cell.getPort(yosys.IdString("\\B"))
    if cell.getParam(yosys.IdString("\\A_SIGNED")).as_bool():
        return
    for ones in (True, False):
        value = known.get((str(cell.type), ones))
        if value is not None and (limit.is_fully_ones() if ones else limit.is_fully_zero()):
            result = cell.getPort(yosys.IdString("\\Y"))
            module.connect(result, yosys.SigSpec(yosys.Const(value, result.size())))
            module.remove(cell)
            return


def _compare_with_zero(cell: Any, yosys: Any) -> None:
    """``!x`` of more than one bit as ``x == 0``."""
    width = cell.getPort(yosys.IdString("\\A")).size()
    if width == 1:
        return
    cell.type = yosys.IdString("$eq")
    cell.setPort(yosys.IdString("\\B"), yosys.SigSpec(yosys.Const(0, width)))
    cell.setParam(yosys.IdString("\\B_WIDTH"), yosys.Const(width, 32))
    cell.setParam(yosys.IdString("\\B_SIGNED"), yosys.Const(0, 1))
    cell.setParam(yosys.IdString("\\A_SIGNED"), yosys.Const(0, 1))


def _keep_all_bits(module: Any, cell: Any, width: int, yosys: Any) -> None:
    """Give a right shift a result as wide as its operand, of which the low bits are used."""
    result = cell.getPort(yosys.IdString("\\Y"))
    wire = yosys.SigSpec(module.addWire(yosys.IdString(f"$whole{cell.name}"), width))
    cell.setPort(yosys.IdString("\\Y"), wire)
    cell.setParam(yosys.IdString("\\Y_WIDTH"), yosys.Const(width, 32))
    module.connect(result, wire.extract(0, result.size()))


def _resize(cell: Any, width: int, operands: str, yosys: Any) -> None:
    present = [name for name in operands if cell.hasPort(yosys.IdString(f"\\{name}"))]
    # Verilog takes an operation as signed only if all its operands are.
    signed = all(cell.getParam(yosys.IdString(f"\\{name}_SIGNED")).as_bool() for name in present)
    for name in present:
        port, parameter = yosys.IdString(f"\\{name}"), yosys.IdString(f"\\{name}_WIDTH")
        value = cell.getPort(port)
        if value.size() == width:
            continue
        if value.size() > width:
            value = value.extract(0, width)
        else:
            value.extend_u0(width, signed)
        cell.setPort(port, value)
        cell.setParam(parameter, yosys.Const(width, 32))


LEAST, MOST = -8, 7
"""Least and largest value."""
GROUP = 32
"""Words of N values in a group, and values of a row's block: N blocks have ``GROUP / N`` words of each row."""
FACTOR_PLACES = 3
"""Binary places of a factor, of 8 bits and signed: up to 15.875, times 8, reaches the largest int8."""
FACTORS_SHIFT = (GROUP // 2).bit_length() - 1
"""A group's factors take as many bytes as its values shifted by so much: 1 for 16."""


def group_bytes(n: int) -> int:
    """Bytes of a group's values, without its factors, in words of `n`."""
    return GROUP * n // 2


def pack(values: np.ndarray) -> bytes:
    """Integers from `LEAST` to `MOST`, in order; behind an odd number of them a nibble of 0."""
    nibbles = values.astype(np.uint8).ravel() & 15
    if nibbles.size % 2:
        nibbles = np.append(nibbles, np.uint8(0))
    return bytes((nibbles[::2] | nibbles[1::2] << 4).tobytes())


def unpack(packed: np.ndarray) -> np.ndarray:
    """The values in uint8 bytes, two for each: int8."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)
    return ((nibbles ^ 8) - np.uint8(8)).view(np.int8)


def pack_groups(values: np.ndarray, factors: np.ndarray) -> bytes:
    """Groups in memory: values from `LEAST` to `MOST`, shape (groups, `GROUP`, N), and int8 factors (groups, N)."""
    nibbles = values.reshape(len(values), -1).astype(np.uint8) & 15
    packed = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    return np.concatenate([factors.astype(np.int8).view(np.uint8), packed], axis=1).tobytes()


def unpack_groups(packed: np.ndarray, n: int) -> np.ndarray:
    """What LOAD makes of groups in uint8 bytes, with words of `n` values: int8, shape (groups, `GROUP`, `n`)."""
    groups = packed.reshape(-1, n + group_bytes(n))
    values = unpack(groups[:, n:]).reshape(len(groups), GROUP, n)
    return multiplied(values, groups[:, :n].view(np.int8))


def multiplied(values: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Values of 4 bits (groups, `GROUP`, N) times the factors (groups, N) of their rows, as int8 of that shape."""
    return times(values, np.tile(factors, (1, GROUP // values.shape[-1]))[:, :, None])


def times(values: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Values of 4 bits times int8 factors of shapes that go together, as int8."""
    products = values.astype(np.int32) * factors
    rounded = (products + (1 << FACTOR_PLACES - 1)) >> FACTOR_PLACES
    return np.clip(rounded, -128, 127).astype(np.int8)
