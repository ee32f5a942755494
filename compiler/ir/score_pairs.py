"""Q/DQ pairs within attention: where their range can clip they are followed, elsewhere they only round.

A quantiser puts QuantizeLinear and DequantizeLinear behind every operator, between the products of attention as well.
Fused attention has scores of 32 bits and probabilities of its own precision, and leaves out what only rounds. Where
scores can leave a pair's range, that is, where the pair also clamps, the device requantises them to 8 bits as it says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.compiler.ir.graph import Rounding

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
