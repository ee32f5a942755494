"""TOSA's rescale as the device's requantisation: equal steps, or None."""

from __future__ import annotations

import math
import random

import pytest

from weft.extras.mlir.rescaling import (
    Scale,
    find_mantissa,
    find_scales,
    first_on_device,
    may_tie,
    reciprocal_scale,
)
from weft.extras.mlir.tests.support import tosa_numpy


def half_even(number: int, shift: int) -> int:
    floor, remainder = number >> shift, number & ((1 << shift) - 1)
    half = (1 << shift) >> 1
    return floor + int(shift > 0 and (remainder > half or (remainder == half and floor % 2 == 1)))


def random_scale(rng: random.Random) -> Scale:
    wide = rng.randint(1 << 30, (1 << 31) - 1)
    multiplier = wide if rng.random() < 0.7 else rng.randint(1, 1 << 24) << rng.randint(0, 7)
    return Scale(multiplier, rng.randint(20, 45), rng.random() < 0.3)


@pytest.mark.parametrize("seed", range(4))
def test_every_value_becomes_the_same_byte(seed: int) -> None:
    rng, actual = random.Random(seed), 0
    for _ in range(60):
        scale, values, zero = (
            random_scale(rng),
            (-rng.randint(0, 1500), rng.randint(1, 1500)),
            rng.randint(-128, 127),
        )
        levels = (-128 - zero, 127 - zero)
        pair = find_mantissa(scale, values, levels)
        if pair is None:
            continue
        actual += 1
        assert pair[0] < 1 << 24
        for value in range(values[0], values[1] + 1):
            tosa = scale.apply(value)
            device = half_even(value * pair[0], pair[1])
            assert min(max(tosa, levels[0]), levels[1]) == min(max(device, levels[0]), levels[1]), (
                scale,
                pair,
                value,
            )
    assert actual > 30


def test_scale_is_that_of_the_specification() -> None:
    rng = random.Random(0)
    for _ in range(500):
        scale = random_scale(rng)
        reach = min(1 << (scale.shift - 1), (1 << 30) // max(1, scale.multiplier >> scale.shift)) - 1
        value = rng.randint(-reach, reach)
        assert scale.apply(value) == tosa_numpy.apply_scale(
            value, scale.multiplier, scale.shift, scale.double
        )


def test_first_values_of_levels() -> None:
    rng = random.Random(1)
    for _ in range(200):
        scale, level = random_scale(rng), rng.randint(-130, 130)
        first = scale.first(level)
        assert first is not None
        assert scale.apply(first) >= level > scale.apply(first - 1)
        own = first_on_device(scale.multiplier, scale.shift, level)
        assert own is not None
        assert half_even(own * scale.multiplier, scale.shift) >= level
        assert half_even((own - 1) * scale.multiplier, scale.shift) < level
    assert Scale(0, 30).first(1) is None
    assert first_on_device(0, 30, 1) is None


@pytest.mark.parametrize("shift", [22, 23, 24, 26])
def test_first_values_where_products_are_half_way(shift: int) -> None:
    """Powers of two: ties go to the even number, so that an odd level is reached one value later."""
    for level in range(-20, 21):
        first = first_on_device(1 << 22, shift, level)
        assert first is not None
        values = range(first - 40, first + 40)
        assert first == next(value for value in values if half_even(value << 22, shift) >= level)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 16, 25, 49])
def test_means_have_a_device_scale(count: int) -> None:
    """TOSA rounds half of a mean away from zero; so does the device with a slightly larger scale."""
    actual = find_mantissa(reciprocal_scale(count), (-255 * count, 255 * count), (-255, 255))
    assert actual is not None
    for value in range(-255 * count, 255 * count + 1):
        assert half_even(value * actual[0], actual[1]) == reciprocal_scale(count).apply(value)


def test_ties_have_no_mantissa() -> None:
    """TOSA rounds 1/2 up to 1, the device down to 0, and no other mantissa reaches as far."""
    half = Scale(1 << 30, 31)
    assert find_mantissa(half, (-1000, 1000), (-128, 127)) is None
    assert find_mantissa(half, (-1, 1), (-128, 127)) is None
    assert find_mantissa(half, (0, 1), (-128, 127)) is not None
    assert find_scales([half, half], [(0, 1), (-1000, 1000)], (-128, 127)) is None
    scales = find_scales([half, Scale(1 << 30, 33)], [(0, 1), (0, 1)], (-128, 127))
    assert scales is not None
    assert scales.dtype == "float32"
    assert [math.frexp(number)[1] for number in scales.tolist()] == [0, -2]


def test_ties() -> None:
    assert not may_tie(3, 10, (-511, 511))
    assert may_tie(3, 10, (-512, 3))
    assert not may_tie(3, 0, (-512, 3))
