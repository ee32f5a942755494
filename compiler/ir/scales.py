"""Requantisation scales as the device holds them: an unsigned mantissa and a right shift."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.graph import CompileError

SHIFT_MAX = 63
"""Largest shift of a parameter word (`weft.hdl.isa.Vec`)."""


def quantise_scale(scale: float, bits: int = 24) -> tuple[int, int]:
    """(mantissa, shift) with ``scale`` ~ ``mantissa / 2**shift``, rounded to nearest.

    The mantissa has its top bit set (it lies in ``[2**(bits-1), 2**bits)``), except for scales so small that the
    shift would pass `SHIFT_MAX`: those are rounded at that shift, down to a mantissa of 0.

    Raises
    ------
    CompileError
        For a scale that is negative, not finite, or ``2**bits`` and more.
    """
    if not math.isfinite(scale) or scale < 0:
        raise CompileError(f"a requantisation scale must be a finite number of at least 0, not {scale!r}")
    if scale == 0:
        return 0, SHIFT_MAX
    fraction, exponent = math.frexp(scale)
    mantissa, shift = round(math.ldexp(fraction, bits)), bits - exponent
    if mantissa == 1 << bits:
        mantissa, shift = mantissa >> 1, shift - 1
    if shift > SHIFT_MAX:
        return round(math.ldexp(scale, SHIFT_MAX)), SHIFT_MAX
    if shift < 0:
        raise CompileError(f"requantisation scale {scale:.6g} is too large: mantissas have {bits} bits")
    return mantissa, shift


def quantise_scales(scales: np.ndarray | float, bits: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Mantissas and shifts of float64 `scales` of any shape, int64, as `quantise_scale` has each.

    Raises
    ------
    CompileError
        As there.
    """
    given = np.asarray(scales, np.float64).reshape(-1)
    fraction, exponent = np.frexp(given)
    mantissa, shift = np.rint(np.ldexp(fraction, bits)), bits - exponent.astype(np.int64)
    above = mantissa == 1 << bits
    mantissa, shift = np.where(above, mantissa / 2, mantissa), shift - above
    usual = (given > 0) & np.isfinite(given) & (shift >= 0) & (shift <= SHIFT_MAX)
    found = np.where(usual, mantissa, 0).astype(np.int64)
    for at in np.flatnonzero(~usual).tolist():
        found[at], shift[at] = quantise_scale(float(given[at]), bits)
    return found.reshape(np.shape(scales)), shift.reshape(np.shape(scales))


def negated(zero: int) -> list[int]:
    """The int8 numbers that add up to minus a zero point: none for 0, and two for the one whose negative is no int8."""
    if zero == -128:
        return [64, 64]
    return [-zero] if zero else []


def score_multiplier(octaves: float, bits: int = 24) -> tuple[int, int]:
    """(mantissa, shift) of the scores' multiplier: from `octaves` per unit to 1/128 octave (`weft.hdl.isa.Softmax`).

    Raises
    ------
    CompileError
        For a scale of the scores that is not positive and finite, or too large.
    """
    if not math.isfinite(octaves) or octaves <= 0:
        raise CompileError(f"the scale of attention scores must be a positive finite number, not {octaves!r}")
    return quantise_scale(128 * octaves, bits)


def normaliser(multiplier: float) -> tuple[int, int]:
    """(scale, exponent) of `weft.hdl.isa.Normalise` for a positive `multiplier`.

    Raises
    ------
    CompileError
        For a multiplier that is not positive and finite, or 2**22 and more.
    """
    if not math.isfinite(multiplier) or not 0 < multiplier < 1 << 22:
        raise CompileError(
            f"an output scale of softmax must be a positive number below 2**22, not {multiplier!r}"
        )
    fraction, exponent = math.frexp(multiplier)
    scale = round(math.ldexp(fraction, 16))
    if scale == 1 << 16:
        scale, exponent = scale >> 1, exponent + 1
    return scale, min(16 - exponent - 9, 63)


def quantise_pair(a: float, b: float, bits: int = 24) -> tuple[int, int, int]:
    """(mantissa of a, mantissa of b, shift): one shift for both, at which the larger has a full mantissa."""
    _, shift = quantise_scale(max(a, b), bits)
    mantissas = [round(math.ldexp(scale, shift)) for scale in (a, b)]
    if max(mantissas) >> bits:  # rounding up reached 2**bits only if quantise_scale lowered the shift already
        raise CompileError(f"requantisation scales {a:.6g} and {b:.6g} do not fit {bits}-bit mantissas")
    return mantissas[0], mantissas[1], shift
