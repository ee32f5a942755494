"""What each instruction computes, in numpy: one function an opcode, on the device's memories.

Instructions execute as a whole: all reads come before all writes. Where one instruction writes an address
twice, the last iteration of its loops wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.hdl.config import Config
from weft.hdl.isa import BASES, PARAMETER_VECTORS, Load, Mm, Opcode, Reduce, Source, Store, Vec
from weft.sim.device import DeviceError

_INT32_MIN = -(1 << 31)
_EXACT_TERMS = 1024
"""int8 products that float32 adds exactly in any order: 1024 * 2**14 = 2**24."""
_CHUNK = 1 << 22
"""Elements that `vec` gathers at a time, to bound its memory."""


class Memories:
    """DRAM (uint8), scratchpad (int8 vectors), accumulator (int32 rows) and base registers; zero at first."""

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self.config = config
        self.dram = np.zeros(memory_bytes, np.uint8)
        self.scratchpad = np.zeros((config.scratchpad_size, config.n), np.int8)
        self.accumulator = np.zeros((config.accumulator_size, config.n), np.int32)
        self.bases = [0] * BASES

    def dram_range(self, address: int, size: int) -> np.ndarray:
        """A view of DRAM bytes. Raises `DeviceError` if they do not lie inside memory."""
        if not (address >= 0 and size >= 0 and address + size <= self.dram.size):
            raise DeviceError(
                f"{size} bytes at DRAM address {address:#x} leave the memory of {self.dram.size} bytes"
            )
        return self.dram[address : address + size]

    def vectors(self, address: np.ndarray) -> np.ndarray:
        """`address` modulo 2**16, checked to be scratchpad vectors."""
        return _checked(address, self.config.scratchpad_size, "scratchpad")

    def rows(self, address: np.ndarray) -> np.ndarray:
        """`address` modulo 2**16, checked to be accumulator rows."""
        return _checked(address, self.config.accumulator_size, "accumulator")


def _checked(address: np.ndarray, size: int, name: str) -> np.ndarray:
    address = address & 0xFFFF
    if address.size and int(address.max()) >= size:
        raise DeviceError(f"{name} address {int(address.max())} is outside its {size} rows")
    return address


def _loops(start: int, *loops: tuple[int, int]) -> np.ndarray:
    """``start + i*stride_i + ...`` for nested loops (count, stride), outermost first; int64, an axis each."""
    total = np.array(start, np.int64)
    for count, stride in loops:
        total = total[..., None] + np.arange(count, dtype=np.int64) * stride
    return total


def _inside(coordinate: np.ndarray, bound: int) -> np.ndarray:
    """Whether coordinates, as 16-bit two's complement, lie in [0, bound)."""
    coordinate = coordinate & 0xFFFF
    return (coordinate < 0x8000) & (coordinate < bound)


def load(memories: Memories, i: Load) -> None:
    """`Load`: bytes are copied. All ``run`` bytes of a row must lie in memory, even if pixels need fewer."""
    n = memories.config.n
    vectors = -(-i.length // n)
    needed = (i.pixels - 1) * i.pitch + i.length
    take = max(0, min(i.run, needed - i.before))
    rows = np.full((i.rows, needed), i.fill & 0xFF, np.uint8)
    start = memories.bases[i.base] + i.offset
    for row in range(i.rows):
        source = memories.dram_range((start + row * i.row_pitch) & 0xFFFFFFFF, i.run)
        rows[row, i.before : i.before + take] = source[:take]
    shape, steps = (i.rows, i.pixels, i.length), (rows.strides[0], i.pitch, 1)
    pixels = np.lib.stride_tricks.as_strided(rows, shape, steps, writeable=False)
    data = np.full((i.rows, i.pixels, vectors * n), i.fill & 0xFF, np.uint8)
    data[:, :, : i.length] = pixels
    address = _loops(i.dst, (i.rows, i.dst_row), (i.pixels, i.dst_pixel), (vectors, i.dst_vector))
    memories.scratchpad[memories.vectors(address).ravel()] = data.view(np.int8).reshape(-1, n)


def store(memories: Memories, i: Store) -> None:
    """`Store`: rows in order, pixels in order within a row."""
    if i.pixels > 1 and i.pitch < i.length:
        raise DeviceError(f"pitch {i.pitch} is less than length {i.length}, so pixels overlap")
    vectors = -(-i.length // memories.config.n)
    address = _loops(i.src, (i.rows, i.src_row), (i.pixels, i.src_pixel), (vectors, i.src_vector))
    data = memories.scratchpad[memories.vectors(address)].view(np.uint8).reshape(i.rows, i.pixels, -1)
    start = memories.bases[i.base] + i.offset
    extent = (i.pixels - 1) * i.pitch + i.length
    for row in range(i.rows):
        target = memories.dram_range((start + row * i.row_pitch) & 0xFFFFFFFF, extent)
        pixels = np.lib.stride_tricks.as_strided(target, (i.pixels, i.length), (i.pitch, 1))
        pixels[:] = data[row, :, : i.length]


def mm(memories: Memories, i: Mm) -> None:
    """`Mm`: products and sums are exact integers, the accumulator wraps modulo 2**32 (two's complement).

    All contraction steps of one ``nt`` go to the same rows of C: adding them first and writing once is the same.
    """
    rows = memories.rows(_loops(i.c, (i.nt, i.c_nt), (i.oy, i.c_oy), (i.ox, i.c_ox)).reshape(i.nt, -1))
    if np.unique(rows[0]).size != rows[0].size:
        raise DeviceError("two rows of A in a tile add to one accumulator row")
    together = i.a_nt == 0
    for first in range(0, 1 if together else i.nt):
        tiles = range(i.nt) if together else range(first, first + 1)
        sums = _product(memories, i, tiles)
        for tile in tiles:
            part = sums[:, tile - tiles.start]
            if i.accumulate:
                memories.accumulator[rows[tile]] += part
            else:
                memories.accumulator[rows[tile]] = part


def _product(memories: Memories, i: Mm, tiles: range) -> np.ndarray:
    """int32 (rows, tiles, N): the sum over all contraction steps, for output tiles that share their A."""
    n = memories.config.n
    steps = (i.ky, i.kx, i.kc)
    a_step = _loops(i.a + tiles.start * i.a_nt, (i.ky, i.a_ky), (i.kx, i.a_kx), (i.kc, i.a_kc)).ravel()
    a_row = _loops(0, (i.oy, i.a_oy), (i.ox, i.a_ox)).ravel()
    y = np.broadcast_to(_loops(i.y, (i.ky, i.y_ky))[:, None, None], steps).ravel()
    x = np.broadcast_to(_loops(i.x, (i.kx, i.x_kx))[None, :, None], steps).ravel()
    y_row = np.repeat(_loops(0, (i.oy, i.y_oy)), i.ox)
    x_row = np.tile(_loops(0, (i.ox, i.x_ox)), i.oy)
    b_step = _loops(i.b, (i.ky, i.b_ky), (i.kx, i.b_kx), (i.kc, i.b_kc)).ravel()
    b_word = _loops(tiles.start * i.b_nt, (len(tiles), i.b_nt), (n, i.b_row)).ravel()
    total = np.zeros((a_row.size, b_word.size), np.int32)
    chunk = max(1, _EXACT_TERMS // n)
    for low in range(0, a_step.size, chunk):
        part = slice(low, low + chunk)
        valid = _inside(y_row[:, None] + y[part], i.h) & _inside(x_row[:, None] + x[part], i.w)
        a = _gather(memories, a_row[:, None] + a_step[part], valid, i.pad)
        b = memories.scratchpad[memories.vectors(b_word[:, None] + b_step[part])]
        left = a.reshape(a_row.size, -1).astype(np.float32)
        right = b.reshape(b_word.size, -1).astype(np.float32)
        total += (left @ right.T).astype(np.int32)
    return total.reshape(a_row.size, len(tiles), n)


def _gather(memories: Memories, address: np.ndarray, valid: np.ndarray, pad: int) -> np.ndarray:
    """Scratchpad vectors, or `pad` where not `valid`; addresses that are not valid are not checked."""
    if valid.all():
        return memories.scratchpad[memories.vectors(address)]
    data = memories.scratchpad[memories.vectors(np.where(valid, address, 0))]
    data[~valid] = pad
    return data


def vec(memories: Memories, i: Vec) -> None:
    """`Vec`: see there for the formula. ``p`` needs 57 bits and is exact in int64; halves go to the even."""
    mantissa, shift, bias = _parameters(memories, i)
    if i.b_mantissa >> memories.config.mantissa_bits:
        raise DeviceError(f"b_mantissa {i.b_mantissa} has more than {memories.config.mantissa_bits} bits")
    outputs = (i.ob, i.oy, i.ox)
    ob, oy, ox = (part.ravel() for part in np.indices(outputs, np.int64))
    dst = memories.vectors(i.dst + ob * i.dst_ob + oy * i.dst_oy + ox * i.dst_ox)
    results = np.empty((dst.size, memories.config.n), np.int8)
    reduction = i.ry * i.rx if i.reduce else 1
    chunk = max(1, _CHUNK // (reduction * memories.config.n))
    for low in range(0, dst.size, chunk):
        part = slice(low, low + chunk)
        value = _reduced(memories, i, ob[part], oy[part], ox[part]) + bias
        p = _wrap(value) * mantissa
        if i.add:
            b = memories.vectors(i.b + ob[part] * i.b_ob + oy[part] * i.b_oy + ox[part] * i.b_ox)
            p += (memories.scratchpad[b].astype(np.int64) - i.b_zero) * i.b_mantissa
        results[part] = np.minimum(np.maximum(round_half_even(p, shift) + i.zero, i.low), i.high)
    memories.scratchpad[dst] = results


def _parameters(memories: Memories, i: Vec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mantissa (unsigned), shift (0 to 63) and bias (int32) of every column, as int64."""
    address = memories.vectors(_loops(i.params, (PARAMETER_VECTORS, 1)))
    data = memories.scratchpad[address].view(np.uint8).astype(np.int64)
    bias = _wrap(data[0] | data[1] << 8 | data[2] << 16 | data[3] << 24)
    mantissa = data[4] | data[5] << 8 | data[6] << 16
    if int(mantissa.max()) >> memories.config.mantissa_bits:
        raise DeviceError(
            f"mantissa {int(mantissa.max())} has more than {memories.config.mantissa_bits} bits"
        )
    return mantissa, data[7] & 63, bias


def _reduced(memories: Memories, i: Vec, ob: np.ndarray, oy: np.ndarray, ox: np.ndarray) -> np.ndarray:
    """int64 (outputs, N): the only (last) element, the maximum, or the sum modulo 2**32 of each output."""
    if i.reduce not in set(Reduce):
        raise DeviceError(f"unknown reduction {i.reduce}; the reductions are 0 to {max(Reduce)}")
    ry, rx = (part.ravel() for part in np.indices((i.ry, i.rx), np.int64))
    if i.reduce == Reduce.NONE:
        ry, rx = ry[-1:], rx[-1:]
    start = i.src + ob * i.src_ob + oy * i.src_oy + ox * i.src_ox
    address = start[:, None] + (ry * i.src_ry + rx * i.src_rx)
    valid = _inside((i.y + oy * i.y_oy)[:, None] + ry * i.y_ry, i.h)
    valid &= _inside((i.x + ox * i.x_ox)[:, None] + rx * i.x_rx, i.w)
    memory = memories.scratchpad if i.source == Source.SCRATCHPAD else memories.accumulator
    check = memories.vectors if i.source == Source.SCRATCHPAD else memories.rows
    data = memory[check(np.where(valid, address, 0))].astype(np.int64)
    data[~valid] = _INT32_MIN if i.reduce == Reduce.MAX else i.pad
    if i.reduce == Reduce.MAX:
        return data.max(axis=1)
    return _wrap(data.sum(axis=1))


def _wrap(value: np.ndarray) -> np.ndarray:
    """`value` modulo 2**32 as two's complement, in int64."""
    return ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def round_half_even(p: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """``p / 2**shift`` rounded to the nearest, halves to the even; int64, exact for shifts 0 to 63.

    The remainder is compared instead of adding a half first, so that nothing overflows.
    """
    one = np.int64(1)
    low = p >> shift
    # 2**63 - 1 is the mask for shift 63: the shift wraps to the smallest int64, and less 1 to the largest.
    with np.errstate(over="ignore"):
        rest = p & ((one << shift) - one)
    half = np.where(shift > 0, one << np.maximum(shift - 1, 0), one)
    return low + ((rest > half) | ((rest == half) & (low & 1 == 1)))


EXECUTE: dict[Opcode, Callable[[Memories, Any], None]] = {
    Opcode.LOAD: load,
    Opcode.MM: mm,
    Opcode.VEC: vec,
    Opcode.STORE: store,
}
