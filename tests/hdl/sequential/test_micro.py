"""Words of the microprogram, bit for bit, and what the assembler refuses."""

from __future__ import annotations

import pytest

from weft.hdl.isa import Store
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential.assembler import (
    OPERAND_LOW,
    WIDTHS,
    Assembler,
    Condition,
    Function,
    Index,
    Lane,
    Micro,
    Out,
    Part,
    Port,
    Source,
)
from weft.hdl.sequential.microprogram import Microprogram, _blocks, _write
from weft.hdl.sequential.processor import immediate, last_words

BITS = 11


def word(function: Function, source: Source, operand: int, out: int = 0, write: int = 0) -> int:
    fields = (
        (0, 1), (function, 4), (source, 2), (write, 1), (out, 5), (operand & (1 << BITS) - 1, BITS)
    )  # fmt: skip
    value, position = 0, 0
    for field, width in fields:
        value |= int(field) << position
        position += width
    return value


def test_words_that_calculate() -> None:
    m = Assembler(BITS)
    m.ld(-3, Out.COLUMN)
    m.add("one")
    m.st("two")
    m.sub(Port.SUM)
    m.st(Index(1))
    assert m.variables == {"one": 16, "two": 17}
    assert m.assemble() == [
        word(Function.LOAD, Source.CONSTANT, -3, Out.COLUMN),
        word(Function.ADD, Source.MEMORY, 16),
        word(Function.KEEP, Source.MEMORY, 17, write=1),
        word(Function.SUB, Source.PORT, Port.SUM),
        word(Function.KEEP, Source.INDEXED, 1, write=1),
    ]


def test_jumps_find_their_labels() -> None:
    m = Assembler(BITS)
    m.jump("end", Condition.NEGATIVE, unless=True)
    m.wait(Condition.MOVED)
    m.label("end")
    m.call("end")
    m.back()
    found = [(value & 1, value >> 1 & 15, value >> 5 & 7, value >> OPERAND_LOW) for value in m.assemble()]
    assert found == [
        (1, Condition.NEGATIVE, 0b001, 2),
        (1, Condition.MOVED, 0b001, 1),
        (1, Condition.ALWAYS, 0b010, 2),
        (1, Condition.ALWAYS, 0b100, 0),
    ]
    with pytest.raises(ValueError, match="label 'end' is defined twice"):
        m.label("end")


def test_calls_have_no_condition() -> None:
    with pytest.raises(ValueError, match="a call of 'routine' cannot depend on ZERO"):
        Assembler(BITS).jump("routine", Condition.ZERO, call=True)


def test_constants_are_checked() -> None:
    m = Assembler(BITS)
    m.ld(1023)
    m.ld(-1024)
    with pytest.raises(ValueError, match="constant 1024 does not fit 11 bits"):
        m.ld(1024)


def test_fields_are_those_of_the_instruction_set() -> None:
    m = Assembler(BITS)
    m.fields(Store, {"length": "size"})
    names = [name for name in Store.layout().members if name not in ("opcode", "reserved")]
    words = m.assemble()
    assert len(words) == len(names)
    for name, value in zip(names, words, strict=True):
        shape = Store.layout().members[name]
        assert WIDTHS[value >> 8 & 31] == shape.width
        assert value >> 6 & 1 == shape.signed
        variable = "trash" if name in ("wait", "signal") else f"f.{'size' if name == 'length' else name}"
        assert value >> OPERAND_LOW == m.variables[variable]


def test_groups_share_addresses() -> None:
    m = Assembler(BITS, groups_start=40)
    both = m.variable("both")
    one: dict[str, int] = {}
    m.group(one)
    assert (m.variable("a"), m.variable("b"), m.variable("both")) == (40, 41, both)
    m.group({})
    assert m.variable("c") == 40
    m.group(one)
    assert m.variable("b") == 41
    assert (m.shared_words, m.used_words) == (17, 42)


PLAIN = PRESETS["tiny"].replace(probability_bits=0)
KERNELS = [
    config.replace(kernel=kernel)
    for config, kernel in zip([*PRESETS.values(), PLAIN], (16, 32, 64, 256, 128, 64, 16), strict=True)
]


@pytest.mark.parametrize("config", [*PRESETS.values(), PLAIN, *KERNELS])
def test_every_configuration_has_a_microprogram(config: Config) -> None:
    program = Microprogram(config)
    assert all(0 <= value < 1 << OPERAND_LOW + program.operand_bits for value in program.words)
    assert len(program.constants) <= program.depth
    least = 2 * config.n + config.softmax * (2 * config.row_states + config.alignments)
    assert program.depth >= least + bool(config.kernel) * (2 * config.kernel + 80 * config.n)


@pytest.mark.parametrize("config", KERNELS)
def test_kernels_have_data_memory_of_their_own(config: Config) -> None:
    """It is the lanes' address range, at the end of data memory, and nothing else."""
    numbered, taken = last_words(config.n)
    assert (numbered, taken) == (128 * config.n, 80 * config.n)
    micro = Micro(config, 24)
    _write(micro)
    blocks, depth = _blocks(config, micro.used_words)
    assert depth & depth - 1 == 0
    assert depth >= numbered
    assert blocks["microcode"] % 2 == 0
    assert max(blocks.values()) + 2 * config.kernel <= depth - taken
    assert immediate(config.n, depth) == depth - 71 * config.n


def test_lanes_are_indexed() -> None:
    m = Assembler(BITS)
    m.ld(Lane(Part.SECOND))
    m.st(Lane(Part.STAGED, next=True), Out.COLUMN_NEXT)
    assert m.assemble() == [
        word(Function.LOAD, Source.INDEXED, 0b0_010_0),
        word(Function.KEEP, Source.INDEXED, 0b1_101_0, Out.COLUMN_NEXT, write=1),
    ]
