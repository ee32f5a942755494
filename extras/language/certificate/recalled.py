"""Symbolic device for many starts, which executes an instruction only once for equal inputs.

Every row of an on-chip memory has a number, and rows with equal numbers have equal values. The results of an
instruction are cached by the numbers of the rows that it reads, all of which its operands declare; those of LOAD by the
bytes that it copies. Starts that differ in few places are therefore fast, without any assumption about where they
differ.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.extras.proof.programs.field import digest
from weft.extras.proof.programs.softmax_unit import RowStates, unknown_alignments, unknown_states
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.symbols import Rows
from weft.extras.proof.programs.value_device import Unproven, ValueDevice
from weft.extras.proof.programs.values import Values
from weft.hdl.isa import Instruction, Load, Lookup, Memory, Microcode, Mm, Softmax, Store, Table, Vec
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError
from weft.sim.golden.memories import loops
from weft.sim.golden.vector import valid_columns

_NUMBERED_MEMORIES = (Memory.SCRATCHPAD, Memory.ACCUMULATOR, Memory.STATES, Memory.ALIGNMENTS)
"""Memories with a number for each row; all other memories together have one number."""
_CONFIGURING = (Microcode, Lookup, Table)
"""Instructions that write to the other memories."""
Places = list[tuple[Memory, np.ndarray]]
Content = tuple[np.ndarray | Sums, ...]


class _Footprint(NamedTuple):
    """Number of an instruction, ignoring its semaphores, and the rows that it reads and writes.

    `places` is None if it addresses rows that do not exist.
    """

    number: int
    places: tuple[Places, Places] | None


def _copy(sums: Sums) -> Sums:
    return Sums(sums.primes, sums.f.copy(), sums.low.copy(), sums.high.copy(), sums.degree)


class RecallingDevice(ValueDevice):
    """Symbolic device with a cache of instructions' results.

    Attributes
    ----------
    fixed : sequence of (int, int)
        Start and end of memory ranges that have the same contents at every start and are never written.
    turn_register : int, optional
        Register that counts turns of a loop down to 0. Each turn but the first starts with arbitrary values in the
        on-chip rows that the previous turn wrote, so that proofs about turns are independent.
    executed : int
        Number of instructions that were executed, not taken from the cache.
    """

    def __init__(self, config: Config, memory_bytes: int, values: Values) -> None:
        super().__init__(config, memory_bytes, values)
        self.fixed: Sequence[tuple[int, int]] = ()
        self._digests: dict[tuple[int, int, int], bytes] = {}
        self.turn_register: int | None = None
        self.executed = 0
        self._turn = 0
        self._written: Places = []
        self._arbitrary: dict[tuple[int, Memory, bytes], tuple[Content, np.ndarray]] = {}
        self._results: dict[Hashable, list[tuple[Memory, np.ndarray, Content, np.ndarray]]] = {}
        self._instructions: dict[Instruction, _Footprint] = {}
        self._numbers: dict[Memory, np.ndarray] = {}
        self._rows: dict[bytes, int] = {}
        self._initial = self.cells, self.sums, self.rows
        self._next = itertools.count()
        self._first = {memory: self._fresh(memory.size(config)) for memory in _NUMBERED_MEMORIES}
        self._configuration = self._first_configuration = next(self._next)
        self.forget()

    def fix(self, fixed: Sequence[tuple[int, int]]) -> None:
        """Set the memory ranges (start, end) that are never written from now on."""
        self.fixed = fixed
        self._digests.clear()

    def forget(self) -> None:
        """Reset the on-chip memories to their initial, arbitrary contents."""
        cells, sums, rows = self._initial
        self.cells = cells.copy()
        self.sums = _copy(sums)
        self.rows = RowStates.__new__(RowStates)
        self.rows.maxima, self.rows.sums = _copy(rows.maxima), _copy(rows.sums)
        self.rows.alignments, self.rows.table = _copy(rows.alignments), np.full_like(rows.table, -1)
        self.tables[:] = -1
        self.memories.kernel = [None] * self.config.kernel  # type: ignore[list-item]
        self._numbers = {memory: numbers.copy() for memory, numbers in self._first.items()}
        self._configuration = self._first_configuration
        self._turn = 0
        self._written.clear()

    def _fresh(self, count: int) -> np.ndarray:
        return np.fromiter(itertools.islice(self._next, count), np.int64, count)

    def _execute(self, index: int, instruction: Instruction) -> None:
        footprint = self._footprint(instruction)
        self._begin_turn()
        if isinstance(instruction, Store):
            self._check_fixed(instruction)
        # Memory has no row numbers, so that STOREs are always executed.
        if isinstance(instruction, Store) or footprint.places is None:
            self._execute_uncached(index, instruction)
            if footprint.places is None:  # rows used as padding may be such
                raise Unproven(
                    f"instruction {index} ({instruction.OPCODE.name}) names rows that there are not"
                )
            return
        reads, writes = footprint.places
        self._written += writes
        other_inputs = self._other_inputs(instruction)
        if isinstance(instruction, Softmax) and instruction.first and not any(other_inputs):
            # The rows' states are reset, and no score is visible.
            reads = [item for item in reads if item[0] not in (Memory.ACCUMULATOR, Memory.STATES)]
        numbers = b"".join([self._numbers[memory][rows].tobytes() for memory, rows in reads])
        key = (footprint.number, self._configuration, other_inputs, numbers)
        if isinstance(instruction, _CONFIGURING):
            self._execute_uncached(index, instruction)
            self._configuration = self._number_of(repr(key).encode())
            return
        if key not in self._results:
            self._execute_uncached(index, instruction)
            self._results[key] = [
                (memory, rows, self._content(memory, rows), self._fresh(len(rows))) for memory, rows in writes
            ]
        for memory, rows, content, numbers_after in self._results[key]:
            self._restore(memory, rows, content)
            self._numbers[memory][rows] = numbers_after

    def _begin_turn(self) -> None:
        """Replace the values that the previous turn of the loop wrote by arbitrary ones."""
        if self.turn_register is None:
            return
        turn = self.memories.register(self.turn_register)
        if turn == self._turn:
            return
        # The first turn keeps what the program has loaded before the loop.
        if 1 <= turn == self._turn - 1:
            for memory in _NUMBERED_MEMORIES:
                written = [rows for place, rows in self._written if place is memory]
                rows = np.unique(np.concatenate(written)) if written else np.zeros(0, np.int64)
                content, numbers = self._arbitrary_content(turn, memory, rows)
                self._restore(memory, rows, content)
                self._numbers[memory][rows] = numbers
        self._turn = turn
        self._written.clear()

    def _arbitrary_content(self, turn: int, memory: Memory, rows: np.ndarray) -> tuple[Content, np.ndarray]:
        """Return arbitrary contents of rows at the start of a turn, and the rows' numbers."""
        key, count = (turn, memory, rows.tobytes()), len(rows)
        if key not in self._arbitrary:
            values, n = self.values, self.config.n
            make: dict[Memory, Callable[[], Content]] = {
                Memory.SCRATCHPAD: lambda: (values.new_inputs(count * n).reshape(count, n),),
                Memory.ACCUMULATOR: lambda: (values.new_unknown(count * n).reshape(count, n),),
                Memory.STATES: lambda: unknown_states(values, count),
                Memory.ALIGNMENTS: lambda: (unknown_alignments(values, count),),
            }
            self._arbitrary[key] = make[memory](), self._fresh(count)
        return self._arbitrary[key]

    def _execute_uncached(self, index: int, instruction: Instruction) -> None:
        self.executed += 1
        super()._execute(index, instruction)

    def _footprint(self, instruction: Instruction) -> _Footprint:
        if instruction not in self._instructions:
            # Semaphores do not change results: instructions that differ only in them share a number.
            unsynchronised = dataclasses.replace(instruction, wait=0, signal=0)
            if unsynchronised != instruction:
                self._instructions[instruction] = self._footprint(unsynchronised)
            else:
                try:
                    places = self._find_accesses(instruction)
                except DeviceError:
                    places = None
                self._instructions[instruction] = _Footprint(next(self._next), places)
        return self._instructions[instruction]

    def _find_accesses(self, instruction: Instruction) -> tuple[Places, Places]:
        reads: Places = []
        writes: Places = []
        for operand in instruction.OPERANDS:
            if operand.memory not in _NUMBERED_MEMORIES or not operand.applies(instruction):
                continue
            rows = np.unique(
                self.memories.check(
                    operand, operand.first(instruction) + loops(*operand.nest(instruction, self.config))
                )
            )
            (writes if operand.write else reads).append((operand.memory, rows))
            if isinstance(instruction, Mm) and operand.write and instruction.accumulate:
                reads.append((operand.memory, rows))
        return reads, writes

    def _other_inputs(self, instruction: Instruction) -> Any:
        """Return an instruction's inputs beside on-chip rows: registers, and contents of memory."""
        if isinstance(instruction, Softmax):
            return valid_columns(self.memories, instruction).tobytes()
        if not isinstance(instruction, Load):
            return None
        footprint = self._resolve_page(instruction)
        if isinstance(footprint, np.ndarray):
            rows = self.offsets.get(tuple(footprint.tolist()), Rows(0, 0))
            start = (self.memories.register(instruction.base) + instruction.offset + rows.first) & 0xFFFFFFFF
            size = max(rows.count - 1, 0) * rows.pitch + instruction.run
            return tuple(footprint.tolist()), rows, self._bytes(instruction, [start], size)
        start = (self.memories.register(instruction.base) + footprint.offset) & 0xFFFFFFFF
        addresses = [
            (start + row * instruction.row_pitch + row // instruction.line * instruction.skip) & 0xFFFFFFFF
            for row in range(instruction.rows)
        ]
        content = self._bytes(instruction, addresses, instruction.row_bytes)
        return (start, content) if instruction.int4 else content

    def _bytes(self, i: Load, addresses: Sequence[int], size: int) -> bytes:
        """Return a digest of `size` bytes from each address on; digests of fixed ranges are cached."""
        low, high = min(addresses), max(addresses) + size
        fixed = any(first <= low and high <= stop for first, stop in self.fixed)
        key = self._footprint(i).number, addresses[0], size
        if fixed and key in self._digests:
            return self._digests[key]
        result = digest(*(plane.dram_range(at, size) for at in addresses for plane in self.planes))
        if fixed:
            self._digests[key] = result
        return result

    def _content(self, memory: Memory, rows: np.ndarray) -> Content:
        states = self.rows
        return {
            Memory.SCRATCHPAD: lambda: (self.cells[rows],),
            Memory.ACCUMULATOR: lambda: (self.sums[rows],),
            Memory.STATES: lambda: (states.maxima[rows], states.sums[rows]),
            Memory.ALIGNMENTS: lambda: (states.alignments[rows],),
        }[memory]()

    def _restore(self, memory: Memory, rows: np.ndarray, content: Content) -> None:
        first = content[0]
        if memory is Memory.SCRATCHPAD:
            self.cells[rows] = first
            return
        assert isinstance(first, Sums)
        if memory is Memory.ACCUMULATOR:
            self.sums = self.sums.put(rows, first)
        elif memory is Memory.ALIGNMENTS:
            self.rows.alignments = self.rows.alignments.put(rows, first)
        else:
            assert isinstance(content[1], Sums)
            self.rows.maxima = self.rows.maxima.put(rows, first)
            self.rows.sums = self.rows.sums.put(rows, content[1])

    def _check_fixed(self, instruction: Store) -> None:
        """Raise `Unproven` if a STORE writes to a fixed range."""
        start, extent = (
            self.memories.register(instruction.base) + instruction.offset,
            (instruction.pixels - 1) * instruction.pitch + instruction.length,
        )
        for row in range(instruction.rows):
            address = (start + row * instruction.row_pitch) & 0xFFFFFFFF
            if any(address < stop and first < address + extent for first, stop in self.fixed):
                raise Unproven(f"it writes to {address:#x}, which holds the program or constants")

    def _vec(self, instruction: Vec) -> None:
        # With unknown parameters the result can be anything.
        block = self.cells[self.memories.addresses(instruction, "params")]
        if self.values.constant_bytes(block) is not None:
            super()._vec(instruction)
            return
        self.check_vec(instruction)
        rows = self.memories.addresses(instruction, "dst").ravel()
        self.cells[rows] = self.values.new_inputs(rows.size * self.config.n).reshape(-1, self.config.n)

    def _number_of(self, content: bytes) -> int:
        if content not in self._rows:
            self._rows[content] = next(self._next)
        return self._rows[content]

    def replace(self, rows: np.ndarray, replacement: Callable[[np.ndarray], np.ndarray]) -> None:
        """Replace vectors of the scratchpad by equal values; their numbers then follow from their contents."""
        self.cells[rows] = replacement(self.cells[rows])
        for row in rows.tolist():
            self._numbers[Memory.SCRATCHPAD][row] = self._number_of(self.cells[row].tobytes())
