"""What each instruction computes, in numpy: one function an opcode, on the device's memories.

Instructions execute as a whole: all reads come before all writes. Where one instruction writes an address
twice, the last iteration of its loops wins. Those of the VEC queue are in `weft.sim.golden.vector`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.hdl.isa import Load, Mm, Opcode, Store
from weft.sim.device import DeviceError
from weft.sim.golden.arithmetic import rsh, wrap
from weft.sim.golden.memories import Memories, inside, loops
from weft.sim.golden.vector import normalise, softmax, table, vec

_EXACT_TERMS = 1024
"""int8 products that float32 adds exactly in any order: 1024 * 2**14 = 2**24. Half as many of 9-bit activations."""


def load(memories: Memories, i: Load) -> None:
    """`Load`: bytes are copied. All ``run`` bytes of a row must lie in memory, even if pixels need fewer."""
    n = memories.config.n
    if i.transpose and i.length > n:
        raise DeviceError(
            f"length {i.length} is more than the {n} of a vector, so pixels cannot be transposed"
        )
    vectors = -(-i.length // n)
    needed = (i.pixels - 1) * i.pitch + i.length
    take = max(0, min(i.run, needed - i.before))
    rows = np.full((i.rows, needed), i.fill & 0xFF, np.uint8)
    start = memories.bases[i.base] + i.offset + (_page(memories, i) if i.paged else 0)
    for row in range(i.rows):
        source = memories.dram_range((start + row * i.row_pitch + row // i.line * i.skip) & 0xFFFFFFFF, i.run)
        rows[row, i.before : i.before + take] = source[:take]
    shape, steps = (i.rows, i.pixels, i.length), (rows.strides[0], i.pitch, 1)
    pixels = np.lib.stride_tricks.as_strided(rows, shape, steps, writeable=False)
    data = np.full((i.rows, i.pixels, vectors * n), i.fill & 0xFF, np.uint8)
    data[:, :, : i.length] = pixels
    result = data.view(np.int8).reshape(-1, n)
    address = loops(i.dst, (i.rows, i.dst_row), (i.pixels, i.dst_pixel), (vectors, i.dst_vector))
    if i.transpose:
        groups = -(-len(result) // n)
        result = np.concatenate([result, np.full((groups * n - len(result), n), i.fill, np.int8)])
        result = result.reshape(groups, n, n).swapaxes(1, 2).reshape(-1, n)
        address = loops(i.dst, (groups, i.dst_row), (n, i.dst_vector))
    memories.scratchpad[memories.vectors(address).ravel()] = result


def _page(memories: Memories, i: Load) -> int:
    """The page table's entry of a paged LOAD."""
    table = memories.bases[i.table]
    if table % 4:
        raise DeviceError(f"page table {table:#x} of base register {i.table} is no multiple of 4 bytes")
    word = memories.dram_range((table + 4 * i.page) & 0xFFFFFFFF, 4)
    return int.from_bytes(word.tobytes(), "little")


def store(memories: Memories, i: Store) -> None:
    """`Store`: rows in order, pixels in order within a row."""
    if i.pixels > 1 and i.pitch < i.length:
        raise DeviceError(f"pitch {i.pitch} is less than length {i.length}, so pixels overlap")
    vectors = -(-i.length // memories.config.n)
    address = loops(i.src, (i.rows, i.src_row), (i.pixels, i.src_pixel), (vectors, i.src_vector))
    data = memories.scratchpad[memories.vectors(address)].view(np.uint8).reshape(i.rows, i.pixels, -1)
    start = memories.bases[i.base] + i.offset
    extent = (i.pixels - 1) * i.pitch + i.length
    for row in range(i.rows):
        target = memories.dram_range((start + row * i.row_pitch) & 0xFFFFFFFF, extent)
        pixels = np.lib.stride_tricks.as_strided(target, (i.pixels, i.length), (i.pitch, 1))
        pixels[:] = data[row, :, : i.length]


def mm(memories: Memories, i: Mm) -> None:
    """`Mm`: products and sums are exact integers, the accumulator wraps modulo 2**32 (two's complement).

    All contraction steps of one ``nt`` go to the same rows of C: adding them first and writing once is the same, unless
    they are aligned.
    """
    rows = memories.rows(loops(i.c, (i.nt, i.c_nt), (i.oy, i.c_oy), (i.ox, i.c_ox)).reshape(i.nt, -1))
    if np.unique(rows[0]).size != rows[0].size:
        raise DeviceError("two rows of A in a tile add to one accumulator row")
    shifts = _shifts(memories, i) if i.align else None
    together = i.a_nt == 0
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
    # Tiles may share rows, and then follow each other.
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
    """Alignments (contraction steps, rows of A)."""
    steps, rows = i.ky * i.kx * i.kc, i.oy * i.ox
    address = memories.aligned(loops(i.alignment, (steps, rows), (rows, 1)))
    return memories.alignments[address].astype(np.int64)


def _products(memories: Memories, i: Mm, tiles: range) -> np.ndarray:
    """int32 (parts, rows, tiles, N): exact sums over parts of the contraction, for output tiles that share their A. A
    part is one step if they are aligned, else whatever number of steps.
    """
    n = memories.config.n
    steps = (i.ky, i.kx, i.kc)
    a_step = loops(i.a + tiles.start * i.a_nt, (i.ky, i.a_ky), (i.kx, i.a_kx), (i.kc, i.a_kc)).ravel()
    a_row = loops(0, (i.oy, i.a_oy), (i.ox, i.a_ox)).ravel()
    y = np.broadcast_to(loops(i.y, (i.ky, i.y_ky))[:, None, None], steps).ravel()
    x = np.broadcast_to(loops(i.x, (i.kx, i.x_kx))[None, :, None], steps).ravel()
    y_row = np.repeat(loops(0, (i.oy, i.y_oy)), i.ox)
    x_row = np.tile(loops(0, (i.ox, i.x_ox)), i.oy)
    b_step = loops(i.b, (i.ky, i.b_ky), (i.kx, i.b_kx), (i.kc, i.b_kc)).ravel()
    b_word = loops(tiles.start * i.b_nt, (len(tiles), i.b_nt), (n, i.b_row)).ravel()
    parts: list[np.ndarray] = []
    # A zero point makes activations 9 bits.
    chunk = 1 if i.align else max(1, (_EXACT_TERMS // 2 if i.zero else _EXACT_TERMS) // n)
    for low in range(0, a_step.size, chunk):
        part = slice(low, low + chunk)
        valid = inside(y_row[:, None] + y[part], i.h) & inside(x_row[:, None] + x[part], i.w)
        a = _gather(memories, a_row[:, None] + a_step[part], valid, i.pad)
        b = memories.scratchpad[memories.vectors(b_word[:, None] + b_step[part])]
        left = a.reshape(a_row.size, -1).astype(np.float32) - np.float32(i.zero)
        right = b.reshape(b_word.size, -1).astype(np.float32)
        product = (left @ right.T).astype(np.int32)
        if parts and not i.align:
            parts[0] += product
        else:
            parts.append(product)
    return np.stack(parts).reshape(-1, a_row.size, len(tiles), n)


def _gather(memories: Memories, address: np.ndarray, valid: np.ndarray, pad: int) -> np.ndarray:
    """Scratchpad vectors, or `pad` where not `valid`; addresses that are not valid are not checked."""
    if valid.all():
        return memories.scratchpad[memories.vectors(address)]
    data = memories.scratchpad[memories.vectors(np.where(valid, address, 0))]
    data[~valid] = pad
    return data


EXECUTE: dict[Opcode, Callable[[Memories, Any], None]] = {
    Opcode.LOAD: load,
    Opcode.MM: mm,
    Opcode.VEC: vec,
    Opcode.STORE: store,
    Opcode.SOFTMAX: softmax,
    Opcode.NORMALISE: normalise,
    Opcode.TABLE: table,
}
