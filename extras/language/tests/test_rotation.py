"""Measurement of rotations, on functions that rotate keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.repeated import repeated

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import Rotary
from weft.extras.language.onnx.natives import rotate
from weft.extras.language.onnx.rotation import measure


def fake_model(
    rotary: Rotary, neighbours: bool, dtype: type = np.float32
) -> Callable[[int, np.ndarray], np.ndarray]:
    def key_at(position: int, key: np.ndarray) -> np.ndarray:
        angles = rotary.angles(np.array([position]))
        cosine, sine = (
            np.cos(angles).astype(dtype).astype(np.float32),
            np.sin(angles).astype(dtype).astype(np.float32),
        )
        return rotate(key[:, None], cosine, sine, interleaved=neighbours)[:, 0]

    return key_at


@repeated("seed", range(30))
def test_rotations_are_measured(seed: int) -> None:
    rng = np.random.default_rng(seed)
    length = 2 * int(rng.integers(1, 65))
    dimensions = length if rng.integers(2) else 2 * int(rng.integers(1, length // 2 + 1))
    base = float(rng.choice([10000.0, 500000.0, 1e6, 100.0, 1234.5]))
    rotary = Rotary(dimensions, base if dimensions > 2 else 10000.0, float(rng.choice([1.0, 1.0, 2.0, 8.0])))
    neighbours = bool(rng.integers(2))
    last = int(rng.choice([7, 100, 2047, 32767]))
    actual, style = measure(fake_model(rotary, neighbours), 2, length, last, None)
    assert actual is not None
    places = np.array([1, last // 2, last])
    wanted = np.zeros((3, length // 2))
    wanted[:, : dimensions // 2] = rotary.angles(places)
    angles = np.zeros((3, length // 2))
    angles[:, : actual.dimensions // 2] = actual.angles(places)
    assert np.abs(np.exp(1j * angles) - np.exp(1j * wanted)).max() < 2e-4 + 4e-7 * last
    if dimensions > 2:
        assert style == neighbours
    if last >= 100 and dimensions == length > 2:
        assert (actual.base, actual.scale) == (rotary.base, rotary.scale)


@pytest.mark.parametrize("neighbours", [False, True])
def test_factors(neighbours: bool) -> None:
    factors = np.array([1, 1, 1, 1.7, 3.2, 8, 8, 8], np.float32)
    rotary = Rotary(16, 500000.0, 1.0, factors)
    for base in (None, 500000.0):
        actual, _ = measure(fake_model(rotary, neighbours), 1, 16, 4095, base)
        assert actual is not None
        assert actual.factors is not None
        assert actual.base == pytest.approx(500000.0, rel=1e-4)
        assert np.allclose(actual.factors, factors, rtol=1e-3)


def test_cosines_of_float16() -> None:
    actual, _ = measure(
        fake_model(Rotary(32, 10000.0), False, np.float16), 1, 32, 1023, None, table_error=1e-3
    )
    assert actual is not None
    assert (actual.dimensions, actual.base, actual.factors) == (32, 10000.0, None)


def test_no_rotation() -> None:
    assert measure(lambda at, key: key, 2, 8, 100, None) == (None, False)


@pytest.mark.parametrize(
    ("key_at", "words"),
    [
        (lambda at, key: key * 2, "keys at the first position are not what their product made"),
        (lambda at, key: key * (1 + at), "in another way than by turning pairs of elements"),
        (lambda at, key: np.roll(key, at, axis=1), "in another way than by turning pairs of elements"),
        (lambda at, key: fake_model(Rotary(8, 10.0), True)(min(at, 5), key), "do not grow evenly"),
        (lambda at, key: fake_model(Rotary(8, 10.0), True)(-at, key), "turned backwards"),
    ],
)
def test_other_functions_are_refused(key_at: Callable[[int, np.ndarray], np.ndarray], words: str) -> None:
    with pytest.raises(CompileError, match=words):
        measure(key_at, 2, 8, 100, None)
