"""How values of 8 and 16 bits are stored: over all of them, against plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from weft.compiler.ir import layout


@pytest.mark.parametrize("bits", [8, 16])
def test_unsigned_values_are_stored_less_half_their_range(bits: int) -> None:
    values = np.arange(1 << bits).astype(f"u{bits // 8}")
    stored = layout.to_signed(values)
    assert stored.dtype == f"i{bits // 8}"
    assert np.array_equal(stored.astype(np.int64), np.arange(1 << bits) - (1 << bits - 1))
    assert np.array_equal(layout.to_unsigned(stored), values)
    assert layout.to_unsigned(stored).dtype == values.dtype


def test_planes_of_all_numbers_of_16_bits() -> None:
    values = np.arange(-32768, 32768)
    upper, lower = layout.split_planes(values.astype(np.int16))
    assert (upper.dtype, lower.dtype) == (np.int8, np.int8)
    assert np.array_equal(upper.astype(np.int64) * 256 + lower + 128, values)
    assert np.array_equal(layout.join_planes(upper, lower), values)
    for value in (-32768, -129, -128, -1, 0, 127, 128, 255, 256, 32767):
        assert layout.fill_planes(value) == (upper[value + 32768], lower[value + 32768])
