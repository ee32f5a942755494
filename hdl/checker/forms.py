"""Instructions that differ in nothing but semaphores and DRAM offset: each such form is checked once.

A program's addresses on chip are those of a few slots, so that a program of a million instructions has some thousands
of forms.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from weft.hdl.checker.conflicts import DRAM, SPACES, Uses, of_forms, step_of
from weft.hdl.checker.extents import Dram, Extents, Layout, OnChip, ProgramError, name
from weft.hdl.checker.rules import ADDRESSES, check_instruction
from weft.hdl.isa import INSTRUCTIONS, WORD_BYTES, Instruction, IsaError, Opcode, places, required
from weft.hdl.isa.code import Code, mask
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class _Form:
    """The accesses of all instructions of a form; those in `memory` are for offset 0 if they move (`moves`) with it."""

    chip: list[OnChip]
    memory: list[Dram]
    moves: bool

    def uses(self) -> list[tuple[bool, int, int, int, int, bool]]:
        """(whether it is written, space, first address, one past the last, step, whether these move)."""
        found = []
        for access in self.chip:
            if access.memory in SPACES:
                found.append((access.write, SPACES[access.memory], *_span(access), False))
        return found + [(run.write, DRAM + run.base, run.low, run.high, 1, self.moves) for run in self.memory]


def _span(access: OnChip) -> tuple[int, int, int]:
    cells = access.cells
    if isinstance(cells, slice):
        return cells.start, cells.stop, 1
    return int(cells[0]), int(cells[-1]) + 1, step_of(cells)


class Forms:
    """The forms of `code`, which has no END.

    Raises
    ------
    ProgramError
        Naming the first instruction that breaks a rule by itself.

    Attributes
    ----------
    uses : Uses
        What all instructions touch, in memories that more than one queue uses, as if each touched all that its step
        reaches between the first and the last address of an operand. Tasks are indices.
    """

    def __init__(self, code: Code, config: Config, extents: Extents | None) -> None:
        self._code, self._config, self._extents = code, config, extents
        self._form, first = _distinct(code)
        self._offsets = _offsets(code)
        self._forms: list[_Form] = []
        self._layouts: dict[bytes, Layout] = {}
        distinct = Code(code.words[first])
        shapes = _shapes(distinct)
        for index, shape, instruction in zip(first, shapes, distinct, strict=True):
            try:
                self._forms.append(self._checked(index, instruction, shape))
            except ProgramError:
                self._check_offsets(index)  # one before it may be at fault
                raise
        uses = self._check_offsets(len(code))
        self.uses = dataclasses.replace(uses, kind=uses.kind + 2 * code.queues.astype(np.int64)[uses.task])

    def _checked(self, index: int, instruction: Instruction, shape: bytes) -> _Form:
        chip, memory, found = self._check(index, instruction, self._layouts.get(shape))
        self._layouts[shape] = found
        moves = any(
            operand.name == _moving(instruction.OPCODE) and operand.applies(instruction)
            for operand in instruction.OPERANDS
        )
        if moves:
            memory = [dataclasses.replace(run, offset=0) for run in memory]
        return _Form(chip, memory, moves)

    def _check(
        self, index: int, instruction: Instruction, known: Layout | None = None
    ) -> tuple[list[OnChip], list[Dram], Layout]:
        try:
            return check_instruction(instruction, self._config, self._extents, known)
        except (IsaError, ProgramError) as error:
            raise ProgramError(f"{name(index, instruction)}: {error}") from None

    def _check_offsets(self, count: int) -> Uses:
        """The accesses of the first `count` instructions; raises if one leaves the DRAM that it may access."""
        uses = self._uses(count)
        wrong = np.zeros(len(uses.task), bool)
        for space in np.unique(uses.space[uses.space >= DRAM]).tolist():
            for write in (False, True):
                rows = np.flatnonzero((uses.space == space) & (uses.kind == write))
                low, high = uses.start[rows], uses.stop[rows]
                if self._extents is None:
                    wrong[rows] = (low < 0) | (high > ADDRESSES)
                else:
                    wrong[rows] = ~self._extents.allow(space - DRAM, write, low, high)
        wrong |= self._misplaced[uses.task]
        if wrong.any():
            index = int(uses.task[wrong].min())
            self._check(index, self._code[index])
            raise AssertionError(f"{name(index, self._code[index])} is taken for a wrong one")
        return uses

    @cached_property
    def _misplaced(self) -> np.ndarray:
        """Which instructions have an offset that none of their form may have: (count,) bool."""
        found = np.zeros(len(self._code), bool)
        for opcode, rows in self._code.by_opcode():
            if opcode is Opcode.LOAD:
                narrow = self._code.field("int4", opcode, rows) != 0
                found[rows] = narrow & (self._offsets[rows] % self._config.bus_bytes != 0)
        return found

    def _uses(self, count: int) -> Uses:
        """The accesses of the first `count` instructions; `kind` only says whether they write."""
        task, rows = of_forms(self._form[:count], [form.uses() for form in self._forms], 6)
        write, space, start, stop, step, moves = rows.T
        offset = moves * self._offsets[task]
        return Uses(task, write, space, start + offset, stop + offset, step)

    def accesses(self, index: int) -> tuple[list[OnChip], list[Dram]]:
        """Just what one instruction touches."""
        form = self._forms[self._form[index]]
        if not form.moves:
            return form.chip, form.memory
        offset = int(self._offsets[index])
        return form.chip, [dataclasses.replace(run, offset=offset) for run in form.memory]


def _distinct(code: Code) -> tuple[np.ndarray, list[int]]:
    """The form of each instruction, and of each form the first instruction."""
    words = code.words.copy()
    for opcode, rows in code.by_opcode():
        moving = _moving(opcode)
        words[rows] &= ~mask(opcode, ("wait", "signal", *([moving] if moving else [])))
    raw = words.tobytes()
    known: dict[bytes, int] = {}
    first: list[int] = []
    form = np.empty(len(code), np.int64)
    for index in range(len(code)):
        word = raw[index * WORD_BYTES : (index + 1) * WORD_BYTES]
        at = known.setdefault(word, len(known))
        if at == len(first):
            first.append(index)
        form[index] = at
    return form, first


def _shapes(code: Code) -> list[bytes]:
    """Each word without semaphores and first addresses on the chip: what `check_instruction` needs to know of an
    instruction that it has checked."""
    words = code.words.copy()
    for opcode, rows in code.by_opcode():
        words[rows] &= ~mask(opcode, ("wait", "signal", *_starts(opcode)))
    return [word.tobytes() for word in words]


@cache
def _starts(opcode: Opcode) -> tuple[str, ...]:
    """The fields with addresses on the chip that no feature of the configuration is needed for."""
    operands = [
        item for item in INSTRUCTIONS[opcode].OPERANDS if item.memory in SPACES and item.start is None
    ]
    return tuple({item.name for item in operands} - set(required(opcode)))


def _offsets(code: Code) -> np.ndarray:
    """The DRAM offset of those instructions that have it in a field."""
    offsets = np.zeros(len(code), np.int64)
    for opcode, rows in code.by_opcode():
        if moving := _moving(opcode):
            offsets[rows] = code.field(moving, opcode, rows)
    return offsets


@cache
def _moving(opcode: Opcode) -> str | None:
    """The field with the DRAM offset of an instruction, if it has one."""
    operands = INSTRUCTIONS[opcode].OPERANDS
    fields = {item.name for item in operands if item.register is not None and item.name in places(opcode)}
    assert len(fields) < 2
    return next(iter(fields), None)
