"""TOSA's arithmetic on integers as the host does it, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.extras.mlir.builder import Builder
from weft.extras.mlir.context import ELEMENTS
from weft.extras.mlir.rescaling import Scale


def cast(builder: Builder, name: str, dtype: str) -> str:
    """A value in another type."""
    return builder.emit("Cast", (name,), "cast", to=ELEMENTS[dtype])


def shifted_right(builder: Builder, name: str, shifts: np.ndarray) -> str:
    """Integers of 64 bits divided by powers of two, downwards."""
    divisor = builder.constant(np.left_shift(np.int64(1), shifts.astype(np.int64)), "divisor")
    rest = builder.emit("Mod", (name, divisor), "rest")
    return builder.emit("Div", (builder.emit("Sub", (name, rest), "whole"), divisor), "shift")


def rescaled(
    builder: Builder,
    name: str,
    scales: Sequence[Scale],
    zero: int,
    dtype: str,
    bounds: tuple[int, int] | None,
) -> str:
    """Integers times scales for the channels of the last axis, or one, plus a zero point, between `bounds`: in exactly
    TOSA's steps."""
    wide = cast(builder, name, "int64")
    factors = builder.constant(np.array([scale.multiplier for scale in scales], np.int64), "multiplier")
    product = builder.emit("Mul", (wide, factors), "product")
    halves = np.array([1 << (scale.shift - 1) for scale in scales], np.int64)
    extra = np.array([scale.extra for scale in scales], np.int64)
    half = builder.constant(halves + extra, "half")
    if extra.any():
        none = builder.constant(np.zeros((), np.int64), "none")
        negative = builder.emit("Less", (wide, none), "negative")
        half = builder.emit("Where", (negative, builder.constant(halves - extra, "half"), half), "half")
    total = builder.emit("Add", (product, half), "rounded")
    made = shifted_right(builder, total, np.array([scale.shift for scale in scales]))
    if zero:
        made = builder.emit("Add", (made, builder.constant(np.array(zero, np.int64), "zero")), "zero")
    if bounds is not None:
        ends = (builder.constant(np.array(end, np.int64), "bound") for end in bounds)
        made = builder.emit("Clip", (made, *ends), "exact_rounding_of_tosa")
    return cast(builder, made, dtype)
