"""Extents of memory: what instructions may touch, against sets of bytes, and refusals with the whole message."""

from __future__ import annotations

import itertools
import random

import pytest
from support.verdicts import refusal

from weft.hdl.checker.extents import DramAccess
from weft.hdl.checker.program import Extent, Extents, check
from weft.hdl.errors import ProgramError
from weft.hdl.isa.code import assemble
from weft.hdl.isa.config import PRESETS

TINY = PRESETS["tiny"]

PIECES = [
    Extent("the constants", 0, 0, 64, write=False),
    Extent("the code", 0, 64, 128, read=False, write=False),
    Extent("temp 'a'", 1, 0, 64, shared=True),
    Extent("temp 'b'", 1, 32, 64, shared=True),
    Extent("input 'x'", 2, 0, 32, write=False),
    Extent("output 'y'", 3, 0, 32),
    Extent("output 'z'", 3, 32, 32),
]
MEMORY = Extents(PIECES, {0: 0, 1: 256, 2: 512, 3: 768})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("load base=0 offset=48 run=16 length=16 dst_vector=1", None),
        ("load base=1 offset=40 run=56 length=4", None),
        ("store base=1 offset=32 length=4", None),
        ("load base=3 offset=28 run=4 length=4", None),
        ("store base=3 offset=60 length=4", None),
        ("store base=0 offset=64 length=4",
         "writes bytes 64 to 67 of base register 0, but no instruction may do so in the code (bytes 64 to 191)"),
        ("store base=0 offset=60 length=8",
         "writes bytes 60 to 67 of base register 0, but no instruction may do so in the constants (bytes 0 to 63)"),
        ("load base=0 offset=60 run=8 length=4",
         "reads bytes 60 to 67 of base register 0, but no instruction may do so in the code (bytes 64 to 191)"),
        ("load base=0 offset=192 length=4 run=4", "reads bytes 192 to 195 of base register 0, where nothing is"),
        ("store base=2 offset=4 length=4",
         "writes bytes 4 to 7 of base register 2, but no instruction may do so in input 'x' (bytes 0 to 31)"),
        ("load base=2 offset=30 run=4 length=4",
         "reads bytes 30 to 33 of base register 2, which leaves input 'x' (bytes 0 to 31)"),
        ("store base=3 rows=2 row_pitch=32 offset=0 length=4 src_row=1",
         "writes bytes 0 to 35 of base register 3, which leaves output 'y' (bytes 0 to 31)"),
        ("load base=1 offset=0 run=96 length=4",
         "reads bytes 0 to 95 of base register 1, which leaves temp 'a' (bytes 0 to 63)"),
        ("load base=3 rows=2 offset=34 row_pitch=-4 dst_row=1",
         "reads bytes 30 to 34 of base register 3, which leaves output 'y' (bytes 0 to 31)"),
        ("store base=4 length=4", "base register 4 is not set for this program"),
        ("softmax params=80 dst=20 relative=1 register=6", "base register 6 holds no number in this program"),
    ],
)  # fmt: skip
def test_accesses(text: str, message: str | None) -> None:
    program = assemble(text + "\nend")
    check(program, TINY)
    wanted = None if message is None else f"instruction 0 ({text.split()[0].upper()}): {message}"
    assert refusal(program, TINY, extents=MEMORY) == wanted


def test_a_number_in_a_base_register() -> None:
    program = assemble("softmax params=80 dst=20 relative=1 register=6\nend")
    check(program, TINY, extents=Extents(PIECES, {}, frozenset({6})))


@pytest.mark.parametrize(
    ("pieces", "addresses", "message"),
    [
        ([Extent("a", 8, 0, 4)], {}, "a has base register 8, but there are 8"),
        ([Extent("a", 1, -4, 4)], {}, "a: 4 bytes at offset -4 are not in memory, which ends at 4294967296"),
        ([Extent("a", 1, 0, -4)], {}, "a: -4 bytes at offset 0 are not in memory, which ends at 4294967296"),
        ([Extent("a", 1, 1 << 32, 1)], {},
         "a: 1 bytes at offset 4294967296 are not in memory, which ends at 4294967296"),
        ([Extent("a", 1, 0, 1)], {1: 1 << 32}, "a: 1 bytes at offset 0 are not in memory, which ends at 4294967296"),
        ([Extent("a", 1, 0, 8), Extent("b", 1, 4, 8)], {}, "b (bytes 4 to 11) and a (bytes 0 to 7) overlap in memory"),
        ([Extent("a", 1, 0, 8), Extent("b", 2, 0, 8)], {1: 16, 2: 8}, None),
        ([Extent("a", 1, 0, 8), Extent("b", 2, 0, 8)], {1: 16, 2: 9},
         "a (bytes 0 to 7) and b (bytes 0 to 7) overlap in memory"),
        ([Extent("a", 1, 0, 8, shared=True), Extent("b", 2, 0, 8, shared=True)], {1: 16, 2: 9},
         "a (bytes 0 to 7) and b (bytes 0 to 7) overlap in memory"),
        ([Extent("a", 1, 0, 8, shared=True), Extent("b", 1, 4, 8, shared=True)], {1: 16}, None),
        ([Extent("a", 1, 0, 99, shared=True), Extent("b", 1, 4, 8, shared=True), Extent("c", 1, 50, 1)], {},
         "c (bytes 50 to 50) and a (bytes 0 to 98) overlap in memory"),
    ],
)  # fmt: skip
def test_pieces(pieces: list[Extent], addresses: dict[int, int], message: str | None) -> None:
    program = assemble("end")
    if message is None:
        check(program, TINY, extents=Extents(pieces, addresses))
        return
    with pytest.raises(ProgramError) as caught:
        check(program, TINY, extents=Extents(pieces, addresses))
    assert str(caught.value) == message


def random_pieces(rng: random.Random, largest: int) -> list[Extent]:
    return [
        Extent(f"piece {index}", rng.randrange(3), rng.randrange(30), rng.randrange(largest), rng.random() < 0.7,
               rng.random() < 0.7, rng.random() < 0.5)
        for index in range(rng.randint(1, 5))
    ]  # fmt: skip


def test_accesses_against_sets() -> None:
    rng, verdicts = random.Random(0), {True: 0, False: 0}
    for _ in range(2000):
        memory = Extents(random_pieces(rng, 60), {})
        row, pixel = (rng.randint(1, 3), rng.randint(-6, 6)), (rng.randint(1, 3), rng.randint(1, 4))
        loops = (row, pixel, (rng.randint(1, 4), 1))
        access = DramAccess(rng.randrange(3), rng.randrange(-2, 40), loops, rng.random() < 0.5)
        touched = {
            access.offset + sum(index * stride for index, (_, stride) in zip(indices, loops, strict=True))
            for indices in itertools.product(*(range(count) for count, _ in loops))
        }
        allowed = any(
            piece.base == access.base
            and (piece.write if access.write else piece.read)
            and touched <= set(range(piece.offset, piece.end))
            for piece in memory.pieces
        )
        try:
            memory.check_access(access)
            assert allowed
        except ProgramError:
            assert not allowed
        verdicts[allowed] += 1
    assert min(verdicts.values()) > 200


def test_pieces_against_sets() -> None:
    rng, verdicts = random.Random(1), {True: 0, False: 0}
    for _ in range(3000):
        pieces = random_pieces(rng, 12)
        addresses = {base: rng.randrange(60) for base in range(3) if rng.random() < 0.8}
        cells = [
            {
                ("all" if piece.base in addresses else piece.base, addresses.get(piece.base, 0) + byte)
                for byte in range(piece.offset, piece.end)
            }
            for piece in pieces
        ]
        apart = not any(
            cells[i] & cells[j]
            for i, left in enumerate(pieces)
            for j, right in enumerate(pieces[:i])
            if not (left.shared and right.shared and left.base == right.base)
        )
        try:
            Extents(pieces, addresses).check()
            assert apart
        except ProgramError:
            assert not apart
        verdicts[apart] += 1
    assert min(verdicts.values()) > 200


SMALL = PRESETS["small"]
NARROW = "load base=3 int4=1 run=8 length=16 dst_vector=1 "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NARROW + "offset=24", None),
        (NARROW + "rows=2 row_pitch=5 skip=3 dst_row=2", None),
        (NARROW + "rows=2 line=2 row_pitch=16 skip=3 dst_row=2", None),
        (NARROW + "rows=2 row_pitch=5 skip=4 dst_row=2",
         "'row_pitch' and 'skip' 9 is no multiple of the bus width of 8 bytes, which 'int4' needs"),
        (NARROW + "rows=2 line=2 row_pitch=4 dst_row=2",
         "'row_pitch' 4 is no multiple of the bus width of 8 bytes, which 'int4' needs"),
        (NARROW + "offset=4", "'offset' 4 is no multiple of the bus width of 8 bytes, which 'int4' needs"),
        (NARROW + "offset=24 / " + NARROW + "offset=8 / " + NARROW + "offset=12",
         "'offset' 12 is no multiple of the bus width of 8 bytes, which 'int4' needs"),
        (NARROW + "offset=32 / load base=1 int4=1 run=4 length=8",
         "base register 1 260 is no multiple of the bus width of 8 bytes, which 'int4' needs"),
        ("load base=3 int4=1 run=33 length=66 dst_vector=1",
         "reads bytes 0 to 32 of base register 3, which leaves output 'y' (bytes 0 to 31)"),
        ("load base=3 int4=1 run=8388609",
         "'run' 8388609 is more than the 8388608 bytes that 'int4' takes"),
        ("load base=3 int4=1 paged=1 table=2",
         "'int4' and 'paged' exclude each other, because rows must start at known addresses"),
        ("load base=3 int4=1 run=4 pixels=20000 pitch=7 length=1 dst_pixel=0",
         "the pixels of a row end 139986 bytes after the bytes of 'run'; at most 131072 may be filled"),
    ],
)  # fmt: skip
def test_values_of_4_bits(text: str, message: str | None) -> None:
    program = assemble(text.replace(" / ", "\n") + "\nend")
    extents = Extents(PIECES, {0: 0, 1: 260, 2: 512, 3: 768})
    wanted = None if message is None else f"instruction {len(program) - 2} (LOAD): {message}"
    assert refusal(program, SMALL, extents=extents) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int4=1 run=128", None),
        ("int4=1 run=120", "'run' 120 is no multiple of the 128 bytes of values in a group of 'blocks'"),
        ("run=128", "'blocks' is 1, which needs 'int4' 1"),
        ("int4=1 run=256", "reads bytes 0 to 271 of base register 3, which leaves output 'y' (bytes 0 to 135)"),
    ],
)  # fmt: skip
def test_blocks_of_values_of_4_bits(text: str, message: str | None) -> None:
    """A group of 32 words of 8 values takes 128 bytes, and 8 for its factors."""
    program = assemble(f"load base=3 blocks=1 length=8 {text}\nend")
    extents = Extents([Extent("output 'y'", 3, 0, 136)], {3: 768})
    wanted = None if message is None else f"instruction 0 (LOAD): {message}"
    assert refusal(program, SMALL.replace(int4=2), extents=extents) == wanted


def test_a_configuration_without_values_of_4_bits() -> None:
    with pytest.raises(
        ProgramError, match=r"'int4' must be 0, because .* expands no 4-bit values \('int4' is 0\)$"
    ):
        check(assemble(NARROW + "\nend"), TINY)
