"""What the program checker says of kernels."""

from __future__ import annotations

import dataclasses

import pytest
from support.kernel_model import microcode

from weft.hdl.checker.program import ProgramError, check
from weft.hdl.isa import End, Instruction, Kernel, MicroOp
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.kernel import Op

TINY = PRESETS["tiny"].replace(kernel=32)
COPY = (MicroOp(op=Op.ADD, a_memory=1, b_immediate=1, d_memory=1, end=1),)
TWICE = (
    MicroOp(op=Op.ADD, a_memory=1, b_immediate=1, d_memory=1, again=1),
    MicroOp(op=Op.ADD, a_memory=1, b_immediate=1, d_memory=1, again=1, target=1, end=1),
)
ROWS = {"source": 1, "oy": 9, "ox": 3, "src_oy": 3, "src_ox": 1, "dst_oy": 3, "dst_ox": 1}


def program(ops: tuple[MicroOp, ...], kernel: Kernel) -> list[Instruction]:
    return [*microcode(ops, 4), dataclasses.replace(kernel, start=4), End()]


def test_programs_that_pass() -> None:
    check(program(COPY, Kernel(**ROWS, dst=100)), TINY)
    check(program(COPY, Kernel(**ROWS)), TINY)  # in place
    check(program(TWICE, Kernel(**ROWS, dst=27)), TINY)


@pytest.mark.parametrize(
    ("ops", "changes", "message"),
    [
        (COPY, {"dst": 1}, "'dst' overwrites vectors that are read as 'src'"),
        (COPY, {"dst": 26}, "'dst' overwrites vectors that are read as 'src'"),
        (COPY, {"dst_ox": -1, "dst": 2}, "'dst' overwrites vectors that are read as 'src'"),
        (COPY, {"src_ox": 0, "dst_ox": 0}, "'dst' overwrites vectors that are read as 'src'"),
        (COPY, {"dst": 100, "with_dst2": 1}, "'dst2' overwrites vectors that are read as 'src'"),
        (TWICE, {}, "micro-operation 1 of the kernel reads 'src', which number 0 overwrites"),
        (
            (dataclasses.replace(COPY[0], a=2),),
            {"dst": 100},
            "reads operand 2, which the instruction does not have",
        ),
        (COPY, {"dst": 1020}, "'dst' writes scratchpad vector 1046"),
    ],
)
def test_programs_that_do_not(ops: tuple[MicroOp, ...], changes: dict[str, int], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        check(program(ops, Kernel(**(ROWS | changes))), TINY)


def test_micro_operations_that_nobody_wrote() -> None:
    with pytest.raises(ProgramError, match=r"instruction 0 \(KERNEL\): .* that no MICROCODE before it wrote"):
        check([Kernel(), End()], TINY)
    with pytest.raises(ProgramError, match=r"instruction 0 \(MICROCODE\)"):
        check([*microcode(COPY * 2, 31), End()], TINY)


def test_without_the_engine() -> None:
    with pytest.raises(ProgramError, match="the configuration has no kernel engine"):
        check(program(COPY, Kernel(**ROWS, dst=100)), PRESETS["tiny"])
