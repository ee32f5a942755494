"""Parts of a language model: quantised blocks, row order and rotation angles."""

from __future__ import annotations

import numpy as np
import pytest

from weft.extras.language.compiler.model import BlockTensor, Rotary, dense, interleave_heads, rows
from weft.extras.language.compiler.reference import rotate_pairs


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("with_minimums", [False, True])
def test_blocks(block: int, with_minimums: bool) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(-128, 128, (5, 96)).astype(np.int8)
    scales = rng.normal(size=(5, 96 // block)).astype(np.float32)
    minimums = rng.normal(size=scales.shape).astype(np.float32) if with_minimums else None
    tensor = BlockTensor(values, scales, minimums, block)
    wanted = np.zeros((5, 96), np.float32)
    for row, column in np.ndindex(5, 96):
        low = np.float32(0) if minimums is None else minimums[row, column // block]
        wanted[row, column] = np.float32(values[row, column]) * scales[row, column // block] + low
    assert tensor.shape == (5, 96)
    assert np.array_equal(dense(tensor), wanted)
    assert np.array_equal(dense(rows(tensor, 1, 4)), wanted[1:4])
    assert np.array_equal(dense(rows(wanted, 2, 3)), wanted[2:3])
    assert np.array_equal(tensor.values, values)


@pytest.mark.parametrize("heads", [1, 3])
def test_rows_for_a_rotation_of_neighbours(heads: int) -> None:
    """Scores match those of rotated halves with rows in the old order."""
    rng = np.random.default_rng(2)
    weights = [rng.normal(size=(heads * 8, 5)).astype(np.float32) for _ in range(2)]
    x, rotary = rng.normal(size=(7, 5)).astype(np.float32), Rotary(8, 100.0)
    angles = rotary.angles(np.arange(7))

    def halves(weight: np.ndarray) -> np.ndarray:
        actual = (x @ weight.T).reshape(7, heads, 8).swapaxes(0, 1)
        first, second, cosine, sine = actual[..., :4], actual[..., 4:], np.cos(angles), np.sin(angles)
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    def neighbours(weight: np.ndarray) -> np.ndarray:
        return rotate_pairs(
            (x @ interleave_heads(weight, heads).T).reshape(7, heads, 8).swapaxes(0, 1), angles
        )

    query, key = (halves(weight) for weight in weights)
    other_query, other_key = (neighbours(weight) for weight in weights)
    wanted = query @ key.swapaxes(1, 2)
    np.testing.assert_allclose(other_query @ other_key.swapaxes(1, 2), wanted, atol=1e-4)
    assert np.array_equal(
        interleave_heads(weights[0][:, 0], heads), interleave_heads(weights[0], heads)[:, 0]
    )


def test_angles() -> None:
    plain = Rotary(4, 100.0).angles(np.array([0, 1, 30]))
    np.testing.assert_allclose(plain, [[0, 0], [1, 0.1], [30, 3]])
    factors = np.array([2, 5], np.float32)
    np.testing.assert_allclose(Rotary(4, 100.0, 10.0, factors).angles(np.array([30])), [[1.5, 0.06]])
