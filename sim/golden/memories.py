"""Memories of the golden interpreter, their addresses and coordinates, and integer arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from weft.hdl.isa import BASES, Bound, Instruction, Memory, Operand
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.sim.device import DeviceError


class Memories:
    """All state that outlives an instruction, zero at first.

    Attributes
    ----------
    dram : uint8
    scratchpad : int8 (``config.scratchpad_size``, N)
    accumulator : int32 (``config.accumulator_size``, N)
    bases : list of int
        Base registers as set by the host, 32 bits unsigned.
    registers : sequence of int or None
        All registers at the time when the current instruction passed fetch; None: `bases`.
    read_only : list of (int, int)
        Start and stop of DRAM ranges that the program must not write.
    maxima : int32 (``config.row_states``)
        ``m`` of the row states, -256 to 256.
    sums : int64 (``config.row_states``)
        ``l`` of the row states, 32 bits unsigned.
    alignments : int32 (``config.alignments``)
        -31 to 31.
    table : uint8 (``config.table_depth``)
    lookup : int8 (``config.lookup_tables``, `LOOKUP_ENTRIES`)
    kernel : list of int (``config.kernel``)
        Words of micro-operations.
    """

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self.config = config
        self.dram = np.zeros(memory_bytes, np.uint8)
        self.scratchpad = np.zeros((config.scratchpad_size, config.n), np.int8)
        self.accumulator = np.zeros((config.accumulator_size, config.n), np.int32)
        self.bases = [0] * BASES
        self.registers: Sequence[int] | None = None
        self.read_only: Sequence[tuple[int, int]] = ()
        self.maxima = np.zeros(config.row_states, np.int32)
        self.sums = np.zeros(config.row_states, np.int64)
        self.alignments = np.zeros(config.alignments, np.int32)
        self.table = np.zeros(config.table_depth, np.uint8)
        self.lookup = np.zeros((config.lookup_tables, LOOKUP_ENTRIES), np.int8)
        self.kernel = [0] * config.kernel

    def register(self, number: int) -> int:
        """Return the value of a register for the current instruction."""
        return (self.bases if self.registers is None else self.registers)[number]

    def check_written(self, address: int, size: int) -> None:
        """Raise `DeviceError` if these DRAM bytes overlap `read_only`."""
        for start, stop in self.read_only:
            if address < stop and start < address + size:
                raise DeviceError(
                    f"it writes DRAM bytes {address:#x} to {address + size - 1:#x}, and READ reads registers from "
                    f"{start:#x} on"
                )

    def dram_range(self, address: int, size: int) -> np.ndarray:
        """Return a view of DRAM bytes. Raises `DeviceError` if they do not lie inside memory."""
        if not (address >= 0 and size >= 0 and address + size <= self.dram.size):
            raise DeviceError(
                f"{size} bytes at DRAM address {address:#x} leave the memory of {self.dram.size} bytes"
            )
        return self.dram[address : address + size]

    def addresses(self, i: Instruction, name: str) -> np.ndarray:
        """Return the addresses of an operand: int64, with one axis per loop. Raises like `check`."""
        operand = i.operand(name)
        return self.check(operand, operand.first(i) + loops(*operand.nest(i, self.config)))

    def check(self, operand: Operand, address: np.ndarray) -> np.ndarray:
        """Return `address` modulo 2**16. Raises `DeviceError` if the operand's memory is smaller."""
        size = operand.memory.size(self.config)
        address = address & 0xFFFF
        if address.size and int(address.max()) >= size:
            raise DeviceError(
                f"{operand.memory.value} {int(address.max())} is outside the {size} of its memory"
            )
        return address

    def cells(self, operand: Operand) -> np.ndarray:
        """Return the memory of an operand, which is the scratchpad or the accumulator."""
        return self.scratchpad if operand.memory is Memory.SCRATCHPAD else self.accumulator


@lru_cache(maxsize=256)
def loops(*nest: tuple[int, int]) -> np.ndarray:
    """Return ``i*stride_i + j*stride_j + ...`` for nested loops (count, stride), outermost first: one axis per loop.

    The array is read-only, because calls with equal loops share it.
    """
    total = np.zeros((), np.int64)
    for count, stride in nest:
        total = total[..., None] + np.arange(count, dtype=np.int64) * stride
    total.flags.writeable = False
    return total


def within(i: Instruction, bound: Bound, offset: np.ndarray) -> np.ndarray:
    """Return a mask of the coordinates (`offset` from the first) that lie in range, as 16-bit two's complement."""
    coordinate = (getattr(i, bound.name) + offset) & 0xFFFF
    return (coordinate < 0x8000) & (coordinate < getattr(i, bound.limit))


def wrap(value: np.ndarray) -> np.ndarray:
    """Return `value` modulo 2**32 as signed int32 values in int64."""
    return ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def rsh(value: np.ndarray, shift: np.ndarray | int) -> np.ndarray:
    """Shift right arithmetically by 0 to 31, rounding half up: ``(value + 2**(shift - 1)) >> shift``."""
    half = (np.int64(1) << np.asarray(shift, np.int64)) >> 1
    return (value + half) >> shift


def round_half_even(p: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return ``p / 2**shift`` rounded half to even: int64, exact for shifts 0 to 63.

    It compares the remainder with a half rather than adding a half, which could overflow.
    """
    one = np.int64(1)
    low = p >> shift  # rounds down, also negative p
    # 2**63 - 1 is the mask for shift 63: the shift wraps to the smallest int64, and less 1 to the largest.
    with np.errstate(over="ignore"):
        rest = p & ((one << shift) - one)
    half = np.where(shift > 0, one << np.maximum(shift - 1, 0), one)
    return low + ((rest > half) | ((rest == half) & (low & 1 == 1)))
