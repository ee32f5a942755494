"""What is asked of every property: it is proven, and it sees faults."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from weft.extras.proof.engine.mutants import mutants
from weft.extras.proof.engine.netlist import source
from weft.extras.proof.engine.prove import prove
from weft.extras.proof.hardware.property import Property


def of_a_room(items: Iterable[Property], quick: str | tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """Parameters of the tests that they are proven, and that they see faults: long, but that those of units whose
    names begin with `quick`, or one of these, are proven. Those that are a part are not asked for faults."""
    listed = list(items)
    slow = [pytest.param(item, marks=pytest.mark.long, id=item.title) for item in listed]
    proven = [
        pytest.param(item, id=item.title) if item.unit.startswith(quick) else parameter
        for item, parameter in zip(listed, slow, strict=True)
    ]
    seeing = [parameter for item, parameter in zip(listed, slow, strict=True) if not item.part]
    return proven, seeing


IN_PART = ("sequential/mover",)
"""Units of which little is claimed: the bytes that they move are compared with the golden interpreter's."""


def assert_units_have_whole_properties(items: Iterable[Property]) -> None:
    """A unit with properties that are a part has others, which see its faults."""
    listed = list(items)
    whole = {item.unit for item in listed if not item.part}
    assert {item.unit for item in listed if item.unit not in whole} <= set(IN_PART)


def assert_titles_are_unique(items: Iterable[Property]) -> None:
    titles = [item.title for item in items]
    assert len(set(titles)) == len(titles) > 0


def assert_benches_elaborate(items: Iterable[Property], count: int) -> None:
    """Elaborate the benches of `count` random properties: all signals that they look at exist."""
    listed = list(items)
    for item in random.sample(listed, min(count, len(listed))):
        try:
            source(item.bench())
        except Exception as error:
            error.add_note(f"in the bench of {item.title!r}")
            raise


def assert_proven(item: Property) -> None:
    result = prove(item, 600)
    assert result.good, f"{result.outcome}: {result.how} {result.folder}"


def assert_sees_faults(item: Property, items: Iterable[Property]) -> None:
    """It sees a mutant of its unit, and it and the others of `items` that claim other things of the same unit see at
    least four fifths of those that change something: the rest may change what is not promised."""
    found = mutants(item, 10, 1, beside=items)
    assert found.killed >= 1, f"none killed; others: {found.others}"
    assert found.seen * 10 >= found.count * 8, f"survived: {found.survivors} {found.undecided}"
