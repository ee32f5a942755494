"""Measurement of the rotation of queries and keys, from the keys that a graph caches."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import Rotary
from weft.extras.language.onnx.norms import is_close

_ANGLE_TOLERANCE = 1e-4
"""Tolerance of an angle in radians,"""
_TOLERANCE_PER_POSITION = 2e-7
"""plus this for each position, because products of positions and angles are float32."""
_FACTOR_TOLERANCE = 1e-4
"""Distance from 1 below which a factor counts as 1."""
CachedKey = Callable[[int, np.ndarray], np.ndarray]
"""Returns what a graph caches at a position for a key (heads, length)."""


def trial_positions(last: int) -> list[int]:
    """Return the powers of two up to the last position, and that position."""
    return sorted({1 << at for at in range(max(last, 1).bit_length()) if 1 << at <= last} | {last})


def measure(
    cached_key: CachedKey, heads: int, length: int, last: int, base: float | None, table_error: float = 0.0
) -> tuple[Rotary | None, bool]:
    """Measure the rotation of keys.

    Parameters
    ----------
    cached_key : callable
    heads, length : int
        Shape of keys.
    last : int
        Last position to try.
    base : float or None
        Base in a configuration file; with it, factors of pairs can be determined.
    table_error : float
        Error bound of cosines and sines.

    Returns
    -------
    (Rotary or None, bool)
        The rotation, None if keys stay unchanged, and whether it pairs adjacent elements.

    Raises
    ------
    CompileError
        If keys change in another way than by rotating pairs of elements, by angles that grow with the position.
    """
    key = np.random.default_rng(1).normal(0, 1, (heads, length)).astype(np.float32)
    # Keep elements away from 0, so that every pair has a well-defined angle.
    key += np.sign(key) * np.float32(0.5)
    cached_keys = {
        at: cached_key(at, key).astype(np.float64).reshape(heads, length)
        for at in (0, *trial_positions(last))
    }
    tolerance = _ANGLE_TOLERANCE + _TOLERANCE_PER_POSITION * last + 2 * table_error
    if not is_close(cached_keys[0], key):
        raise CompileError(
            "keys at the first position are not what their product made: weft supports no norms of keys, and no "
            "rotation of the first position"
        )
    if all(is_close(value, key, 1e-6) for value in cached_keys.values()):
        return None, False
    for dimensions in _candidates(cached_keys, key):
        for adjacent in (False, True):
            angles = _measure_angles(cached_keys, key, dimensions, adjacent, tolerance)
            if angles is not None:
                return _fit_rotation(angles, dimensions, base, tolerance), adjacent
    raise CompileError(
        "keys are changed by their position in another way than by turning pairs of elements, neighbours or those half "
        "of the turned elements apart, or cosines and sines are scaled"
    )


def _candidates(cached_keys: dict[int, np.ndarray], key: np.ndarray) -> list[int]:
    """Return possible numbers of rotated elements: those that change, or all if some change too little."""
    length = key.shape[1]
    changed = np.zeros(length, bool)
    for value in cached_keys.values():
        changed |= (value != key).any(axis=0)
    last = int(np.flatnonzero(changed).max(initial=0)) + 1
    return list(dict.fromkeys((last + last % 2, length - length % 2)))


def _measure_angles(
    cached_keys: dict[int, np.ndarray], key: np.ndarray, dimensions: int, adjacent: bool, tolerance: float
) -> dict[int, np.ndarray] | None:
    """Return the angles of pairs by position; None if these pairs are not rotated."""
    first = slice(0, dimensions, 2) if adjacent else slice(0, dimensions // 2)
    second = slice(1, dimensions, 2) if adjacent else slice(dimensions // 2, dimensions)
    original = key[:, first] + 1j * key[:, second]
    angles = {}
    for at, value in cached_keys.items():
        pair_ratios = (value[:, first] + 1j * value[:, second]) / original
        mean_ratio = pair_ratios.mean(axis=0)
        unchanged = (
            is_close(value[:, dimensions:], key[:, dimensions:]) if dimensions < key.shape[1] else True
        )
        if (
            not unchanged
            or np.abs(np.abs(mean_ratio) - 1).max() > 10 * tolerance
            or np.abs(pair_ratios - mean_ratio).max() > 10 * tolerance
        ):
            return None
        angles[at] = np.angle(mean_ratio)
    return angles


def _fit_rotation(
    angles: dict[int, np.ndarray], dimensions: int, base: float | None, tolerance: float
) -> Rotary:
    """Return the rotation with these angles by position."""
    # Each position refines the angle per token; powers of two keep the number of full turns unambiguous.
    positions = sorted(at for at in angles if at)
    steps = np.array(angles[positions[0]], np.float64) / positions[0]
    for at in positions:
        predicted = steps * at
        full_turns = np.rint((predicted - angles[at]) / (2 * np.pi))
        steps = (angles[at] + 2 * np.pi * full_turns) / at
    for at in positions:
        deviation = np.abs(np.exp(1j * steps * at) - np.exp(1j * angles[at]))
        if deviation.max() > 10 * tolerance:
            raise CompileError(
                f"keys are turned by angles that do not grow evenly with the position ({at:,} for example), which "
                "weft does not support"
            )
    if steps.min() <= 0:
        raise CompileError("keys are turned backwards, or by no angle: weft expects angles above zero")
    return _fit_base(steps, dimensions, positions[-1], tolerance, base) or _fit_factors(
        steps, dimensions, base
    )


def _fit_base(
    steps: np.ndarray, dimensions: int, last: int, tolerance: float, base: float | None
) -> Rotary | None:
    """Return a rotation by a base, perhaps scaled; None if the angles do not fit one."""
    count = len(steps)
    scale = _shorten(1 / float(steps[0]), lambda value: abs(1 / value - steps[0]) * last < tolerance)
    if count == 1:
        # A single pair does not depend on the base.
        return Rotary(dimensions, 10000.0, scale)
    ratio = np.maximum(steps * scale, 1e-300)
    guess = max(float(ratio[1]) ** -count, 1.0)
    # Errors of all steps are about equal: relative to the step they grow with the pair, but their effect on the base
    # shrinks. This pair has the smallest error of the base.
    pair = min(count - 1, max(1, round(count / max(math.log(guess), 1e-9))))
    exact = float(ratio[pair]) ** (-count / pair)

    def fits(base: float) -> bool:
        predicted = base ** (-np.arange(count) / count) / scale
        return bool((np.abs(predicted - steps) * last).max() < tolerance)

    if base is not None and fits(base):
        return Rotary(dimensions, base, scale)
    if not np.isfinite(exact) or exact <= 0 or not fits(exact):
        return None
    return Rotary(dimensions, _shorten(exact, fits), scale)


def _fit_factors(steps: np.ndarray, dimensions: int, base: float | None) -> Rotary:
    """Return a rotation with a separate factor for each pair."""
    count = len(steps)
    if base is None:
        exact = float(steps[0] / steps[1]) ** count if count > 1 else 10000.0
        base = _shorten(exact, lambda value: abs(value / exact - 1) < _FACTOR_TOLERANCE)
    factors = base ** (-np.arange(count) / count) / steps
    factors[np.abs(factors - 1) < _FACTOR_TOLERANCE] = 1
    return Rotary(dimensions, base, 1.0, factors.astype(np.float32))


def _shorten(value: float, fits: Callable[[float], bool]) -> float:
    """Return the number with the fewest digits that fits."""
    for digits in range(1, 9):
        shortened = float(f"{value:.{digits}g}")
        if fits(shortened):
            return shortened
    return value
