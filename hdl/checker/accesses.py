"""Which addresses an instruction touches: the ground on which the program checker finds overlaps."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from weft.hdl.errors import WeftError
from weft.hdl.isa import (
    PARAMETER_VECTORS,
    Instruction,
    Load,
    Mm,
    Normalise,
    Queue,
    Softmax,
    Source,
    Store,
    Table,
    Vec,
    VectorInstruction,
)
from weft.hdl.isa.config import Config

_WRAP = 1 << 16

Loop = tuple[int, int]
"""(count, stride) of one loop."""
Cells = slice | np.ndarray
"""Addresses as a slice, if they follow each other, or as a sorted array."""


class ProgramError(WeftError, ValueError):
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


class Memory(enum.Enum):
    """Memories on the chip, by the name of what an address counts."""

    SCRATCHPAD = "scratchpad vector"
    ACCUMULATOR = "accumulator row"
    ALIGNMENTS = "alignment"
    STATES = "row state"
    TABLE = "table entry"

    __hash__ = object.__hash__  # members are unique; that of `Enum` hashes their names

    def size(self, config: Config) -> int:
        return int(getattr(config, _SIZES[self]))


_SIZES = {
    Memory.SCRATCHPAD: "scratchpad_size",
    Memory.ACCUMULATOR: "accumulator_size",
    Memory.ALIGNMENTS: "alignments",
    Memory.STATES: "row_states",
    Memory.TABLE: "table_depth",
}


@dataclass(frozen=True)
class OnChip:
    """What an instruction reads or writes in a memory on the chip as its operand ``field``."""

    memory: Memory
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
        return self.offset + min(0, (self.rows - 1) * self.row_pitch) + min(0, (self.pixels - 1) * self.pitch)

    @property
    def high(self) -> int:
        """One past the last byte."""
        last = max(0, (self.rows - 1) * self.row_pitch) + max(0, (self.pixels - 1) * self.pitch)
        return self.offset + last + self.length

    def cells(self, table: np.ndarray, low: int) -> np.ndarray:
        """The view of `table`, which has an entry a byte from `low` on, of these bytes (some perhaps twice)."""
        size = table.itemsize
        shape = (self.rows, self.pixels, self.length)
        strides = (self.row_pitch * size, self.pitch * size, size)
        return np.lib.stride_tricks.as_strided(table[self.offset - low :], shape, strides)


def dram(instruction: Instruction) -> list[Dram]:
    """The DRAM bytes of LOAD and STORE, none for other instructions. A LOAD reads all ``run`` bytes of its rows.

    Where a paged LOAD has its rows is not known; the page table's entry is.
    """
    i = instruction
    if isinstance(i, Store):
        return [Dram(i.base, i.offset, i.rows, i.row_pitch, i.pixels, i.pitch, i.length, write=True)]
    if isinstance(i, Load) and i.paged:
        return [Dram(i.table, 4 * i.page, 1, 0, 1, 4, 4, write=False)]
    if isinstance(i, Load):  # its lines are rows here, and its rows pixels
        lines, line_pitch = i.rows // i.line, i.line * i.row_pitch + i.skip
        return [Dram(i.base, i.offset, lines, line_pitch, i.line, i.row_pitch, i.run, write=False)]
    return []


def on_chip(instruction: Instruction, config: Config) -> list[OnChip]:
    """All accesses of an instruction to memories on the chip, reads of an operand before the writes.

    Raises
    ------
    ProgramError
        If an address, taken modulo 2**16, is outside its memory.
    """
    i = instruction
    if isinstance(i, Load):
        return [_access(config, Memory.SCRATCHPAD, "dst", True, i.dst, pixel_loops(i, config.n))]
    if isinstance(i, Store):
        return [_access(config, Memory.SCRATCHPAD, "src", False, i.src, pixel_loops(i, config.n))]
    if isinstance(i, Mm):
        return _mm(i, config)
    if isinstance(i, Vec):
        return _vec(i, config)
    if isinstance(i, Softmax):
        return _softmax(i, config)
    if isinstance(i, Normalise):
        return _normalise(i, config)
    if isinstance(i, Table):
        entries = config.n * i.vectors
        return [
            _access(config, Memory.SCRATCHPAD, "src", False, i.src, ((i.vectors, 1),)),
            _access(config, Memory.TABLE, "vectors", True, 0, ((entries, 1),)),
        ]
    return []


def pixel_loops(i: Load | Store, n: int) -> tuple[Loop, ...]:
    """The loops over scratchpad vectors: rows, pixels, vectors of a pixel; groups and their bytes if transposed."""
    vectors = -(-i.length // n)
    if isinstance(i, Store):
        return (i.rows, i.src_row), (i.pixels, i.src_pixel), (vectors, i.src_vector)
    if i.transpose:
        return (-(-i.rows * i.pixels // n), i.dst_row), (n, i.dst_vector)
    return (i.rows, i.dst_row), (i.pixels, i.dst_pixel), (vectors, i.dst_vector)


def _mm(i: Mm, config: Config) -> list[OnChip]:
    y = Coordinate(i.y, i.h, (i.y_ky, i.y_oy), ((i.ky, i.a_ky), (i.oy, i.a_oy)))
    x = Coordinate(i.x, i.w, (i.x_kx, i.x_ox), ((i.kx, i.a_kx), (i.ox, i.a_ox)))
    b = ((i.nt, i.b_nt), (i.ky, i.b_ky), (i.kx, i.b_kx), (i.kc, i.b_kc), (config.n, i.b_row))
    c = ((i.nt, i.c_nt), (i.oy, i.c_oy), (i.ox, i.c_ox))
    accesses = [
        _access(config, Memory.SCRATCHPAD, "a", False, i.a, ((i.nt, i.a_nt), (i.kc, i.a_kc)), (y, x)),
        _access(config, Memory.SCRATCHPAD, "b", False, i.b, b),
    ]
    if i.align:
        entries = i.ky * i.kx * i.kc * i.oy * i.ox
        accesses.append(_access(config, Memory.ALIGNMENTS, "alignment", False, i.alignment, ((entries, 1),)))
    return [*accesses, _access(config, Memory.ACCUMULATOR, "c", True, i.c, c)]


def _vec(i: Vec, config: Config) -> list[OnChip]:
    y = Coordinate(i.y, i.h, (i.y_oy, i.y_ry), ((i.oy, i.src_oy), (i.ry, i.src_ry)))
    x = Coordinate(i.x, i.w, (i.x_ox, i.x_rx), ((i.ox, i.src_ox), (i.rx, i.src_rx)))
    accesses = [
        _access(config, _source(i), "src", False, i.src, ((i.ob, i.src_ob),), (y, x)),
        _parameters(i, config),
    ]
    if i.add:
        accesses.append(_output(i, config, Memory.SCRATCHPAD, "b", False))
    return [*accesses, _output(i, config, Memory.SCRATCHPAD, "dst", True)]


def _softmax(i: Softmax, config: Config) -> list[OnChip]:
    states = ((i.oy, i.state_oy), (i.ox, i.state_ox))
    accesses = [
        _output(i, config, _source(i), "src", False),
        _parameters(i, config),
        OnChip(Memory.TABLE, "table", False, slice(0, config.table_depth)),
        _access(config, Memory.STATES, "state", False, i.state, states),
        _output(i, config, Memory.SCRATCHPAD, "dst", True),
        _output(i, config, Memory.ALIGNMENTS, "alignment", True),
    ]
    if not i.final:
        accesses.append(_access(config, Memory.STATES, "state", True, i.state, states))
    return accesses


def _normalise(i: Normalise, config: Config) -> list[OnChip]:
    states = ((i.ob, i.state_ob), (i.oy, i.state_oy))
    accesses = [
        _output(i, config, _source(i), "src", False),
        _access(config, Memory.STATES, "state", False, i.state, states),
    ]
    if i.scaled:
        accesses.append(_output(i, config, Memory.ALIGNMENTS, "alignment", False))
    return [*accesses, _output(i, config, Memory.SCRATCHPAD, "dst", True)]


def _source(i: VectorInstruction) -> Memory:
    return Memory.SCRATCHPAD if i.source == Source.SCRATCHPAD else Memory.ACCUMULATOR


def _parameters(i: Vec | Softmax, config: Config) -> OnChip:
    return _access(config, Memory.SCRATCHPAD, "params", False, i.params, ((PARAMETER_VECTORS, 1),))


def _output(i: VectorInstruction, config: Config, memory: Memory, field: str, write: bool) -> OnChip:
    """What is addressed once for each output."""
    return _access(config, memory, field, write, getattr(i, field), output_loops(i, field))


def output_loops(i: VectorInstruction, field: str) -> tuple[Loop, ...]:
    """The loops of an operand over outputs."""
    return tuple((getattr(i, loop), getattr(i, f"{field}_{loop}")) for loop in ("ob", "oy", "ox"))


def _access(
    config: Config,
    memory: Memory,
    field: str,
    write: bool,
    start: int,
    loops: tuple[Loop, ...],
    coordinates: tuple[Coordinate, ...] = (),
) -> OnChip:
    """The access, with its addresses checked against the size of its memory."""
    size = memory.size(config)
    first, offsets, dense = _offsets(loops, coordinates)
    if not offsets.size:
        return OnChip(memory, field, write, slice(0, 0))
    low = (start + first) % _WRAP
    high = low + int(offsets[-1])
    if high >= size:
        cells = np.unique((low + offsets) % _WRAP)
        if cells[-1] >= size:
            raise ProgramError(f"{field!r} {verb(write)} {memory.value} {cells[-1]}, but there are {size}")
        return OnChip(memory, field, write, cells)
    return OnChip(memory, field, write, slice(low, high + 1) if dense else low + offsets)


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
