"""Lists of programs: what is refused, and that what is not runs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from support.repeated import repeated

from weft.hdl.checker.extents import Extent, Extents
from weft.hdl.checker.program import ListedProgram, check_places, check_programs
from weft.hdl.errors import ProgramError
from weft.hdl.isa import End, Load, Store
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.program_lists import encode_list
from weft.sim.golden.interpreter import GoldenDevice

CONFIG = PRESETS["tiny"].replace(descriptors=1)
MEMORY = 0x4000
COPY = [
    Load(run=8, length=8, dst_vector=1, signal=1),
    Store(base=1, length=8, src_vector=1, wait=1),
    End(),
]
PLACES = Extents([Extent("source", 0, 0, 8, write=False), Extent("target", 1, 0, 8, read=False)], {})


def copy(address: int, source: int, target: int, **changes: Any) -> ListedProgram:
    return replace(ListedProgram(address, COPY, {0: source, 1: target}, PLACES), **changes)


GOOD = [copy(0x1000, 0x100, 0x108), copy(0x1000, 0x108, 0x110), copy(0x2000, 0x110, 0x100)]


def refusal(programs: list[ListedProgram], address: int = 0x3000, **changes: Any) -> str:
    with pytest.raises(ProgramError) as caught:
        check_programs(address, programs, changes.get("config", CONFIG), changes.get("memory", MEMORY))
    return str(caught.value)


def test_programs_may_share_code_and_data() -> None:
    check_programs(0x3000, GOOD, CONFIG, MEMORY)
    device = GoldenDevice(CONFIG, MEMORY)
    for program in GOOD:
        device.write(program.address, b"".join(item.encode() for item in COPY))
    device.write(0x100, bytes(range(8)))
    runs = [(item.address, item.descriptor().bases) for item in GOOD]
    device.write(0x3000, encode_list(runs, CONFIG))
    device.start_list(0x3000)
    device.wait()
    assert device.read(0x100, 24) == bytes(range(8)) * 3


def test_invalid_lists_are_refused() -> None:
    assert refusal(GOOD, config=PRESETS["tiny"]) == (
        "the configuration runs no lists of programs ('descriptors' is 0)"
    )
    assert refusal([]) == "a list has 1 to 16777215 programs, not 0"
    assert refusal(GOOD, 0x3020) == "the list's address 0x3020 is no multiple of 64 bytes"
    assert refusal(GOOD, 0x3F80).startswith(
        "a list of 3 programs at 0x3f80 takes 192 bytes, which do not lie in"
    )
    assert refusal([GOOD[0], copy(0x1002, 0, 8)]) == (
        "program 1 of the list: address 0x1002 is no multiple of 4 bytes"
    )
    assert refusal([GOOD[0], copy(0x1000, 0, 1 << 32)]) == (
        "program 1 of the list: the base register 1 of a descriptor cannot be 4294967296: it is 32 bits"
    )


def test_accesses_to_the_list_are_refused() -> None:
    size = 64 * len(GOOD)
    assert (
        refusal([*GOOD[:2], copy(0x3000 + size - 64, 0, 8)])
        == "program 2 of the list lies in the list's own bytes"
    )
    assert (
        refusal([*GOOD[:2], copy(0x3000 - 64, 0, 8)]) == "program 2 of the list lies in the list's own bytes"
    )
    check_programs(0x3000, [*GOOD[:2], copy(0x3000 - 64 * 3, 0, 8)], CONFIG, MEMORY)
    check_programs(0x3000, [*GOOD[:2], copy(0x3000 + size, 0, 8)], CONFIG, MEMORY)


@repeated("seed", range(20))
def test_programs_may_write_outside_the_list_and_code(seed: int) -> None:
    """Anything but the list and code of programs of it, by bytes around their ends."""
    pick = random.Random(seed)
    spans = {"the list": (0x3000, 0x30C0), "the code of program 0": (0x1000, 0x10C0),
             "the code of program 2": (0x2000, 0x20C0)}  # fmt: skip
    what, (first, end) = pick.choice(list(spans.items()))
    edge, index = pick.choice([first, end]), pick.randrange(3)
    target = edge - 8 + pick.randrange(17)
    programs = [*GOOD]
    programs[index] = copy(GOOD[index].address, 0x100, target)
    if first < target + 8 and target < end:
        assert refusal(programs) == (
            f"program {index} of the list may write to {what}: bytes {target:#x} to {target + 7:#x} are target"
        )
    else:
        check_programs(0x3000, programs, CONFIG, MEMORY)
        check_places(0x3000, programs, CONFIG, MEMORY)


def test_the_list_lies_in_nothing_that_a_program_reads() -> None:
    assert refusal([GOOD[0], copy(0x1000, 0x30FC, 0x108)], 0x3080) == (
        "program 1 of the list has memory in the list: bytes 0x30fc to 0x3103 are source"
    )
    check_programs(0x3080, [GOOD[0], copy(0x1000, 0x3100, 0x108)], CONFIG, MEMORY)
    check_programs(0x3080, [GOOD[0], copy(0x1000, 0x3078, 0x108)], CONFIG, MEMORY)


def test_a_program_that_is_wrong_by_itself() -> None:
    wrong = copy(0x2000, 0x100, 0x108, instructions=[Load(run=12, length=12, dst_vector=1), End()])
    assert refusal([GOOD[0], wrong]).startswith(
        "program 1 of the list: instruction 0 (LOAD): reads bytes 0 to 11"
    )
    check_places(0x3000, [GOOD[0], wrong], CONFIG, MEMORY)
    overlapping = copy(0x2000, 0x100, 0x104)
    assert refusal([overlapping]).startswith("program 0 of the list: ")
    unknown = copy(0x2000, 0x100, 0x2000, extents=None)
    check_programs(0x3000, [unknown], CONFIG, MEMORY)
