"""All properties of the room are proven; in `make regression` also that each of them sees faults."""

from __future__ import annotations

import pytest
from support.properties import assert_proven, assert_sees_faults

from weft.boards.formal.registry import properties
from weft.hdl.formal.property import Property

ALL = list(properties())
QUICK = ("boards/arbiter",)
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
    assert_proven(item)


@pytest.mark.long
@pytest.mark.parametrize("item", ALL, ids=lambda item: item.title)
def test_faults_are_seen(item: Property) -> None:
    assert_sees_faults(item)
