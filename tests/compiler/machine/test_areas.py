"""Memory layout of device programs: areas against an account of every byte, and loaded contents against areas."""

from __future__ import annotations

import random

import numpy as np
import pytest

import weft
from weft.compiler.backend import DeviceProgram
from weft.compiler.ir.views import Buffer
from weft.compiler.machine.areas import CONSTANTS, TEMPS, Areas
from weft.examples import digits
from weft.hdl.isa.config import PRESETS
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice

KINDS = ("temp", "input", "output", "pages", "table")


def random_areas(rng: random.Random) -> Areas:
    """Buffers of one kind behind each other with gaps; temporaries may lie anywhere."""
    buffers, offsets, ends = {}, {}, dict.fromkeys(KINDS, 0)
    for index in range(rng.randrange(8)):
        kind = rng.choice(KINDS)
        buffer = Buffer(f"b{index}", (1, rng.randint(1, 3), rng.randint(1, 9), rng.randint(1, 40)), kind)
        offsets[buffer.name] = rng.randrange(300) if kind == "temp" else ends[kind] + rng.randrange(99)
        ends[kind] = offsets[buffer.name] + buffer.size
        buffers[buffer.name] = buffer
    return Areas(rng.choice([0, 64, 4096]), 64 * rng.randint(1, 9), buffers, offsets)


def test_every_byte_has_one_use() -> None:
    rng = random.Random(0)
    for _ in range(300):
        areas = random_areas(rng)
        areas.extents.check()
        used: dict[int, str] = {}
        pieces = {"constants": (0, areas.constants), "code": (areas.constants, areas.code)}
        pieces |= {name: (areas.address(name), buffer.size) for name, buffer in areas.buffers.items()}
        for name, (start, size) in pieces.items():
            shared = name in areas.buffers and areas.buffers[name].kind == "temp"
            for byte in range(start, start + size):
                assert used.setdefault(byte, "temp" if shared else name) == ("temp" if shared else name)
        assert max(used) < areas.memory_bytes
        assert areas.memory_bytes % 256 == 0
        assert all(address % 256 == 0 for address in areas.bases.values())
        checked = [(areas.bases[piece.base] + piece.offset, piece.size) for piece in areas.extents.pieces]
        assert sorted(checked) == sorted(pieces.values())


def test_constants_and_code_elsewhere() -> None:
    """All else moves together, and as much as their area takes."""
    rng = random.Random(1)
    for _ in range(100):
        areas, kept = random_areas(rng), rng.randrange(1 << 25, 1 << 26, 256)
        bases, before = areas.assign_bases(kept), areas.bases
        moved = before[TEMPS]
        assert bases == {base: at - moved for base, at in before.items()} | {CONSTANTS: kept}
        assert min(at for base, at in bases.items() if base != CONSTANTS) == 0
        assert areas.values_bytes == areas.memory_bytes - moved
        assert all(areas.address(name, bases) == areas.address(name) - moved for name in areas.buffers)


def test_areas_limit_instructions() -> None:
    buffers = {kind: Buffer(kind, (1, 1, 1, 64), kind) for kind in KINDS}
    extents = Areas(64, 64, buffers, dict.fromkeys(buffers, 0)).extents
    may = {extent.name: (extent.read, extent.write, extent.shared) for extent in extents.pieces}
    assert may == {
        "the constants": (True, False, False),
        "the code": (False, False, False),
        "temp 'temp'": (True, True, True),
        "input 'input'": (True, False, False),
        "output 'output'": (True, True, False),
        "pages 'pages'": (True, False, False),
        "table 'table'": (True, False, False),
    }
    assert extents.numbers == {6}
    assert extents.pages == {4: 5}
    without = Areas(64, 64, {"input": buffers["input"]}, {"input": 0}).extents
    assert (without.numbers, without.pages) == (frozenset(), {})


@pytest.mark.parametrize("preset", PRESETS)
def test_contents_lie_in_their_areas(preset: str) -> None:
    config = PRESETS[preset]
    program = weft.compile(digits.model(), preset)
    (segment,) = (item for item in program.segments if isinstance(item, DeviceProgram))
    (image,) = digits.held_out()[0][:1]
    memory = program.run({"image": image[None]}).memory
    areas = segment.areas
    assert len(memory) == areas.memory_bytes
    assert memory[: areas.constants] == segment.constants
    assert memory[areas.constants : areas.constants + areas.code] == segment.code
    place = Image(segment)
    device = GoldenDevice(config, place.memory_bytes)
    device.write(0, memory)
    for name, buffer in segment.buffers.items():
        start = areas.address(name)
        assert place.read(device, name).tobytes() == memory[start : start + buffer.size]
        if buffer.kind != "temp":
            assert np.frombuffer(memory[start : start + buffer.size], np.int8).any()
