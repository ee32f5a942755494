"""A device of values that is started many times, and carries out an instruction once for each content of what it reads.

Every row of a memory on the chip has a number, and two rows with one number have the same values in them. What an
instruction makes is remembered under the numbers of what it reads, all of which its operands declare; of LOAD, under
the bytes that it copies. So starts that differ in few places take little time each, and nothing is taken for granted of
where they differ.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.extras.proof.programs.field import digest
from weft.extras.proof.programs.scores import RowStates, any_alignments, any_states
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.symbols import Rows
from weft.extras.proof.programs.values import Values
from weft.extras.proof.programs.words import Unproven, ValueDevice
from weft.hdl.isa import Instruction, Load, Lookup, Memory, Microcode, Mm, Softmax, Store, Table, Vec
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError
from weft.sim.golden.memories import loops
from weft.sim.golden.vector import valid_columns

_ROWS = (Memory.SCRATCHPAD, Memory.ACCUMULATOR, Memory.STATES, Memory.ALIGNMENTS)
"""Memories whose rows have numbers; of all others together there is one."""
_WHOLE = (Microcode, Lookup, Table)
"""Instructions that write to the others."""
Places = list[tuple[Memory, np.ndarray]]
Content = tuple[np.ndarray | Sums, ...]


class _Told(NamedTuple):
    """Of an instruction, whatever it waits for and signals, a number, and the rows that it reads and writes; None if it
    names some that there are not."""

    number: int
    places: tuple[Places, Places] | None


def _copied(sums: Sums) -> Sums:
    return Sums(sums.primes, sums.f.copy(), sums.low.copy(), sums.high.copy(), sums.degree)


class RecallingDevice(ValueDevice):
    """See the module.

    Attributes
    ----------
    fixed : sequence of (int, int)
        First address and one past the last of what is in memory at every start and is never written.
    turn : int, optional
        A register that counts turns of a loop down to 0: each turn but the first begins with anything where the one
        before has written to on the chip, so that what is proven of it does not depend on that one.
    done : int
        Instructions that were carried out and not remembered.
    """

    def __init__(self, config: Config, memory_bytes: int, values: Values) -> None:
        super().__init__(config, memory_bytes, values)
        self.fixed: Sequence[tuple[int, int]] = ()
        self._digests: dict[tuple[int, int, int], bytes] = {}
        self.turn: int | None = None
        self.done = 0
        self._turn = 0
        self._written: Places = []
        self._anything: dict[tuple[int, Memory, bytes], tuple[Content, np.ndarray]] = {}
        self._known: dict[Hashable, list[tuple[Memory, np.ndarray, Content, np.ndarray]]] = {}
        self._instructions: dict[Instruction, _Told] = {}
        self._numbers: dict[Memory, np.ndarray] = {}
        self._rows: dict[bytes, int] = {}
        self._begin = self.cells, self.sums, self.rows
        self._next = itertools.count()
        self._first = {memory: self._fresh(memory.size(config)) for memory in _ROWS}
        self._others = self._first_others = next(self._next)
        self.forget()

    def fix(self, fixed: Sequence[tuple[int, int]]) -> None:
        """Say from which addresses to before which others memory is never written from now on."""
        self.fixed = fixed
        self._digests.clear()

    def forget(self) -> None:
        """What is on the chip is what it was at first: anything."""
        cells, sums, rows = self._begin
        self.cells = cells.copy()
        self.sums = _copied(sums)
        self.rows = RowStates.__new__(RowStates)
        self.rows.maxima, self.rows.sums = _copied(rows.maxima), _copied(rows.sums)
        self.rows.alignments, self.rows.table = _copied(rows.alignments), np.full_like(rows.table, -1)
        self.tables[:] = -1
        self.memories.kernel = [None] * self.config.kernel  # type: ignore[list-item]
        self._numbers = {memory: numbers.copy() for memory, numbers in self._first.items()}
        self._others = self._first_others
        self._turn = 0
        self._written.clear()

    def _fresh(self, count: int) -> np.ndarray:
        return np.fromiter(itertools.islice(self._next, count), np.int64, count)

    def _execute(self, index: int, instruction: Instruction) -> None:
        told = self._told(instruction)
        self._begin_turn()
        if isinstance(instruction, Store):
            self._check_fixed(instruction)
        if isinstance(instruction, Store) or told.places is None:
            self._carry_out(index, instruction)
            if told.places is None:  # as those of rows that are padding may be
                raise Unproven(
                    f"instruction {index} ({instruction.OPCODE.name}) names rows that there are not"
                )
            return
        reads, writes = told.places
        self._written += writes
        beside = self._beside(instruction)
        if isinstance(instruction, Softmax) and instruction.first and not any(beside):
            # Rows start anew, and see no score.
            reads = [item for item in reads if item[0] not in (Memory.ACCUMULATOR, Memory.STATES)]
        numbers = b"".join([self._numbers[memory][rows].tobytes() for memory, rows in reads])
        key = (told.number, self._others, beside, numbers)
        if isinstance(instruction, _WHOLE):
            self._carry_out(index, instruction)
            self._others = self._number(repr(key).encode())
            return
        if key not in self._known:
            self._carry_out(index, instruction)
            self._known[key] = [
                (memory, rows, self._content(memory, rows), self._fresh(len(rows))) for memory, rows in writes
            ]
        for memory, rows, content, found in self._known[key]:
            self._restore(memory, rows, content)
            self._numbers[memory][rows] = found

    def _begin_turn(self) -> None:
        """Put anything into what the turn of the loop before this one has written."""
        if self.turn is None:
            return
        turn = self.memories.register(self.turn)
        if turn == self._turn:
            return
        if 1 <= turn == self._turn - 1:
            for memory in _ROWS:
                written = [rows for place, rows in self._written if place is memory]
                rows = np.unique(np.concatenate(written)) if written else np.zeros(0, np.int64)
                content, numbers = self._any(turn, memory, rows)
                self._restore(memory, rows, content)
                self._numbers[memory][rows] = numbers
        self._turn = turn
        self._written.clear()

    def _any(self, turn: int, memory: Memory, rows: np.ndarray) -> tuple[Content, np.ndarray]:
        """What rows may hold when a turn begins, and their numbers."""
        key, count = (turn, memory, rows.tobytes()), len(rows)
        if key not in self._anything:
            values, n = self.values, self.config.n
            make: dict[Memory, Callable[[], Content]] = {
                Memory.SCRATCHPAD: lambda: (values.inputs(count * n).reshape(count, n),),
                Memory.ACCUMULATOR: lambda: (values.unknown(count * n).reshape(count, n),),
                Memory.STATES: lambda: any_states(values, count),
                Memory.ALIGNMENTS: lambda: (any_alignments(values, count),),
            }
            self._anything[key] = make[memory](), self._fresh(count)
        return self._anything[key]

    def _carry_out(self, index: int, instruction: Instruction) -> None:
        self.done += 1
        super()._execute(index, instruction)

    def _told(self, i: Instruction) -> _Told:
        if i not in self._instructions:
            plain = dataclasses.replace(i, wait=0, signal=0)
            if plain != i:
                self._instructions[i] = self._told(plain)
            else:
                try:
                    places = self._found(i)
                except DeviceError:
                    places = None
                self._instructions[i] = _Told(next(self._next), places)
        return self._instructions[i]

    def _found(self, i: Instruction) -> tuple[Places, Places]:
        reads: Places = []
        writes: Places = []
        for operand in i.OPERANDS:
            if operand.memory not in _ROWS or not operand.applies(i):
                continue
            rows = np.unique(
                self.memories.check(operand, operand.first(i) + loops(*operand.nest(i, self.config)))
            )
            (writes if operand.write else reads).append((operand.memory, rows))
            if isinstance(i, Mm) and operand.write and i.accumulate:
                reads.append((operand.memory, rows))
        return reads, writes

    def _beside(self, i: Instruction) -> Any:
        """What else an instruction depends on: registers, and what is in memory."""
        if isinstance(i, Softmax):
            return valid_columns(self.memories, i).tobytes()
        if not isinstance(i, Load):
            return None
        found = self._resolved(i)
        if isinstance(found, np.ndarray):
            rows = self.offsets.get(tuple(found.tolist()), Rows(0, 0))
            start = (self.memories.register(i.base) + i.offset + rows.first) & 0xFFFFFFFF
            size = max(rows.count - 1, 0) * rows.pitch + i.run
            return tuple(found.tolist()), rows, self._bytes(i, [start], size)
        start = (self.memories.register(i.base) + found.offset) & 0xFFFFFFFF
        addresses = [
            (start + row * i.row_pitch + row // i.line * i.skip) & 0xFFFFFFFF for row in range(i.rows)
        ]
        known = self._bytes(i, addresses, i.row_bytes)
        return (start, known) if i.int4 else known

    def _bytes(self, i: Load, addresses: Sequence[int], size: int) -> bytes:
        """A digest of so many bytes from each address on; what is never written has the same all the time."""
        low, high = min(addresses), max(addresses) + size
        fixed = any(first <= low and high <= stop for first, stop in self.fixed)
        key = self._told(i).number, addresses[0], size
        if fixed and key in self._digests:
            return self._digests[key]
        found = digest(*(plane.dram_range(at, size) for at in addresses for plane in self.planes))
        if fixed:
            self._digests[key] = found
        return found

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

    def _check_fixed(self, i: Store) -> None:
        """Raises `Unproven` if STORE writes to what is never written."""
        start, extent = self.memories.register(i.base) + i.offset, (i.pixels - 1) * i.pitch + i.length
        for row in range(i.rows):
            address = (start + row * i.row_pitch) & 0xFFFFFFFF
            if any(address < stop and first < address + extent for first, stop in self.fixed):
                raise Unproven(f"it writes to {address:#x}, where the program's words and constants are")

    def _vec(self, i: Vec) -> None:
        """With parameters that are not known it makes anything."""
        block = self.cells[self.memories.addresses(i, "params")]
        if self.values.constants(block) is not None:
            super()._vec(i)
            return
        self.check_vec(i)
        rows = self.memories.addresses(i, "dst").ravel()
        self.cells[rows] = self.values.inputs(rows.size * self.config.n).reshape(-1, self.config.n)

    def _number(self, content: bytes) -> int:
        if content not in self._rows:
            self._rows[content] = next(self._next)
        return self._rows[content]

    def replace(self, rows: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> None:
        """Put other values for the same into vectors of the scratchpad; the numbers of these follow their content."""
        self.cells[rows] = of(self.cells[rows])
        for row in rows.tolist():
            self._numbers[Memory.SCRATCHPAD][row] = self._number(self.cells[row].tobytes())
