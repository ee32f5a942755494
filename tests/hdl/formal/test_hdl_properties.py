"""All properties of the room are proven; in `make regression` also that each of them sees faults."""

from __future__ import annotations

import pytest

from weft.hdl.formal.property import Property
from weft.hdl.formal.registry import properties
from weft.sim.formal.mutants import mutants
from weft.sim.formal.prove import prove

ALL = list(properties())
QUICK = ("lib/",)
"""Begin the names of units whose properties take few seconds."""


def test_titles_are_unique() -> None:
    assert len({item.title for item in ALL}) == len(ALL) > 0


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(item, marks=() if item.unit.startswith(QUICK) else pytest.mark.long, id=item.title)
        for item in ALL
    ],
)
def test_proven(item: Property) -> None:
    result = prove(item, 600)
    assert result.good, f"{result.outcome}: {result.how} {result.folder}"


@pytest.mark.long
@pytest.mark.parametrize("item", ALL, ids=lambda item: item.title)
def test_faults_are_seen(item: Property) -> None:
    found = mutants(item, 10, 1)
    assert found.killed >= 8, f"survived: {found.survivors} {found.undecided}"
