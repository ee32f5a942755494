"""Checks of every property: it is proven, and it detects faults."""

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
    """Return parameters for the proof and fault tests. All are long except proofs of units named in `quick`; partial
    properties are not checked for faults."""
    listed = list(items)
    slow = [pytest.param(item, marks=pytest.mark.long, id=item.title) for item in listed]
    proven = [
        pytest.param(item, id=item.title) if item.unit.startswith(quick) else parameter
        for item, parameter in zip(listed, slow, strict=True)
    ]
    seeing = [parameter for item, parameter in zip(listed, slow, strict=True) if not item.part]
    return proven, seeing


IN_PART = ("sequential/mover",)
"""Units with few claims, because their bytes are compared with the golden interpreter's."""


def assert_units_have_whole_properties(items: Iterable[Property]) -> None:
    """A unit with partial properties has others, which detect its faults."""
    listed = list(items)
    whole = {item.unit for item in listed if not item.part}
    assert {item.unit for item in listed if item.unit not in whole} <= set(IN_PART)


def assert_titles_are_unique(items: Iterable[Property]) -> None:
    titles = [item.title for item in items]
    assert len(set(titles)) == len(titles) > 0


def assert_benches_elaborate(items: Iterable[Property], count: int) -> None:
    """Elaborate the benches of `count` random properties: all observed signals exist."""
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
    """Check that a property detects a mutant of its unit, and that with the unit's other properties it detects at least
    four fifths of the effective ones."""
    result = mutants(item, 10, 1, beside=items)
    assert result.killed >= 1, f"none killed; others: {result.others}"
    assert result.seen * 10 >= result.count * 8, f"survived: {result.survivors} {result.undecided}"
