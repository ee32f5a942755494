"""A list of programs in memory, which run one after the other: one descriptor for each, defined once for all rooms.

Descriptors follow each other in memory, `pitch` bytes apart, the first at a multiple of that. Words of 32 bits, little
endian:

====  ==========================================================================================
word  what it is
====  ==========================================================================================
0     `MARK`, and in bit 0 whether it is the last one of the list
1     byte address of the program, as register PROGRAM takes it
2, 3  0
4-11  base registers 0 to 7
12    0; 1 when the program is done (the record starts here)
13    cycles that the program took, at most `MOST`; 0 from a device without time
14    of these, cycles in which LOAD waited for memory, at most `MOST`; 0 from a device without time
15    0
====  ==========================================================================================

The device writes words 12 to 15, the record, when the program has come to its end without an error, and only then reads
the next descriptor.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import BASES, IsaError
from weft.hdl.isa.memmap import LISTED_BITS

DESCRIPTOR_BYTES = 64
MARK = 0x4C53_5400
"""What word 0 of every descriptor is, but for bit 0: ``LST`` in its upper bytes."""
PROGRAM_WORD, BASE_WORD, RECORD_WORD = 1, 4, 12
RECORD_READ_BYTES = 4 * RECORD_WORD
"""Bytes of a descriptor that the device reads."""
RECORD_BYTES = DESCRIPTOR_BYTES - RECORD_READ_BYTES
MOST = (1 << 32) - 1
"""Cycles that a record can tell at most: it stays at that."""
LIST_MOST = (1 << LISTED_BITS) - 1
"""Programs that LISTED counts at most."""

_FRAME = struct.Struct(f"<II8x{BASES}I16x")
_RECORD = struct.Struct("<III4x")
assert _FRAME.size == DESCRIPTOR_BYTES
assert _RECORD.size == RECORD_BYTES


def pitch(config: Config) -> int:
    """Bytes from one descriptor to the next: a multiple of the bus width, and what the list's address is one of."""
    return max(DESCRIPTOR_BYTES, config.bus_bytes)


def check_list(address: int, count: int, config: Config, memory_bytes: int) -> None:
    """Check where a list of `count` programs is to lie.

    Raises
    ------
    IsaError
        If it has no program or too many, or its address is not aligned or beyond a memory of `memory_bytes` bytes.
    """
    if not 1 <= count <= LIST_MOST:
        raise IsaError(f"a list has 1 to {LIST_MOST} programs, not {count}")
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
    """What the device tells about a program of a list.

    Attributes
    ----------
    done : bool
        It came to its end without an error.
    cycles : int
        From its start to its end; 0 from a device without time, and if it is not done.
    memory : int
        Cycles of these in which LOAD waited for memory: `weft.hdl.isa.memmap.Counter.LOAD_MEMORY`.
    """

    done: bool = False
    cycles: int = 0
    memory: int = 0

    def encode(self) -> bytes:
        """The record's `RECORD_BYTES` bytes."""
        return _RECORD.pack(self.done, min(self.cycles, MOST), min(self.memory, MOST))

    @classmethod
    def decode(cls, raw: bytes) -> Record:
        """From the whole bytes of a descriptor."""
        done, cycles, memory = _RECORD.unpack(raw[RECORD_READ_BYTES:DESCRIPTOR_BYTES])
        return cls(done == 1, cycles, memory)


@dataclass(frozen=True)
class Descriptor:
    """One program of a list.

    Attributes
    ----------
    program : int
        DRAM byte address of its first instruction, a multiple of the bus width.
    bases : sequence of int
        What all `BASES` base registers hold.
    last : bool
        No descriptor follows.
    """

    program: int
    bases: Sequence[int]
    last: bool = False

    def encode(self) -> bytes:
        """The `DESCRIPTOR_BYTES` bytes, with an empty record. Raises `IsaError` for what does not fit its word."""
        if len(self.bases) != BASES:
            raise IsaError(f"a descriptor has values of {BASES} base registers, not of {len(self.bases)}")
        for what, value in {
            "program address": self.program,
            **{f"base register {index}": value for index, value in enumerate(self.bases)},
        }.items():
            if not 0 <= value < 1 << 32:
                raise IsaError(f"the {what} of a descriptor cannot be {value}: it is 32 bits")
        return _FRAME.pack(MARK | self.last, self.program, *self.bases)

    @classmethod
    def decode(cls, raw: bytes) -> Descriptor:
        """From `DESCRIPTOR_BYTES` bytes. Raises `IsaError` if word 0 has not the mark."""
        mark, program, *bases = _FRAME.unpack(raw[:DESCRIPTOR_BYTES])
        if mark & ~1 != MARK:
            raise IsaError(f"no descriptor begins with {mark:#010x}")
        return cls(program, tuple(bases), bool(mark & 1))


def encode_list(programs: Sequence[tuple[int, Sequence[int]]], config: Config) -> bytes:
    """The bytes of a list: for each program its address and the values of all base registers.

    Raises
    ------
    IsaError
        For no program, or an address that is no multiple of the bus width or does not fit.
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
