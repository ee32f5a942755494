"""Lists of programs in memory that the device runs in order: the format of their descriptors.

A list is an array of descriptors, `pitch` bytes apart, at an address that is a multiple of `pitch`. A descriptor has
little-endian words of 32 bits:

====  ==========================================================================================
word  contents
====  ==========================================================================================
0     `MARK`; bit 0 is 1 in the last descriptor of the list
1     byte address of the program, as in register PROGRAM
2, 3  0
4-11  base registers 0 to 7
12    0, and 1 when the program is done (first word of the record)
13    cycles of the program, saturating; 0 from a device without time
14    cycles in which LOAD waited for memory, saturating; 0 from a device without time
15    0
====  ==========================================================================================

When a program has ended without an error, the device writes the record, words 12 to 15, and then reads the next
descriptor.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from weft.hdl.errors import IsaError
from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import BASES
from weft.hdl.isa.memmap import LISTED_BITS

DESCRIPTOR_BYTES = 64
MARK = 0x4C53_5400
"""Word 0 of a descriptor except for bit 0: ``LST`` in its upper bytes."""
PROGRAM_WORD, BASE_WORD, RECORD_WORD = 1, 4, 12
RECORD_READ_BYTES = 4 * RECORD_WORD
"""Bytes of a descriptor that the device reads: everything before the record."""
RECORD_BYTES = DESCRIPTOR_BYTES - RECORD_READ_BYTES
MAX_RECORDED_CYCLES = (1 << 32) - 1
"""Value at which the cycle counts of a record saturate."""
MAX_LIST_PROGRAMS = (1 << LISTED_BITS) - 1

_FRAME = struct.Struct(f"<II8x{BASES}I16x")
_RECORD = struct.Struct("<III4x")
assert _FRAME.size == DESCRIPTOR_BYTES
assert _RECORD.size == RECORD_BYTES


def pitch(config: Config) -> int:
    """Return the bytes from one descriptor to the next, which is also the alignment of a list."""
    return max(DESCRIPTOR_BYTES, config.bus_bytes)


def check_list(address: int, count: int, config: Config, memory_bytes: int) -> None:
    """Check length and address of a list of `count` programs.

    Raises
    ------
    IsaError
        If it has no or too many programs, or if its address is not aligned, or if it exceeds `memory_bytes` of memory.
    """
    if not 1 <= count <= MAX_LIST_PROGRAMS:
        raise IsaError(f"a list has 1 to {MAX_LIST_PROGRAMS} programs, not {count}")
    step = pitch(config)
    if address % step:
        raise IsaError(f"the list's address {address:#x} is no multiple of {step} bytes")
    if address < 0 or address + count * step > memory_bytes:
        raise IsaError(
            f"a list of {count} programs at {address:#x} takes {count * step} bytes, which do not lie in a memory of "
            f"{memory_bytes} bytes"
        )


@dataclass(frozen=True)
class Record:
    """Record that the device writes after a program of a list.

    Attributes
    ----------
    done : bool
        True if the program has ended without an error.
    cycles : int
        Cycles from its start to its end; 0 if it is not done, and from a device without time.
    memory : int
        Cycles in which LOAD waited for memory, as `weft.hdl.isa.memmap.Counter.LOAD_MEMORY`.
    """

    done: bool = False
    cycles: int = 0
    memory: int = 0

    def encode(self) -> bytes:
        """Return the record as `RECORD_BYTES` bytes."""
        return _RECORD.pack(
            self.done, min(self.cycles, MAX_RECORDED_CYCLES), min(self.memory, MAX_RECORDED_CYCLES)
        )

    @classmethod
    def decode(cls, raw: bytes) -> Record:
        """Decode the record in the bytes of a whole descriptor."""
        done, cycles, memory = _RECORD.unpack(raw[RECORD_READ_BYTES:DESCRIPTOR_BYTES])
        return cls(done == 1, cycles, memory)


@dataclass(frozen=True)
class Descriptor:
    """Descriptor of a program in a list.

    Attributes
    ----------
    program : int
        DRAM byte address of the first instruction, a multiple of the bus width.
    bases : sequence of int
        Values of all `BASES` base registers.
    last : bool
        True for the last descriptor of the list.
    """

    program: int
    bases: Sequence[int]
    last: bool = False

    def encode(self) -> bytes:
        """Return `DESCRIPTOR_BYTES` bytes with an empty record. Raises `IsaError` for a value that does not fit."""
        if len(self.bases) != BASES:
            raise IsaError(f"a descriptor has {BASES} base registers, not {len(self.bases)}")
        for name, value in {
            "program address": self.program,
            **{f"base register {index}": value for index, value in enumerate(self.bases)},
        }.items():
            if not 0 <= value < 1 << 32:
                raise IsaError(f"the {name} of a descriptor cannot be {value}: it is 32 bits")
        return _FRAME.pack(MARK | self.last, self.program, *self.bases)

    @classmethod
    def decode(cls, raw: bytes) -> Descriptor:
        """Decode `DESCRIPTOR_BYTES` bytes. Raises `IsaError` if word 0 is not `MARK`."""
        mark, program, *bases = _FRAME.unpack(raw[:DESCRIPTOR_BYTES])
        if mark & ~1 != MARK:
            raise IsaError(f"a descriptor cannot begin with {mark:#010x}")
        return cls(program, tuple(bases), bool(mark & 1))


def encode_list(programs: Sequence[tuple[int, Sequence[int]]], config: Config) -> bytes:
    """Encode a list of programs, each given as its address and the values of all base registers.

    Raises
    ------
    IsaError
        If there is no program, or if an address is no multiple of the bus width or does not fit 32 bits.
    """
    check_list(0, len(programs), config, len(programs) * pitch(config))
    step, raw = pitch(config), bytearray()
    for index, (program, bases) in enumerate(programs):
        if program % config.bus_bytes:
            raise IsaError(
                f"program {index} of the list: address {program:#x} is no multiple of {config.bus_bytes} bytes"
            )
        raw += Descriptor(program, bases, index == len(programs) - 1).encode().ljust(step, b"\0")
    return bytes(raw)
