"""Numerics of softmax (`weft.hdl.isa.Softmax`, `weft.hdl.isa.Normalise`) on integers of a proof.

`weft.sim.golden.vector` defines each step, with equal shapes. Programs and networks share this module.
"""

from __future__ import annotations

import numpy as np

from weft.extras.proof.programs.registers import Register, maximum, row_maximum
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.symbols import Symbols
from weft.sim.golden import vector as numerics
from weft.sim.golden.vector import LOWEST, OCTAVE, REACH, SHIFT_MAX

FRACTION = 256
"""Weight of a probability in the sum of its row."""
_UINT32 = 1 << 32


def octave_logits(
    symbols: Symbols, scores: Sums, bias: np.ndarray, mantissa: np.ndarray, shift: np.ndarray
) -> Sums:
    """Return octave logits of scores (..., N), int32, with bias, mantissa and shift of each column, int64 (N,)."""
    p = symbols.to_int32(scores.plus_constant(bias)).times_constant(mantissa)
    logits = None
    for places in np.unique(shift):
        part = symbols.clamp(symbols.shift_right(p, int(places), floor=False), -(1 << 15), (1 << 15) - 1)
        some = np.broadcast_to(shift == places, p.low.shape)
        logits = part if logits is None else symbols.where(some, part, logits)
    assert logits is not None
    return logits


def group_exponents(symbols: Symbols, y: Sums, valid: np.ndarray) -> Sums:
    """Return the exponents (...) of groups of octave logits (..., N)."""
    top = row_maximum(symbols, Register(y), y.low.ndim - 1, valid).number[..., 0]
    least = LOWEST * OCTAVE
    top = symbols.where(np.asarray(valid.any(axis=-1)), top, symbols.integers(least, top.low.shape))

    def octaves(number: np.ndarray) -> np.ndarray:
        return np.asarray(-(-number // OCTAVE))

    return symbols.function("octaves", [top], octaves(top.low), octaves(top.high), octaves)


def probabilities(symbols: Symbols, y: Sums, valid: np.ndarray, e: Sums, table: bytes) -> Sums:
    """Return probabilities (..., N), from 0 to 255, with a table of powers of two."""
    entries = np.append(np.frombuffer(table, np.uint8), np.uint8(0)).astype(np.int64)
    step = REACH // len(table)

    def power(distance: np.ndarray) -> np.ndarray:
        return np.asarray(entries[np.clip(distance, 0, REACH) // step])

    distance = symbols.difference(e.times_constant(OCTAVE).singletons.broadcast_to(y.low.shape), y)
    powers = symbols.function(f"power {table.hex()}", [distance], 0, int(entries.max()), power)
    return symbols.where(valid, powers, symbols.integers(0, y.low.shape))


def update(symbols: Symbols, m: Sums, sums: Sums, e: Sums, p: Sums) -> tuple[Sums, Sums, Sums]:
    """Add a group of probabilities (..., N) to row states; return maxima, sums and the alignment, each (...)."""
    largest = maximum(symbols, Register(m), Register(e)).number
    # The larger of both is at least each, which the ranges of differences alone do not show.
    u, v = (
        symbols.clamp(symbols.difference(largest, item).narrow(0, 1 << 31), 0, SHIFT_MAX) for item in (m, e)
    )
    total = symbols.rsh(p.sum(-1).times_constant(FRACTION), v)
    sums = symbols.rsh(sums, u).plus(total)
    over = sums.high >= _UINT32
    if over.any():
        wrapped = symbols.function("unsigned 32", [sums], 0, _UINT32 - 1, lambda a: a & (_UINT32 - 1))
        sums = symbols.where(over, wrapped, sums)
    return largest, sums, symbols.difference(u, v)


def final_alignment(symbols: Symbols, m: Sums, e: Sums) -> Sums:
    """Return the right shift of a group's probabilities once the maximum of their row is final."""
    return symbols.clamp(symbols.difference(m, e), 0, SHIFT_MAX)


def add_aligned(symbols: Symbols, before: Sums, part: Sums, alignment: Sums) -> Sums:
    """Add one group's sums of products to earlier sums, all of equal shape.

    A positive alignment shifts the earlier sums to the right, a negative alignment the group's.
    """
    up = alignment.low >= 0
    down = ~up & (alignment.high <= 0)
    zero = part.constant & (part.low == 0) & (before.constant & (before.low == 0))
    result = before.plus(part)
    unknown_direction = ~up & ~down & ~zero
    places = 0, SHIFT_MAX
    if bool((up & (alignment.high > 0)).any()):
        result = symbols.where(up, symbols.rsh(before, alignment.narrow(*places)).plus(part), result)
    if bool((down & (alignment.low < 0)).any()):
        shifted = symbols.rsh(part, alignment.times_constant(-1).narrow(*places))
        result = symbols.where(down, before.plus(shifted), result)
    if unknown_direction.any():
        low = np.minimum(before.low, 0) + np.minimum(part.low, 0)
        high = np.maximum(before.high, 0) + np.maximum(part.high, 0)
        other = symbols.function("aligned", [before, part, alignment], low, high, _add_shifted)
        result = symbols.where(unknown_direction, other, result)
    return symbols.values.limit_to_int32(result)


def _add_shifted(before: np.ndarray, part: np.ndarray, alignment: np.ndarray) -> np.ndarray:
    u, v = np.maximum(alignment, 0), np.maximum(-alignment, 0)
    return np.asarray(numerics.rsh(before, u) + numerics.rsh(part, v))


def normalise(
    symbols: Symbols,
    elements: Sums,
    sums: Sums,
    alignment: Sums | None,
    scale: int,
    exponent: int,
    v_zero: int,
) -> Sums:
    """Divide elements (rows, vectors, N) by sums (rows,), with optional alignments (rows, vectors)."""
    shape = elements.low.shape
    z = symbols.rsh(sums, symbols.integers(8, sums.low.shape)).times_constant(v_zero)
    distance = symbols.to_int32(symbols.difference(elements, z.reshape(-1, 1, 1).broadcast_to(shape)))
    arguments = [distance, sums.reshape(-1, 1, 1).broadcast_to(shape)]
    if alignment is not None:
        arguments.append(alignment.reshape(*shape[:2], 1).broadcast_to(shape))

    def divide(e: np.ndarray, total: np.ndarray, alignments: np.ndarray | None = None) -> np.ndarray:
        flat = 0 if alignments is None else alignments.reshape(-1, 1)
        return numerics.normalise_row(
            e.reshape(-1, 1, 1), total.reshape(-1), scale=scale, exponent=exponent, v_zero=0, alignment=flat
        ).reshape(e.shape)

    # A quotient has the dividend's sign and is below 2**47.
    most = np.int64(1 << 47)
    low, high = np.where(distance.low >= 0, 0, -most), np.where(distance.high <= 0, 0, most)
    return symbols.function(f"divide {scale} {exponent}", arguments, low, high, divide)
