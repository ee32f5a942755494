"""Binary encoding of instructions and of 4-bit weights.

Every instruction is a frozen dataclass whose fields carry their width and sign. This definition yields the checked
`Instruction.encode` and `decode`, the Amaranth layout (`Instruction.layout`), arrays of many instructions and assembly
text (both in `weft.hdl.isa.code`). An instruction word has `WORD_BITS` bits, little endian in memory. The opcode is in
its low bits, and the fields follow in order of definition.
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

from weft.hdl.errors import IsaError
from weft.hdl.isa.config import Config, Feature
from weft.hdl.isa.operands import Operand

WORD_BYTES = 64
WORD_BITS = 8 * WORD_BYTES
SEMAPHORES = 16
SEMAPHORE_MAX = 255
"""Largest count of a semaphore; the program checker rejects programs that could exceed it."""
OPCODE_BITS = 8
BASES = 8
"""Number of base registers, which the host sets."""
PROGRAM_REGISTERS = 16
"""Number of registers with loops: the base registers, which the program may change, and as many others."""


class Queue(enum.IntEnum):
    """In-order instruction queue of a unit."""

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
    """Define a field of `width` bits.

    `least` is the smallest legal value if it is not what the width allows. Without the feature `requires`, the field
    must be 0.
    """
    metadata = {"width": width, "signed": signed, "least": least, "doc": doc, "requires": requires}
    return dataclasses.field(default=default, metadata=metadata)


def register(doc: str, *, requires: Feature | None = None) -> Any:
    """Define a field with the number of a register that the instruction reads when it passes fetch.

    Without `Feature.LOOPS` only the `BASES` base registers exist.
    """
    field = bits((PROGRAM_REGISTERS - 1).bit_length(), doc, requires=requires)
    return dataclasses.field(default=0, metadata={**field.metadata, "register": True})


def count(doc: str, width: int = 12) -> Any:
    return bits(width, doc, least=1, default=1)


def stride(doc: str, width: int = 16) -> Any:
    return bits(width, doc, signed=True)


@dataclass(frozen=True)
class Instruction:
    """Base class of all instructions. The constructor checks nothing; `check` and `encode` do.

    Attributes
    ----------
    OPCODE : Opcode
    QUEUE : Queue or None
        Queue of its unit; None for END and the instructions that fetch executes.
    REQUIRES : Feature or None
        Feature that the configuration must have.
    OPERANDS : tuple of Operand
        Operands that it reads and writes. If it does both to an operand, the read comes first.
    """

    OPCODE: ClassVar[Opcode]
    QUEUE: ClassVar[Queue | None] = None
    REQUIRES: ClassVar[Feature | None] = None
    OPERANDS: ClassVar[tuple[Operand, ...]] = ()

    def __init_subclass__(cls) -> None:
        if "OPCODE" in cls.__dict__:
            # Sorted again for each class, because the classes are defined in several modules.
            by_opcode = sorted({**INSTRUCTIONS, cls.OPCODE: cls}.items())
            INSTRUCTIONS.clear()
            INSTRUCTIONS.update(by_opcode)

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
        """Return the operand `name` of this instruction. Raises `KeyError` if it has none."""
        for operand in self.OPERANDS:
            if operand.name == name and operand.applies(self):
                return operand
        raise KeyError(name)

    def unsupported(self, config: Config) -> str | None:
        """Return why `config` lacks this instruction or a field that it sets, as a sentence; None if it has them."""
        if self.REQUIRES and (reason := self.REQUIRES.missing(config)):
            return reason
        for name, feature in required_features(self.OPCODE).items():
            if getattr(self, name) and (reason := feature.missing(config)):
                return f"{name!r} must be 0, because {reason}"
        for name in register_fields(self.OPCODE):
            if getattr(self, name) >= BASES and (reason := Feature.LOOPS.missing(config)):
                return f"{name!r} is {getattr(self, name)}, and there are {BASES} base registers, because {reason}"
        return None

    def encode(self) -> bytes:
        """Return the instruction word. Raises `IsaError` for a value that does not fit its field."""
        self.check()
        word = int(self.OPCODE) | word_of(self, places(self.OPCODE))
        return word.to_bytes(WORD_BYTES, "little")

    @classmethod
    def layout(cls) -> data.StructLayout:
        """Return the Amaranth layout of the whole word, opcode and padding included."""
        members: dict[str, Any] = {"opcode": unsigned(OPCODE_BITS)}
        for name, place in places(cls.OPCODE).items():
            members[name] = signed(place.width) if place.signed else unsigned(place.width)
        members["reserved"] = unsigned(WORD_BITS - used_bits(cls.OPCODE))
        return data.StructLayout(members)

    @classmethod
    def from_word(cls, word: int) -> Self:
        """Decode the integer `word`. Raises `IsaError` if a bit after the last field is set."""
        used = used_bits(cls.OPCODE)
        if word >> used:
            raise IsaError(f"{cls.OPCODE.name} word has bits set above its last field (bit {used})")
        return cls(**values_of(word, places(cls.OPCODE)))


INSTRUCTIONS: dict[Opcode, type[Instruction]] = {}
"""All instruction classes with an opcode, in order of opcodes."""


def kinds_of(queue: Queue, config: Config) -> tuple[type[Instruction], ...]:
    """Return the instruction classes of a queue that `config` supports, in order of opcodes."""
    kinds = (kind for kind in INSTRUCTIONS.values() if kind.QUEUE is queue)
    return tuple(kind for kind in kinds if not (kind.REQUIRES and kind.REQUIRES.missing(config)))


class Place(NamedTuple):
    """Position of a field in a word, and its smallest and largest value."""

    position: int
    width: int
    signed: bool
    low: int
    high: int


@cache
def places(opcode: Opcode) -> dict[str, Place]:
    """Return the places of an instruction's fields by name, in order of their bits."""
    return field_places(INSTRUCTIONS[opcode], OPCODE_BITS)


def field_places(kind: type[Any], position: int = 0) -> dict[str, Place]:
    """Return the places of a dataclass's fields by name, packed from bit `position` on."""
    result = {}
    for field in dataclasses.fields(kind):
        width = field.metadata["width"]
        result[field.name] = Place(position, width, field.metadata["signed"], *limits(field))
        position += width
    return result


def word_of(values: Any, fields: Mapping[str, Place]) -> int:
    """Pack the attributes of `values` that `fields` names into an integer."""
    return sum(
        (int(getattr(values, name)) & ((1 << place.width) - 1)) << place.position
        for name, place in fields.items()
    )


def values_of(word: int, fields: Mapping[str, Place]) -> dict[str, int]:
    """Unpack the fields of an integer word."""
    values = {}
    for name, place in fields.items():
        value = (word >> place.position) & ((1 << place.width) - 1)
        values[name] = value - (1 << place.width) if value > place.high and place.signed else value
    return values


@cache
def required_features(opcode: Opcode) -> dict[str, Feature]:
    """Return the optional fields of an instruction, with the feature that each requires."""
    fields = dataclasses.fields(INSTRUCTIONS[opcode])
    return {field.name: field.metadata["requires"] for field in fields if field.metadata["requires"]}


@cache
def register_fields(opcode: Opcode) -> tuple[str, ...]:
    """Return the names of an instruction's register fields, in order."""
    fields = dataclasses.fields(INSTRUCTIONS[opcode])
    return tuple(field.name for field in fields if "register" in field.metadata)


def used_bits(opcode: Opcode) -> int:
    """Return the number of bits up to the end of the last field."""
    last = list(places(opcode).values())[-1]
    return last.position + last.width


def limits(field: dataclasses.Field[Any]) -> tuple[int, int]:
    """Return the smallest and largest legal value of a field."""
    width = field.metadata["width"]
    if field.metadata["signed"]:
        return -(1 << (width - 1)), (1 << (width - 1)) - 1
    least = field.metadata["least"]
    return (0 if least is None else least), (1 << width) - 1


def decode(word: bytes) -> Instruction:
    """Decode the instruction in `word`, which has `WORD_BYTES` bytes.

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


_OPERATIONS = ("$add", "$sub", "$mul", "$and", "$or", "$xor", "$xnor", "$not", "$neg", "$pos")
_COMPARISONS = ("$eq", "$ne", "$lt", "$le", "$gt", "$ge")
_SHIFTS = ("$shl", "$shr", "$sshl", "$sshr", "$shift", "$shiftx")


def widen(design: Any, yosys: Any) -> None:
    """Give the operands of each cell of a Yosys design explicit, matching widths, in place.

    Linters report operands of different widths. Operands are extended, or truncated where that changes no result.
    """
    for module in design.modules_.values():
        for cell in list(module.cells_.values()):
            kind = str(cell.type)
            if kind == "$logic_not":
                _compare_with_zero(cell, yosys)
            elif kind in _OPERATIONS:
                _resize(cell, cell.getPort(yosys.IdString("\\Y")).size(), "AB", yosys)
            elif kind in _COMPARISONS:
                sizes = [cell.getPort(yosys.IdString(f"\\{name}")).size() for name in "AB"]
                _resize(cell, max(sizes), "AB", yosys)
                _fold_constant_comparison(module, cell, yosys)
            elif kind in _SHIFTS:
                # A right shift needs the bits above the result, a left shift does not.
                result, operand = (cell.getPort(yosys.IdString(f"\\{name}")).size() for name in "YA")
                if kind in ("$shl", "$sshl") or result >= operand:
                    _resize(cell, result, "A", yosys)
                else:
                    _keep_all_bits(module, cell, operand, yosys)


def _fold_constant_comparison(module: Any, cell: Any, yosys: Any) -> None:
    """Replace an unsigned comparison with all ones or with zero by its constant result, if it has one."""
    results = {("$le", True): 1, ("$gt", True): 0, ("$ge", False): 1, ("$lt", False): 0}
    limit = cell.getPort(yosys.IdString("\\B"))
    if cell.getParam(yosys.IdString("\\A_SIGNED")).as_bool():
        return
    for ones in (True, False):
        value = results.get((str(cell.type), ones))
        if value is not None and (limit.is_fully_ones() if ones else limit.is_fully_zero()):
            result = cell.getPort(yosys.IdString("\\Y"))
            module.connect(result, yosys.SigSpec(yosys.Const(value, result.size())))
            module.remove(cell)
            return


def _compare_with_zero(cell: Any, yosys: Any) -> None:
    # ``!x`` of several bits becomes ``x == 0``.
    width = cell.getPort(yosys.IdString("\\A")).size()
    if width == 1:
        return
    cell.type = yosys.IdString("$eq")
    cell.setPort(yosys.IdString("\\B"), yosys.SigSpec(yosys.Const(0, width)))
    cell.setParam(yosys.IdString("\\B_WIDTH"), yosys.Const(width, 32))
    cell.setParam(yosys.IdString("\\B_SIGNED"), yosys.Const(0, 1))
    cell.setParam(yosys.IdString("\\A_SIGNED"), yosys.Const(0, 1))


def _keep_all_bits(module: Any, cell: Any, width: int, yosys: Any) -> None:
    # A right shift becomes as wide as its operand; only the low bits of the result are used.
    result = cell.getPort(yosys.IdString("\\Y"))
    wire = yosys.SigSpec(module.addWire(yosys.IdString(f"{cell.name}$whole"), width))
    cell.setPort(yosys.IdString("\\Y"), wire)
    cell.setParam(yosys.IdString("\\Y_WIDTH"), yosys.Const(width, 32))
    module.connect(result, wire.extract(0, result.size()))


def _resize(cell: Any, width: int, operands: str, yosys: Any) -> None:
    present = [name for name in operands if cell.hasPort(yosys.IdString(f"\\{name}"))]
    # In Verilog an operation is signed only if all its operands are.
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


INT4_MIN, INT4_MAX = -8, 7
GROUP_WORDS = 32
"""Words of N values in a group, and values in a block: a group is N blocks, and each has ``GROUP_WORDS / N`` words of
its row."""
FACTOR_FRACTION_BITS = 3
"""Fraction bits of a signed 8-bit block factor. The largest, 15.875, times 8 reaches the largest int8."""
FACTORS_SHIFT = (GROUP_WORDS // 2).bit_length() - 1
"""A group has a byte of factors for every ``2**FACTORS_SHIFT`` bytes of values."""


def group_bytes(n: int) -> int:
    """Return the bytes of a group's values, without its factors, for words of `n` values."""
    return GROUP_WORDS * n // 2


def pack_int4(values: np.ndarray) -> bytes:
    """Pack integers from `INT4_MIN` to `INT4_MAX` in two per byte, the low nibble first; an odd number is padded with
    0."""
    nibbles = values.astype(np.uint8).ravel() & 15
    if nibbles.size % 2:
        nibbles = np.append(nibbles, np.uint8(0))
    return bytes((nibbles[::2] | nibbles[1::2] << 4).tobytes())


def unpack_int4(packed: np.ndarray) -> np.ndarray:
    """Unpack uint8 bytes to int8, two values per byte."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)
    return ((nibbles ^ 8) - np.uint8(8)).view(np.int8)


def pack_groups(values: np.ndarray, factors: np.ndarray) -> bytes:
    """Encode groups of values from `INT4_MIN` to `INT4_MAX`, (groups, `GROUP_WORDS`, N), and int8 factors, (groups, N).

    In memory the N factors of a group come before its values.
    """
    nibbles = values.reshape(len(values), -1).astype(np.uint8) & 15
    packed = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    return np.concatenate([factors.astype(np.int8).view(np.uint8), packed], axis=1).tobytes()


def unpack_groups(packed: np.ndarray, n: int) -> np.ndarray:
    """Decode groups in uint8 bytes as LOAD does, to int8 of shape (groups, `GROUP_WORDS`, `n`)."""
    groups = packed.reshape(-1, n + group_bytes(n))
    values = unpack_int4(groups[:, n:]).reshape(len(groups), GROUP_WORDS, n)
    return multiply_groups(values, groups[:, :n].view(np.int8))


def multiply_groups(values: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Multiply 4-bit values, (groups, `GROUP_WORDS`, N), by their blocks' factors, (groups, N), to int8."""
    return multiply_factors(values, np.tile(factors, (1, GROUP_WORDS // values.shape[-1]))[:, :, None])


def multiply_factors(values: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Multiply 4-bit values by int8 factors with broadcasting, round half up, and saturate to int8."""
    products = values.astype(np.int32) * factors
    rounded = (products + (1 << FACTOR_FRACTION_BITS - 1)) >> FACTOR_FRACTION_BITS
    return np.clip(rounded, -128, 127).astype(np.int8)
