"""Complete transfers of more bytes than fit on chip, and counts of millions of cycles, which shorter programs miss.

LOADs here overwrite the same vectors many times. The program checker refuses that, and no compiler emits it, but the
last write remains, in the golden interpreter as on the core.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from support.core_cases import Bench, Core, Scenario, compare_counters, compare_memory
from weft.hdl.isa import BASES, Instruction, Load, Store
from weft.hdl.isa.config import Config
from weft.sim.golden.interpreter import GoldenDevice

SIZE = 8 << 20
"""Bytes of memory."""
FIRST, SEEN = 0x100000, 0x710000
"""Addresses where transfers begin, after the program, and where the scratchpad is stored, after transfers."""
SLOW = 1.5
"""Bytes a cycle of a memory with which the largest transfer takes more than 2**22 cycles."""
OVERLAPPING = 1537
"""Vectors of overlapping pixels, which are traversed once for each of their vectors."""
PIXELS = (3 << 14) + 3
WIDE = 128
"""Bytes between the starts of this many pixels: a row of 6 MiB, whose count has both of its highest bits set."""


def long(core: Core) -> list[Scenario]:
    """Yield long transfers on the pipelined core; the sequential core would take hours."""
    if core.sequential:
        return []
    config, made = core.config, Contents()
    found = []
    for name, items in {"long loads": _loads(config), "a wide row": _wide_row(config)}.items():
        bench = Bench({"latency": 1}, GoldenDevice(config, SIZE))
        found.append(Scenario(name, bench, [compare_memory(name, made, _in_order(items), bench)]))
    slow = Bench({"latency": 1, "bandwidth": SLOW}, GoldenDevice(config, SIZE))
    step = compare_counters(core, "long stores", made, _in_order(_stores(config)), slow)
    return [*found, Scenario(step.name, slow, [step])]


class Contents:
    """Random bytes up to the programs' stores, and where transfers begin."""

    def __init__(self) -> None:
        self.image = np.random.default_rng(1).bytes(SEEN)
        self.bases = [FIRST, SEEN, *[0] * (BASES - 2)]


def _counts(first: int, last: int) -> list[int]:
    """Return counts just above each power of two, and above one and a half of it: one bit, and two neighbours."""
    return [count + 3 for bit in range(first, last) for count in (1 << bit, 3 << bit - 1)]


def _loads(config: Config) -> list[Instruction]:
    """Return many pixels, rows, lines of rows, and vectors of a pixel, all loaded to one vector."""
    n = config.n
    row = {"row_pitch": n, "length": n, "run": n, "dst_row": 0}
    found = [Load(pixels=count, run=count, dst_pixel=0) for count in _counts(8, 16)]
    found += [Load(rows=count, **row) for count in _counts(8, 12)]
    found += [Load(rows=3 * count, line=3, skip=n + 1, **row) for count in _counts(8, 10)]
    found += [Load(length=count, run=count, dst_vector=0) for count in _counts(8, 16)]
    length = OVERLAPPING * n + 1
    found.append(
        Load(pixels=2, pitch=length - 1, length=length, run=2 * length - 1, dst_pixel=1, dst_vector=0)
    )
    return _store_after(config, found)


def _wide_row(config: Config) -> list[Instruction]:
    load = Load(pixels=PIXELS, pitch=WIDE, length=config.n, run=(PIXELS - 1) * WIDE + config.n, dst_pixel=0)
    return _store_after(config, [load])


def _stores(config: Config) -> list[Instruction]:
    """Return runs of 768 KiB and of 6 MiB, stored from the scratchpad."""
    n, vectors = config.n, config.scratchpad_size
    fill = Load(pixels=vectors, pitch=n, length=n, run=vectors * n, dst_pixel=1)
    return [
        fill,
        *(Store(pixels=PIXELS, pitch=size, length=size, src=3, src_vector=1) for size in (WIDE // 8, WIDE)),
    ]


def _store_after(config: Config, items: Sequence[Load]) -> list[Instruction]:
    """Move each load to vectors of its own, and store all of the scratchpad at the end."""
    n, vectors = config.n, config.scratchpad_size
    found: list[Instruction] = []
    for turn, item in enumerate(items):
        at = turn * vectors * n
        assert SEEN + at + vectors * n <= SIZE
        store = Store(base=1, offset=at, pixels=vectors, pitch=n, length=n, src_pixel=1)
        found += [dataclasses.replace(item, dst=turn % (vectors - 2)), store]
    return found


def _in_order(items: Sequence[Instruction]) -> list[Instruction]:
    """Let each instruction wait for the one before."""
    return [
        dataclasses.replace(item, wait=1 << (at - 1) % 2 if at else 0, signal=1 << at % 2)
        for at, item in enumerate(items)
    ]
