"""Pareto dominance of measured points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.extras.search.explore.point import Measured


def values(item: Measured, objectives: Sequence[str]) -> tuple[float, ...]:
    """Return the values to minimise."""
    objective_values = item.values
    return tuple(objective_values[name] for name in objectives)


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether `one` is nowhere larger than `other`, and smaller somewhere."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def pareto_front(points: Iterable[Measured], objectives: Sequence[str]) -> list[Measured]:
    """Return the Pareto front, in the order of the first objective; of points with equal values only the first."""
    distinct: dict[tuple[float, ...], Measured] = {}
    for item in points:
        distinct.setdefault(values(item, objectives), item)
    optimal: list[tuple[float, ...]] = []
    for candidate in sorted(distinct):  # a dominating tuple sorts before the dominated one
        if not any(dominates(item, candidate) for item in optimal):
            optimal.append(candidate)
    return [distinct[candidate] for candidate in optimal]
