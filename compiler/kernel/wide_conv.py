"""Convolutions of which inputs or results have 16 bits: a kernel makes the results of the sums in the accumulator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from weft.compiler.ir.graph import ONE, CompileError, View, Weighted, Window
from weft.compiler.ir.planes import fills
from weft.compiler.kernel.expressions import RECIPROCAL_PLACES, Rows
from weft.compiler.kernel.int16 import LIMITS, stored
from weft.compiler.kernel.operators import FINE

_MANTISSA_BITS = 16
_BIAS_BITS = 24
_ROOM = 29
"""Bits of a product of a sum and a scale, so that two of them and a bias fit 32."""
_PLACES = 2
"""Places of results before they are rounded, at least."""
_SUM_MAX = (1 << 31) - 1
_EXPONENT_MAX = 63


@dataclass(frozen=True, eq=False, kw_only=True)
class WideConv(Weighted):
    """Convolution, or matrix product as 1x1 convolution, with inputs or results of 16 bits.

    q = sat(round((sum (x - x_zero) * weight + bias) * scale) + y_zero), then clamped to `clamp`; padding reads
    x_zero. `weight`, `bias` (int64), `scale`, `window` and `groups` are as in `Conv`. `x_wide` tells whether inputs
    have 16 bits, `wide` whether results have; `src` and `dst` are then the planes of upper bytes. Sums of upper and of
    lower bytes lie side by side in the accumulator, and a kernel combines them. Scales have 16 bits: results are at
    most one off.
    """

    pool: ClassVar[None] = None
    epilogue: ClassVar[None] = None

    name: str
    src: View
    dst: View
    weight: np.ndarray
    bias: np.ndarray
    scale: np.ndarray
    window: Window = ONE
    groups: int = 1
    x_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    clamp: tuple[int, int] = LIMITS
    x_wide: bool = False
    wide: bool = False

    @property
    def sources(self) -> tuple[View, ...]:
        return self.src.planes if self.x_wide else (self.src,)

    @property
    def fills(self) -> tuple[int, ...]:
        """The bytes that padding reads, for each plane of inputs."""
        return fills(self.x_zero) if self.x_wide else (self.x_zero,)

    @property
    def vectors(self) -> tuple[np.ndarray, ...]:
        """What the kernel is given for each output channel: three tensors of int16 (channels,)."""
        return self.form.vectors

    @cached_property
    def form(self) -> _Form:
        return _Form.of(self)

    @cached_property
    def kernel(self) -> Rows:
        """The kernel: tensor 0 are the sums."""
        form = self.form
        columns = len(self.scale)
        return _rows(
            _Kernel(
                columns,
                form.largest,
                form.shift,
                form.places,
                form.bias_shift,
                self.clamp,
                self.x_wide,
                self.wide,
            )
        )


class _Kernel(NamedTuple):
    """What the kernel of a `WideConv` of so many channels depends on."""

    columns: int
    largest: int
    shift: int
    places: int
    bias_shift: int
    clamp: tuple[int, int]
    x_wide: bool
    wide: bool


@lru_cache(256)
def _rows(op: _Kernel) -> Rows:
    rows = Rows(op.columns, 4)
    factor, places = rows.factor(1, 2), RECIPROCAL_PLACES - op.shift
    made = rows.accumulated(int(op.x_wide), op.largest).over(factor, places, 1 << _ROOM)
    if op.x_wide:
        made = made + rows.accumulated(0, op.largest).over(factor, places + 8, 1 << _ROOM)
    for byte, at in ((rows.read(3), 16), (rows.lower(3), 8), (rows.lower(2), 0)):
        made = made + (byte << at + op.bias_shift)
    return stored(rows, made, op, op.places)


@dataclass(frozen=True, eq=False)
class _Form:
    """The integers of a `WideConv`.

    No sum is above `largest`. A scale is ``mantissa / 2**(shift + exponent)``, and makes results with `places`.
    `vectors` are mantissas, exponents with the lowest bytes of biases, and what is left of these, which are shifted
    by `bias_shift`.
    """

    largest: int
    shift: int
    places: int
    bias_shift: int
    vectors: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, op: WideConv) -> _Form:
        weight = op.weight.astype(np.int64).reshape(len(op.scale), -1)
        most, step = 128 * np.abs(weight).sum(axis=1), 8 * (len(op.fills) - 1)
        if most.max() > _SUM_MAX:
            raise CompileError(
                f"{op.name}: sums of products must fit 32 bits, but may be {int(most.max()):,}; use fewer inputs"
            )
        fraction, exponent = np.frexp(op.scale)
        bits = _MANTISSA_BITS - exponent
        reached = math.log2(float((most * op.scale).max() or 1.0)) + step
        places = min(FINE, math.floor(_ROOM - reached), int(bits.min()) - step)
        if places < _PLACES:
            raise CompileError(
                f"{op.name}: of 16 bits sums times their scale must stay below {1 << _ROOM - _PLACES:,}, but there is "
                f"a scale of {op.scale.max():g}"
            )
        mantissa = np.minimum(np.rint(np.ldexp(fraction, _MANTISSA_BITS)), (1 << _MANTISSA_BITS) - 1)
        more = np.minimum(bits - bits.min(), _EXPONENT_MAX)
        added = 128 * (len(op.fills) - 1) - op.x_zero
        # In proportion to the rounded scale: results are exact in the middle of their range, and little off elsewhere,
        # however large the parts of sums are that zero points take away again.
        used = np.ldexp(mantissa, -bits)
        zero = op.y_zero * np.divide(used, op.scale, out=np.ones_like(used), where=op.scale > 0)
        bias = np.ldexp((op.bias + added * weight.sum(axis=1)) * used + zero, places)
        shift = max(0, math.ceil(math.log2(max(float(np.abs(bias).max()), 1.0) + 1)) + 1 - _BIAS_BITS)
        whole = np.rint(np.ldexp(bias, -shift)).astype(np.int64)
        kept = (
            mantissa.astype(np.uint16).view(np.int16),
            (more.astype(np.int64) << 8 | whole & 255).astype(np.int16),
            (whole >> 8).astype(np.int16),
        )
        return cls(int(most.max()), int(bits.min()) - places, places, shift, kept)
