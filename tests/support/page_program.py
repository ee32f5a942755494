"""A program that scales the bytes of any number of pages, whose addresses a table gives."""

from __future__ import annotations

import numpy as np

from weft.hdl.checker.extents import Extent, Extents
from weft.hdl.isa import (
    PARAMETER_VECTORS,
    End,
    Instruction,
    Load,
    LoopNext,
    LoopStart,
    Mode,
    ReadRegisters,
    SetRegisters,
    Source,
    Store,
    Vec,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.loops import slots
from weft.sim.device import Device

VECTORS = 6  # of a page
NUMBER, TABLE, OUTPUT, POOL, PARAMETERS, PROGRAM = 0x100, 0x200, 0x4000, 0x1000, 0x300, 0x8000
PAIRS, ODD, ENTRY, TARGET = (
    8,
    9,
    10,
    11,
)  # registers: pairs of pages, whether there is another, where the loop stands


def _half(config: Config, half: int, page: int, base: int) -> list[Instruction]:
    """Return LOAD, VEC and STORE of the page `page` entries ahead, in one of two buffers. Semaphores: loaded, scaled,
    source free, results stored."""
    n, source, target = config.n, 16 + 2 * VECTORS * half, 16 + 2 * VECTORS * half + VECTORS
    loaded, scaled, free, stored = (1 << 4 * half + kind for kind in range(4))
    size = VECTORS * n
    return [
        Load(base=2, paged=1, table=base, page=page, run=size, length=size, dst=source, dst_vector=1, wait=free,
             signal=loaded),
        Vec(source=Source.SCRATCHPAD, ox=VECTORS, src=source, src_ox=1, dst=target, dst_ox=1, params=0,
            wait=loaded | stored, signal=scaled | free),
        Store(base=TARGET, offset=page * size, length=size, src=target, src_vector=1, wait=scaled, signal=stored),
    ]  # fmt: skip


def page_program(config: Config) -> list[Instruction]:
    """Return the program. Base registers: 0 the initial register values, 2 what the table's entries are relative to, 3
    a byte that is written first, 4 parameters. Each turn takes two pages; an odd last page follows the loop."""
    n, size = config.n, VECTORS * config.n
    body = [*_half(config, 0, 0, ENTRY), *_half(config, 1, 1, ENTRY)]
    block = PARAMETER_VECTORS * n
    once = (ODD, Mode.ADD, -1)
    on = [(PAIRS, Mode.ADD, -1), (ENTRY, Mode.ADD, 8), (TARGET, Mode.ADD, 2 * size)]
    # Semaphores start at 0: buffers become free when the parameters are loaded.
    start = [
        Load(base=4, run=block, length=block, dst_vector=1, signal=1 << 8),
        Vec(source=Source.SCRATCHPAD, src=900, dst=901, wait=1 << 8, signal=1 << 2 | 1 << 6),
        Store(base=3, offset=0x800, src=950, signal=1 << 3 | 1 << 7),
    ]
    last = _half(config, 0, 0, ENTRY)
    return [
        ReadRegisters(base=0, first=PAIRS, count=4),
        *start,
        LoopStart(register=PAIRS, skip=len(body) + 1),
        *body,
        LoopNext(back=len(body) + 1, **slots(*on)),
        LoopStart(register=ODD, skip=len(last) + 1),
        *last,
        LoopNext(back=len(last) + 1, **slots(once)),
        SetRegisters(**slots((PAIRS, Mode.SET, 0))),
        End(),
    ]


def extents(config: Config) -> Extents:
    """Return the extents that the program may touch."""
    pieces = [
        Extent("numbers", 0, 0, 32, write=False), Extent("table", ENTRY, 0, 8, write=False),
        Extent("parameters", 4, 0, PARAMETER_VECTORS * config.n, write=False), Extent("mark", 3, 0x800, 1),
        Extent("results", TARGET, 0, 2 * VECTORS * config.n, read=False),
    ]  # fmt: skip
    return Extents(pieces, {}, pages={2: ENTRY})


def run(device: Device, pages: int, seed: int) -> tuple[bytes, bytes]:
    """Return the results for `pages` pages, and the expected ones."""
    config, rng = device.config, np.random.default_rng(seed)
    size = VECTORS * config.n
    pool = rng.integers(-60, 60, (16, size)).astype(np.int8)
    table = rng.permutation(16)[:pages]
    parameters = (
        np.array([1 << 32 | 0 << 56] * config.n, "<u8").view(np.uint8).reshape(config.n, 8).T
    )  # times 1
    parameters[4] = 2  # times 2
    device.write(POOL, pool.tobytes())
    device.write(TABLE, (table * size).astype("<u4").tobytes() + bytes(8))
    device.write(PARAMETERS, np.ascontiguousarray(parameters).tobytes())
    device.write(NUMBER, np.array([pages // 2, pages % 2, TABLE, OUTPUT], "<u4").tobytes())
    device.write(OUTPUT, bytes(0x800))
    device.write(PROGRAM, b"".join(item.encode() for item in page_program(config)))
    for base, address in enumerate((NUMBER, TABLE, POOL, OUTPUT, PARAMETERS)):
        device.set_base(base, address)
    device.start(PROGRAM)
    device.wait(100_000)
    wanted = (2 * pool[table]).astype(np.int8).tobytes()
    return device.read(OUTPUT, 0x800), wanted + bytes(0x800 - len(wanted))
