"""Biases as whole numbers, and factors of all blocks together."""

from __future__ import annotations

import numpy as np
import pytest

from weft.compiler.kernel.expressions import DIGITS, digits
from weft.extras.language.compiler.scaled import Biases, Scaled, power_of_two, scale_blocks
from weft.extras.language.compiler.weights import Weights


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("largest", [0.3, 100.5, 32639.0, 32640.0, 1e5, 8355584.0, 8355585.0, 3e9])
def test_biases_are_as_fine_as_digits_allow(count: int, largest: float) -> None:
    rng = np.random.default_rng(int(largest))
    given = [rng.uniform(-1, 1, 40) * largest, rng.uniform(-1, 1, 3) * largest]
    given[1][0] = -largest
    found = Biases.of(given, count)
    most = DIGITS << 8 * (count - 2)
    assert found.shift == next(shift for shift in range(40) if largest / 2**shift <= most)
    for exact, numbers in zip(given, found.numbers, strict=True):
        assert np.array_equal(numbers, np.rint(exact / 2**found.shift))
        assert len(digits(numbers, count)) == count  # they fit


def test_no_bias_is_zero() -> None:
    found = Biases.of([np.zeros(3)])
    assert found.shift == 0
    assert not found.numbers[0].any()


def test_blocks_have_one_shift() -> None:
    rng = np.random.default_rng(1)
    matrices = [Weights.quantise(rng.normal(0, scale, (5, 32)).astype(np.float32)) for scale in (0.1, 2.0)]
    made = scale_blocks(matrices, [3.0, 0.01])
    assert len({(each.shift, each.max_sum, each.max_result) for each in made}) == 1
    for each, matrix, factor in zip(made, matrices, (3.0, 0.01), strict=True):
        assert isinstance(each, Scaled)
        np.testing.assert_allclose(each.factors, matrix.scales * factor, rtol=2**-8)


def test_powers_of_two() -> None:
    assert [power_of_two(value) for value in (0.25, 0.26, 1.0, 3.0)] == [0.25, 0.5, 1.0, 4.0]
