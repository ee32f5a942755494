"""Which addresses an instruction touches: the ground on which the program checker finds overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from weft.hdl.config import Config
from weft.hdl.isa import PARAMETER_VECTORS, Instruction, Load, Mm, Queue, Source, Store, Vec

_WRAP = 1 << 16

Loop = tuple[int, int]
"""(count, stride) of one loop."""
Cells = slice | np.ndarray
"""Addresses as a slice, if they follow each other, or as a sorted array."""


class ProgramError(ValueError):
    """A program that the hardware must not run: one sentence with the instruction's index and the reason."""


def name(index: int, instruction: Instruction) -> str:
    """How messages name an instruction."""
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
    steps: tuple[int, int]
    loops: tuple[Loop, Loop]


@dataclass(frozen=True)
class OnChip:
    """Scratchpad vectors or accumulator rows that an instruction reads or writes as its operand ``field``."""

    accumulator: bool
    field: str
    write: bool
    cells: Cells


@dataclass(frozen=True)
class Dram:
    """DRAM bytes that an instruction reads or writes: ``rows`` x ``pixels`` runs of ``length`` bytes from
    ``offset`` on, relative to a base register.
    """

    base: int
    offset: int
    rows: int
    row_pitch: int
    pixels: int
    pitch: int
    length: int
    write: bool

    @property
    def low(self) -> int:
        """The first byte."""
        return self.offset + min(0, (self.rows - 1) * self.row_pitch)

    @property
    def high(self) -> int:
        """One past the last byte."""
        last = (self.pixels - 1) * self.pitch + self.length
        return self.offset + max(0, (self.rows - 1) * self.row_pitch) + last

    def cells(self, table: np.ndarray, low: int) -> np.ndarray:
        """The view of `table`, which has an entry a byte from `low` on, of these bytes (some perhaps twice)."""
        size = table.itemsize
        shape = (self.rows, self.pixels, self.length)
        strides = (self.row_pitch * size, self.pitch * size, size)
        return np.lib.stride_tricks.as_strided(table[self.offset - low :], shape, strides)


def dram(instruction: Instruction) -> Dram | None:
    """The DRAM bytes of LOAD and STORE, None for other instructions. A LOAD reads all ``run`` bytes of its rows."""
    i = instruction
    if isinstance(i, Store):
        return Dram(i.base, i.offset, i.rows, i.row_pitch, i.pixels, i.pitch, i.length, write=True)
    if isinstance(i, Load):
        return Dram(i.base, i.offset, i.rows, i.row_pitch, 1, i.run, i.run, write=False)
    return None


def on_chip(instruction: Instruction, config: Config) -> list[OnChip]:
    """All scratchpad and accumulator accesses of an instruction, reads first.

    Raises
    ------
    ProgramError
        If an address, taken modulo 2**16, is outside its memory.
    """
    if isinstance(instruction, Load):
        return [_access(config, False, "dst", True, instruction.dst, pixel_loops(instruction, config.n))]
    if isinstance(instruction, Store):
        return [_access(config, False, "src", False, instruction.src, pixel_loops(instruction, config.n))]
    if isinstance(instruction, Mm):
        return _mm(instruction, config)
    if isinstance(instruction, Vec):
        return _vec(instruction, config)
    return []


def pixel_loops(i: Load | Store, n: int) -> tuple[Loop, ...]:
    """The loops over scratchpad vectors: rows, pixels, vectors of a pixel."""
    vectors = -(-i.length // n)
    if isinstance(i, Load):
        return (i.rows, i.dst_row), (i.pixels, i.dst_pixel), (vectors, i.dst_vector)
    return (i.rows, i.src_row), (i.pixels, i.src_pixel), (vectors, i.src_vector)


def _mm(i: Mm, config: Config) -> list[OnChip]:
    y = Coordinate(i.y, i.h, (i.y_ky, i.y_oy), ((i.ky, i.a_ky), (i.oy, i.a_oy)))
    x = Coordinate(i.x, i.w, (i.x_kx, i.x_ox), ((i.kx, i.a_kx), (i.ox, i.a_ox)))
    b = ((i.nt, i.b_nt), (i.ky, i.b_ky), (i.kx, i.b_kx), (i.kc, i.b_kc), (config.n, i.b_row))
    c = ((i.nt, i.c_nt), (i.oy, i.c_oy), (i.ox, i.c_ox))
    return [
        _access(config, False, "a", False, i.a, ((i.nt, i.a_nt), (i.kc, i.a_kc)), (y, x)),
        _access(config, False, "b", False, i.b, b),
        _access(config, True, "c", True, i.c, c),
    ]


def _vec(i: Vec, config: Config) -> list[OnChip]:
    y = Coordinate(i.y, i.h, (i.y_oy, i.y_ry), ((i.oy, i.src_oy), (i.ry, i.src_ry)))
    x = Coordinate(i.x, i.w, (i.x_ox, i.x_rx), ((i.ox, i.src_ox), (i.rx, i.src_rx)))
    outputs = (i.ob, i.oy, i.ox)
    accumulator = i.source == Source.ACCUMULATOR
    accesses = [
        _access(config, accumulator, "src", False, i.src, ((i.ob, i.src_ob),), (y, x)),
        _access(config, False, "params", False, i.params, ((PARAMETER_VECTORS, 1),)),
    ]
    if i.add:
        loops = tuple(zip(outputs, (i.b_ob, i.b_oy, i.b_ox), strict=True))
        accesses.append(_access(config, False, "b", False, i.b, loops))
    loops = tuple(zip(outputs, (i.dst_ob, i.dst_oy, i.dst_ox), strict=True))
    accesses.append(_access(config, False, "dst", True, i.dst, loops))
    return accesses


def _access(
    config: Config,
    accumulator: bool,
    field: str,
    write: bool,
    start: int,
    loops: tuple[Loop, ...],
    coordinates: tuple[Coordinate, ...] = (),
) -> OnChip:
    """The access, with its addresses checked against the size of its memory."""
    size = config.accumulator_size if accumulator else config.scratchpad_size
    first, offsets, dense = _offsets(loops, coordinates)
    if not offsets.size:
        return OnChip(accumulator, field, write, slice(0, 0))
    low = (start + first) % _WRAP
    high = low + int(offsets[-1])
    if high >= size:
        cells = np.unique((low + offsets) % _WRAP)
        if cells[-1] >= size:
            memory = "accumulator row" if accumulator else "scratchpad vector"
            raise ProgramError(f"{field!r} {verb(write)} {memory} {cells[-1]}, but there are {size}")
        return OnChip(accumulator, field, write, cells)
    return OnChip(accumulator, field, write, slice(low, high + 1) if dense else low + offsets)


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
    gaps = np.diff(offsets, append=offsets[0] + _WRAP)
    first = int(offsets[(int(np.argmax(gaps)) + 1) % offsets.size])
    offsets = np.sort((offsets - first) % _WRAP)
    return first, offsets, int(offsets[-1]) + 1 == offsets.size


def _repeat(offsets: np.ndarray, count: int, stride: int) -> np.ndarray:
    """The union of `offsets` moved by 0, stride, ... (count - 1) * stride, by doubling."""
    done = 1
    while done < count:
        step = min(done, count - done)
        offsets = np.unique(np.concatenate([offsets, (offsets + step * stride) % _WRAP]))
        done += step
    return offsets


def _sum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """All sums of an element of each."""
    if left.size < right.size:
        left, right = right, left
    present = np.zeros(_WRAP, bool)
    for low in range(0, right.size, 64):
        present[(left[:, None] + right[low : low + 64]) % _WRAP] = True
    return np.flatnonzero(present)


def _in_range(c: Coordinate) -> np.ndarray:
    """Address offsets of the pairs of iterations whose coordinate is in range."""
    outer, inner = (np.arange(count, dtype=np.int64) for count, _ in c.loops)
    position = (c.start + outer[:, None] * c.steps[0] + inner * c.steps[1]) % _WRAP
    address = (outer[:, None] * c.loops[0][1] + inner * c.loops[1][1]) % _WRAP
    return np.unique(address[position < c.bound])


@lru_cache(maxsize=4096)
def distinct(loops: tuple[Loop, ...]) -> bool:
    """Whether every iteration of the loops has an address of its own, modulo 2**16."""
    total = 1
    for count, _ in loops:
        total *= count
    return total <= _WRAP and _offsets(loops, ())[1].size == total


def sequence(start: int, loops: Sequence[Loop]) -> np.ndarray:
    """Addresses of nested loops, outermost first, in the order of their iterations."""
    address = np.array([start], np.int64)
    for count, stride in loops:
        address = (address[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
    return address % _WRAP
