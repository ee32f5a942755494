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


NEGLIGIBLE = 64 * math.log(2)
"""Nats by which all scores of a row may be moved, of the 177 at which they are clamped."""


def product_ends(q_zero: int, k_zero: int) -> tuple[int, int]:
    """The least and the largest product of one element of a query and of a key, int8 less their zero points."""
    products = [(q - q_zero) * (k - k_zero) for q in (-128, 127) for k in (-128, 127)]
    return min(products), max(products)


def k_zero_shift(k_zero: int, size: int, nats: float) -> float:
    """The most by which the zero point of K moves all scores of a row; `nats` is the scale of scores of `size`."""
    return abs(k_zero) * 255 * size * nats


def score_ends(q_zero: int, k_zero: int, size: int, nats: float) -> tuple[float, float]:
    """The largest score that heads of `size` can make, and the one from which on the device clamps them."""
    shift = k_zero_shift(k_zero, size, nats)
    most = max(map(abs, product_ends(q_zero, k_zero))) * size * nats
    return most, CLAMP - (shift if shift <= NEGLIGIBLE else 0)


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


def followed(pairs: tuple[Pair, ...], unit: float, factor: float) -> tuple[Rounding, float] | None:
    """What the device does for pairs that clip, and the nats of a step of what it makes; None if it cannot.

    The finest pair of 8 bits or less is followed, within the range of all of them. `unit` is the product of the scales
    of queries and keys, `factor` that of the logits.
    """
    bytes_ = [pair for pair in pairs if pair.highest - pair.lowest < 256]
    if not bytes_:
        return None
    pair = min(bytes_, key=lambda pair: pair.scale / pair.factor)
    step = pair.scale / pair.factor
    low = max(other.low / other.factor for other in pairs)
    high = min(other.high / other.factor for other in pairs)
    bounds = [min(max(round(value / step) + pair.zero, pair.lowest), pair.highest) for value in (low, high)]
    nats, scale = step * factor, unit / step
    if (bounds[1] - bounds[0] + 1) // 2 * nats > CLAMP or scale >= SCALE_LIMIT:
        return None
    shift = 128 if pair.lowest == 0 and pair.highest == 255 else 0
    return Rounding(scale, pair.zero - shift, bounds[0] - shift, bounds[1] - shift), nats
