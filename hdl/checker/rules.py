"""Rules for single instructions and for kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.hdl.checker.extents import (
    Cells,
    DramAccess,
    Extents,
    OnChipAccess,
    OnChipLayout,
    address_sequence,
    describe,
    dram_accesses,
    has_distinct_addresses,
    on_chip_accesses,
    on_chip_layout,
    verb,
)
from weft.hdl.errors import IsaError, ProgramError
from weft.hdl.isa import (
    COORDINATE_MAX,
    FILL_MAX,
    INT4_RUN_MAX,
    Instruction,
    Kernel,
    Load,
    Lookup,
    Memory,
    Microcode,
    MicroOp,
    Opcode,
    Operand,
    Reduce,
    Softmax,
    Source,
    Store,
    Table,
    Vec,
    VectorInstruction,
)
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.encoding import group_bytes
from weft.hdl.isa.kernel import SOURCES, check_kernel, kernel_at


def check_kernels(body: Code, config: Config) -> None:
    """Check every `Kernel` of a program with the micro-operations that earlier `Microcode` instructions wrote.

    Both belong to one queue, so they run in program order.

    Raises
    ------
    ProgramError
        With the instruction and the micro-operation.
    """
    opcodes = body.opcodes
    memory: list[int | None] = [None] * config.kernel
    decoded: dict[bytes, Instruction] = {}
    passed: set[tuple[bytes, tuple[int | None, ...]]] = set()  # long programs repeat their kernels
    for index in np.flatnonzero((opcodes == Opcode.KERNEL) | (opcodes == Opcode.MICROCODE)).tolist():
        words = body.words[index].tobytes()
        instruction = decoded.get(words) or decoded.setdefault(words, body[index])
        if isinstance(instruction, Microcode):
            memory[instruction.entry : instruction.entry + instruction.count] = instruction.ops
            continue
        assert isinstance(instruction, Kernel)
        try:
            ops = kernel_at(memory, instruction.start)
            key = words, tuple(memory[instruction.start : instruction.start + len(ops)])
            if key not in passed:
                check_kernel(ops, instruction, config)
                _check_in_place_kernel(ops, instruction, config)
                passed.add(key)
        except (IsaError, ProgramError) as error:
            raise ProgramError(f"{describe(index, instruction)}: {error}") from None


def _check_in_place_kernel(ops: Sequence[MicroOp], i: Kernel, config: Config) -> None:
    """Check that no operand overwritten by results is read after the first write to memory."""
    writes = [operand for operand in i.OPERANDS if operand.write and operand.applies(i)]
    overwritten = [
        operand.name
        for operand in i.OPERANDS
        if operand.memory is Memory.SCRATCHPAD and not operand.write and operand.applies(i)
        for output in writes
        if same_addresses(operand, output, i, config)
    ]
    first = next((index for index, op in enumerate(ops) if op.d_memory), len(ops))
    for index, op in enumerate(ops[first + 1 :], start=first + 1):
        read = SOURCES[op.a % len(SOURCES)]
        if op.a_memory and read in overwritten:
            raise ProgramError(
                f"micro-operation {index} of the kernel reads {read!r}, which number {first} overwrites"
            )


def same_addresses(left: Operand, right: Operand, i: Instruction, config: Config) -> bool:
    """Check that two operands access the same addresses in the same order, each of them once."""
    nests = [
        [(count, stride) for count, stride in operand.nest(i, config) if count > 1]
        for operand in (left, right)
    ]
    return (
        left.first(i) == right.first(i) and nests[0] == nests[1] and has_distinct_addresses(tuple(nests[0]))
    )


ADDRESSES = 1 << 32
"""Bytes at a base register without extents: the whole 32-bit address space."""


def check_instruction(
    i: Instruction, config: Config, extents: Extents | None, known_layout: OnChipLayout | None = None
) -> tuple[list[OnChipAccess], list[DramAccess], OnChipLayout]:
    """Check an instruction.

    `known_layout` is the layout of an instruction that passed and differs from this one in on-chip addresses only; then
    only the rules that depend on these are checked.

    Returns
    -------
    chip : list of OnChipAccess
    memory : list of DramAccess
    layout : OnChipLayout
        Layout of the on-chip accesses.

    Raises
    ------
    IsaError
        For a value that does not fit its field.
    ProgramError
        For any other broken rule; the message does not name the instruction.
    """
    if known_layout is None:
        _check_fields(i, config, extents)
    layout = on_chip_layout(i, config) if known_layout is None else known_layout
    chip, memory = on_chip_accesses(i, config, layout), dram_accesses(i, config)
    if known_layout is None:
        _check_values(i, config)
    if isinstance(i, VectorInstruction):
        operands = [operand for operand in i.OPERANDS if operand.applies(i)]
        if isinstance(i, Kernel):
            _check_kernel_overlap(i, config, operands, chip)
        else:
            _check_overlap(i, config, operands, chip)
    for run in memory:
        _check_dram(run, extents)
    return chip, memory, layout


def _check_fields(i: Instruction, config: Config, extents: Extents | None) -> None:
    """Check the rules that the computation of addresses relies on."""
    i.check()
    if reason := i.unsupported(config):
        raise ProgramError(reason)
    if isinstance(i, Load):
        _check_load(i, config, extents)
    elif isinstance(i, Store) and i.pixels > 1 and i.pitch < i.length:
        raise ProgramError(f"'pitch' {i.pitch} is less than 'length' {i.length}")
    elif isinstance(i, Softmax):
        _check_softmax(i, extents)
    elif isinstance(i, Table) and config.n * i.vectors > config.table_depth:
        entries = config.n * i.vectors
        raise ProgramError(f"'vectors' {i.vectors} has {entries} entries, but the table {config.table_depth}")
    elif isinstance(i, Lookup) and i.entry + config.n * i.vectors > LOOKUP_ENTRIES:
        last = i.entry + config.n * i.vectors
        raise ProgramError(
            f"'entry' and 'vectors' reach entry {last - 1}, but a look-up table has {LOOKUP_ENTRIES}"
        )
    for operand in i.OPERANDS:
        if operand.applies(i):
            _check_operand(operand, i, config)


def _check_values(i: Instruction, config: Config) -> None:
    if isinstance(i, Vec):
        _check_vec(i, config)
    low, high = getattr(i, "low", 0), getattr(i, "high", 0)
    if low > high:
        raise ProgramError(f"'low' {low} is above 'high' {high}")


def _check_operand(operand: Operand, i: Instruction, config: Config) -> None:
    if operand.distinct and not has_distinct_addresses(tuple(operand.nest(i, config, *operand.distinct))):
        raise ProgramError(operand.clash)
    for bound in operand.bounds:
        limit = getattr(i, bound.limit)
        if limit > COORDINATE_MAX + 1:
            raise ProgramError(f"{bound.limit!r} is {limit}, but coordinates end at {COORDINATE_MAX}")


def _check_load(i: Load, config: Config, extents: Extents | None) -> None:
    if i.rows % i.line:
        raise ProgramError(f"'rows' {i.rows} is no multiple of 'line' {i.line}")
    if i.transpose:
        most = config.transposed_vectors * config.n
        if i.length > most:
            raise ProgramError(f"'length' {i.length} is more than the {most} bytes that 'transpose' takes")
        if i.length > config.n and i.pixels > 1 and i.pitch < i.length:
            raise ProgramError(
                f"'pitch' {i.pitch} is less than 'length' {i.length}, which 'transpose' excludes"
            )
    if i.blocks and not i.int4:
        raise ProgramError("'blocks' is 1, which needs 'int4' 1")
    if i.int4:
        _check_int4(i, config, extents)
    fill_after = (i.pixels - 1) * i.pitch + i.length - i.before - (2 if i.int4 else 1) * i.run
    if fill_after > FILL_MAX:
        raise ProgramError(
            f"the pixels of a row end {fill_after} bytes after the bytes of 'run'; at most {FILL_MAX} may be filled"
        )
    if i.paged and extents is not None and extents.pages.get(i.base) != i.table:
        raise ProgramError(
            f"base register {i.base} has no pages with base register {i.table} as their page table"
        )


def _check_int4(i: Load, config: Config, extents: Extents | None) -> None:
    """Check that int4 rows start at multiples of the bus width, as far as addresses are known."""
    if i.paged:
        raise ProgramError(
            "'int4' and 'paged' exclude each other, because rows must start at known addresses"
        )
    if i.blocks and i.run % group_bytes(config.n):
        raise ProgramError(
            f"'run' {i.run} is no multiple of the {group_bytes(config.n)} bytes of values in a group of 'blocks'"
        )
    if i.run > INT4_RUN_MAX:
        raise ProgramError(f"'run' {i.run} is more than the {INT4_RUN_MAX} bytes that 'int4' takes")
    base = 0 if extents is None else extents.addresses.get(i.base, 0)
    starts = {f"base register {i.base}": base, "'offset'": i.offset}
    starts |= {"'row_pitch'": i.row_pitch} if i.line > 1 else {}
    starts |= {"'row_pitch' and 'skip'": i.row_pitch * i.line + i.skip} if i.rows > i.line else {}
    for field, value in starts.items():
        if value % config.bus_bytes:
            raise ProgramError(
                f"{field} {value} is no multiple of the bus width of {config.bus_bytes} bytes, which 'int4' needs"
            )


def _check_softmax(i: Softmax, extents: Extents | None) -> None:
    if i.relative and extents is not None and i.register not in extents.numbers:
        raise ProgramError(f"base register {i.register} holds no number in this program")
    if i.first and i.final:
        raise ProgramError("'first' resets row states, which 'final' only reads")


def _check_vec(i: Vec, config: Config) -> None:
    if i.reduce not in set(Reduce):
        raise ProgramError(f"'reduce' is {i.reduce}, outside 0 to {max(Reduce)}")
    if i.reduce == Reduce.NONE and (i.ry, i.rx) != (1, 1):
        raise ProgramError(f"'ry' and 'rx' are {i.ry} and {i.rx}, but without a reduction they must be 1")
    if i.multiply and not (i.add and i.source == Source.SCRATCHPAD and i.reduce == Reduce.NONE):
        raise ProgramError(
            f"'multiply' needs 'add' 1, 'source' 1 and 'reduce' 0, which are {i.add}, {i.source} and {i.reduce}"
        )
    if i.b_mantissa >> config.mantissa_bits:
        raise ProgramError(f"'b_mantissa' is {i.b_mantissa}, but mantissas have {config.mantissa_bits} bits")


def _check_overlap(
    i: VectorInstruction, config: Config, operands: list[Operand], chip: list[OnChipAccess]
) -> None:
    """Check that no output overwrites a vector that a later output reads."""
    accesses = [
        (operand, access)
        for operand, access in zip(operands, chip, strict=True)
        if operand.memory is Memory.SCRATCHPAD
    ]
    output, cells = next((operand, access.cells) for operand, access in accesses if operand.write)
    written = _as_mask(cells, config.scratchpad_size)
    for operand, access in accesses:
        if not operand.write and written[access.cells].any():
            _check_in_place(i, config, output, operand)


def _check_kernel_overlap(
    i: Kernel, config: Config, operands: list[Operand], chip: list[OnChipAccess]
) -> None:
    """Check that results overwrite no operand, except for one with exactly the same addresses, each of them once."""
    accesses = [
        (operand, access)
        for operand, access in zip(operands, chip, strict=True)
        if operand.memory is Memory.SCRATCHPAD
    ]
    for output, cells in ((operand, access.cells) for operand, access in accesses if operand.write):
        written = _as_mask(cells, config.scratchpad_size)
        for operand, access in accesses:
            if operand.write or same_addresses(operand, output, i, config):
                continue
            if written[access.cells].any():
                raise ProgramError(f"{output.name!r} overwrites vectors that are read as {operand.name!r}")


def _as_mask(cells: Cells, size: int) -> np.ndarray:
    mask = np.zeros(size, bool)
    mask[cells] = True
    return mask


def _check_in_place(i: Instruction, config: Config, output: Operand, operand: Operand) -> None:
    """Check the order of reads and writes if `output` overwrites vectors of `operand`."""
    if not {loop.name for loop in output.loops} <= {loop.name for loop in operand.loops}:
        raise ProgramError(f"{output.name!r} writes into the parameter block")
    write = address_sequence(output.first(i), output.nest(i, config))
    read = address_sequence(operand.first(i), operand.nest(i, config))
    # For each vector, the last iteration that reads it must not be after the iteration that writes it.
    last_read = np.full(1 << 16, -1)
    np.maximum.at(last_read, read, np.repeat(np.arange(write.size), read.size // write.size))
    late = np.flatnonzero(last_read[write] > np.arange(write.size))
    if late.size:
        raise ProgramError(
            f"{output.name!r} writes scratchpad vector {write[late[0]]}, which a later output reads as {operand.name!r}"
        )


def _check_dram(memory: DramAccess, extents: Extents | None) -> None:
    if extents is not None:
        extents.check_access(memory)
    elif memory.low < 0 or memory.high > ADDRESSES:
        raise ProgramError(
            f"{verb(memory.write)} bytes {memory.low} to {memory.high - 1} of base register {memory.base},"
            f" which has {ADDRESSES}"
        )
