"""Instructions of the VEC queue in numpy, and the numerics of softmax."""

from __future__ import annotations

import numpy as np

from weft.hdl.isa import Lookup, Normalise, Reduce, Softmax, Source, Table, Vec, VectorInstruction, config
from weft.hdl.isa.config import LOOKUP_ENTRIES
from weft.sim.device import DeviceError
from weft.sim.golden.memories import Memories, loops, round_half_even, rsh, within, wrap
from weft.sim.golden.units import executes

OCTAVE = 128
"""Steps per octave (factor of 2) in an octave logit, which has 7 fraction bits."""
LOWEST = -256
"""Smallest exponent: that of a group without valid logits, and the maximum of a row before its first valid logit."""
REACH = 2048
"""Distance from the maximum, in steps (16 octaves), from which probabilities are 0."""
SHIFT_MAX = 31
"""Largest shift between two exponents; it shifts all bits out of a 31-bit number."""


def octave_logits(
    scores: np.ndarray, bias: np.ndarray, mantissa: np.ndarray, shift: np.ndarray
) -> np.ndarray:
    """Return octave logits ``y`` of int32 scores.

    Parameters
    ----------
    scores : (..., N) integers, int32
    bias : (N,) int64, int32 values
        Added to the score modulo 2**32.
    mantissa, shift : (N,) int64
        Multiplier ``mantissa / 2**shift``, up to 24 and 6 bits unsigned. It includes the factor log2(e).

    Returns
    -------
    int64 (..., N) : Q8.7, rounded half to even, then saturated to int16.
    """
    product = wrap(scores.astype(np.int64) + bias) * mantissa
    return np.minimum(np.maximum(round_half_even(product, shift), -(1 << 15)), (1 << 15) - 1)


def group_exponents(y: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return exponents ``e`` of groups: the largest ``ceil(y / 128)`` of valid logits, else `LOWEST`.

    `y` and `valid` are (..., N); the exponents are int64 (...), from -256 to 256.
    """
    # The smallest logit is -256 octaves: it replaces masked logits.
    top = np.where(valid, y, LOWEST * OCTAVE).max(axis=-1)
    return -(-top // OCTAVE)


def probabilities(y: np.ndarray, valid: np.ndarray, e: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return probabilities ``p`` relative to ``2**e``: table entries by distance below e, or 0 from `REACH` on.

    Parameters
    ----------
    y, valid : (..., N)
        Octave logits and their mask; masked logits have probability 0.
    e : (...) int64
        Exponents, at least ``y / 128`` of every valid logit.
    table : uint8 (entries,), a power of two from 256 to 2048
        Entry i holds for distances from ``2048 / entries * i`` steps on.

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
    """Return the row state after one more group, and the group's alignment.

    Parameters
    ----------
    m, sums : int64
        Row state: maximum ``m``, and sum ``l`` with 8 fraction bits, 32 bits unsigned.
    e : int64
        Exponent of the group.
    total : int64
        Sum of the group's probabilities, at most ``255 * N``.

    Returns
    -------
    m, sums, alignment : int64
        The alignment is ``u - v``: a positive one shifts the accumulated sum, a negative one the group; ``u`` or ``v``
        is 0. Shifts round half up (`rsh`); the sum wraps modulo 2**32.
    """
    # Either the sum so far or the new group is shifted down to the larger exponent.
    largest = np.maximum(m, e)
    u, v = np.minimum(largest - m, SHIFT_MAX), np.minimum(largest - e, SHIFT_MAX)
    return largest, (rsh(sums, u) + rsh(256 * total, v)) & 0xFFFFFFFF, u - v


def final_alignment(m: np.ndarray, e: np.ndarray) -> np.ndarray:
    """Return the right shift (0 to 31) of a group with exponent `e`, given the final maximum `m` of its row."""
    return np.minimum(np.maximum(m - e, 0), SHIFT_MAX)


def reciprocal(sums: np.ndarray, scale: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of bits ``E`` (0 to 32) of row sums, and ``r``: `scale` divided by their top 17 bits.

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
    # float64 represents 32-bit integers exactly, and the exponent is their number of bits.
    bits = np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    top = (sums << np.maximum(17 - bits, 0)) >> np.maximum(bits - 17, 0)
    quotient = (scale << 16) // np.maximum(top, 1)
    return bits, np.where(sums == 0, 0, np.minimum(quotient, 65535))


def normalise_row(
    elements: np.ndarray,
    sums: np.ndarray,
    *,
    scale: int,
    exponent: int,
    v_zero: int,
    alignment: np.ndarray | int,
) -> np.ndarray:
    """Divide elements by the sums of their rows, rounding half to even, without zero point and saturation.

    Parameters
    ----------
    elements : (rows, vectors, N) integers
        int32 sums of probabilities times V, or probabilities.
    sums : (rows,) int64
        ``l``, 32 bits unsigned.
    scale, exponent, v_zero
        Fields of `weft.hdl.isa.Normalise`.
    alignment : (rows, vectors) integers, or 0
        Right shifts: 0 to 31 from `final_alignment`, or any value of the alignment memory.

    Returns
    -------
    int64 (rows, vectors, N) : about ``multiplier * (element - v_zero * l / 256) / (l / 256)``
    """
    bits, r = reciprocal(sums, scale)
    z = v_zero * rsh(sums, 8)
    shift = np.minimum(np.maximum(bits[:, None] + exponent + alignment, 0), 63)
    # z is the zero point of V times the sum of probabilities, which the product of probabilities and V contains.
    product = wrap(elements.astype(np.int64) - z[:, None, None]) * r[:, None, None]
    return round_half_even(product, shift[..., None])


_INT32_MIN = -(1 << 31)
# Elements that `vec` gathers at a time, which bounds its memory
_CHUNK = 1 << 22


@executes(Vec)
def vec(memories: Memories, i: Vec) -> None:
    """Execute `Vec`, whose docstring has the formula. ``p`` needs 57 bits, so int64 is exact."""
    mantissa, shift, bias = _parameters(memories, i)
    if i.b_mantissa >> memories.config.mantissa_bits:
        raise DeviceError(f"b_mantissa {i.b_mantissa} has more than {memories.config.mantissa_bits} bits")
    if i.multiply and not (i.add and i.source == Source.SCRATCHPAD and i.reduce == Reduce.NONE):
        raise DeviceError("'multiply' needs a second operand, a source in the scratchpad, and no reduction")
    dst = memories.addresses(i, "dst").ravel()
    second = memories.scratchpad[memories.addresses(i, "b").reshape(-1)] if i.add else None
    results = np.empty((dst.size, memories.config.n), np.int8)
    # All reads come before the first write, so results of chunks are collected.
    reduction = i.ry * i.rx if i.reduce else 1
    chunk = max(1, _CHUNK // (reduction * memories.config.n))
    for low in range(0, dst.size, chunk):
        part = slice(low, low + chunk)
        value = _reduce(memories, i, part)
        other = 0 if second is None else second[part].astype(np.int64) - i.b_zero
        if i.multiply:
            value = (value - i.pad) * other
        p = wrap(value + bias) * mantissa
        if not i.multiply:
            p += (-other if i.subtract else other) * i.b_mantissa
        results[part] = np.minimum(np.maximum(round_half_even(p, shift) + i.zero, i.low), i.high)
    if i.lookup:
        results = memories.lookup[int(memories.addresses(i, "table"))][results.astype(np.int64) + 128]
    memories.scratchpad[dst] = results


def _parameters(memories: Memories, i: Vec | Softmax) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mantissa (unsigned), shift (0 to 63) and bias (int32) of every column, as int64."""
    words = config.parameter_words(memories.scratchpad[memories.addresses(i, "params")])
    mantissa = config.MANTISSA.of(words)
    if int(mantissa.max()) >> memories.config.mantissa_bits:
        raise DeviceError(
            f"mantissa {int(mantissa.max())} has more than {memories.config.mantissa_bits} bits"
        )
    return mantissa, config.SHIFT.of(words), config.BIAS.of(words)


def _reduce(memories: Memories, i: Vec, part: slice) -> np.ndarray:
    """Return the maximum, the sum modulo 2**32, or (without reduction) the last element: int64 (outputs, N)."""
    if i.reduce not in set(Reduce):
        raise DeviceError(f"unknown reduction {i.reduce}; the reductions are 0 to {max(Reduce)}")
    operand, outputs, reduction = i.operand("src"), ("ob", "oy", "ox"), ("ry", "rx")
    elements = slice(None) if i.reduce else slice(-1, None)  # without reduction, the last iteration counts

    def spread(outer: list[tuple[int, int]], inner: list[tuple[int, int]]) -> np.ndarray:
        return loops(*outer).ravel()[part, None] + loops(*inner).ravel()[elements]

    nests = (operand.nest(i, memories.config, *names) for names in (outputs, reduction))
    address = operand.first(i) + spread(*nests)
    valid = np.ones(address.shape, bool)
    for bound in operand.bounds:
        valid &= within(i, bound, spread(bound.nest(i, *outputs), bound.nest(i, *reduction)))
    data = memories.cells(operand)[memories.check(operand, np.where(valid, address, 0))].astype(np.int64)
    data[~valid] = _INT32_MIN if i.reduce == Reduce.MAX else i.pad
    if i.reduce == Reduce.MAX:
        return data.max(axis=1)
    return wrap(data.sum(axis=1))


def _source(memories: Memories, i: VectorInstruction) -> np.ndarray:
    """Return the source of an instruction without reduction: int8 or int32 (ob, oy, ox, N)."""
    return memories.cells(i.operand("src"))[memories.addresses(i, "src")]


@executes(Softmax)
def softmax(memories: Memories, i: Softmax) -> None:
    """Execute `Softmax`. Only the row states depend on the order of groups."""
    if i.first and i.final:
        raise DeviceError("'first' starts row states anew, which 'final' only reads")
    mantissa, shift, bias = _parameters(memories, i)
    dst, alignments, states = (memories.addresses(i, name) for name in ("dst", "alignment", "state"))
    states = states.ravel()
    if np.unique(states).size != states.size:
        raise DeviceError(i.operand("state").clash)
    valid = np.broadcast_to(valid_columns(memories, i), (*dst.shape, memories.config.n))
    y = octave_logits(_source(memories, i), bias, mantissa, shift)
    e = group_exponents(y, valid)
    p = probabilities(y, valid, e, memories.table)
    if i.final:
        m = memories.maxima[states].reshape(i.oy, i.ox)
        memories.alignments[alignments] = final_alignment(m, e)
    else:
        memories.alignments[alignments] = _update_states(
            memories, i, states, e, p.sum(axis=-1, dtype=np.int64)
        )
    # With 9-bit activations, probabilities are stored minus 128 as signed bytes; MM's zero point adds 128 again.
    stored_less = 128 if memories.config.wide_activations else 0
    memories.scratchpad[dst] = (p - np.uint8(stored_less)).view(np.int8)


def _update_states(
    memories: Memories, i: Softmax, states: np.ndarray, e: np.ndarray, total: np.ndarray
) -> np.ndarray:
    """Update the row states group by group. Return the alignments (ob, oy, ox)."""
    m, sums = memories.maxima[states].astype(np.int64), memories.sums[states]
    if i.first:
        m[:], sums[:] = LOWEST, 0
    alignment = np.empty((i.ob, states.size), np.int64)
    e, total = e.reshape(alignment.shape), total.reshape(alignment.shape)
    for group in range(i.ob):
        m, sums, alignment[group] = update(m, sums, e[group], total[group])
    memories.maxima[states], memories.sums[states] = m, sums
    return alignment.reshape(i.ob, i.oy, i.ox)


def valid_columns(memories: Memories, i: Softmax) -> np.ndarray:
    """Return a mask of the columns that are not masked out: bool (ob, oy or 1, ox or 1, N)."""
    # Relative lengths count from a register, which holds the number of keys so far.
    start = memories.register(i.register) if i.relative else 0
    length, diagonal = (_int16(field + start) for field in (i.length, i.diagonal))
    column = np.arange(i.ob * memories.config.n).reshape(i.ob, 1, 1, -1)
    valid = column < length
    if i.causal:
        valid = valid & (column <= diagonal + np.arange(i.ox)[:, None])
    return valid


def _int16(value: int) -> int:
    """Return `value` modulo 2**32 as int32, then clamped to int16."""
    value = ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
    return min(max(value, -(1 << 15)), (1 << 15) - 1)


@executes(Normalise)
def normalise(memories: Memories, i: Normalise) -> None:
    """Execute `Normalise`. ``(e - z) * r`` needs 48 bits, so int64 is exact."""
    dst, states = memories.addresses(i, "dst"), memories.addresses(i, "state").ravel()
    elements = _source(memories, i).reshape(states.size, i.ox, -1).astype(np.int64)
    if i.source == Source.SCRATCHPAD and memories.config.wide_activations:
        elements += 128
    alignment: np.ndarray | int = 0
    if i.scaled:
        alignment = memories.alignments[memories.addresses(i, "alignment")].reshape(states.size, i.ox)
    quotient = normalise_row(
        elements,
        memories.sums[states],
        scale=i.scale,
        exponent=i.exponent,
        v_zero=i.v_zero,
        alignment=alignment,
    )
    result = np.minimum(np.maximum(quotient + i.zero, i.low), i.high).astype(np.int8)
    memories.scratchpad[dst.reshape(states.size, i.ox)] = result


@executes(Table)
def table(memories: Memories, i: Table) -> None:
    """Execute `Table`: copy bytes into the table of probabilities."""
    vectors = memories.scratchpad[memories.addresses(i, "src")]
    if vectors.size > memories.table.size:
        raise DeviceError(f"{vectors.size} entries do not fit the table of {memories.table.size}")
    memories.table[: vectors.size] = vectors.view(np.uint8).ravel()


@executes(Lookup)
def lookup(memories: Memories, i: Lookup) -> None:
    """Execute `Lookup`: copy bytes into a look-up table."""
    entries = memories.scratchpad[memories.addresses(i, "src")].ravel()
    if i.entry + entries.size > LOOKUP_ENTRIES:
        raise DeviceError(f"{entries.size} entries from {i.entry} on do not fit a look-up table")
    memories.lookup[int(memories.addresses(i, "table"))][i.entry : i.entry + entries.size] = entries
