"""The rules of kernels: each must be in the engine's memory as a whole, and keep the rules of micro-operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.hdl.checker.accesses import ProgramError, distinct, name
from weft.hdl.isa import Instruction, IsaError, Kernel, Memory, Microcode, MicroOp, Opcode, Operand
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import SOURCES, check_kernel, kernel_at


def check_kernels(body: Code, config: Config) -> None:
    """Check every `Kernel` of a program with what `Microcode` has put into memory before it: both are of one queue, so
    they run in the order of the program.

    Raises
    ------
    ProgramError
        Naming the instruction and the micro-operation.
    """
    opcodes = body.opcodes
    memory: list[int | None] = [None] * config.kernel
    decoded: dict[bytes, Instruction] = {}
    right: set[tuple[bytes, tuple[int | None, ...]]] = set()  # the same again and again, in long programs
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
            if key not in right:
                check_kernel(ops, instruction, config)
                _check_in_place(ops, instruction, config)
                right.add(key)
        except (IsaError, ProgramError) as error:
            raise ProgramError(f"{name(index, instruction)}: {error}") from None


def _check_in_place(ops: Sequence[MicroOp], i: Kernel, config: Config) -> None:
    """An operand that results overwrite is not read behind the first micro-operation that writes."""
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


def same_addresses(one: Operand, other: Operand, i: Instruction, config: Config) -> bool:
    """Whether two operands go through the very same addresses, each of them once."""
    nests = [
        [(count, stride) for count, stride in operand.nest(i, config) if count > 1]
        for operand in (one, other)
    ]
    return one.first(i) == other.first(i) and nests[0] == nests[1] and distinct(tuple(nests[0]))
