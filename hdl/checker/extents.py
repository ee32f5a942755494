"""Contents of DRAM while a program runs: pieces behind base registers, each of which may be read, written or both."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from weft.hdl.checker.conflicts import step_of
from weft.hdl.errors import WeftError
from weft.hdl.isa import BASES, Instruction, Memory, Operand, Queue
from weft.hdl.isa.config import Config

ADDRESS_WRAP = 1 << 16
"""Addresses on the chip are 16-bit, and wrap."""

Loop = tuple[int, int]
"""(count, stride) of one loop."""
Cells = slice | np.ndarray
"""Addresses as a slice, if they follow each other, or as a sorted array."""


class ProgramError(WeftError, ValueError):
    """A program that the hardware must not run: one sentence with the instruction's index and the reason."""


def name(index: int, instruction: Instruction) -> str:
    """The name of an instruction in messages."""
    return f"instruction {index} ({instruction.OPCODE.name})"


def verb(write: int) -> str:
    return "writes" if write else "reads"


def queue_of(instruction: Instruction) -> Queue:
    """The queue of any instruction but END."""
    assert instruction.QUEUE is not None
    return instruction.QUEUE


@dataclass(frozen=True)
class Coordinate:
    """One coordinate of two loops with a bound: which pairs of iterations are in range, and what they address.

    Starts at ``start``, grows by ``steps`` per iteration, and is in range inside [0, ``bound``), modulo 2**16; negative
    ones are beyond every bound, which is at most 2**15.
    """

    start: int
    bound: int
    steps: tuple[int, ...]
    loops: tuple[Loop, ...]


@dataclass(frozen=True)
class OnChip:
    """The addresses in a memory on the chip that an instruction reads or writes as its operand ``field``."""

    memory: Memory
    field: str
    write: bool
    cells: Cells


@dataclass(frozen=True)
class Dram:
    """DRAM bytes that an instruction reads or writes: a byte at ``offset``, relative to a base register, with `loops`
    around it, outermost first.
    """

    base: int
    offset: int
    loops: tuple[Loop, ...]
    write: bool

    @property
    def low(self) -> int:
        """The first byte."""
        return self.offset + sum(min(0, (count - 1) * stride) for count, stride in self.loops)

    @property
    def high(self) -> int:
        """One past the last byte."""
        return self.offset + sum(max(0, (count - 1) * stride) for count, stride in self.loops) + 1

    def cells(self, table: np.ndarray, low: int) -> np.ndarray:
        """The view of `table`, which has an entry a byte from `low` on, of these bytes (some perhaps twice)."""
        shape = [count for count, _ in self.loops]
        strides = [stride * table.itemsize for _, stride in self.loops]
        return np.lib.stride_tricks.as_strided(table[self.offset - low :], shape, strides)

    def address(self, indices: Sequence[Any]) -> int:
        """The byte at these iterations of the loops."""
        return self.offset + sum(
            int(index) * stride for index, (_, stride) in zip(indices, self.loops, strict=True)
        )


def dram(instruction: Instruction, config: Config) -> list[Dram]:
    """The DRAM bytes of an instruction. Where a paged LOAD has its rows is not known; the page table's entry is."""
    return [
        _run(operand, instruction, config)
        for operand in instruction.OPERANDS
        if operand.register is not None and operand.applies(instruction)
    ]


def _run(operand: Operand, i: Instruction, config: Config) -> Dram:
    """The bytes of an operand in DRAM."""
    base = getattr(i, str(operand.register))
    return Dram(base, operand.first(i), tuple(operand.nest(i, config)), operand.write)


Layout = tuple[tuple[int, np.ndarray, bool], ...]
"""For each operand on the chip what `_offsets` says of it. It does not depend on the operands' first addresses."""


def layout(instruction: Instruction, config: Config) -> Layout:
    """That of an instruction's operands, in the order of `on_chip`."""
    return tuple(_offsets(*_shape(operand, instruction, config)) for operand in _on_chip(instruction))


def _on_chip(instruction: Instruction) -> list[Operand]:
    return [
        operand
        for operand in instruction.OPERANDS
        if operand.register is None and operand.applies(instruction)
    ]


def on_chip(instruction: Instruction, config: Config, known: Layout | None = None) -> list[OnChip]:
    """All accesses of an instruction to memories on the chip, reads of an operand before the writes; `known` is its
    `layout`, if the caller has it.

    Raises
    ------
    ProgramError
        If an address, taken modulo 2**16, is outside its memory.
    """
    return [
        _access(operand, instruction, config, *offsets)
        for operand, offsets in zip(_on_chip(instruction), known or layout(instruction, config), strict=True)
    ]


def _access(
    operand: Operand, i: Instruction, config: Config, first: int, offsets: np.ndarray, dense: bool
) -> OnChip:
    """The access, with its addresses checked against the size of its memory."""
    memory, field, write = operand.memory, operand.name, operand.write
    size = memory.size(config)
    if not offsets.size:
        return OnChip(memory, field, write, slice(0, 0))
    low = (operand.first(i) + first) % ADDRESS_WRAP
    high = low + int(offsets[-1])
    if high >= size:
        cells = np.unique((low + offsets) % ADDRESS_WRAP)
        if cells[-1] >= size:
            raise ProgramError(f"{field!r} {verb(write)} {memory.value} {cells[-1]}, but there are {size}")
        return OnChip(memory, field, write, cells)
    return OnChip(memory, field, write, slice(low, high + 1) if dense else low + offsets)


def extent(operand: Operand, i: Instruction, config: Config) -> tuple[int, int, int]:
    """Where the addresses of an operand begin, relative to its first address (on the chip modulo 2**16), how many
    there are from there to the last one, and at which step it touches these at most: 1 in DRAM."""
    if operand.register is not None:
        run = _run(operand, i, config)
        return run.low - run.offset, run.high - run.low, 1
    return _extent(*_shape(operand, i, config))


@lru_cache(maxsize=4096)
def _extent(loops: tuple[Loop, ...], coordinates: tuple[Coordinate, ...]) -> tuple[int, int, int]:
    first, offsets, dense = _offsets(loops, coordinates)
    size = int(offsets[-1]) + 1 if offsets.size else 0
    return first, size, 1 if dense else step_of(offsets)


def _shape(
    operand: Operand, i: Instruction, config: Config
) -> tuple[tuple[Loop, ...], tuple[Coordinate, ...]]:
    """The loops of an operand whose iterations all access something, and the others by coordinate."""
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
    """Addresses relative to the start, modulo 2**16: the first, all relative to that (sorted), and whether they
    are dense. The first is the one behind the largest gap on the circle of addresses, so that sets that begin below
    the start stay in one piece.
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
    """The union of `offsets` moved by 0, stride, ... (count - 1) * stride, by doubling."""
    done = 1
    while done < count:
        step = min(done, count - done)
        offsets = np.unique(np.concatenate([offsets, (offsets + step * stride) % ADDRESS_WRAP]))
        done += step
    return offsets


def _sum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """All sums of an element of each."""
    if left.size < right.size:
        left, right = right, left
    present = np.zeros(ADDRESS_WRAP, bool)
    for low in range(0, right.size, 64):
        present[(left[:, None] + right[low : low + 64]) % ADDRESS_WRAP] = True
    return np.flatnonzero(present)


def _in_range(c: Coordinate) -> np.ndarray:
    """Address offsets of the pairs of iterations whose coordinate is in range."""
    outer, inner = (np.arange(count, dtype=np.int64) for count, _ in c.loops)
    position = (c.start + outer[:, None] * c.steps[0] + inner * c.steps[1]) % ADDRESS_WRAP
    address = (outer[:, None] * c.loops[0][1] + inner * c.loops[1][1]) % ADDRESS_WRAP
    return np.unique(address[position < c.bound])


@lru_cache(maxsize=4096)
def distinct(loops: tuple[Loop, ...]) -> bool:
    """Whether every iteration of the loops has an address of its own, modulo 2**16."""
    total = 1
    for count, _ in loops:
        total *= count
    return total <= ADDRESS_WRAP and _offsets(loops, ())[1].size == total


def sequence(start: int, loops: Sequence[Loop]) -> np.ndarray:
    """Addresses of nested loops, outermost first, in the order of their iterations."""
    address = np.array([start], np.int64)
    for count, stride in loops:
        address = (address[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
    return address % ADDRESS_WRAP


_END = 1 << 32
"""One past the last DRAM address."""


@dataclass(frozen=True)
class Extent:
    """`size` bytes from `offset` on behind base register `base`, and what instructions may do there.

    Bytes that are `shared` may belong to several extents of one base register: what lies there at a time is for the
    program to order. All others belong to one.
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
    """All of memory that a program may touch.

    With loops a program may change registers. A piece behind one of those says what instructions may reach from
    wherever it points when they pass fetch: that this is memory which the program may touch, and apart from what is
    behind other registers, the caller vouches for.

    Parameters
    ----------
    pieces : sequence of Extent
        An instruction must stay within one of those that it may read or write.
    addresses : mapping of int to int
        What base registers hold when the program runs, as far as that is known: pieces behind different ones must not
        meet either, nor lie beyond the 32 bits of an address.
    numbers : set of int
        Base registers that hold a number that instructions are relative to.
    pages : mapping of int to int
        Base registers of pages that the host keeps, with that of their page table. Nobody else knows where in them
        paged LOADs read.
    """

    pieces: Sequence[Extent]
    addresses: Mapping[int, int]
    numbers: frozenset[int] = frozenset()
    pages: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def behind(cls, sizes: Mapping[int, int]) -> Extents:
        """So many bytes behind each base register, all to be read and written."""
        return cls([Extent(f"area {base}", base, 0, size) for base, size in sizes.items()], {})

    def check(self, registers: int = BASES) -> None:
        """Raises `ProgramError` if a piece is not in memory, or if two of them meet that must not; there are so many
        `registers`."""
        placed = []
        for piece in self.pieces:
            if not 0 <= piece.base < registers:
                raise ProgramError(
                    f"{piece.name} is behind base register {piece.base}; there are {registers}"
                )
            start = self.addresses.get(piece.base, 0) + piece.offset
            if piece.offset < 0 or piece.size < 0 or start + piece.size > _END:
                raise ProgramError(
                    f"{piece.name}: {piece.size} bytes at offset {piece.offset} are not in memory, which ends at {_END}"
                )
            if piece.size:
                # Without an address, a base register has a memory of its own.
                placed.append((-1 if piece.base in self.addresses else piece.base, start, piece))
        placed.sort(key=lambda item: item[:2])
        last: dict[int, tuple[int, Extent]] = {}
        for memory, start, piece in placed:
            end, before = last.get(memory, (0, piece))
            alike = piece.shared and before.shared and piece.base == before.base
            if start < end and not alike:
                raise ProgramError(f"{piece} and {before} overlap in memory")
            if start + piece.size >= end:
                last[memory] = (start + piece.size, piece)

    def check_access(self, access: Dram) -> None:
        """Raises `ProgramError` if an access is not within a piece that it may touch."""
        starts, ends = self._allowed.get((access.base, access.write), ((), ()))
        index = bisect.bisect_right(starts, access.low)
        if not index or ends[index - 1] < access.high:
            raise ProgramError(self._refusal(access))

    def allow(self, base: int, write: bool, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The same for many accesses, each from byte `low` to before byte `high` behind `base`: whether it may be."""
        starts, ends = self._allowed.get((base, write), ((), ()))
        if not starts:
            return np.zeros(len(low), bool)
        index = np.searchsorted(np.array(starts), low, "right")
        return (index > 0) & (np.array(ends)[index - 1] >= high)

    @cached_property
    def _allowed(self) -> Mapping[tuple[int, bool], tuple[Sequence[int], Sequence[int]]]:
        """By base register and direction: where pieces start, sorted, and the last end of all up to there."""
        found: dict[tuple[int, bool], tuple[list[int], list[int]]] = {}
        for piece in sorted(self.pieces, key=lambda piece: piece.offset):
            for write, may in ((False, piece.read), (True, piece.write)):
                if may:
                    starts, ends = found.setdefault((piece.base, write), ([], []))
                    starts.append(piece.offset)
                    ends.append(max(ends[-1] if ends else 0, piece.end))
        return found

    def _refusal(self, access: Dram) -> str:
        who = f"{verb(access.write)} bytes {access.low} to {access.high - 1} of base register {access.base}"
        mine = [piece for piece in self.pieces if piece.base == access.base]
        if not mine:
            return f"base register {access.base} is not set for this program"
        met = [piece for piece in mine if piece.offset < access.high and access.low < piece.end]
        forbidden = [piece for piece in met if not (piece.write if access.write else piece.read)]
        if forbidden:
            return f"{who}, but no instruction may do so in {forbidden[0]}"
        if met:
            return f"{who}, which leaves {met[0]}"
        return f"{who}, where nothing is"
