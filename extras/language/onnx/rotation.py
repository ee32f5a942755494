"""By how much a graph turns queries and keys, measured at what it keeps of keys."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.extras.language.compiler.model import Rotary
from weft.extras.language.onnx.norms import close

_STEADY = 1e-4
"""Radians that an angle may be off,"""
_EACH = 2e-7
"""and for each position more, as products of positions and angles are float32."""
_UNITY = 1e-4
"""How far a factor is from 1 that stands for none."""
Kept = Callable[[int, np.ndarray], np.ndarray]
"""What a graph keeps at a position of a key (heads, length), as the product made it."""


def positions(last: int) -> list[int]:
    """Powers of two up to the last position, and that."""
    return sorted({1 << at for at in range(max(last, 1).bit_length()) if 1 << at <= last} | {last})


def measure(
    kept: Kept, heads: int, length: int, last: int, base: float | None, rounded: float = 0.0
) -> tuple[Rotary | None, bool]:
    """How keys are turned, None if they are not, and whether neighbours are turned together.

    Parameters
    ----------
    kept : callable
    heads, length : int
        Of keys.
    last : int
        The last position that is tried.
    base : float or None
        The base that a configuration beside the graph has, of which factors are told.
    rounded : float
        How far cosines and sines may be off.

    Raises
    ------
    CompileError
        If keys are changed in another way than by turning pairs of elements, by angles that grow with the position.
    """
    key = np.random.default_rng(1).normal(0, 1, (heads, length)).astype(np.float32)
    key += np.sign(key) * np.float32(0.5)
    found = {at: kept(at, key).astype(np.float64).reshape(heads, length) for at in (0, *positions(last))}
    steady = _STEADY + _EACH * last + 2 * rounded
    if not close(found[0], key):
        raise CompileError(
            "keys at the first position are not what their product made: weft supports no norms of keys, and no "
            "rotation of the first position"
        )
    if all(close(value, key, 1e-6) for value in found.values()):
        return None, False
    for dimensions in _candidates(found, key):
        for neighbours in (False, True):
            angles = _angles(found, key, dimensions, neighbours, steady)
            if angles is not None:
                return _fitted(angles, dimensions, base, steady), neighbours
    raise CompileError(
        "keys are changed by their position in another way than by turning pairs of elements, neighbours or those half "
        "of the turned elements apart, or cosines and sines are scaled"
    )


def _candidates(found: dict[int, np.ndarray], key: np.ndarray) -> list[int]:
    """How many elements may be turned: as many as change, or all, where some change too little to be seen."""
    length = key.shape[1]
    moved = np.zeros(length, bool)
    for value in found.values():
        moved |= (value != key).any(axis=0)
    last = int(np.flatnonzero(moved).max(initial=0)) + 1
    return list(dict.fromkeys((last + last % 2, length - length % 2)))


def _angles(
    found: dict[int, np.ndarray], key: np.ndarray, dimensions: int, neighbours: bool, steady: float
) -> dict[int, np.ndarray] | None:
    """The angles of pairs at positions; None if it is no rotation of these pairs."""
    first = slice(0, dimensions, 2) if neighbours else slice(0, dimensions // 2)
    second = slice(1, dimensions, 2) if neighbours else slice(dimensions // 2, dimensions)
    before = key[:, first] + 1j * key[:, second]
    angles = {}
    for at, value in found.items():
        turns = (value[:, first] + 1j * value[:, second]) / before
        turn = turns.mean(axis=0)
        rest = close(value[:, dimensions:], key[:, dimensions:]) if dimensions < key.shape[1] else True
        if (
            not rest
            or np.abs(np.abs(turn) - 1).max() > 10 * steady
            or np.abs(turns - turn).max() > 10 * steady
        ):
            return None
        angles[at] = np.angle(turn)
    return angles


def _fitted(angles: dict[int, np.ndarray], dimensions: int, base: float | None, steady: float) -> Rotary:
    """The rotation with these angles at positions."""
    places = sorted(at for at in angles if at)
    steps = np.array(angles[places[0]], np.float64) / places[0]
    for at in places:
        wanted = steps * at
        turns = np.rint((wanted - angles[at]) / (2 * np.pi))
        steps = (angles[at] + 2 * np.pi * turns) / at
    for at in places:
        off = np.abs(np.exp(1j * steps * at) - np.exp(1j * angles[at]))
        if off.max() > 10 * steady:
            raise CompileError(
                f"keys are turned by angles that do not grow evenly with the position ({at:,} for example), which "
                "weft does not support"
            )
    if steps.min() <= 0:
        raise CompileError("keys are turned backwards, or by no angle: weft expects angles above zero")
    return _even(steps, dimensions, places[-1], steady, base) or _with_factors(steps, dimensions, base)


def _even(steps: np.ndarray, dimensions: int, last: int, steady: float, base: float | None) -> Rotary | None:
    """Angles by a base, perhaps scaled; None if they do not follow from these."""
    count = len(steps)
    scale = _rounded(1 / float(steps[0]), lambda value: abs(1 / value - steps[0]) * last < steady)
    if count == 1:
        return Rotary(dimensions, 10000.0, scale)
    ratio = np.maximum(steps * scale, 1e-300)
    guess = max(float(ratio[1]) ** -count, 1.0)
    pair = min(count - 1, max(1, round(count / max(math.log(guess), 1e-9))))
    exact = float(ratio[pair]) ** (-count / pair)

    def fits(base: float) -> bool:
        wanted = base ** (-np.arange(count) / count) / scale
        return bool((np.abs(wanted - steps) * last).max() < steady)

    if base is not None and fits(base):
        return Rotary(dimensions, base, scale)
    if not np.isfinite(exact) or exact <= 0 or not fits(exact):
        return None
    return Rotary(dimensions, _rounded(exact, fits), scale)


def _with_factors(steps: np.ndarray, dimensions: int, base: float | None) -> Rotary:
    """Angles that have factors of their own, each."""
    count = len(steps)
    if base is None:
        exact = float(steps[0] / steps[1]) ** count if count > 1 else 10000.0
        base = _rounded(exact, lambda value: abs(value / exact - 1) < _UNITY)
    factors = base ** (-np.arange(count) / count) / steps
    factors[np.abs(factors - 1) < _UNITY] = 1
    return Rotary(dimensions, base, 1.0, factors.astype(np.float32))


def _rounded(value: float, fits: Callable[[float], bool]) -> float:
    """The number with the fewest digits that fits."""
    for digits in range(1, 9):
        short = float(f"{value:.{digits}g}")
        if fits(short):
            return short
    return value
