"""Requantisation of integers to values, which programs and networks share."""

from __future__ import annotations

import math

import numpy as np

from weft.extras.proof.programs.form import Form
from weft.extras.proof.programs.sums import INT32, Integers, Sums
from weft.extras.proof.programs.values import Values

_MAX_SHIFT = 63


def requantise(
    values: Values,
    sums: Sums,
    mantissa: Integers,
    shift: Integers,
    clamp: tuple[int, int, int],
    table: bytes = b"",
    second: Sums | None = None,
    source: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """Compute ``table[clamp(round_half_even((max(sums) * mantissa + second) / 2**shift) + zero)]`` like `isa.Vec`.

    Parameters
    ----------
    values : Values
    sums : Sums (rows, columns, set)
        Sums with their bias. Where they may overflow int32, results are unknown.
    mantissa, shift : int64 (columns,) or int
        Not negative.
    clamp : tuple of int
        Zero point, least and largest result.
    table : bytes
        Look-up table of results, 256 bytes, or none.
    second : Sums (rows, columns), optional
        Is added after the multiplication.
    source : tuple, optional
        Values, int64 (rows, columns), and integers (columns,), whose sums `sums` are. With them, the whole
        requantisation becomes a table of each column.

    Returns
    -------
    int64 (rows, columns)
    """
    columns = sums.low.shape[1]
    mantissas, shifts = (np.broadcast_to(np.asarray(item, np.int64), columns) for item in (mantissa, shift))
    if source is not None and second is None:
        numbers = np.arange(-128, 128) + source[1][:, None]
        # As tables, two roundings of a network equal one look-up of a program.
        if bool((np.abs(numbers) < INT32).all()):
            return values.apply_tables(source[0], _tables(numbers, mantissas, shifts, clamp, table))
    sums = values.limit_to_int32(sums)
    if second is None:
        # Common factors of two make equal functions of different mantissas equal forms.
        twos = np.minimum(_factors_of_two(mantissas), shifts)
        p, shifts = sums.times_constant((mantissas >> twos)[None, :, None]), shifts - twos
    else:
        p = sums.times_constant(mantissas[None, :, None]).plus(second.singletons)
    return values.apply_forms(p, [Form(int(places), *clamp, table) for places in shifts])


def _tables(
    numbers: np.ndarray, mantissa: np.ndarray, shift: np.ndarray, clamp: tuple[int, int, int], table: bytes
) -> np.ndarray:
    """Requantise integers (columns, 256), each column by its own scale."""
    products = numbers * mantissa[:, None]
    return np.stack(
        [Form(int(places), *clamp, table).apply(row) for row, places in zip(products, shift, strict=True)]
    )


def _factors_of_two(numbers: np.ndarray) -> np.ndarray:
    """Count the trailing zero bits of each number; 63 for 0."""
    lowest = numbers & -numbers
    return np.where(numbers == 0, 63, np.round(np.log2(np.maximum(lowest, 1))).astype(np.int64))


def quantise_scale(scale: float, bits: int) -> tuple[int, int]:
    """Return the mantissa and the shift nearest to a scale; the mantissa has `bits` bits, or fewer at the largest
    shift, 63."""
    if scale == 0:
        return 0, _MAX_SHIFT
    fraction, exponent = math.frexp(scale)
    mantissa, shift = round(fraction * (1 << bits)), bits - exponent
    if mantissa == 1 << bits:
        mantissa, shift = mantissa >> 1, shift - 1
    if shift > _MAX_SHIFT:
        return round(math.ldexp(scale, _MAX_SHIFT)), _MAX_SHIFT
    return mantissa, shift
