"""What is asked of every property: it is proven, and it sees faults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from weft.hdl.formal.property import Property
from weft.sim.formal.mutants import mutants
from weft.sim.formal.prove import prove


def of_a_room(items: Iterable[Property], quick: str) -> tuple[list[Any], list[Any]]:
    """Parameters of the tests that they are proven, and that they see faults: long, but that those of units whose
    names begin with `quick` are proven."""
    listed = list(items)
    slow = [pytest.param(item, marks=pytest.mark.long, id=item.title) for item in listed]
    proven = [
        pytest.param(item, id=item.title) if item.unit.startswith(quick) else parameter
        for item, parameter in zip(listed, slow, strict=True)
    ]
    return proven, slow


def assert_titles_are_unique(items: Iterable[Property]) -> None:
    titles = [item.title for item in items]
    assert len(set(titles)) == len(titles) > 0


def assert_proven(item: Property) -> None:
    result = prove(item, 600)
    assert result.good, f"{result.outcome}: {result.how} {result.folder}"


def assert_sees_faults(item: Property) -> None:
    """At least 8 of 10 mutants of the unit: others may change what the property says nothing of, or nothing."""
    found = mutants(item, 10, 1)
    assert found.killed >= 8, f"survived: {found.survivors} {found.undecided}"
