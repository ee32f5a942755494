"""The program checker's verdicts on kernels."""

from __future__ import annotations

import dataclasses

import pytest
from support.kernel_model import microcode

from weft.hdl.checker.program import check
from weft.hdl.errors import ProgramError
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


def test_unwritten_micro_operations_are_refused() -> None:
    with pytest.raises(ProgramError, match=r"instruction 0 \(KERNEL\): .* that no MICROCODE before it wrote"):
        check([Kernel(), End()], TINY)
    with pytest.raises(ProgramError, match=r"instruction 0 \(MICROCODE\)"):
        check([*microcode(COPY * 2, 31), End()], TINY)


def test_without_the_engine() -> None:
    with pytest.raises(ProgramError, match="the configuration has no kernel engine"):
        check(program(COPY, Kernel(**ROWS, dst=100)), PRESETS["tiny"])


READ, WRITE = {"a_memory": 1, "b_immediate": 1}, {"d_memory": 1, "end": 1}
FILLED = MicroOp(op=Op.ADD, d=3, **READ)
COMPARED = MicroOp(op=Op.LT, **READ)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((MicroOp(op=Op.ADD, a=2, b_immediate=1, **WRITE),), "number 0 .* register 2, which no earlier"),
        ((FILLED, MicroOp(op=Op.ADD, a=3, b=4, **WRITE)), "number 1 .* register 4"),
        ((FILLED, MicroOp(op=Op.MAX, a=6, b=5, **WRITE)), "number 1 .* register 5"),
        ((FILLED, MicroOp(op=Op.SUB, a=4, b=4, shift=1, **WRITE)), "number 1 .* register 4"),
        ((FILLED, MicroOp(op=Op.SUB, a=4, b=4, swap=1, **WRITE)), "number 1 .* register 4"),
        ((FILLED, MicroOp(op=Op.SUB, a=4, b_immediate=1, **WRITE)), "number 1 .* register 4"),
        ((FILLED, MicroOp(op=Op.ADD, a=4, b=4, **WRITE)), "number 1 .* register 4"),
        ((FILLED, MicroOp(op=Op.INDEX, b=2, **WRITE)), "number 1 .* register 2"),
        ((FILLED, MicroOp(op=Op.RECIPROCAL, a=5, d=6), MicroOp(op=Op.ADD, b=6, **WRITE)), "number 1 .* register 5"),
        ((COMPARED, MicroOp(op=Op.ADD, a=0, b_immediate=1, **WRITE)), "number 1 .* register 0"),
        (
            (MicroOp(op=Op.ADD, **READ, d_memory=1), MicroOp(op=Op.ADD, a=0, b_immediate=1, **WRITE)),
            "number 1 .* register 0",
        ),
        (
            (MicroOp(op=Op.ADD, a=1, b_immediate=1, d=2), MicroOp(op=Op.ADD, **READ, d=1, again=1),
             MicroOp(op=Op.ADD, a=2, b_immediate=1, **WRITE)),
            "number 0 .* register 1",
        ),
        ((FILLED, MicroOp(op=Op.SELECT, a=3, b_immediate=1, **WRITE)), "number 1 .* is SELECT, but no earlier one"),
        ((FILLED, MicroOp(op=Op.SUB, a=4, b=4, d=4), MicroOp(op=Op.ADD, a=4, b=3, **WRITE)), ""),
        ((FILLED, MicroOp(op=Op.RSUB, a=4, b=4, d=4), MicroOp(op=Op.ADD, a=4, b=3, **WRITE)), ""),
        ((FILLED, MicroOp(op=Op.INDEX, a=4, b=3, **WRITE)), ""),
        ((FILLED, MicroOp(op=Op.TABLE, a=3, b=7, **WRITE)), ""),
        ((FILLED, COMPARED, MicroOp(op=Op.SELECT, a=3, b=3, **WRITE)), ""),
    ],
)  # fmt: skip
def test_registers_that_nothing_wrote(ops: tuple[MicroOp, ...], message: str) -> None:
    """They hold what some row before left there, and which one that is depends on time."""
    code = program(ops, Kernel(**ROWS, dst=100))
    if not message:
        check(code, TINY)
        return
    with pytest.raises(ProgramError, match=message.replace("number", "micro-operation")):
        check(code, TINY)
