"""The program checker on what softmax and attention add: programs it accepts, and programs it refuses with the whole
message. The rest of it is in `test_program`."""

from __future__ import annotations

import pytest
from support.verdicts import refusal

from weft.hdl.checker.extents import dram_accesses, on_chip_accesses
from weft.hdl.checker.program import Extent, Extents, check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import Instruction
from weft.hdl.isa.code import assemble
from weft.hdl.isa.config import PRESETS

TINY = PRESETS["tiny"]


def program(text: str) -> list[Instruction]:
    """Assemble instructions separated by ``/``, followed by END."""
    return assemble(text.replace("/", "\n") + "\nend")


ACCEPTED = {
    "attention": "table src=90 vectors=16 / mm signal=s0 / softmax wait=s0 params=80 dst=20 signal=s1"
                 " / mm wait=s1 a=20 b=50 zero=-128 align=1 c=9 signal=s2 / normalise wait=s2 src=9 dst=40",
    "alignments apart": "softmax params=80 dst=20 ox=4 state_ox=1 alignment_ox=1"
                        " / mm align=1 ox=2 kc=2 c_ox=1 alignment=4 c=9",
    "alignments not read": "softmax params=80 dst=20 alignment=3 / mm alignment=3 c=9",
    "softmax in place": "softmax source=scratchpad src=20 src_ox=1 dst=20 dst_ox=1 ox=4 state_ox=1 params=80"
                        " / normalise source=scratchpad src=20 src_ox=1 dst=20 dst_ox=1 ox=4",
    "one state for rows of normalise": "normalise oy=4",
    "states are of one queue": "softmax params=80 dst=20 / normalise dst=30 / softmax final=1 params=80 dst=20",
    "transposed": "load transpose=1 pixels=4 dst_vector=1 / mm a=4 b=4",
    "paged": "load paged=1 table=1 page=0xffff / load base=1 dst=9 / store base=2 src=10",
}  # fmt: skip

REFUSED = {
    "race: instruction 1 (MM) reads alignment 6, which instruction 0 (SOFTMAX) writes, and no semaphore orders them":
        "softmax params=80 dst=20 ox=7 state_ox=1 alignment_ox=1 / mm align=1 ox=2 kc=2 c_ox=1 alignment=6 c=9",
    "race: instruction 1 (SOFTMAX) writes alignment 5, which instruction 0 (MM) reads, and no semaphore orders them":
        "mm align=1 nt=2 c_nt=1 kc=2 alignment=4 c=9 / softmax params=80 dst=20 alignment=5",
    "race: instruction 1 (SOFTMAX) reads accumulator row 7, which instruction 0 (MM) writes, and no semaphore orders "
    "them": "mm c=7 / softmax src=7 params=80 dst=20",
    "race: instruction 1 (SOFTMAX) writes scratchpad vector 23, which instruction 0 (MM) reads, and no semaphore "
    "orders them": "mm c=7 a=23 / softmax params=80 dst=20 ob=4 dst_ob=1",
    "race: instruction 1 (NORMALISE) reads accumulator row 9, which instruction 0 (MM) writes, and no semaphore orders "
    "them": "mm c=9 / normalise src=7 ob=2 src_ob=2 dst=20",
    "race: instruction 1 (TABLE) reads scratchpad vector 12, which instruction 0 (LOAD) writes, and no semaphore "
    "orders them": "load dst=12 / table src=10 vectors=3",
    "race: instruction 1 (MM) reads scratchpad vector 15, which instruction 0 (LOAD) writes, and no semaphore orders "
    "them": "load transpose=1 rows=2 pixels=3 dst=8 dst_row=4 dst_vector=1 dst_pixel=90 / mm a=15",
    "instruction 0 (LOAD): 'length' 17 is more than the 16 bytes that 'transpose' takes":
        "load transpose=1 length=17 dst_vector=1 dst_pixel=4",
    "instruction 0 (LOAD): 'pitch' 4 is less than 'length' 5, which 'transpose' excludes":
        "load transpose=1 length=5 pitch=4 pixels=2 dst_vector=1 dst_pixel=4",
    "instruction 0 (LOAD): two vectors go to one scratchpad address": "load transpose=1",
    "instruction 0 (SOFTMAX): two rows of scores have one row state":
        "softmax oy=2 ox=3 state_oy=2 state_ox=1 params=80",
    "instruction 0 (SOFTMAX): 'first' resets row states, which 'final' only reads":
        "softmax first=1 final=1 params=80",
    "instruction 0 (SOFTMAX): 'state' reads row state 64, but there are 64":
        "softmax state=60 ox=5 state_ox=1 params=80",
    "instruction 0 (SOFTMAX): 'alignment' writes alignment 256, but there are 256": "softmax alignment=256 params=80",
    "instruction 0 (SOFTMAX): 'dst' writes into the parameter block": "softmax params=80 dst=87",
    "instruction 0 (SOFTMAX): 'dst' writes scratchpad vector 21, which a later output reads as 'src'":
        "softmax source=scratchpad src=20 src_ox=1 dst=21 dst_ox=1 ox=4 state_ox=1 params=80",
    "instruction 0 (NORMALISE): 'state' reads row state 65535, but there are 64": "normalise oy=2 state_oy=-1",
    "instruction 0 (NORMALISE): 'alignment' reads alignment 256, but there are 256": "normalise scaled=1 alignment=256",
    "instruction 0 (NORMALISE): 'dst' writes scratchpad vector 21, which a later output reads as 'src'":
        "normalise source=scratchpad src=20 src_oy=1 dst=21 dst_oy=1 oy=4",
    "instruction 0 (NORMALISE): 'low' 5 is above 'high' 4": "normalise low=5 high=4",
    "instruction 0 (TABLE): 'vectors' 513 has 2052 entries, but the table 2048": "table vectors=513",
    "instruction 0 (TABLE): 'src' reads scratchpad vector 1024, but there are 1024": "table src=1023 vectors=2",
    "instruction 0 (MM): 'alignment' reads alignment 259, but there are 256":
        "mm align=1 alignment=256 kc=2 ox=2 c_ox=1",
    "instruction 1 (STORE) writes to base register 2, from which instruction 0 (LOAD) reads pages: no order of the two "
    "can be checked": "load paged=1 base=2 table=3 / store base=2 src=9",
    "instruction 0 (STORE) writes to base register 3, from which instruction 1 (LOAD) reads the page table: no order "
    "of the two can be checked": "store base=3 src=9 / load paged=1 base=2 table=3",
}  # fmt: skip


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(text: str) -> None:
    check(program(text), TINY)


@pytest.mark.parametrize(("message", "text"), REFUSED.items(), ids=range(len(REFUSED)))
def test_refused(message: str, text: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check(program(text), TINY)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("softmax params=9", "instruction 0 (SOFTMAX): the configuration has no softmax ('probability_bits' is 0)"),
        ("normalise", "instruction 0 (NORMALISE): the configuration has no softmax ('probability_bits' is 0)"),
        ("table", "instruction 0 (TABLE): the configuration has no softmax ('probability_bits' is 0)"),
        *(
            (text, f"instruction 0 ({text.split()[0].upper()}): {field!r} must be 0, because the configuration has no"
                   " softmax ('probability_bits' is 0)")
            for text, field in (
                ("mm zero=1", "zero"), ("mm align=1", "align"), ("mm alignment=1", "alignment"),
                ("load transpose=1 dst_vector=1", "transpose"), ("load paged=1", "paged"), ("load table=1", "table"),
                ("load page=1", "page"),
            )
        ),
    ],
)  # fmt: skip
def test_softmax_is_an_option(text: str, message: str) -> None:
    check(program(text), TINY)
    with pytest.raises(ProgramError) as caught:
        check(program(text), TINY.replace(probability_bits=0))
    assert str(caught.value) == message


def test_zero_points_need_9_bit_activations() -> None:
    narrow = TINY.replace(probability_bits=7)
    check(program("mm align=1"), narrow)
    with pytest.raises(ProgramError) as caught:
        check(program("mm zero=-128"), narrow)
    assert (
        str(caught.value) == "instruction 0 (MM): 'zero' must be 0, because 'probability_bits' is 7 and not 8"
    )


@pytest.mark.parametrize(
    ("table", "pages", "message"),
    [
        (44, {4: 5}, None),
        (43, {4: 5}, "reads bytes 40 to 43 of base register 5, which leaves table (bytes 0 to 42)"),
        (44, {5: 4}, "base register 4 has no pages with base register 5 as their page table"),
        (44, {4: 3}, "base register 4 has no pages with base register 5 as their page table"),
        (44, {}, "base register 4 has no pages with base register 5 as their page table"),
    ],
)
def test_extents_of_pages(table: int, pages: dict[int, int], message: str | None) -> None:
    text = program("load paged=1 base=4 offset=999 run=99 table=5 page=10")
    extents = Extents([Extent("pages", 4, 0, 1), Extent("table", 5, 0, table)], {}, pages=pages)
    wanted = None if message is None else f"instruction 0 (LOAD): {message}"
    assert refusal(text, TINY, extents=extents) == wanted


def cells(text: str) -> set[tuple[str, str, bool, int]]:
    """Every access of one instruction: memory, operand, whether it writes, address."""
    instruction = program(text)[0]
    found = set()
    for access in on_chip_accesses(instruction, TINY):
        addresses = range(access.memory.size(TINY))
        chosen = addresses[access.cells] if isinstance(access.cells, slice) else access.cells
        found |= {(access.memory.name, access.field, access.write, int(cell)) for cell in chosen}
    return found


def expected(**operands: tuple[str, bool, list[int]]) -> set[tuple[str, str, bool, int]]:
    return {
        (memory, field.strip("_"), write, cell)
        for field, (memory, write, addresses) in operands.items()
        for cell in addresses
    }


def test_accesses_of_softmax() -> None:
    text = (
        "softmax src=9 src_ob=20 src_oy=4 src_ox=1 ob=2 oy=2 ox=2 dst=30 dst_ob=1 dst_oy=8 dst_ox=2 params=60"
        " state=3 state_oy=8 state_ox=-1 alignment=100 alignment_ob=50 alignment_oy=2 alignment_ox=1"
    )
    operands = {
        "src": ("ACCUMULATOR", False, [9, 10, 13, 14, 29, 30, 33, 34]),
        "params": ("SCRATCHPAD", False, list(range(60, 68))),
        "table": ("TABLE", False, list(range(2048))),
        "dst": ("SCRATCHPAD", True, [30, 32, 38, 40, 31, 33, 39, 41]),
        "state": ("STATES", False, [3, 2, 11, 10]),
        "alignment": ("ALIGNMENTS", True, [100, 101, 102, 103, 150, 151, 152, 153]),
    }
    assert cells(f"{text} final=1") == expected(**operands)
    assert cells(text) == expected(**operands, state_=("STATES", True, [3, 2, 11, 10]))


def test_accesses_of_normalise() -> None:
    text = (
        "normalise source=scratchpad src=9 src_ob=20 src_oy=4 src_ox=1 ob=2 oy=2 ox=2 dst=90 dst_ox=1"
        " state=3 state_ob=8 state_oy=-1 alignment=100 alignment_ob=50 alignment_oy=2 alignment_ox=1"
    )
    operands = {
        "src": ("SCRATCHPAD", False, [9, 10, 13, 14, 29, 30, 33, 34]),
        "dst": ("SCRATCHPAD", True, [90, 91]),
        "state": ("STATES", False, [3, 2, 11, 10]),
    }
    assert cells(text) == expected(**operands)
    scaled = ("ALIGNMENTS", False, [100, 101, 102, 103, 150, 151, 152, 153])
    assert cells(f"{text} scaled=1") == expected(**operands, alignment=scaled)


def test_accesses_of_transposed_and_paged_loads() -> None:
    text = "load paged=1 table=6 page=5 transpose=1 rows=3 pixels=3 length=2 dst=40 dst_row=-8 dst_vector=2 dst_pixel=9"
    written = [40, 42, 44, 46, 32, 34, 36, 38, 24, 26, 28, 30]
    assert cells(text) == expected(dst=("SCRATCHPAD", True, written))
    wide = text.replace("length=2", "length=5 pitch=5").replace("dst_pixel=9", "dst_pixel=100")
    assert cells(wide) == expected(
        dst=(
            "SCRATCHPAD",
            True,
            [v + at for at in (40, 32, 24) for v in range(0, 8, 2)] + [v + 100 for v in written],
        )
    )
    (entry,) = dram_accesses(program(text)[0], TINY)
    assert (entry.base, entry.low, entry.high, entry.write) == (6, 20, 24, False)
