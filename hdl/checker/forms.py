"""Forms of instructions: classes that differ only in semaphores and DRAM offset, so that each is checked once.

Programs reuse few on-chip addresses: a program of a million instructions has some thousands of forms.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from weft.hdl.checker.conflicts import DRAM, SPACES, Uses, expand_forms, step_of
from weft.hdl.checker.extents import DramAccess, Extents, OnChipAccess, OnChipLayout, describe
from weft.hdl.checker.rules import ADDRESSES, check_instruction
from weft.hdl.errors import IsaError, ProgramError
from weft.hdl.isa import INSTRUCTIONS, WORD_BYTES, Instruction, Opcode, places, required_features
from weft.hdl.isa.code import Code, field_mask
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class _Form:
    """Accesses of a form's instructions. With `moves`, their DRAM offset is a field, and `memory` is for offset 0."""

    chip: list[OnChipAccess]
    memory: list[DramAccess]
    moves: bool

    def uses(self) -> list[tuple[bool, int, int, int, int, bool]]:
        """Return rows of (write, space, first address, last address + 1, step, moves)."""
        on_chip = [
            (access.write, SPACES[access.memory], *_span(access), False)
            for access in self.chip
            if access.memory in SPACES
        ]
        return on_chip + [
            (run.write, DRAM + run.base, run.low, run.high, 1, self.moves) for run in self.memory
        ]


def _span(access: OnChipAccess) -> tuple[int, int, int]:
    cells = access.cells
    if isinstance(cells, slice):
        return cells.start, cells.stop, 1
    return int(cells[0]), int(cells[-1]) + 1, step_of(cells)


class Forms:
    """Checked forms of `code`, which has no END.

    Raises
    ------
    ProgramError
        For the first instruction that breaks a rule on its own.

    Attributes
    ----------
    uses : Uses
        Accesses of all instructions to memories that more than one queue uses, as if an instruction accessed every
        step from the first to the last address of an operand. Tasks are indices of instructions.
    """

    def __init__(self, code: Code, config: Config, extents: Extents | None) -> None:
        self._code, self._config, self._extents = code, config, extents
        self._form, first = _distinct(code)
        self._offsets = _offsets(code)
        self._forms: list[_Form] = []
        self._layouts: dict[bytes, OnChipLayout] = {}
        distinct = Code(code.words[first])
        shapes = _shapes(distinct)
        for index, shape, instruction in zip(first, shapes, distinct, strict=True):
            try:
                self._forms.append(self._check_form(index, instruction, shape))
            except ProgramError:
                self._check_offsets(index)  # an error of an earlier instruction comes first
                raise
        uses = self._check_offsets(len(code))
        self.uses = dataclasses.replace(uses, kind=uses.kind + 2 * code.queues.astype(np.int64)[uses.task])

    def _check_form(self, index: int, instruction: Instruction, shape: bytes) -> _Form:
        chip, memory, self._layouts[shape] = self._check(index, instruction, self._layouts.get(shape))
        moves = any(
            operand.name == _offset_field(instruction.OPCODE) and operand.applies(instruction)
            for operand in instruction.OPERANDS
        )
        if moves:
            memory = [dataclasses.replace(run, offset=0) for run in memory]
        return _Form(chip, memory, moves)

    def _check(
        self, index: int, instruction: Instruction, known_layout: OnChipLayout | None = None
    ) -> tuple[list[OnChipAccess], list[DramAccess], OnChipLayout]:
        try:
            return check_instruction(instruction, self._config, self._extents, known_layout)
        except (IsaError, ProgramError) as error:
            raise ProgramError(f"{describe(index, instruction)}: {error}") from None

    def _check_offsets(self, count: int) -> Uses:
        """Return the accesses of the first `count` instructions, and check those to DRAM."""
        uses = self._uses(count)
        illegal = np.zeros(len(uses.task), bool)
        for space in np.unique(uses.space[uses.space >= DRAM]).tolist():
            for write in (False, True):
                rows = np.flatnonzero((uses.space == space) & (uses.kind == write))
                low, high = uses.start[rows], uses.stop[rows]
                if self._extents is None:
                    illegal[rows] = (low < 0) | (high > ADDRESSES)
                else:
                    illegal[rows] = ~self._extents.may_access(space - DRAM, write, low, high)
        illegal |= self._misaligned[uses.task]
        if illegal.any():
            index = int(uses.task[illegal].min())
            self._check(index, self._code[index])  # raises an error with the reason
            raise AssertionError(f"{describe(index, self._code[index])} is wrongly taken for an illegal one")
        return uses

    @cached_property
    def _misaligned(self) -> np.ndarray:
        """Mask of the LOADs with ``int4`` whose offset is no multiple of the bus width: (count,) bool."""
        misaligned = np.zeros(len(self._code), bool)
        for opcode, rows in self._code.by_opcode():
            if opcode is Opcode.LOAD:
                narrow = self._code.field("int4", opcode, rows) != 0
                misaligned[rows] = narrow & (self._offsets[rows] % self._config.bus_bytes != 0)
        return misaligned

    def _uses(self, count: int) -> Uses:
        """Return the accesses of the first `count` instructions; `kind` is 1 for writes, without the queue."""
        task, rows = expand_forms(self._form[:count], [form.uses() for form in self._forms], 6)
        write, space, start, stop, step, moves = rows.T
        offset = moves * self._offsets[task]
        return Uses(task, write, space, start + offset, stop + offset, step)

    def accesses(self, index: int) -> tuple[list[OnChipAccess], list[DramAccess]]:
        """Return the exact accesses of an instruction."""
        form = self._forms[self._form[index]]
        if not form.moves:
            return form.chip, form.memory
        offset = int(self._offsets[index])
        return form.chip, [dataclasses.replace(run, offset=offset) for run in form.memory]


def _distinct(code: Code) -> tuple[np.ndarray, list[int]]:
    """Return the form of each instruction, and the index of each form's first instruction."""
    words = code.words.copy()
    for opcode, rows in code.by_opcode():
        offset = _offset_field(opcode)
        words[rows] &= ~field_mask(opcode, ("wait", "signal", *([offset] if offset else [])))
    raw = words.tobytes()
    form_of_word: dict[bytes, int] = {}
    first: list[int] = []
    form = np.empty(len(code), np.int64)
    for index in range(len(code)):
        word = raw[index * WORD_BYTES : (index + 1) * WORD_BYTES]
        number = form_of_word.setdefault(word, len(form_of_word))
        if number == len(first):
            first.append(index)
        form[index] = number
    return form, first


def _shapes(code: Code) -> list[bytes]:
    """Return each word without semaphores and first on-chip addresses.

    Instructions with equal shapes have a common layout, which `check_instruction` can reuse.
    """
    words = code.words.copy()
    for opcode, rows in code.by_opcode():
        words[rows] &= ~field_mask(opcode, ("wait", "signal", *_starts(opcode)))
    return [word.tobytes() for word in words]


@cache
def _starts(opcode: Opcode) -> tuple[str, ...]:
    """Return the fields with first on-chip addresses, except for those of optional features."""
    operands = [
        item for item in INSTRUCTIONS[opcode].OPERANDS if item.memory in SPACES and item.start is None
    ]
    return tuple({item.name for item in operands} - set(required_features(opcode)))


def _offsets(code: Code) -> np.ndarray:
    """Return the DRAM offset of each instruction, 0 for those without one."""
    offsets = np.zeros(len(code), np.int64)
    for opcode, rows in code.by_opcode():
        if field := _offset_field(opcode):
            offsets[rows] = code.field(field, opcode, rows)
    return offsets


@cache
def _offset_field(opcode: Opcode) -> str | None:
    """Return the name of an instruction's field with a DRAM offset, or None."""
    operands = INSTRUCTIONS[opcode].OPERANDS
    fields = {item.name for item in operands if item.register is not None and item.name in places(opcode)}
    assert len(fields) < 2
    return next(iter(fields), None)
