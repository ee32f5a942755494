"""The instruction set: every opcode round-trips through words, and nothing that does not fit is encoded."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.hdl.errors import IsaError
from weft.hdl.isa import (
    BASES,
    INSTRUCTIONS,
    PROGRAM_REGISTERS,
    WORD_BITS,
    WORD_BYTES,
    End,
    Feature,
    Instruction,
    Mm,
    Opcode,
    Queue,
    decode,
    limits,
    register_fields,
)
from weft.hdl.isa.config import PRESETS

FIELDS = [(opcode, field) for opcode in Opcode for field in dataclasses.fields(INSTRUCTIONS[opcode])]
NAMES = [f"{opcode.name}.{field.name}" for opcode, field in FIELDS]


def draw(opcode: Opcode, rng: random.Random) -> Instruction:
    cls = INSTRUCTIONS[opcode]
    return cls(**{field.name: rng.randint(*limits(field)) for field in dataclasses.fields(cls)})


@pytest.mark.parametrize("opcode", Opcode)
@given(seed=st.integers(0, 1 << 32))
def test_every_opcode_round_trips(opcode: Opcode, seed: int) -> None:
    instruction = draw(opcode, random.Random(seed))
    word = instruction.encode()
    assert len(word) == WORD_BYTES
    assert word[0] == opcode
    assert decode(word) == instruction


def test_every_opcode_has_an_instruction_and_a_queue() -> None:
    assert list(INSTRUCTIONS) == list(Opcode)
    assert {cls.QUEUE for cls in INSTRUCTIONS.values()} == {*Queue, None}
    assert End.QUEUE is None


@pytest.mark.parametrize(("opcode", "field"), FIELDS, ids=NAMES)
def test_limits_fit_and_nothing_beyond(opcode: Opcode, field: dataclasses.Field[int]) -> None:
    cls = INSTRUCTIONS[opcode]
    low, high = limits(field)
    for value in (low, high):
        instruction = cls(**{field.name: value})
        assert decode(instruction.encode()) == instruction
    for value in (low - 1, high + 1):
        with pytest.raises(IsaError) as caught:
            cls(**{field.name: value}).encode()
        assert str(caught.value) == f"{opcode.name} field {field.name!r} is {value}, outside {low} to {high}"


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_only_integers_are_encoded(value: object) -> None:
    with pytest.raises(IsaError) as caught:
        Mm(ky=value).encode()
    assert str(caught.value) == f"MM field 'ky' must be an integer, not {value!r}"


@pytest.mark.parametrize("opcode", Opcode)
def test_layout_and_encoding_agree(opcode: Opcode) -> None:
    """The hardware's struct finds every field where `encode` puts it."""
    instruction = draw(opcode, random.Random(int(opcode)))
    layout = type(instruction).layout()
    assert layout.size == WORD_BITS
    constant = layout.from_bits(int.from_bytes(instruction.encode(), "little"))
    assert constant.opcode == opcode
    assert constant.reserved == 0
    for field in dataclasses.fields(instruction):
        assert constant[field.name] == getattr(instruction, field.name), field.name


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (b"\0" * 63, "an instruction word is 64 bytes, not 63"),
        (b"\x0f" + b"\0" * 63, "unknown opcode 15; the opcodes are 0 to 14"),
        (b"\0" * 5 + b"\1" + b"\0" * 58, "END word has bits set above its last field (bit 40)"),
        (b"\2" + b"\0" * 63, "MM field 'nt' is 0, outside 1 to 4095"),
    ],
)
def test_words_that_are_no_instruction(word: bytes, message: str) -> None:
    with pytest.raises(IsaError) as caught:
        decode(word)
    assert str(caught.value) == message


def test_registers_beyond_those_of_the_host_need_loops() -> None:
    plain = PRESETS["tiny"]
    for opcode, kind in INSTRUCTIONS.items():
        for name in register_fields(opcode):
            for number in range(PROGRAM_REGISTERS):
                instruction = kind(**{name: number})
                reason = instruction.unsupported(plain)
                assert instruction.unsupported(plain.replace(loops=1)) is None
                assert (reason is None) == (number < BASES and kind.REQUIRES is not Feature.LOOPS)
    assert {opcode.name: register_fields(opcode) for opcode in Opcode if register_fields(opcode)} == {
        "LOAD": ("base", "table"), "STORE": ("base",), "SOFTMAX": ("register",), "LOOP": ("register",),
        "READ": ("base",),
    }  # fmt: skip


def test_fields_are_documented() -> None:
    for opcode, field in FIELDS:
        assert field.metadata["doc"], (opcode, field.name)
