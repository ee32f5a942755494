"""Layouts of values against numpy, and the storage of 8-bit and 16-bit values against plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from support.repeated import repeated

from weft.compiler.ir import layout
from weft.compiler.ir.layout import Layout, natural, row_major_layout


def indices_of(layout: Layout) -> np.ndarray:
    """Index in the value of each byte of the buffer."""
    size = int(np.prod(layout.shape, dtype=int))
    return np.arange(size).reshape(layout.shape).transpose(layout.perm).reshape(-1)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 2, 2)])
def test_natural_layout(shape: tuple[int, ...]) -> None:
    layout = natural(shape)
    assert np.prod(layout.nhwc) == np.prod(shape, dtype=int)
    value = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    expected = value.transpose(0, 2, 3, 1) if len(shape) == 4 else value
    assert indices_of(layout).tolist() == expected.reshape(-1).tolist()


@repeated("seed", range(20))
def test_same_exactly_if_all_elements_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(value) for value in rng.integers(1, 3, 4))
    layouts = [
        Layout(shape, tuple(rng.permutation(4).tolist()), (1, 1, 1, int(np.prod(shape)))) for _ in range(8)
    ]
    layouts.append(row_major_layout(shape))
    for a in layouts:
        for b in layouts:
            assert a.same(b) == np.array_equal(indices_of(a), indices_of(b))


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)])
def test_transposed(perm: tuple[int, ...]) -> None:
    shape = (2, 3, 4, 5)
    before = natural(shape)
    after = before.transpose(shape, perm)
    assert after is not None
    value = np.arange(120)
    moved = value.reshape(shape).transpose(perm).reshape(-1)
    assert moved[indices_of(after)].tolist() == value[indices_of(before)].tolist()


@pytest.mark.parametrize(
    ("shape", "perm"), [((6, 20), (1, 0)), ((1, 6, 2, 1, 10), (2, 4, 0, 1, 3)), ((120,), (0,))]
)
def test_transposed_after_a_reshape(shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    before = Layout((2, 3, 2, 2, 5), (0, 3, 1, 4, 2), (1, 1, 1, 120))
    after = before.transpose(shape, perm)
    assert after is not None
    value = np.arange(120)
    moved = value.reshape(shape).transpose(perm).reshape(-1)
    assert moved[indices_of(after)].tolist() == value[indices_of(before)].tolist()


def test_transposed_after_a_reshape_that_mixes_axes() -> None:
    assert natural((2, 3, 4, 5)).transpose((4, 30), (1, 0)) is None


@pytest.mark.parametrize("seed", range(10))
def test_over_another_value(seed: int) -> None:
    """A value and its transpose view equal bytes."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(size) for size in rng.integers(1, 4, 4))
    perms = [tuple(int(axis) for axis in rng.permutation(4)) for _ in range(2)]
    order, target = (Layout(shape, perm, (1, 1, 1, int(np.prod(shape)))) for perm in perms)
    over = target.in_order_of(order)
    assert over is not None
    value = rng.permutation(int(np.prod(shape)))
    other = value[indices_of(order)]
    assert other[indices_of(over)].tolist() == value[indices_of(target)].tolist()


def test_over_a_value_of_mixed_axes() -> None:
    assert row_major_layout((4, 6)).in_order_of(Layout((6, 4), (1, 0), (1, 1, 1, 24))) is None


def test_transposed_after_a_reshape_of_a_packed_value() -> None:
    moved = row_major_layout((2, 3, 4)).transpose((6, 4), (1, 0))
    assert moved is not None
    assert indices_of(moved).tolist() == [column * 6 + row for row in range(6) for column in range(4)]


def test_row_order() -> None:
    order = natural((2, 3, 4, 5)).row_order(2)
    assert order is not None
    assert order.tolist() == np.arange(60).reshape(3, 20).T.reshape(-1).tolist()
    assert natural((2, 3, 4, 5)).row_order(6) is None
    assert row_major_layout((2, 3, 4)).row_order(6).tolist() == [0, 1, 2, 3]


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
