"""Instructions of the LOAD, MM and STORE queues in numpy: one function per opcode, on the device's memories.

An instruction is atomic: all its reads come before its writes. If it writes an address twice, the last iteration of its
loops wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from weft.hdl.isa import PAGE_ENTRY, Instruction, Load, Mm, Operand, Store
from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import group_bytes, unpack_groups, unpack_int4
from weft.sim.device import DeviceError
from weft.sim.golden.memories import Memories, loops, rsh, within, wrap

_Function = TypeVar("_Function", bound=Callable[[Memories, Any], None])

EXECUTE: dict[type[Instruction], Callable[[Memories, Any], None]] = {}
"""Functions by instruction class; each applies an instruction to memories."""


def executes(kind: type[Instruction]) -> Callable[[_Function], _Function]:
    """Decorate the function that executes instructions of a class."""

    def register(function: _Function) -> _Function:
        EXECUTE[kind] = function
        return function

    return register


# int8 products that float32 adds exactly in any order: 1024 * 2**14 = 2**24. With 9-bit activations half as many.
_EXACT_TERMS = 1024


@executes(Load)
def load(memories: Memories, i: Load) -> None:
    """Execute `Load`: copy bytes. All ``run`` bytes of a row must lie in memory, even if its pixels need fewer."""
    n = memories.config.n
    if i.transpose:
        _check_transposed(i, n, memories.config.transposed_vectors * n)
    vectors = -(-i.length // n)
    # Bytes of a row that pixels read; `before` of them precede the data in DRAM, and are filled.
    needed = (i.pixels - 1) * i.pitch + i.length
    take = max(0, min(2 * i.run if i.int4 else i.run, needed - i.before))
    rows = np.full((i.rows, needed), i.fill & 0xFF, np.uint8)
    start = memories.register(i.base) + i.offset + (_page(memories, i) if i.paged else 0)
    for row in range(i.rows):
        address = (start + row * i.row_pitch + row // i.line * i.skip) & 0xFFFFFFFF
        source = memories.dram_range(address, i.row_bytes)
        row_bytes = _unpack_int4(memories, i, address, source) if i.int4 else source
        rows[row, i.before : i.before + take] = row_bytes[:take]
    # Pixels may overlap (pitch < length), so they are a strided view of the rows.
    shape, steps = (i.rows, i.pixels, i.length), (rows.strides[0], i.pitch, 1)
    pixels = np.lib.stride_tricks.as_strided(rows, shape, steps, writeable=False)
    data = np.full((i.rows, i.pixels, vectors * n), i.fill & 0xFF, np.uint8)
    data[:, :, : i.length] = pixels
    result = data.view(np.int8).reshape(-1, n)
    if i.transpose:
        # Groups of n pixels are transposed; the last group is padded with `fill`.
        groups = -(-len(result) // (vectors * n))
        result = np.concatenate([result, np.full((groups * vectors * n - len(result), n), i.fill, np.int8)])
        result = result.reshape(groups, n, vectors * n).swapaxes(1, 2).reshape(-1, n)
    memories.scratchpad[memories.addresses(i, "dst").ravel()] = result


def _unpack_int4(memories: Memories, i: Load, address: int, source: np.ndarray) -> np.ndarray:
    """Return int4 values, low nibble first, or groups of int4 values times their factors, as bytes: uint8."""
    if address % memories.config.bus_bytes:
        raise DeviceError(
            f"a row of values of 4 bits at DRAM address {address:#x} does not begin at a multiple of the "
            f"{memories.config.bus_bytes} bytes of the bus"
        )
    if not i.blocks:
        return unpack_int4(source).view(np.uint8)
    n = memories.config.n
    if i.run % group_bytes(n):
        raise DeviceError(
            f"run {i.run} is no multiple of the {group_bytes(n)} bytes of values of 4 bits in a group"
        )
    return unpack_groups(source, n).view(np.uint8).ravel()


def _check_transposed(i: Load, n: int, most: int) -> None:
    if i.length > most:
        raise DeviceError(f"length {i.length} is more than the {most} bytes of pixels that can be transposed")
    if i.length > n and i.pixels > 1 and i.pitch < i.length:
        raise DeviceError(
            f"pitch {i.pitch} is less than length {i.length}, so pixels that are transposed overlap"
        )


def _page(memories: Memories, i: Load) -> int:
    """Return the page table's entry for a paged LOAD: an offset in bytes."""
    table = memories.register(i.table)
    if table % PAGE_ENTRY:
        raise DeviceError(
            f"page table {table:#x} of base register {i.table} is no multiple of {PAGE_ENTRY} bytes"
        )
    word = memories.dram_range((table + i.entry) & 0xFFFFFFFF, PAGE_ENTRY)
    return int.from_bytes(word.tobytes(), "little")


@executes(Store)
def store(memories: Memories, i: Store) -> None:
    """Execute `Store`: copy rows in order, and pixels in order within a row."""
    if i.pixels > 1 and i.pitch < i.length:
        raise DeviceError(f"pitch {i.pitch} is less than length {i.length}, so pixels overlap")
    data = memories.scratchpad[memories.addresses(i, "src")].view(np.uint8).reshape(i.rows, i.pixels, -1)
    start = memories.register(i.base) + i.offset
    extent = (i.pixels - 1) * i.pitch + i.length
    for row in range(i.rows):
        address = (start + row * i.row_pitch) & 0xFFFFFFFF
        memories.check_written(address, extent)
        target = memories.dram_range(address, extent)
        pixels = np.lib.stride_tricks.as_strided(target, (i.pixels, i.length), (i.pitch, 1))
        pixels[:] = data[row, :, : i.length]


@executes(Mm)
def mm(memories: Memories, i: Mm) -> None:
    """Execute `Mm`: products and sums are exact integers; the accumulator wraps modulo 2**32 (two's complement).

    All contraction steps of one ``nt`` go to the same rows of C, so they are added before a single write. Aligned steps
    are not: every step shifts the sum.
    """
    rows = memories.addresses(i, "c").reshape(i.nt, -1)
    if np.unique(rows[0]).size != rows[0].size:
        raise DeviceError(i.operand("c").clash)
    shifts = _shifts(memories, i) if i.align else None
    together = i.a_nt == 0  # all output tiles read the same rows of A
    for first in range(0, 1 if together else i.nt):
        tiles = range(i.nt) if together else range(first, first + 1)
        steps = _products(memories, i, tiles)
        if shifts is None:
            _add(memories, rows[tiles], steps.sum(axis=0, dtype=np.int32), bool(i.accumulate))
        else:
            _add_aligned(memories, rows[tiles], steps, shifts, bool(i.accumulate))


def _add(memories: Memories, rows: np.ndarray, part: np.ndarray, accumulate: bool) -> None:
    """Add int32 (rows, tiles, N) to accumulator rows (tiles, rows), or overwrite them, tile by tile."""
    for tile, cells in enumerate(rows):
        if accumulate:
            memories.accumulator[cells] += part[:, tile]
        else:
            memories.accumulator[cells] = part[:, tile]


def _add_aligned(
    memories: Memories, rows: np.ndarray, steps: np.ndarray, shifts: np.ndarray, accumulate: bool
) -> None:
    """Add int32 (steps, rows, tiles, N) to accumulator rows (tiles, rows) by alignments (steps, rows)."""
    # Tiles that share rows must be added one after the other.
    distinct = np.unique(rows).size == rows.size
    for tiles in [slice(None)] if distinct else [slice(tile, tile + 1) for tile in range(len(rows))]:
        cells = rows[tiles].T
        total = memories.accumulator[cells].astype(np.int64)
        if not accumulate:
            total[:] = 0
        for product, shift in zip(steps[:, :, tiles], shifts, strict=True):
            u, v = np.maximum(shift, 0)[:, None, None], np.maximum(-shift, 0)[:, None, None]
            total = wrap(rsh(total, u) + rsh(product.astype(np.int64), v))
        memories.accumulator[cells] = total


def _shifts(memories: Memories, i: Mm) -> np.ndarray:
    """Return the alignments: int64 (contraction steps, rows of A)."""
    return memories.alignments[memories.addresses(i, "alignment")].astype(np.int64)


def _products(memories: Memories, i: Mm, tiles: range) -> np.ndarray:
    """Return exact sums over parts of the contraction, for output tiles that share their A.

    The result is int32 (parts, rows, tiles, N). A part is a single step if steps are aligned, else everything.
    """
    n, config = memories.config.n, memories.config
    operand, weights = i.operand("a"), i.operand("b")
    rows, steps = ("oy", "ox"), ("ky", "kx", "kc")
    a_row, a_step = (loops(*operand.nest(i, config, *names)).ravel() for names in (rows, steps))
    a_step = a_step + i.a + tiles.start * i.a_nt
    b_step = loops(*weights.nest(i, config, *steps)).ravel() + i.b
    b_word = (loops(*weights.nest(i, config, "nt", "row"))[tiles.start : tiles.stop]).ravel()
    coordinates = [
        (loops(*bound.nest(i, *rows)).ravel(), loops(*bound.nest(i, *steps)).ravel(), bound)
        for bound in operand.bounds
    ]
    parts: list[np.ndarray] = []
    # A zero point makes activations 9 bits.
    chunk = 1 if i.align or i.depthwise else max(1, (_EXACT_TERMS // 2 if i.zero else _EXACT_TERMS) // n)
    for low in range(0, a_step.size, chunk):
        part = slice(low, low + chunk)
        valid = np.ones((a_row.size, a_step[part].size), bool)
        for row, step, bound in coordinates:
            valid &= within(i, bound, row[:, None] + step[part])
        a = _gather(memories, operand, a_row[:, None] + a_step[part], valid, i.pad)
        b = memories.scratchpad[memories.check(weights, b_word[:, None] + b_step[part])]
        # float32 products use BLAS, and are exact for `chunk` steps.
        left = a.reshape(a_row.size, -1).astype(np.float32) - np.float32(i.zero)
        right = b.reshape(b_word.size, -1).astype(np.float32)
        product = (_depthwise(left, right, i, config) if i.depthwise else left @ right.T).astype(np.int32)
        if parts and not i.align:
            parts[0] += product
        else:
            parts.append(product)
    return np.stack(parts).reshape(-1, a_row.size, len(tiles), n)


def _depthwise(rows: np.ndarray, words: np.ndarray, i: Mm, config: Config) -> np.ndarray:
    """Convolve lines of rows (rows, N) with words (tiles * N, N) channel by channel; return (rows, tiles * N)."""
    n, taps = config.n, config.depthwise_taps
    lines = rows.reshape(i.oy, i.ox, 1, n)
    # The taps are every second word at the end of a tile.
    weights = words.reshape(-1, n, n)[:, n - 2 * taps :: 2]
    total = np.zeros((i.oy, i.ox, len(weights), n), np.float32)
    for tap in range(taps):
        back = taps - 1 - tap
        if back < i.ox:
            total[:, back:] += lines[:, : i.ox - back] * weights[:, tap]
    return total.reshape(i.rows, -1)


def _gather(
    memories: Memories, operand: Operand, address: np.ndarray, valid: np.ndarray, pad: int
) -> np.ndarray:
    """Return scratchpad vectors, or `pad` where not `valid`. Only valid addresses are checked."""
    if valid.all():
        return memories.scratchpad[memories.check(operand, address)]
    data = memories.scratchpad[memories.check(operand, np.where(valid, address, 0))]
    data[~valid] = pad
    return data
