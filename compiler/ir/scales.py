"""Requantisation scales in the device's format: an unsigned mantissa and a right shift."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Rounding

SHIFT_MAX = 63
"""Largest shift of a parameter word (`weft.hdl.isa.Vec`)."""


def quantise_scale(scale: float, bits: int = 24) -> tuple[int, int]:
    """Return (mantissa, shift) with ``scale`` ~ ``mantissa / 2**shift``, rounded to nearest.

    The mantissa has its top bit set (it lies in ``[2**(bits-1), 2**bits)``), except for scales so small that the
    shift would exceed `SHIFT_MAX`: these are rounded at that shift, down to a mantissa of 0.

    Raises
    ------
    CompileError
        If the scale is negative, not finite, or ``2**bits`` and more.
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
    """Return int64 mantissas and shifts of float64 `scales` of any shape (see `quantise_scale`).

    Raises
    ------
    CompileError
        If `quantise_scale` would.
    """
    flat = np.asarray(scales, np.float64).reshape(-1)
    # As in `quantise_scale`, for arrays; unusual scales go through it one by one, also for its errors.
    fraction, exponent = np.frexp(flat)
    mantissa, shift = np.rint(np.ldexp(fraction, bits)), bits - exponent.astype(np.int64)
    above = mantissa == 1 << bits
    mantissa, shift = np.where(above, mantissa / 2, mantissa), shift - above
    # Zero, scales that underflow, and invalid scales.
    usual = (flat > 0) & np.isfinite(flat) & (shift >= 0) & (shift <= SHIFT_MAX)
    mantissas = np.where(usual, mantissa, 0).astype(np.int64)
    for at in np.flatnonzero(~usual).tolist():
        mantissas[at], shift[at] = quantise_scale(float(flat[at]), bits)
    return mantissas.reshape(np.shape(scales)), shift.reshape(np.shape(scales))


def negative_parts(zero: int) -> list[int]:
    """Return int8 numbers that add up to minus a zero point: none for 0, and two for -128."""
    if zero == -128:
        return [64, 64]
    return [-zero] if zero else []


def score_multiplier(octaves: float, bits: int = 24) -> tuple[int, int]:
    """Return the scores' multiplier as (mantissa, shift): from `octaves` per unit to 1/128 octave
    (`weft.hdl.isa.Softmax`).

    Raises
    ------
    CompileError
        If the scale of the scores is not positive and finite, or is too large.
    """
    if not math.isfinite(octaves) or octaves <= 0:
        raise CompileError(f"the scale of attention scores must be a positive finite number, not {octaves!r}")
    return quantise_scale(128 * octaves, bits)


def normaliser(multiplier: float) -> tuple[int, int]:
    """Return (scale, exponent) of `weft.hdl.isa.Normalise` for a positive `multiplier`.

    Raises
    ------
    CompileError
        If the multiplier is not positive and finite, or is 2**22 or more.
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
    """Return (mantissa of a, mantissa of b, shift) with one shift, at which the larger scale has a full mantissa."""
    _, shift = quantise_scale(max(a, b), bits)
    mantissas = [round(math.ldexp(scale, shift)) for scale in (a, b)]
    if max(mantissas) >> bits:  # rounding up reached 2**bits only if quantise_scale lowered the shift already
        raise CompileError(f"requantisation scales {a:.6g} and {b:.6g} do not fit {bits}-bit mantissas")
    return mantissas[0], mantissas[1], shift


LOGIT_OCTAVES = 256
"""Magnitude at which logits are clamped, in octaves (`weft.hdl.isa.Softmax`)."""
SCORE_CLAMP = LOGIT_OCTAVES * math.log(2)
"""Magnitude at which scores are clamped, in nats: 177."""
SCORE_REACH = 16 * math.log(2)
"""Nats below the largest score at which the device rounds probabilities to 0."""
SCALE_LIMIT = 1 << 15
"""Least scale that a 16-bit mantissa without a shift cannot hold."""


CALIBRATION_HEADROOM = 1.25
"""Allowed ratio of the largest scores to the largest in a calibration."""
NEGLIGIBLE_SHIFT = 64 * math.log(2)
"""Largest shift, in nats, that a zero point of K may add to all scores of a row; they are clamped at 177."""


def product_ends(q_zero: int, k_zero: int) -> tuple[int, int]:
    """Return the least and largest product of a query's and a key's element, int8 less their zero points."""
    products = [(q - q_zero) * (k - k_zero) for q in (-128, 127) for k in (-128, 127)]
    return min(products), max(products)


def k_zero_shift(k_zero: int, size: int, nats: float) -> float:
    """Return the most that K's zero point shifts all scores of a row, in nats; `nats` is the step of scores."""
    return abs(k_zero) * 255 * size * nats


@dataclass(frozen=True)
class ScoreRange:
    """Limits of scores before the device clamps a score with non-zero weight, in nats.

    Attributes
    ----------
    most : float
        Largest magnitude on the device that any int8 queries and keys produce.
    limit : float
        Largest magnitude on the device at which no score with weight is clamped.
    reach : float
        That limit for the model's scores: of the largest score of each row.
    """

    most: float
    limit: float
    reach: float

    @classmethod
    def of(cls, q_zero: int, k_zero: int, size: int, nats: float, more: int = 0) -> ScoreRange:
        """Return the range for heads of `size`, to which a mask of keys adds `more` elements; `nats` is the step of
        scores."""
        shift = k_zero_shift(k_zero, size + more, nats)
        # A small common shift of a row is left out on the device; it then narrows the range instead.
        left_out = shift <= NEGLIGIBLE_SHIFT
        most = max(map(abs, product_ends(q_zero, 0 if left_out else k_zero))) * size * nats
        if left_out:
            most += k_zero_shift(k_zero, more, nats)
        # Masked keys are clamped, and must stay without weight beside the largest of a row.
        limit = SCORE_CLAMP - (SCORE_REACH if more else 0)
        return cls(most, limit, SCORE_CLAMP - SCORE_REACH - (shift if left_out else 0))

    def holds(self, largest: float | None) -> bool:
        """Return whether no score with weight is clamped, for any int8 values or given a calibration's `largest`."""
        return self.certain or (largest is not None and CALIBRATION_HEADROOM * largest <= self.reach)

    @property
    def certain(self) -> bool:
        """True if no int8 queries and keys can produce a clamped score."""
        return self.most <= self.limit


@dataclass(frozen=True)
class Pair:
    """QuantizeLinear and DequantizeLinear with equal parameters; integers are of the model's type.

    The quantised value is `factor` times the product of queries and keys; `masked` if a mask has been added.
    """

    scale: float
    zero: int
    lowest: int
    highest: int
    factor: float = 1.0
    masked: bool = False

    @property
    def low(self) -> float:
        """Least value that passes unclipped."""
        return (self.lowest - self.zero) * self.scale

    @property
    def high(self) -> float:
        return (self.highest - self.zero) * self.scale

    def same(self, other: Pair) -> bool:
        """Return whether integers mean the same numbers in both."""
        return (self.scale, self.zero, self.lowest) == (other.scale, other.zero, other.lowest)

    def clips(self, low: float, high: float) -> bool:
        """Return whether values from `low` to `high` can move by more than rounding's half step."""
        return low < self.low - self.scale / 2 or high > self.high + self.scale / 2

    @property
    def keeps_probabilities(self) -> bool:
        """True if probabilities up to 1 pass unclipped. The usual scale of 1/256 is allowed to fall one step short."""
        return self.high + self.scale >= 1


@dataclass(frozen=True)
class Bounds:
    """Bounds of scores, in multiples of the product before any factor; `masked` is the least of a masked score."""

    low: float
    high: float
    masked: float = -math.inf

    def after(self, pair: Pair) -> Bounds:
        """Return the bounds after a pair."""
        low, high, half = pair.low / pair.factor, pair.high / pair.factor, pair.scale / pair.factor / 2
        masked = max(self.masked + half, low) if pair.masked else self.masked
        return Bounds(min(max(self.low - half, low), high), max(min(self.high + half, high), low), masked)


def exceeded_pairs(pairs: tuple[Pair, ...], bounds: Bounds) -> tuple[tuple[Pair, ...], Bounds]:
    """Return the pairs that scores within `bounds` can exceed, and the bounds after all pairs."""
    exceeded = []
    for pair in pairs:
        if pair.clips(bounds.low * pair.factor, bounds.high * pair.factor):
            exceeded.append(pair)
        bounds = bounds.after(pair)
    return tuple(exceeded), bounds


def common_rounding(
    pairs: tuple[Pair, ...], unit: float, factor: float, bounds: Bounds
) -> tuple[Rounding, float] | None:
    """Return the requantisation that replaces all pairs on the device, and its step in nats; None if there is none.

    It has the step of the finest pair of at most 8 bits, and the range that all pairs and the `bounds` of scores
    leave. `unit` is the product of the scales of queries and keys, `factor` the factor of the logits.
    """
    # The device requantises scores to 8 bits, so only pairs of 8 bits or less can be followed.
    bytes_ = [pair for pair in pairs if pair.highest - pair.lowest < 256]
    if not bytes_:
        return None
    pair = min(bytes_, key=lambda pair: pair.scale / pair.factor)
    step = pair.scale / pair.factor
    low = max(bounds.low, *(other.low / other.factor for other in pairs))
    high = min(bounds.high, *(other.high / other.factor for other in pairs))
    ends = [min(max(round(value / step) + pair.zero, pair.lowest), pair.highest) for value in (low, high)]
    nats, scale = step * factor, unit / step
    # Half the range must stay below the clamp of scores, and the scale must fit a mantissa.
    if (ends[1] - ends[0] + 1) // 2 * nats > SCORE_CLAMP or scale >= SCALE_LIMIT:
        return None
    # uint8 values are stored minus 128.
    shift = 128 if pair.lowest == 0 and pair.highest == 255 else 0
    return Rounding(scale, pair.zero - shift, ends[0] - shift, ends[1] - shift), nats


def causal(queries: int, keys: int, offset: int | np.ndarray = 0) -> np.ndarray:
    """Return bool (..., queries, keys): query i sees keys up to i + `offset`, an int or an array (..., 1, 1)."""
    return np.arange(keys) <= np.arange(queries)[:, None] + offset
