"""Which points are better than others in everything that counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.extras.search.explore.point import Measured


def values(item: Measured, objectives: Sequence[str]) -> tuple[float, ...]:
    """What is to be minimised."""
    known = item.values
    return tuple(known[name] for name in objectives)


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether `one` is nowhere larger than `other`, and somewhere smaller."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def front(points: Iterable[Measured], objectives: Sequence[str]) -> list[Measured]:
    """The points that no other dominates, in the order of the first objective; of points with the same values, one."""
    distinct: dict[tuple[float, ...], Measured] = {}
    for item in points:
        distinct.setdefault(values(item, objectives), item)
    left: list[tuple[float, ...]] = []
    for known in sorted(distinct):  # whatever dominates comes first
        if not any(dominates(item, known) for item in left):
            left.append(known)
    return [distinct[known] for known in left]
