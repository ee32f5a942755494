"""Random shapes, numbers and attributes of host operators."""

from __future__ import annotations

from typing import Any

import numpy as np

Rng = np.random.Generator
Draw = tuple[str, list[Any], dict[str, Any], int]
"""Operator, inputs (arrays; constants as a list of one array; None if omitted), attributes, number of outputs."""


def some(rng: Rng, low: int, high: int, count: int) -> list[int]:
    return [int(value) for value in rng.integers(low, high, count)]


def floats(rng: Rng, shape: Any, spread: float = 2.0) -> np.ndarray:
    return rng.normal(0, spread, tuple(shape)).astype(np.float32)


def numbers(rng: Rng, shape: Any, kinds: str = "f") -> np.ndarray:
    """Draw values of a random type: f float32, d float64, h float16, b int8, B uint8, i int32, l int64, ? bool."""
    kind = str(rng.choice(list(kinds)))
    if kind in "fdh":
        return floats(rng, shape).astype(kind)
    if kind == "?":
        return rng.integers(0, 2, tuple(shape)).astype(bool)
    low, high = (0, 256) if kind == "B" else (-128, 128)
    return rng.integers(low, high, tuple(shape)).astype(np.dtype(kind))


def shape(rng: Rng, low: int = 1, high: int = 5) -> list[int]:
    return some(rng, 1, 6, int(rng.integers(low, high)))


def axis(rng: Rng, rank: int) -> int:
    return int(rng.integers(-rank, rank))


def maybe(rng: Rng, value: Any, chance: float = 0.5) -> Any:
    return value if rng.random() < chance else None


def set_attributes(**attributes: Any) -> dict[str, Any]:
    """Return the attributes that are not None."""
    return {name: value for name, value in attributes.items() if value is not None}
