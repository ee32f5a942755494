"""AXI4-Lite register map for hardware and hosts: 32-bit registers at byte addresses."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from weft.hdl.isa import BASES

MAGIC = 0x54464557
"""``WEFT`` in ASCII, little endian."""
VERSION = 6
"""Version of registers and instructions. Hosts refuse devices with a different version."""


START, STOP, START_LIST = 1, 2, 4
"""Bits of CONTROL."""
EXOKAY, SLVERR, DECERR = 1, 2, 3
RESPONSES = {EXOKAY: "EXOKAY", SLVERR: "SLVERR", DECERR: "DECERR"}
"""AXI4 responses that are errors: EXOKAY too, because the core requests no exclusive accesses."""


class Reg(enum.IntEnum):
    """Byte addresses. RO: read-only, RW: read and write. Reserved addresses read 0 and ignore writes."""

    MAGIC = 0x00  # RO  `MAGIC`
    VERSION = 0x04  # RO  `VERSION`
    CONFIG = 0x08  # RO  `Config.digest`
    CONTROL = 0x0C  # RW  write 1 to bit 0: start PROGRAM, bit 1: stop the run, bit 2: start LIST; reads 0
    STATUS = 0x10  # RO  see `Status`
    PROGRAM = 0x14  # RW  DRAM byte address of the first instruction, a multiple of the bus width
    FAULT_ADDRESS = 0x18  # RO  byte address of the run's first failed burst
    FAULT = 0x1C  # RO  the run's first bus error, see `FAULT_FIELDS`
    BASE = 0x20  # RW  `BASES` base registers, 4 bytes apart
    WATCHDOG = 0x40  # RW  bits 0 to 7: time limit without progress, in `WATCHDOG_CYCLES`; 0: none
    PARITY = 0x44  # RO  words with wrong parity read in the run, 8 bits per `ParityMemory`, saturating at 255
    LIST = 0x48  # RW  with `descriptors` only: DRAM byte address of a list, see `weft.hdl.isa.program_lists`
    LISTED = 0x4C  # RO  bits 0 to 23: finished programs of the last list; 31: the list is, or ended, at a descriptor
    COUNTER = 0x100  # RO  `Counter`s, 8 bytes apart: low word, high word


WATCHDOG_CYCLES = 1 << 16
"""Cycles per unit of WATCHDOG. A run is stopped up to one unit later than WATCHDOG says."""
WATCHDOG_BITS = 8


class Status(enum.IntFlag):
    """Bits of the status register. Starting clears all but BUSY.

    The bits above DONE stop the run: no further instruction begins, and the run is done when the instructions in
    progress have ended. If memory does not answer, it never is.
    """

    BUSY = 1
    DONE = 2
    BUS_ERROR = 4  # an AXI response other than OKAY
    OPCODE_ERROR = 8  # fetch read an unknown opcode
    WATCHDOG = 16  # no progress for longer than WATCHDOG allows
    STOPPED = 32  # bit 1 of CONTROL was written
    PARITY_ERROR = 64  # a word read from an on-chip memory had wrong parity; with `parity` only


class FaultUnit(enum.IntEnum):
    """Unit that requested the burst that failed."""

    NONE = 0
    FETCH = 1
    LOAD = 2
    PAGE = 3  # LOAD's read of a page table; the sequential core reports LOAD
    STORE = 4


class ParityMemory(enum.IntEnum):
    """Memories with parity; the value is the number of the memory's byte in PARITY."""

    SCRATCHPAD = 0  # vectors
    ACCUMULATOR = 1  # rows
    FETCH = 2  # prefetched bus words; pipelined core only


FAULT_FIELDS = {
    "unit": (0, 3),  # `FaultUnit`
    "response": (4, 2),  # AXI response
    "known": (8, 1),  # FAULT_ADDRESS is known
}
"""Lowest bit and width of each field of FAULT."""


@dataclass(frozen=True)
class Fault:
    """Contents of FAULT and FAULT_ADDRESS: the first bus error of a run.

    Attributes
    ----------
    unit : FaultUnit
    response : int
        AXI response: `EXOKAY`, `SLVERR` or `DECERR`.
    address : int or None
        Byte address of the burst, a multiple of the bus width. The sequential core's bursts have one bus word. None if
        there were more outstanding bursts than logged addresses.
    """

    unit: FaultUnit
    response: int
    address: int | None

    @classmethod
    def of(cls, fault: int, address: int) -> Fault:
        """Decode the contents of the two registers."""
        unit, response, known = (
            fault >> low & (1 << width) - 1
            for low, width in (FAULT_FIELDS[name] for name in ("unit", "response", "known"))
        )
        known_unit = FaultUnit(unit) if unit in list(FaultUnit) else FaultUnit.NONE
        return cls(known_unit, response, address if known else None)

    def __str__(self) -> str:
        """Describe the access, its address and the response, for a message."""
        if self.unit is FaultUnit.NONE:
            return "memory answered with an error"
        access = {
            FaultUnit.FETCH: "the fetch of instructions",
            FaultUnit.LOAD: "LOAD's read",
            FaultUnit.PAGE: "LOAD's read of a page table",
            FaultUnit.STORE: "STORE's write",
        }[self.unit]
        location = "" if self.address is None else f" at {self.address:#x}"
        answer = RESPONSES.get(self.response, "OKAY")
        return f"memory answered {access}{location} with {answer}"


LISTED_BITS, LISTED_AT_DESCRIPTOR = 24, 31
"""LISTED: width of the program count from bit 0, and bit number of `ListProgress.at_descriptor`."""


@dataclass(frozen=True)
class ListProgress:
    """Contents of LISTED: progress of the last list of programs.

    Attributes
    ----------
    done : int
        Finished programs at the head of the list, with their records in memory.
    at_descriptor : bool
        True if the list is, or ended, at the descriptor of program `done`; False if at the program itself.
    """

    done: int
    at_descriptor: bool = False

    @classmethod
    def of(cls, word: int) -> ListProgress:
        """Decode the contents of the register."""
        return cls(word & (1 << LISTED_BITS) - 1, bool(word >> LISTED_AT_DESCRIPTOR))

    def __str__(self) -> str:
        """Describe where an unfinished list ended, for a message."""
        return f"{'descriptor' if self.at_descriptor else 'program'} {self.done} of the list"


_NO_INSTRUCTION = "the program holds a word that is no instruction"
ERRORS = Status.BUS_ERROR | Status.OPCODE_ERROR | Status.WATCHDOG | Status.STOPPED | Status.PARITY_ERROR
"""Status bits of a run that was stopped early."""


def failure(status: Status, fault: Fault, listed: ListProgress | None = None) -> str:
    """Describe why a run failed, for a message.

    `status` has one of `ERRORS`, `fault` matters for BUS_ERROR only, and `listed` is None for a run without a list.
    """
    if listed is None:
        return _cause(status, fault)
    if listed.at_descriptor and _cause(status, fault) == _NO_INSTRUCTION:
        return f"{listed}: a descriptor cannot begin with the word in memory"
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
    """64-bit counters, cleared by a start and frozen when the program is done.

    The counters of a unit other than BUSY count stall cycles by cause: the unit has an instruction but makes no
    progress. SEMAPHORE counts cycles in which the next instruction waits for a semaphore and the unit is idle.
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
"""Size of the register window in bytes."""


def base_register(index: int) -> int:
    """Return the byte address of base register `index`."""
    if not 0 <= index < BASES:
        raise ValueError(f"base register {index} does not exist; there are {BASES}")
    return Reg.BASE + 4 * index


def counter_register(counter: Counter) -> int:
    """Return the byte address of the low word of `counter`; the high word follows it."""
    return Reg.COUNTER + 8 * counter
