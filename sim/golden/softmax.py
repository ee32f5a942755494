"""The numerics of softmax and fused attention, step by step, in numpy: what `weft.hdl.isa.Softmax` and
`weft.hdl.isa.Normalise` compute on arrays of any shape, without addresses.

Scores become *octave logits* ``y``, logarithms to base 2 in Q8.7. Every group of N of them gets an exponent ``e``, in
octaves, that is at least its maximum and less than one above, and 7- or 8-bit probabilities relative to
``2**e``: block floating point, so that a group far below the maximum of its row keeps its precision. A row's
state is the largest exponent ``m`` so far and the sum ``l`` of its probabilities relative to ``2**m``, with 8 fraction
bits. Arithmetic is on integers and exact; each rounding is named.

The running maximum and sum are those of M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax"
(2018), arXiv:1805.02867; attention without a matrix of probabilities in memory is that of T. Dao et al.,
"FlashAttention" (2022), arXiv:2205.14135.
"""

from __future__ import annotations

import numpy as np

from weft.sim.golden.arithmetic import round_half_even, rsh, wrap

OCTAVE = 128
"""Steps of an octave logit in an octave: 7 fraction bits."""
LOWEST = -256
"""Exponent of a group without valid logits, and maximum of a row that has seen none: smallest exponent there is."""
REACH = 2048
"""Distance, in steps, from which a probability is 0: 16 octaves."""
SHIFT_MAX = 31
"""Largest shift between two exponents; it leaves nothing of 31 bits."""


def octave_logits(
    scores: np.ndarray, bias: np.ndarray, mantissa: np.ndarray, shift: np.ndarray
) -> np.ndarray:
    """Octave logits ``y`` of int32 scores.

    Parameters
    ----------
    scores : (..., N) integers, int32
    bias : (N,) int64, int32 values
        Added to the score modulo 2**32.
    mantissa, shift : (N,) int64
        Multiplier ``mantissa / 2**shift``, up to 24 and 6 bits unsigned. log2(e) is part of it.

    Returns
    -------
    int64 (..., N) : Q8.7, rounded half to even, then saturated to int16.
    """
    product = wrap(scores.astype(np.int64) + bias) * mantissa
    return np.minimum(np.maximum(round_half_even(product, shift), -(1 << 15)), (1 << 15) - 1)


def group_exponents(y: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Exponents ``e`` of groups: the largest ``ceil(y / 128)`` of valid logits, `LOWEST` if there is none.

    (..., N) int64 octave logits and their masks to (...) int64 from -256 to 256.
    """
    # The smallest logit is -256 octaves, so it stands for masked ones.
    top = np.where(valid, y, LOWEST * OCTAVE).max(axis=-1)
    return -(-top // OCTAVE)


def probabilities(y: np.ndarray, valid: np.ndarray, e: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Probabilities ``p`` relative to ``2**e``: the table's entry for the distance below e, 0 from 16 octaves on.

    Parameters
    ----------
    y, valid : (..., N)
        Octave logits and their mask; masked ones have probability 0.
    e : (...) int64
        Exponents, not below ``y / 128`` of valid logits.
    table : uint8, a power of two from 256 to 2048 of entries
        Entry i for distances of ``2048 / entries * i`` steps on.

    Returns
    -------
    uint8 (..., N)
    """
    distance = np.where(valid, OCTAVE * e[..., None] - y, REACH)
    entry = np.minimum(distance, REACH) // (REACH // table.size)
    return np.append(table, np.uint8(0))[entry]


def update(
    m: np.ndarray, sums: np.ndarray, e: np.ndarray, total: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The row state behind one group, and what the group is to be aligned by.

    Parameters
    ----------
    m, sums : int64
        Row state: maximum ``m``, and sum ``l`` with 8 fraction bits, 32 bits unsigned.
    e : int64
        The group's exponent.
    total : int64
        The sum of its probabilities, at most ``255 * N``.

    Returns
    -------
    m, sums, alignment : int64
        The alignment is ``u - v``: positive to shift what was accumulated before, negative to shift the group. One of
        the two is 0. Shifts round half up (`rsh`); the sum wraps modulo 2**32.
    """
    largest = np.maximum(m, e)
    u, v = np.minimum(largest - m, SHIFT_MAX), np.minimum(largest - e, SHIFT_MAX)
    return largest, (rsh(sums, u) + rsh(256 * total, v)) & 0xFFFFFFFF, u - v


def final_alignment(m: np.ndarray, e: np.ndarray) -> np.ndarray:
    """The shift to the right of a group with exponent `e`, once the maximum `m` of its row is known: 0 to 31."""
    return np.minimum(np.maximum(m - e, 0), SHIFT_MAX)


def reciprocal(sums: np.ndarray, scale: int) -> tuple[np.ndarray, np.ndarray]:
    """Bits ``E`` (0 to 32) of row sums, and ``r``: `scale` divided by their top 17 bits.

    Parameters
    ----------
    sums : int64
        ``l``, 32 bits unsigned.
    scale : int
        2**15 to 2**16 - 1.

    Returns
    -------
    E : int64
    r : int64
        ``floor(scale * 2**16 / t)``, at most 65535, with ``t = l << (17 - E)`` (or the shift right); 0 if l is 0.
    """
    # Exact, since a 32-bit integer is a float64, whose exponent is its number of bits.
    bits = np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    top = (sums << np.maximum(17 - bits, 0)) >> np.maximum(bits - 17, 0)
    quotient = (scale << 16) // np.maximum(top, 1)
    return bits, np.where(sums == 0, 0, np.minimum(quotient, 65535))


def normalise(
    elements: np.ndarray,
    sums: np.ndarray,
    *,
    scale: int,
    exponent: int,
    v_zero: int,
    alignment: np.ndarray | int,
) -> np.ndarray:
    """Elements divided by the sums of their rows, rounded half to even; not yet with zero point or saturated.

    Parameters
    ----------
    elements : (rows, vectors, N) integers
        int32 sums of probabilities times V, or probabilities.
    sums : (rows,) int64
        ``l``, 32 bits unsigned.
    scale, exponent, v_zero
        Fields of `weft.hdl.isa.Normalise`.
    alignment : (rows, vectors) integers, or 0
        0 to 31 from `final_alignment`, or any of the memory.

    Returns
    -------
    int64 (rows, vectors, N) : about ``multiplier * (element - v_zero * l / 256) / (l / 256)``
    """
    bits, r = reciprocal(sums, scale)
    z = v_zero * rsh(sums, 8)
    shift = np.minimum(np.maximum(bits[:, None] + exponent + alignment, 0), 63)
    product = wrap(elements.astype(np.int64) - z[:, None, None]) * r[:, None, None]
    return round_half_even(product, shift[..., None])
