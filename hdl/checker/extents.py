"""Memory accesses of instructions, and the DRAM extents that a program may access."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from weft.hdl.checker.conflicts import step_of
from weft.hdl.errors import ProgramError
from weft.hdl.isa import BASES, Instruction, Memory, Operand
from weft.hdl.isa.config import Config

ADDRESS_WRAP = 1 << 16
"""On-chip addresses are modulo this."""

Loop = tuple[int, int]
"""(count, stride) of one loop."""
Cells = slice | np.ndarray
"""Addresses as a slice if they are contiguous, else as a sorted array."""


def describe(index: int, instruction: Instruction) -> str:
    """Return an instruction's description for messages."""
    return f"instruction {index} ({instruction.OPCODE.name})"


def verb(write: int) -> str:
    return "writes" if write else "reads"


@dataclass(frozen=True)
class Coordinate:
    """Bounded coordinate of two loops.

    It starts at ``start``, grows by ``steps`` per iteration, and is in range in [0, ``bound``), modulo 2**16. Bounds
    are at most 2**15, so negative coordinates are out of range.
    """

    start: int
    bound: int
    steps: tuple[int, ...]
    loops: tuple[Loop, ...]


@dataclass(frozen=True)
class OnChipAccess:
    """Addresses of an on-chip memory that an instruction accesses as its operand ``field``."""

    memory: Memory
    field: str
    write: bool
    cells: Cells


@dataclass(frozen=True)
class DramAccess:
    """DRAM bytes that an instruction accesses: byte ``offset`` from a base register, in `loops`, outermost first."""

    base: int
    offset: int
    loops: tuple[Loop, ...]
    write: bool

    @property
    def low(self) -> int:
        """Offset of the first byte."""
        return self.offset + sum(min(0, (count - 1) * stride) for count, stride in self.loops)

    @property
    def high(self) -> int:
        """Offset of the last byte + 1."""
        return self.offset + sum(max(0, (count - 1) * stride) for count, stride in self.loops) + 1

    def cells(self, table: np.ndarray, low: int) -> np.ndarray:
        """Return a view of these bytes in `table`, whose first entry is byte `low`. Entries may occur repeatedly."""
        shape = [count for count, _ in self.loops]
        strides = [stride * table.itemsize for _, stride in self.loops]
        return np.lib.stride_tricks.as_strided(table[self.offset - low :], shape, strides)

    def address(self, indices: Sequence[Any]) -> int:
        """Return the byte's offset in an iteration, given as an index for each loop."""
        return self.offset + sum(
            int(index) * stride for index, (_, stride) in zip(indices, self.loops, strict=True)
        )


def dram_accesses(instruction: Instruction, config: Config) -> list[DramAccess]:
    """Return the DRAM accesses of an instruction; for a paged LOAD only the page table entry is known."""
    return [
        _dram_access(operand, instruction, config)
        for operand in instruction.OPERANDS
        if operand.register is not None and operand.applies(instruction)
    ]


def _dram_access(operand: Operand, i: Instruction, config: Config) -> DramAccess:
    base = getattr(i, str(operand.register))
    return DramAccess(base, operand.first(i), tuple(operand.nest(i, config)), operand.write)


OnChipLayout = tuple[tuple[int, np.ndarray, bool], ...]
"""Result of `_offsets` for each on-chip operand. It does not depend on the operands' first addresses."""


def on_chip_layout(instruction: Instruction, config: Config) -> OnChipLayout:
    """Return the layout of an instruction's on-chip operands, in the order of `on_chip_accesses`."""
    return tuple(
        _offsets(*_shape(operand, instruction, config)) for operand in _on_chip_operands(instruction)
    )


def _on_chip_operands(instruction: Instruction) -> list[Operand]:
    return [
        operand
        for operand in instruction.OPERANDS
        if operand.register is None and operand.applies(instruction)
    ]


def on_chip_accesses(
    instruction: Instruction, config: Config, layout: OnChipLayout | None = None
) -> list[OnChipAccess]:
    """Return the accesses of an instruction to on-chip memories; if it reads and writes an operand, the read is first.

    `layout` is the result of `on_chip_layout`, if the caller has it.

    Raises
    ------
    ProgramError
        If an address, modulo 2**16, is outside its memory.
    """
    return [
        _access(operand, instruction, config, *offsets)
        for operand, offsets in zip(
            _on_chip_operands(instruction), layout or on_chip_layout(instruction, config), strict=True
        )
    ]


def _access(
    operand: Operand, i: Instruction, config: Config, first: int, offsets: np.ndarray, dense: bool
) -> OnChipAccess:
    memory, field, write = operand.memory, operand.name, operand.write
    size = memory.size(config)
    if not offsets.size:
        return OnChipAccess(memory, field, write, slice(0, 0))
    low = (operand.first(i) + first) % ADDRESS_WRAP
    high = low + int(offsets[-1])
    if high >= size:
        # The range may wrap to addresses that exist.
        cells = np.unique((low + offsets) % ADDRESS_WRAP)
        if cells[-1] >= size:
            raise ProgramError(f"{field!r} {verb(write)} {memory.value} {cells[-1]}, but there are {size}")
        return OnChipAccess(memory, field, write, cells)
    return OnChipAccess(memory, field, write, slice(low, high + 1) if dense else low + offsets)


def address_span(operand: Operand, i: Instruction, config: Config) -> tuple[int, int, int]:
    """Return the span of an operand's addresses: start relative to the first address (on the chip modulo 2**16), size,
    and step of the accessed addresses in it (1 in DRAM)."""
    if operand.register is not None:
        access = _dram_access(operand, i, config)
        return access.low - access.offset, access.high - access.low, 1
    return _on_chip_span(*_shape(operand, i, config))


@lru_cache(maxsize=4096)
def _on_chip_span(loops: tuple[Loop, ...], coordinates: tuple[Coordinate, ...]) -> tuple[int, int, int]:
    first, offsets, dense = _offsets(loops, coordinates)
    size = int(offsets[-1]) + 1 if offsets.size else 0
    return first, size, 1 if dense else step_of(offsets)


def _shape(
    operand: Operand, i: Instruction, config: Config
) -> tuple[tuple[Loop, ...], tuple[Coordinate, ...]]:
    """Return the loops of an operand without bounds, and its coordinates with theirs."""
    bounded = [name for bound in operand.bounds for name in bound.loops]
    free = tuple(
        nest
        for loop, nest in zip(operand.loops, operand.nest(i, config), strict=True)
        if loop.name not in bounded
    )
    coordinates = tuple(
        Coordinate(
            getattr(i, bound.name),
            getattr(i, bound.limit),
            tuple(step for _, step in bound.nest(i, *bound.loops)),
            tuple(operand.nest(i, config, *bound.loops)),
        )
        for bound in operand.bounds
    )
    return free, coordinates


@lru_cache(maxsize=4096)
def _offsets(loops: tuple[Loop, ...], coordinates: tuple[Coordinate, ...]) -> tuple[int, np.ndarray, bool]:
    """Return an operand's addresses relative to its start: the first one, all relative to the first one in ascending
    order, and whether they are contiguous.

    Addresses wrap modulo 2**16. The first one is the one after the largest gap, so that addresses below and above the
    start form one range.
    """
    offsets = np.zeros(1, np.int64)
    for coordinate in coordinates:
        offsets = _sum(offsets, _in_range(coordinate))
    for count, stride in loops:
        offsets = _repeat(offsets, count, stride)
    if not offsets.size:
        return 0, offsets, False
    gaps = np.diff(offsets, append=offsets[0] + ADDRESS_WRAP)
    first = int(offsets[(int(np.argmax(gaps)) + 1) % offsets.size])
    offsets = np.sort((offsets - first) % ADDRESS_WRAP)
    return first, offsets, int(offsets[-1]) + 1 == offsets.size


def _repeat(offsets: np.ndarray, count: int, stride: int) -> np.ndarray:
    """Return the union of `offsets` plus 0, stride, ... (count - 1) * stride, by doubling."""
    done = 1
    while done < count:
        step = min(done, count - done)
        offsets = np.unique(np.concatenate([offsets, (offsets + step * stride) % ADDRESS_WRAP]))
        done += step
    return offsets


def _sum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the set of sums of an element of each array."""
    if left.size < right.size:
        left, right = right, left
    present = np.zeros(ADDRESS_WRAP, bool)
    # In parts, because all sums of two large sets would take gigabytes.
    for low in range(0, right.size, 64):
        present[(left[:, None] + right[low : low + 64]) % ADDRESS_WRAP] = True
    return np.flatnonzero(present)


def _in_range(c: Coordinate) -> np.ndarray:
    """Return the address offsets of the iterations in which the coordinate is in range."""
    outer, inner = (np.arange(count, dtype=np.int64) for count, _ in c.loops)
    position = (c.start + outer[:, None] * c.steps[0] + inner * c.steps[1]) % ADDRESS_WRAP
    address = (outer[:, None] * c.loops[0][1] + inner * c.loops[1][1]) % ADDRESS_WRAP
    return np.unique(address[position < c.bound])


@lru_cache(maxsize=4096)
def has_distinct_addresses(loops: tuple[Loop, ...]) -> bool:
    """Check that all iterations of the loops have different addresses, modulo 2**16."""
    total = 1
    for count, _ in loops:
        total *= count
    return total <= ADDRESS_WRAP and _offsets(loops, ())[1].size == total


def address_sequence(start: int, loops: Sequence[Loop]) -> np.ndarray:
    """Return the addresses of nested loops, outermost first, in the order of their iterations."""
    address = np.array([start], np.int64)
    for count, stride in loops:
        address = (address[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
    return address % ADDRESS_WRAP


_DRAM_END = 1 << 32
"""Last DRAM address + 1."""


@dataclass(frozen=True)
class Extent:
    """Range of DRAM, `size` bytes at `offset` from base register `base`, with the permissions of instructions.

    Extents of one base register may overlap if all of them are `shared`; the program then orders their uses.
    """

    name: str
    base: int
    offset: int
    size: int
    read: bool = True
    write: bool = True
    shared: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.size

    def __str__(self) -> str:
        return f"{self.name} (bytes {self.offset} to {self.end - 1})"


@dataclass(frozen=True)
class Extents:
    """DRAM that a program may access.

    A program with loops may change registers. A piece at such a register bounds the accesses relative to the register's
    value whenever an instruction passes fetch. The caller guarantees that these bytes belong to the program and do not
    overlap with pieces at other registers.

    Parameters
    ----------
    pieces : sequence of Extent
        Every access must be within one piece that permits it.
    addresses : mapping of int to int
        Known values of base registers. Pieces at these registers must not overlap or exceed 32-bit addresses.
    numbers : set of int
        Base registers that hold a number for instructions with ``relative``.
    pages : mapping of int to int
        Base registers of pages, with the base register of their page table. The host manages the pages, and the
        checker does not know where paged LOADs read.
    """

    pieces: Sequence[Extent]
    addresses: Mapping[int, int]
    numbers: frozenset[int] = frozenset()
    pages: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def from_sizes(cls, sizes: Mapping[int, int]) -> Extents:
        """Build extents from a size in bytes for each base register, readable and writable."""
        return cls([Extent(f"area {base}", base, 0, size) for base, size in sizes.items()], {})

    def check(self, registers: int = BASES) -> None:
        """Raise `ProgramError` if a piece is outside memory, has a base register other than the first `registers`, or
        overlaps with another one illegally."""
        placed = []
        for piece in self.pieces:
            if not 0 <= piece.base < registers:
                raise ProgramError(f"{piece.name} has base register {piece.base}, but there are {registers}")
            start = self.addresses.get(piece.base, 0) + piece.offset
            if piece.offset < 0 or piece.size < 0 or start + piece.size > _DRAM_END:
                raise ProgramError(
                    f"{piece.name}: {piece.size} bytes at offset {piece.offset} are not in memory, which ends at "
                    f"{_DRAM_END}"
                )
            if piece.size:
                # Base registers with unknown values are taken to address separate memories.
                placed.append((-1 if piece.base in self.addresses else piece.base, start, piece))
        placed.sort(key=lambda item: item[:2])
        last: dict[int, tuple[int, Extent]] = {}
        for memory, start, piece in placed:
            end, before = last.get(memory, (0, piece))
            may_overlap = piece.shared and before.shared and piece.base == before.base
            if start < end and not may_overlap:
                raise ProgramError(f"{piece} and {before} overlap in memory")
            if start + piece.size >= end:
                last[memory] = (start + piece.size, piece)

    def check_access(self, access: DramAccess) -> None:
        """Raise `ProgramError` if an access is not within a piece that permits it."""
        starts, ends = self._allowed.get((access.base, access.write), ((), ()))
        index = bisect.bisect_right(starts, access.low)
        if not index or ends[index - 1] < access.high:
            raise ProgramError(self._refusal(access))

    def may_access(self, base: int, write: bool, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return a mask of the permitted accesses among many, each to bytes `low` to `high` - 1 at register `base`."""
        starts, ends = self._allowed.get((base, write), ((), ()))
        if not starts:
            return np.zeros(len(low), bool)
        index = np.searchsorted(np.array(starts), low, "right")
        return (index > 0) & (np.array(ends)[index - 1] >= high)

    @cached_property
    def _allowed(self) -> Mapping[tuple[int, bool], tuple[Sequence[int], Sequence[int]]]:
        """Sorted starts of pieces, with the largest end up to each, by base register and direction (True: write)."""
        allowed: dict[tuple[int, bool], tuple[list[int], list[int]]] = {}
        for piece in sorted(self.pieces, key=lambda piece: piece.offset):
            for write, permitted in ((False, piece.read), (True, piece.write)):
                if permitted:
                    starts, ends = allowed.setdefault((piece.base, write), ([], []))
                    starts.append(piece.offset)
                    ends.append(max(ends[-1] if ends else 0, piece.end))
        return allowed

    def _refusal(self, access: DramAccess) -> str:
        action = (
            f"{verb(access.write)} bytes {access.low} to {access.high - 1} of base register {access.base}"
        )
        pieces = [piece for piece in self.pieces if piece.base == access.base]
        if not pieces:
            return f"base register {access.base} is not set for this program"
        touched = [piece for piece in pieces if piece.offset < access.high and access.low < piece.end]
        forbidden = [piece for piece in touched if not (piece.write if access.write else piece.read)]
        if forbidden:
            return f"{action}, but no instruction may do so in {forbidden[0]}"
        if touched:
            return f"{action}, which leaves {touched[0]}"
        return f"{action}, where nothing is"
