"""Descriptors: their bytes, and what is refused."""

from __future__ import annotations

import random
import struct

import pytest

from weft.hdl.errors import IsaError
from weft.hdl.isa import BASES
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.program_lists import (
    DESCRIPTOR_BYTES,
    MARK,
    MAX_LIST_PROGRAMS,
    MAX_RECORDED_CYCLES,
    Descriptor,
    Record,
    check_list,
    encode_list,
    pitch,
)

CONFIG = PRESETS["tiny"].replace(descriptors=1)


def test_the_bytes_of_a_descriptor() -> None:
    raw = Descriptor(0x100, range(8), last=True).encode()
    assert struct.unpack("<16I", raw) == (MARK | 1, 0x100, 0, 0, *range(8), 0, 0, 0, 0)


@pytest.mark.parametrize("width", [4, 8, 16, 32, 64, 128])
def test_lists_survive_their_bytes(width: int) -> None:
    config, pick = CONFIG.replace(bus_bytes=width), random.Random(width)
    for _ in range(50):
        runs = [
            (pick.randrange(1 << 32) // width * width, tuple(pick.getrandbits(32) for _ in range(BASES)))
            for _ in range(pick.randrange(1, 20))
        ]
        raw, step = encode_list(runs, config), pitch(config)
        assert len(raw) == len(runs) * step
        found = [Descriptor.decode(raw[at : at + DESCRIPTOR_BYTES]) for at in range(0, len(raw), step)]
        assert [(item.program, item.bases) for item in found] == runs
        assert [item.last for item in found] == [False] * (len(runs) - 1) + [True]
        assert not any(Record.decode(raw[at:]).done for at in range(0, len(raw), step))


def test_records_survive_their_bytes_and_stay_at_their_largest() -> None:
    frame = Descriptor(0, [0] * BASES).encode()[:48]
    for cycles, memory in ((0, 0), (12, 3), (MAX_RECORDED_CYCLES, MAX_RECORDED_CYCLES)):
        assert Record.decode(frame + Record(True, cycles, memory).encode()) == Record(True, cycles, memory)
    assert Record.decode(frame + Record(True, MAX_RECORDED_CYCLES + 5, 1).encode()) == Record(
        True, MAX_RECORDED_CYCLES, 1
    )


def test_invalid_lists_are_refused() -> None:
    with pytest.raises(IsaError, match=f"^a list has 1 to {MAX_LIST_PROGRAMS} programs, not 0$"):
        encode_list([], CONFIG)
    with pytest.raises(IsaError, match=r"^program 1 of the list: address 0x42 is no multiple of 4 bytes$"):
        encode_list([(0, [0] * BASES), (0x42, [0] * BASES)], CONFIG)
    with pytest.raises(IsaError, match=r"^a descriptor has 8 base registers, not 3$"):
        encode_list([(0, [0] * 3)], CONFIG)
    for program, bases in ((1 << 32, [0] * 8), (-4, [0] * 8)):
        with pytest.raises(
            IsaError, match=rf"^the program address of a descriptor cannot be {program}: it is 32"
        ):
            Descriptor(program, bases).encode()
    with pytest.raises(IsaError, match=r"^the base register 7 of a descriptor cannot be -1: it is 32 bits$"):
        Descriptor(0, [0] * 7 + [-1]).encode()
    with pytest.raises(IsaError, match=r"^a descriptor cannot begin with 0x00000000$"):
        Descriptor.decode(bytes(64))
    with pytest.raises(IsaError, match=rf"^a descriptor cannot begin with {MARK | 2:#010x}$"):
        Descriptor.decode((MARK | 2).to_bytes(4, "little").ljust(64, b"\0"))


def test_list_addresses() -> None:
    wide = CONFIG.replace(bus_bytes=128)
    check_list(0x3C0, 1, CONFIG, 0x400)
    check_list(0x380, 1, wide, 0x400)
    with pytest.raises(IsaError, match=r"^the list's address 0x3c0 is no multiple of 128 bytes$"):
        check_list(0x3C0, 1, wide, 0x400)
    with pytest.raises(
        IsaError,
        match=r"^a list of 2 programs at 0x3c0 takes 128 bytes, which do not lie in a memory of 1024 bytes$",
    ):
        check_list(0x3C0, 2, CONFIG, 0x400)
    with pytest.raises(IsaError, match="do not lie"):
        check_list(-64, 1, CONFIG, 0x400)
