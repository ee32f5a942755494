"""Tests of which a few cases, drawn anew each time, run in ``make test``, and all in ``make regression``.

``@pytest.mark.drawn(3)`` draws 3 of a test's cases. The seed is in pytest's first lines; ``WEFT_TEST_SEED`` repeats it.
``WEFT_TEST_SEED=all`` draws every case.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import defaultdict

import pytest

SEED = "WEFT_TEST_SEED"
"""Environment variable; worker processes inherit it, so that all of them draw alike."""
ALL = "all"
"""Seed that draws every case."""


def configure() -> None:
    """Draw the seed of this run, unless it is given."""
    os.environ.setdefault(SEED, str(secrets.randbelow(10**6)))


def mark_others(items: list[pytest.Item], seed: str) -> None:
    """Mark as long all cases that the `seed` does not draw.

    An empty seed draws none: ``make regression`` runs every case.
    """
    cases: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("drawn")
        if marker and not item.get_closest_marker("long"):
            cases[item.nodeid.partition("[")[0], marker.args[0]].append(item)
    for (name, count), found in cases.items():
        chosen = random.Random(f"{seed} {name}").sample(range(len(found)), min(count, len(found)))
        for number, item in enumerate(found):
            if seed != ALL and (not seed or number not in chosen):
                item.add_marker(pytest.mark.long)
