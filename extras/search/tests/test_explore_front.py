"""Pareto front."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from weft.boards.families.family import Resources
from weft.extras.search.explore.point import Measured, Place, Point, Timing, dominates, pareto_front, values
from weft.hdl.isa.config import PRESETS


def point(numbers: tuple[int, ...]) -> Measured:
    cycles, lut, ram = numbers
    result = Point(PRESETS["tiny"], Place("memory"), 1e6, routed=False)
    return Measured(result, Resources(lut, 1, 1, ram), Timing([cycles], 1, 1, 1))


@pytest.mark.parametrize("seed", range(8))
def test_against_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    objectives = ("cycles", "lut", "ram")[: 1 + seed % 3]
    points = [point(tuple(rng.integers(1, 4 + 3 * seed, 3).tolist())) for _ in range(40)]
    actual = pareto_front(points, objectives)
    known = [values(item, objectives) for item in points]
    best = {
        one for one in known
        if not any(all(a <= b for a, b in zip(other, one, strict=True)) and other != one for other in known)
    }  # fmt: skip
    assert [values(item, objectives) for item in actual] == sorted(best)
    assert not any(dominates(a, b) for a, b in itertools.permutations(sorted(best), 2))


def test_equal_points_are_one() -> None:
    same = [point((1, 1, 1)), point((1, 1, 1))]
    assert pareto_front(same, ("cycles", "lut")) == same[:1]


def test_of_no_points() -> None:
    assert pareto_front([], ("cycles",)) == []
