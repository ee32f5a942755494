"""The AXI4-Lite register map: 32-bit registers, byte addresses, defined once for hardware and hosts."""

from __future__ import annotations

import enum

from weft.hdl.isa import BASES

MAGIC = 0x54464557
"""``WEFT`` in ASCII, little endian."""
VERSION = 5
"""Of registers and instructions: hosts refuse devices with another one."""


class Reg(enum.IntEnum):
    """Byte addresses. RO read only, RW read and write; reserved addresses read 0 and ignore writes."""

    MAGIC = 0x00  # RO  `MAGIC`
    VERSION = 0x04  # RO  `VERSION`
    CONFIG = 0x08  # RO  `Config.digest`
    CONTROL = 0x0C  # RW  bit 0: write 1 to start; reads 0
    STATUS = 0x10  # RO  see `Status`
    PROGRAM = 0x14  # RW  DRAM byte address of the first instruction, a multiple of the bus width
    BASE = 0x20  # RW  `BASES` base registers, 4 bytes apart
    COUNTER = 0x100  # RO  `Counter`s, 8 bytes apart: low word, high word


class Status(enum.IntFlag):
    """Bits of the status register. Starting clears DONE and the error bits."""

    BUSY = 1
    DONE = 2
    BUS_ERROR = 4  # an AXI response other than OKAY
    OPCODE_ERROR = 8  # fetch met an unknown opcode and stopped


class Counter(enum.IntEnum):
    """64-bit counters, cleared by starting, frozen when the program is done.

    A stall cycle of a unit is one in which it has an instruction but makes no progress, by cause; SEMAPHORE
    counts cycles in which the unit's next instruction waits for a semaphore and nothing else runs in the unit.
    """

    CYCLES = 0  # from start to done
    ARRAY_ACTIVE = 1  # cycles in which a row of A enters the array
    ARRAY_WINDOW = 2  # cycles from the first A row entering to the last accumulator write, both included
    READ_BEATS = 3  # AXI read data beats, instruction fetch included
    WRITE_BEATS = 4  # AXI write data beats
    LOAD_BUSY = 5
    LOAD_SEMAPHORE = 6
    LOAD_MEMORY = 7  # waits for the bus
    LOAD_PORT = 8  # waits for a scratchpad bank
    MM_BUSY = 9
    MM_SEMAPHORE = 10
    MM_WEIGHTS = 11  # rows wait for a tile's weights
    MM_PORT = 12  # rows wait for a scratchpad bank
    VEC_BUSY = 13
    VEC_SEMAPHORE = 14
    VEC_PORT = 15  # waits for an accumulator or scratchpad bank
    STORE_BUSY = 16
    STORE_SEMAPHORE = 17
    STORE_MEMORY = 18  # waits for the bus
    STORE_PORT = 19  # waits for a scratchpad bank


SIZE = 0x400
"""Bytes of the register window."""


def base_register(index: int) -> int:
    """Byte address of base register `index`."""
    if not 0 <= index < BASES:
        raise ValueError(f"base register {index} does not exist; there are {BASES}")
    return Reg.BASE + 4 * index


def counter_register(counter: Counter) -> int:
    """Byte address of the low word of `counter`; the high word follows it."""
    return Reg.COUNTER + 8 * counter
