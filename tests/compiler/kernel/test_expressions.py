"""Ranges of expressions, and refusals that name the source line."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from weft.compiler.errors import CompileError, KernelError
from weft.compiler.kernel.expressions import DIGITS, Expression, Rows, constant, digits, factor_of

RISING = np.arange(-128, 128).astype(np.int8)


def test_ranges() -> None:
    rows = Rows(10, 2)
    x, y = rows.read(0), rows.wide(1)
    cases = {
        (-128, 127): x, (-32768, 32767): y, (-255, 255): x - x, (-1024, 1016): x << 3, (-1280, 1270): rows.sum(x),
        (-128, 100): x.minimum(100), (0, 127): x.maximum(0), (0, 1): x < 3, (-8, 0): x.times(x, 11) - 8,
        (-6144, 6096): x.times(48), (-64, 64): x.scale(0.5),
        (0, 9): rows.index(), (-16, 15): x.shift_right(3),
        (-125, 127): x.maximum(-125).look_up(RISING), (-128, 5): (x - 122).look_up(RISING),
        (-512, 508): (x << 9).interpolate(RISING.astype(np.int16) * 4, 9),
        (0, 16384): x.times(x), (-128, 32767): (x < y).choose(y.maximum(0), x),
    }  # fmt: skip
    for (low, high), made in cases.items():
        assert (made.low, made.high) == (low, high), made


def test_factors() -> None:
    for scale in (1.0, 0.3, -77.25, 1e-12, 131071.0, 2.0**-40):
        mantissa, shift = factor_of(scale)
        assert abs(mantissa) < 1 << 17
        assert abs(mantissa / 2.0**shift / scale - 1) < 2**-16 or shift == 63
    assert factor_of(0.0) == (0, 0)


def test_digits() -> None:
    values = np.array([-32896, -32768, -129, -128, 0, 127, 128, 32639])
    upper, lower = digits(values, 2)
    assert upper.dtype == lower.dtype == np.int8
    assert np.array_equal(upper.astype(int) * 256 + lower, values)
    assert [item.tolist() for item in digits(np.array([DIGITS]), 2)] == [[127], [127]]
    for value in (32640, -32897, DIGITS + 1):
        with pytest.raises(KernelError, match=f"{value} has more than 2 digits"):
            digits(np.array([value]), 2)


BAD: dict[str, Callable[[Rows, Expression], object]] = {
    "the result may be -17179869184, which has more than 32 bits": lambda rows, x: (
        (x << 17) - constant(0) << 10
    ),
    "a second factor has 18 bits, but may be -262144 to 260096": lambda rows, x: x.times(x << 11),
    "a shift is 0 to 63, not 64": lambda rows, x: x.times(x, 64),
    "a constant has 24 bits, unlike 8388608": lambda rows, x: x + (1 << 23),
    "a factor is below 131072, not 200000": lambda rows, x: x.scale(200000.0),
    "there is no tensor 2: there are 2": lambda rows, x: rows.read(2),
    "`sum` needs elements that vary along the row": lambda rows, x: rows.sum(constant(3)),
    "multiply by a reciprocal with `over`, not `times`": lambda rows, x: x.times(x.reciprocal()),
    "`over` takes a reciprocal": lambda rows, x: x.over(x, 3, 100),
    "a quotient has at most 15 places, not 16": lambda rows, x: x.over(x.rsqrt(), 16, 100),
    "a shift is 0 to 63, not -1": lambda rows, x: x.shift_right(-1),
    "a look-up table is int8 of shape (256,), not int8 of shape (255,)": lambda rows, x: x.look_up(
        RISING[1:]
    ),
    "a look-up table is int8 of shape (256,), not int16 of shape (256,)": lambda rows, x: x.look_up(
        RISING.astype(np.int16)
    ),
    "a look-up table is int8 of shape (256,), not [1, 2]": lambda rows, x: x.look_up([1, 2]),  # type: ignore[arg-type]
    "a look-up table is int8 or int16 of shape (256,), not int64 of shape (256,)": lambda rows, x: (
        x.interpolate(RISING.astype(np.int64), 3)
    ),
    "between entries there are 1 to 17 binary places, not 18": lambda rows, x: x.interpolate(RISING, 18),
    "between entries there are 1 to 17 binary places, not 0": lambda rows, x: x.interpolate(RISING, 0),
    "entries of int16 are at most 32639, not 32640": lambda rows, x: x.interpolate(
        np.full(256, 32640, np.int16), 3
    ),
    "only a comparison can choose between two values": lambda rows, x: x.choose(1, 2),
    "there is no tensor 7: there are 2": lambda rows, x: rows.number(7),
    "`store_number` needs one number per row": lambda rows, x: rows.store_number(x),
    "a kernel can store only one result": lambda rows, x: [rows.store(x), rows.store(x)],
}


@pytest.mark.parametrize("message", BAD)
def test_errors(message: str) -> None:
    rows = Rows(1000, 2)
    x = rows.read(0)
    with pytest.raises(CompileError) as caught:
        BAD[message](rows, x)
    assert isinstance(caught.value, KernelError)
    assert re.fullmatch(r"test_expressions.py, line \d+: " + re.escape(message), str(caught.value)), (
        caught.value
    )
