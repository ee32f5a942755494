"""The AXI4-Lite register map: 32-bit registers, byte addresses, defined once for hardware and hosts."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from weft.hdl.isa import BASES

MAGIC = 0x54464557
"""``WEFT`` in ASCII, little endian."""
VERSION = 6
"""Of registers and instructions: hosts refuse devices with another one."""


START, STOP, START_LIST = 1, 2, 4
"""Bits of CONTROL."""
EXOKAY, SLVERR, DECERR = 1, 2, 3
RESPONSES = {EXOKAY: "EXOKAY", SLVERR: "SLVERR", DECERR: "DECERR"}
"""Responses of AXI4 that are errors; the first of them because the core asks for nothing exclusive."""


class Reg(enum.IntEnum):
    """Byte addresses. RO read only, RW read and write; reserved addresses read 0 and ignore writes."""

    MAGIC = 0x00  # RO  `MAGIC`
    VERSION = 0x04  # RO  `VERSION`
    CONFIG = 0x08  # RO  `Config.digest`
    CONTROL = 0x0C  # RW  write 1 to bit 0: start PROGRAM, bit 1: stop the run, bit 2: start LIST; reads 0
    STATUS = 0x10  # RO  see `Status`
    PROGRAM = 0x14  # RW  DRAM byte address of the first instruction, a multiple of the bus width
    FAULT_ADDRESS = (
        0x18  # RO  where the first error of the run was: byte address of the burst, see `FaultUnit`
    )
    FAULT = 0x1C  # RO  bits 0 to 2: the `FaultUnit`; 4 and 5: the AXI response; 8: FAULT_ADDRESS is known
    BASE = 0x20  # RW  `BASES` base registers, 4 bytes apart
    WATCHDOG = 0x40  # RW  bits 0 to 7: `WATCHDOG_CYCLES` without progress that a run may take; 0: any
    PARITY = 0x44  # RO  words with wrong parity that were read in the run, 8 bits of each `ParityMemory`, at most 255
    LIST = 0x48  # RW  with `descriptors` only: DRAM byte address of a list, see `weft.hdl.isa.program_lists`
    LISTED = 0x4C  # RO  bits 0 to 23: programs of the last list that are done; 31: it is at or ended at a descriptor
    COUNTER = 0x100  # RO  `Counter`s, 8 bytes apart: low word, high word


WATCHDOG_CYCLES = 1 << 16
"""Cycles of a unit of WATCHDOG: a run is stopped after as many units without progress, or up to one more."""
WATCHDOG_BITS = 8


class Status(enum.IntFlag):
    """Bits of the status register. Starting clears all but BUSY.

    Those above DONE stop the run: no instruction begins any more, those that have begun come to their end, and then it
    is done. While memory does not answer, that is never.
    """

    BUSY = 1
    DONE = 2
    BUS_ERROR = 4  # an AXI response other than OKAY
    OPCODE_ERROR = 8  # fetch met an unknown opcode
    WATCHDOG = 16  # nothing has moved for as long as WATCHDOG allows
    STOPPED = 32  # bit 1 of CONTROL was written
    PARITY_ERROR = 64  # a word that was read from a memory on chip had changed; with `parity` only


class FaultUnit(enum.IntEnum):
    """What asked for a burst that memory answered with an error."""

    NONE = 0
    FETCH = 1
    LOAD = 2
    PAGE = 3  # entries of page tables, for LOAD; the sequential core says LOAD
    STORE = 4


class ParityMemory(enum.IntEnum):
    """Memories with parity, by the byte of PARITY that counts their wrong words."""

    SCRATCHPAD = 0  # vectors
    ACCUMULATOR = 1  # rows
    FETCH = 2  # words of the bus that were fetched ahead; pipelined core only


@dataclass(frozen=True)
class Fault:
    """What FAULT and FAULT_ADDRESS tell.

    Attributes
    ----------
    unit : FaultUnit
    response : int
        AXI's: `SLVERR` or `DECERR`; or `EXOKAY`, which is no answer to what the core asks for, and no better.
    address : int or None
        Byte address of the burst, a multiple of the bus width; of the bus word on the sequential core, whose bursts
        have one. None if more bursts were on their way than the core keeps the addresses of.
    """

    unit: FaultUnit
    response: int
    address: int | None

    @classmethod
    def of(cls, fault: int, address: int) -> Fault:
        """From the contents of the two registers."""
        unit = fault & 7
        known = FaultUnit(unit) if unit in list(FaultUnit) else FaultUnit.NONE
        return cls(known, fault >> 4 & 3, address if fault >> 8 & 1 else None)

    def __str__(self) -> str:
        """For messages: what was done where, and what memory said."""
        if self.unit is FaultUnit.NONE:
            return "memory answered with an error"
        what = {
            FaultUnit.FETCH: "the fetch of instructions",
            FaultUnit.LOAD: "LOAD's read",
            FaultUnit.PAGE: "LOAD's read of a page table",
            FaultUnit.STORE: "STORE's write",
        }[self.unit]
        where = "" if self.address is None else f" at {self.address:#x}"
        answer = RESPONSES.get(self.response, "OKAY")
        return f"memory answered {what}{where} with {answer}"


@dataclass(frozen=True)
class Listed:
    """What LISTED tells of the last list of programs.

    Attributes
    ----------
    done : int
        Programs at the head of the list that have come to their end, and whose record is in memory.
    at_descriptor : bool
        What comes behind these is, or ended as, the descriptor of program `done`, and not the program itself.
    """

    done: int
    at_descriptor: bool = False

    @classmethod
    def of(cls, word: int) -> Listed:
        """From the contents of the register."""
        return cls(word & (1 << LISTED_BITS) - 1, bool(word >> 31))

    def __str__(self) -> str:
        """For messages: at what a list has ended that did not come to its end."""
        return f"{'descriptor' if self.at_descriptor else 'program'} {self.done} of the list"


_NO_INSTRUCTION = "the program holds a word that is no instruction"
LISTED_BITS = 24
"""Bits of LISTED that count programs."""
ERRORS = Status.BUS_ERROR | Status.OPCODE_ERROR | Status.WATCHDOG | Status.STOPPED | Status.PARITY_ERROR
"""What says that a run did not come to its end by itself."""


def failure(status: Status, fault: Fault, listed: Listed | None = None) -> str:
    """For messages: why a run failed, from a status with one of `ERRORS`; `fault` counts for BUS_ERROR only,
    `listed` is None if it was no list."""
    if listed is None:
        return _cause(status, fault)
    if listed.at_descriptor and _cause(status, fault) == _NO_INSTRUCTION:
        return f"{listed}: what memory holds there is no descriptor"
    return f"{listed}: {_cause(status, fault)}"


def _cause(status: Status, fault: Fault) -> str:
    if status & Status.PARITY_ERROR:
        return "a memory of the core has lost a bit: run the program again"
    if status & Status.OPCODE_ERROR:
        return _NO_INSTRUCTION
    if status & Status.BUS_ERROR:
        return str(fault)
    if status & Status.WATCHDOG:
        return "the program hangs: nothing moved for as many cycles as the watchdog allows"
    return "the program was stopped"


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
