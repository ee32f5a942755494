"""Programs as columns: fields of many words against the encoding of one, and words that are no instructions."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from support.repeated import repeated

from weft.hdl.errors import IsaError
from weft.hdl.isa import (
    INSTRUCTIONS,
    WORD_BYTES,
    End,
    Instruction,
    Load,
    Mm,
    Opcode,
    Store,
    decode,
    limits,
    places,
)
from weft.hdl.isa.code import Code, field_mask, pack

SEEDS = range(5)


def draw_instruction(rng: random.Random, opcode: Opcode | None = None) -> Instruction:
    """Draw any instruction; its fields often have their smallest or largest values."""
    kind = INSTRUCTIONS[rng.choice(list(INSTRUCTIONS)) if opcode is None else opcode]
    values = {}
    for field in dataclasses.fields(kind):
        low, high = limits(field)
        values[field.name] = rng.choice([low, high, rng.randint(low, high)])
    return kind(**values)


def programs(seed: int, count: int = 400) -> tuple[list[Instruction], Code]:
    rng = random.Random(seed)
    program = [draw_instruction(rng) for _ in range(count)]
    return program, Code.of(program)


@pytest.mark.parametrize("seed", SEEDS)
def test_words_are_those_of_encode(seed: int) -> None:
    program, code = programs(seed)
    assert code.tobytes() == b"".join(instruction.encode() for instruction in program)
    assert len(code) == len(program)
    assert list(code) == program
    assert [code[index] for index in range(-9, 9)] == [*program[-9:], *program[:9]]
    assert list(code[7:300:3]) == program[7:300:3]
    assert Code.from_bytes(code.tobytes()) == code
    assert Code.of(code) is code


def test_iteration_over_many() -> None:
    program, code = programs(1, 5000)
    assert list(code) == program


@pytest.mark.parametrize("seed", SEEDS)
def test_columns(seed: int) -> None:
    program, code = programs(seed)
    assert code.opcodes.tolist() == [int(instruction.OPCODE) for instruction in program]
    assert code.queues.tolist() == [-1 if item.QUEUE is None else int(item.QUEUE) for item in program]
    assert code.field("wait").tolist() == [instruction.wait for instruction in program]
    assert code.field("signal").tolist() == [instruction.signal for instruction in program]
    for opcode, rows in code.by_opcode():
        mine = [program[row] for row in rows.tolist()]
        assert {type(instruction) for instruction in mine} == {INSTRUCTIONS[opcode]}
        columns = {name: code.field(name, opcode, rows) for name in places(opcode)}
        for name, column in columns.items():
            assert column.tolist() == [getattr(instruction, name) for instruction in mine], name
        assert np.array_equal(pack(opcode, columns, len(mine)), code.words[rows])


@pytest.mark.parametrize("opcode", INSTRUCTIONS)
def test_mask_covers_the_fields_named(opcode: Opcode) -> None:
    rng = random.Random(int(opcode))
    names = tuple(places(opcode))
    for _ in range(20):
        chosen = tuple(rng.sample(names, rng.randint(0, len(names))))
        one, other = draw_instruction(rng, opcode), draw_instruction(rng, opcode)
        mixed = dataclasses.replace(one, **{name: getattr(other, name) for name in chosen})
        bits = field_mask(opcode, chosen)
        one_word, other_word = Code.of([one]).words, Code.of([other]).words
        assert np.array_equal((one_word & ~bits) | (other_word & bits), Code.of([mixed]).words)


def test_defaults_of_fields() -> None:
    assert Code(pack(Opcode.LOAD, {"dst": [3, 4]}, 2)) == Code.of([Load(dst=3), Load(dst=4)])


@pytest.mark.parametrize("opcode", INSTRUCTIONS)
def test_values_that_do_not_fit(opcode: Opcode) -> None:
    for name, place in places(opcode).items():
        for value in (place.low - 1, place.high + 1):
            columns = {name: [place.low, value, place.high]}
            message = f"^{opcode.name} field '{name}' is {value}, outside {place.low} to {place.high}$"
            with pytest.raises(IsaError, match=message):
                pack(opcode, columns, 3)


def test_instructions_that_cannot_be_encoded() -> None:
    message = r"^instruction 1 \(LOAD\): LOAD field 'dst' is 65536, outside 0 to 65535$"
    with pytest.raises(IsaError, match=message):
        Code.of([Mm(), Load(dst=1 << 16), End()])


def test_programs_that_are_cut() -> None:
    words = b"".join(instruction.encode() for instruction in [Load(dst=3), Store(), End()])
    assert len(Code.from_bytes(b"")) == 0
    with pytest.raises(IsaError, match=r"^a program is a multiple of 64 bytes, not 191$"):
        Code.from_bytes(words[:-1])
    with pytest.raises(IsaError, match=r"^instruction 3: unknown opcode 15; the opcodes are 0 to 14$"):
        Code.from_bytes(words + b"\x0f" + b"\0" * 63)


@repeated("seed", range(200))
def test_damaged_words_are_refused_as_decode_refuses_them(seed: int) -> None:
    rng = random.Random(seed)
    raw = bytearray(programs(seed, 5)[1].tobytes())
    for _ in range(rng.choice([1, 1, 3])):
        raw[rng.choice([rng.randrange(len(raw)), WORD_BYTES * rng.randrange(5)])] = rng.choice(
            [0, 1, rng.randrange(256)]
        )
    wrong = None
    for index in range(5):
        try:
            decode(bytes(raw[index * WORD_BYTES : (index + 1) * WORD_BYTES]))
        except IsaError as error:
            wrong = f"instruction {index}: {error}"
            break
    if wrong is None:
        assert Code.from_bytes(bytes(raw)).tobytes() == raw
    else:
        with pytest.raises(IsaError) as caught:
            Code.from_bytes(bytes(raw))
        assert str(caught.value) == wrong
