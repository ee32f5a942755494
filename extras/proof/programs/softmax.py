"""The numerics of softmax (`weft.hdl.isa.Softmax`, `weft.hdl.isa.Normalise`) on numbers, for programs and networks.

What of it is no polynomial are functions: octave logits of scores, exponents of groups, probabilities of distances,
shifts, and quotients. Shapes are those of `weft.sim.golden.vector`, which has the same on integers.
"""

from __future__ import annotations

import numpy as np

from weft.extras.proof.programs.registers import Register, larger, largest_of
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.symbols import Symbols
from weft.sim.golden import vector as numerics
from weft.sim.golden.vector import LOWEST, OCTAVE, REACH, SHIFT_MAX

FRACTION = 256
"""A probability of 1 in the sum of a row."""
_UNSIGNED = 1 << 32


def octave_logits(
    symbols: Symbols, scores: Sums, bias: np.ndarray, mantissa: np.ndarray, shift: np.ndarray
) -> Sums:
    """Octave logits of scores (..., N), int32, each column by its own bias (N,), mantissa and shift."""
    p = symbols.word(scores.shifted(bias)).scaled(mantissa)
    made = None
    for places in np.unique(shift):
        part = symbols.saturated(symbols.rounded(p, int(places), floor=False), -(1 << 15), (1 << 15) - 1)
        some = np.broadcast_to(shift == places, p.low.shape)
        made = part if made is None else symbols.where(some, part, made)
    assert made is not None
    return made


def group_exponents(symbols: Symbols, y: Sums, valid: np.ndarray) -> Sums:
    """Exponents (...) of groups of octave logits (..., N)."""
    top = largest_of(symbols, Register(y), y.low.ndim - 1, valid).number[..., 0]
    least = LOWEST * OCTAVE
    top = symbols.where(np.asarray(valid.any(axis=-1)), top, symbols.integers(least, top.low.shape))

    def of(number: np.ndarray) -> np.ndarray:
        return np.asarray(-(-number // OCTAVE))

    return symbols.function("octaves", [top], of(top.low), of(top.high), of)


def probabilities(symbols: Symbols, y: Sums, valid: np.ndarray, e: Sums, table: bytes) -> Sums:
    """Probabilities (..., N), from 0 to 255, by a table of powers of two."""
    entries = np.append(np.frombuffer(table, np.uint8), np.uint8(0)).astype(np.int64)
    step = REACH // len(table)

    def of(distance: np.ndarray) -> np.ndarray:
        return np.asarray(entries[np.clip(distance, 0, REACH) // step])

    exponent = e.scaled(OCTAVE).reshape(*e.low.shape, 1).spread(y.low.shape)
    low, high = 0, int(entries.max())
    made = symbols.function(f"power {table.hex()}", [symbols.difference(exponent, y)], low, high, of)
    return symbols.where(valid, made, symbols.integers(0, y.low.shape))


def update(symbols: Symbols, m: Sums, sums: Sums, e: Sums, p: Sums) -> tuple[Sums, Sums, Sums]:
    """Maxima and sums of rows behind a group of probabilities (..., N), and what sums of products are aligned by."""
    largest = larger(symbols, Register(m), Register(e)).number
    u, v = (_at_most(symbols, symbols.difference(largest, item).ranging(*_POSITIVE)) for item in (m, e))
    total = symbols.rsh(p.total(-1).scaled(FRACTION), v)
    sums = symbols.rsh(sums, u).plus(total)
    over = sums.high >= _UNSIGNED
    if over.any():
        wrapped = symbols.function("unsigned 32", [sums], 0, _UNSIGNED - 1, lambda a: a & (_UNSIGNED - 1))
        sums = symbols.where(over, wrapped, sums)
    return largest, sums, symbols.difference(u, v)


_POSITIVE = 0, 1 << 31


def _at_most(symbols: Symbols, distance: Sums) -> Sums:
    return symbols.saturated(distance, 0, SHIFT_MAX)


def final_alignment(symbols: Symbols, m: Sums, e: Sums) -> Sums:
    """Places that a group's probabilities are shifted by once the maximum of their row is known."""
    return symbols.saturated(symbols.difference(m, e), 0, SHIFT_MAX)


def aligned(symbols: Symbols, before: Sums, part: Sums, alignment: Sums) -> Sums:
    """Sums of products with those of one more group added, all of one shape: one of both is shifted to the other."""
    up = alignment.low >= 0
    down = ~up & (alignment.high <= 0)
    nothing = part.constant & (part.low == 0) & (before.constant & (before.low == 0))
    made = before.plus(part)
    mixed = ~up & ~down & ~nothing
    places = 0, SHIFT_MAX
    if bool((up & (alignment.high > 0)).any()):
        made = symbols.where(up, symbols.rsh(before, alignment.ranging(*places)).plus(part), made)
    if bool((down & (alignment.low < 0)).any()):
        made = symbols.where(
            down, before.plus(symbols.rsh(part, alignment.scaled(-1).ranging(*places))), made
        )
    if mixed.any():
        low = np.minimum(before.low, 0) + np.minimum(part.low, 0)
        high = np.maximum(before.high, 0) + np.maximum(part.high, 0)
        other = symbols.function("aligned", [before, part, alignment], low, high, _aligned)
        made = symbols.where(mixed, other, made)
    return symbols.values.bounded(made)


def _aligned(before: np.ndarray, part: np.ndarray, alignment: np.ndarray) -> np.ndarray:
    u, v = np.maximum(alignment, 0), np.maximum(-alignment, 0)
    return np.asarray(numerics.rsh(before, u) + numerics.rsh(part, v))


def normalised(
    symbols: Symbols,
    elements: Sums,
    sums: Sums,
    alignment: Sums | None,
    scale: int,
    exponent: int,
    v_zero: int,
) -> Sums:
    """Elements (rows, vectors, N) divided by sums (rows,), with alignments (rows, vectors) of their own."""
    shape = elements.low.shape
    z = symbols.rsh(sums, symbols.integers(8, sums.low.shape)).scaled(v_zero)
    distance = symbols.word(symbols.difference(elements, z.reshape(-1, 1, 1).spread(shape)))
    given = [distance, sums.reshape(-1, 1, 1).spread(shape)]
    if alignment is not None:
        given.append(alignment.reshape(*shape[:2], 1).spread(shape))

    def of(e: np.ndarray, total: np.ndarray, more: np.ndarray | None = None) -> np.ndarray:
        flat = 0 if more is None else more.reshape(-1, 1)
        return numerics.normalise_row(
            e.reshape(-1, 1, 1), total.reshape(-1), scale=scale, exponent=exponent, v_zero=0, alignment=flat
        ).reshape(e.shape)

    low, high = _quotient_ends(distance, exponent, scale)
    return symbols.function(f"divide {scale} {exponent}", given, low, high, of)


def _quotient_ends(distance: Sums, exponent: int, scale: int) -> tuple[np.ndarray, np.ndarray]:
    """Quotients have the sign of what is divided, and are below 2**47."""
    most = np.int64(1 << 47)
    return np.where(distance.low >= 0, 0, -most), np.where(distance.high <= 0, 0, most)
