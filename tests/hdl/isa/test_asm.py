"""The assembler and disassembler: round trips for every opcode, the documented notation, and every error."""

from __future__ import annotations

import dataclasses
import random

import pytest
from support.repeated import repeated

from weft.hdl.errors import AsmError
from weft.hdl.isa import (
    INSTRUCTIONS,
    End,
    Load,
    LoopNext,
    Mm,
    Mode,
    Opcode,
    Reduce,
    SetRegisters,
    Source,
    Store,
    Vec,
    limits,
)
from weft.hdl.isa.code import assemble, disassemble, format_instruction


@pytest.mark.parametrize("opcode", Opcode)
@repeated("seed", range(20))
def test_round_trip(opcode: Opcode, seed: int) -> None:
    rng = random.Random(seed)
    cls = INSTRUCTIONS[opcode]
    values = {field.name: rng.choice([field.default, rng.randint(*limits(field)), *limits(field)])
              for field in dataclasses.fields(cls)}  # fmt: skip
    program = [cls(**values), cls()]
    assert assemble(disassemble(program)) == program
    assert assemble(disassemble(program, numbered=True)) == program


def test_notation() -> None:
    text = """
    ; a comment line
    load base=1 offset=0x400 length=32 run=32 fill=-128 dst=0x10 dst_vector=1 signal=s0   # and one behind
    MM wait=s0,s15 ky=3 a=16 a_ky=-4 signal=0b110
    vec source=scratchpad reduce=max add=1 src=5 low=0
    vec source=accumulator reduce=2
    store
    set register0=8 mode0=set value0=-3 register7=15 mode7=add
    next back=2 mode1=2

    end
    """
    assert assemble(text) == [
        Load(base=1, offset=0x400, length=32, run=32, fill=-128, dst=16, dst_vector=1, signal=1),
        Mm(wait=0x8001, ky=3, a=16, a_ky=-4, signal=6),
        Vec(source=Source.SCRATCHPAD, reduce=Reduce.MAX, add=1, src=5, low=0),
        Vec(reduce=Reduce.SUM),
        Store(),
        SetRegisters(register0=8, mode0=Mode.SET, value0=-3, register7=15, mode7=Mode.ADD),
        LoopNext(back=2, mode1=Mode.ADD),
        End(),
    ]


def test_text_is_short_and_ordered() -> None:
    assert format_instruction(Mm(signal=6, wait=0x8001, ky=3, a=16, a_ky=-4)) == (
        "mm wait=s0,s15 ky=3 a=0x10 a_ky=-4 signal=s1,s2"
    )
    assert format_instruction(Vec(reduce=1, source=1, src=255)) == "vec source=scratchpad src=0xff reduce=max"
    assert disassemble([Load(), End()], numbered=True) == "load  # 0\nend  # 1\n"
    assert disassemble([]) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "end\nmul a=1",
            "line 2: unknown instruction 'mul'; choose end, load, mm, vec, store, softmax, normalise, table, "
            "lookup, microcode, kernel, set, loop, next, read",
        ),
        ("end base=1", "line 1: end has no field 'base'; its fields are wait, signal"),
        ("mm ky", "line 1: mm: expected field=value, not 'ky'"),
        ("mm ky=3 kx=1 ky=3", "line 1: mm field 'ky' is given twice"),
        ("mm ky=three", "line 1: mm field 'ky' is 'three', not a number"),
        ("mm ky=", "line 1: mm field 'ky' is '', not a number"),
        ("mm ky=4096", "line 1: MM field 'ky' is 4096, outside 1 to 4095"),
        ("mm a=-1", "line 1: MM field 'a' is -1, outside 0 to 65535"),
        ("mm wait=s16", "line 1: mm field 'wait' is 's16', not a number or a list of s0 to s15"),
        ("mm wait=s1,s1", "line 1: mm field 'wait' is 's1,s1', not a number or a list of s0 to s15"),
        ("vec reduce=min", "line 1: vec field 'reduce' is 'min', not a number or one of none, max, sum"),
        ("vec reduce=4", "line 1: VEC field 'reduce' is 4, outside 0 to 3"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(AsmError) as caught:
        assemble(text)
    assert str(caught.value) == message
