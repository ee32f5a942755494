"""LOADs of boxes of pixels against the bytes and vectors that they move."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.repeated import repeated

from weft.compiler.errors import CompileError
from weft.compiler.machine.areas import INPUTS
from weft.compiler.machine.emit import Box, Emitter
from weft.compiler.machine.memory import Constants, Ring
from weft.compiler.machine.target import COUNT_MAX, Target
from weft.compiler.machine.tensors import TensorRef
from weft.hdl.checker.extents import DramAccess, dram_accesses
from weft.hdl.isa import Load
from weft.hdl.isa.config import PRESETS, Config


def draw_box(rng: random.Random) -> tuple[Config, TensorRef, Box, tuple[int, int]]:
    """Draw a configuration, a view, a box of it, and some channels of a pixel."""
    config = rng.choice(list(PRESETS.values()))
    c = rng.choice([1, 3, config.n, rng.randint(1, 300)])
    pitch = rng.choice([c, c, 2 * c, c + rng.randint(1, 100), 70_000])
    h, w = rng.choice([(1, 1), (1, 5000), (70, 90), (500, 20), (rng.randint(1, 60), rng.randint(1, 60))])
    row_pitch = w * pitch + rng.choice([0, 0, rng.randint(1, 5000)])
    source = TensorRef(INPUTS, rng.randrange(1 << 20), 2, h, w, c, h * row_pitch, row_pitch, pitch)
    tall, wide = rng.choice([(h, w), (h, rng.randint(1, w)), (rng.randint(1, h), rng.randint(1, w))])
    box = Box(rng.randint(0, h - tall), rng.randint(0, w - wide), tall, wide)
    first = rng.randrange(c)
    return config, source, box, (first, rng.randint(1, c - first))


def moves(load: Load, offset: int, dst: int, config: Config) -> dict[int, tuple[int, int]]:
    """Map each vector at the start of a pixel to its DRAM byte and the number of the pixel's bytes moved."""
    load.check()
    (reads,) = dram_accesses(load, config)
    result = {}
    for row in range(load.rows):
        start = offset + row * load.row_pitch + row // load.line * load.skip
        for pixel in range(load.pixels):
            at = (dst + row * load.dst_row + pixel * load.dst_pixel) % (1 << 16)
            assert at not in result
            result[at] = (start + pixel * load.pitch, load.length)
            assert _contains(reads, start - offset + pixel * load.pitch, load.length)
    return result


def _contains(reads: DramAccess, first: int, length: int) -> bool:
    return reads.low <= first and first + length <= reads.high


@repeated("seed", range(150))
def test_boxes(seed: int) -> None:
    rng = random.Random(seed)
    config, source, box, (first, count) = draw_box(rng)
    vectors, image = -(-count // config.n), rng.randrange(2)
    while box.h * box.w * vectors > 1 << 15:
        box = box._replace(h=(box.h + 1) // 2) if box.h > 1 else box._replace(w=box.w // 2)
    result: dict[int, tuple[int, int]] = {}
    tasks = list(
        Emitter(Target(config), Constants(), 0).load_box(source, image, box, (first, count), 5, vectors, 0)
    )
    for task in tasks:
        assert isinstance(task.instruction, Load)
        result |= moves(task.instruction, *task.addresses, config)
    assert len(tasks) <= 2 * box.h * box.w / COUNT_MAX + 1
    expected = {
        (5 + (y * box.w + x) * vectors) % (1 << 16): (
            source.address(image, box.y + y, box.x + x) + first,
            count,
        )
        for y in range(box.h)
        for x in range(box.w)
    }
    assert result == expected, f"seed {seed}"


def test_table_beyond_the_configuration_is_refused() -> None:
    emitter, blocks = (
        Emitter(Target(PRESETS["small"].replace(lookup_tables=0)), Constants(), 0),
        Ring(0, 8, 2),
    )
    table = np.zeros(256, np.int8)
    for tasks in (emitter.lookup(table, blocks), emitter.lookups((table.tobytes(),), blocks)):
        with pytest.raises(
            CompileError, match=r"a look-up table, and the configuration has no look-up tables"
        ):
            next(tasks)
