"""Requantisation scales as the device holds them: an unsigned mantissa and a right shift."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import CompileError, Rounding

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


OCTAVES = 256
"""What a logit reaches, up and down (`weft.hdl.isa.Softmax`); it is clamped there."""
CLAMP = OCTAVES * math.log(2)
"""The same in nats, the unit of scores: 177."""
REACH = 16 * math.log(2)
"""Nats below the largest from which the device takes probabilities for 0."""
SCALE_LIMIT = 1 << 15
"""What a 16-bit mantissa without a shift could not hold."""


HEADROOM = 1.25
"""How many times as large as in a calibration the largest scores may be."""
NEGLIGIBLE = 64 * math.log(2)
"""Nats by which all scores of a row may be moved, of the 177 at which they are clamped."""


def product_ends(q_zero: int, k_zero: int) -> tuple[int, int]:
    """The least and the largest product of one element of a query and of a key, int8 less their zero points."""
    products = [(q - q_zero) * (k - k_zero) for q in (-128, 127) for k in (-128, 127)]
    return min(products), max(products)


def k_zero_shift(k_zero: int, size: int, nats: float) -> float:
    """The most by which the zero point of K moves all scores of a row; `nats` is the scale of scores of `size`."""
    return abs(k_zero) * 255 * size * nats


@dataclass(frozen=True)
class ScoreRange:
    """How large scores may be before the device clamps one that has weight, in nats.

    Attributes
    ----------
    most : float
        The largest magnitude on the device that any int8 queries and keys make.
    limit : float
        The largest magnitude for which nothing with weight is clamped.
    reach : float
        The same for scores as the model has them, of the largest of each row.
    """

    most: float
    limit: float
    reach: float

    @classmethod
    def of(cls, q_zero: int, k_zero: int, size: int, nats: float, more: int = 0) -> ScoreRange:
        """The range for heads of `size`, to which a mask of keys adds `more` elements; `nats` is a step of scores."""
        shift = k_zero_shift(k_zero, size + more, nats)
        left_out = shift <= NEGLIGIBLE
        most = max(map(abs, product_ends(q_zero, 0 if left_out else k_zero))) * size * nats
        if left_out:
            most += k_zero_shift(k_zero, more, nats)
        # Masked keys are clamped, and must stay without weight beside the largest of a row.
        limit = CLAMP - (REACH if more else 0)
        return cls(most, limit, CLAMP - REACH - (shift if left_out else 0))

    def holds(self, found: float | None) -> bool:
        """Whether no score with weight is clamped, for any int8 values or by what a calibration `found`."""
        return self.certain or (found is not None and HEADROOM * found <= self.reach)

    @property
    def certain(self) -> bool:
        """Whether no int8 queries and keys make a score that is clamped."""
        return self.most <= self.limit


@dataclass(frozen=True)
class Pair:
    """QuantizeLinear and DequantizeLinear with the same parameters; integers are those of the model's type.

    The quantised value is `factor` times the product of queries and keys, and `masked` if a mask has been added.
    """

    scale: float
    zero: int
    lowest: int
    highest: int
    factor: float = 1.0
    masked: bool = False

    @property
    def low(self) -> float:
        """The least value that is left as it is."""
        return (self.lowest - self.zero) * self.scale

    @property
    def high(self) -> float:
        return (self.highest - self.zero) * self.scale

    def same(self, other: Pair) -> bool:
        """Whether integers mean the same to both."""
        return (self.scale, self.zero, self.lowest) == (other.scale, other.zero, other.lowest)

    def clips(self, low: float, high: float) -> bool:
        """Whether values from `low` to `high` can be moved by more than the half step that rounding moves them by."""
        return low < self.low - self.scale / 2 or high > self.high + self.scale / 2

    @property
    def whole(self) -> bool:
        """Whether it leaves probabilities as they are, up to 1; the usual scale of 1/256 is short of that by a step."""
        return self.high + self.scale >= 1


@dataclass(frozen=True)
class Bounds:
    """What scores can be, as multiples of the product before any factor; `masked` is the least of a masked score."""

    low: float
    high: float
    masked: float = -math.inf

    def behind(self, pair: Pair) -> Bounds:
        """What they can be once they passed a pair."""
        low, high, half = pair.low / pair.factor, pair.high / pair.factor, pair.scale / pair.factor / 2
        masked = max(self.masked + half, low) if pair.masked else self.masked
        return Bounds(min(max(self.low - half, low), high), max(min(self.high + half, high), low), masked)


def clipping(pairs: tuple[Pair, ...], bounds: Bounds) -> tuple[tuple[Pair, ...], Bounds]:
    """The pairs whose range scores of `bounds` can leave, and the bounds behind all pairs."""
    found = []
    for pair in pairs:
        if pair.clips(bounds.low * pair.factor, bounds.high * pair.factor):
            found.append(pair)
        bounds = bounds.behind(pair)
    return tuple(found), bounds


def followed(
    pairs: tuple[Pair, ...], unit: float, factor: float, bounds: Bounds
) -> tuple[Rounding, float] | None:
    """The requantisation by which the device follows pairs, and the nats of its step; None if it cannot follow them.

    It has the step of the finest pair of 8 bits or less, and the range that all pairs and the `bounds` of scores leave.
    `unit` is the product of the scales of queries and keys, `factor` that of the logits.
    """
    bytes_ = [pair for pair in pairs if pair.highest - pair.lowest < 256]
    if not bytes_:
        return None
    pair = min(bytes_, key=lambda pair: pair.scale / pair.factor)
    step = pair.scale / pair.factor
    low = max(bounds.low, *(other.low / other.factor for other in pairs))
    high = min(bounds.high, *(other.high / other.factor for other in pairs))
    ends = [min(max(round(value / step) + pair.zero, pair.lowest), pair.highest) for value in (low, high)]
    nats, scale = step * factor, unit / step
    if (ends[1] - ends[0] + 1) // 2 * nats > CLAMP or scale >= SCALE_LIMIT:
        return None
    shift = 128 if pair.lowest == 0 and pair.highest == 255 else 0
    return Rounding(scale, pair.zero - shift, ends[0] - shift, ends[1] - shift), nats


def causal(queries: int, keys: int, offset: int | np.ndarray = 0) -> np.ndarray:
    """bool (..., queries, keys): query i sees the keys up to i + `offset`, an int or an array (..., 1, 1)."""
    return np.arange(keys) <= np.arange(queries)[:, None] + offset
