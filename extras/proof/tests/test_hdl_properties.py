"""All properties of the room are proven; in `make regression` also that each of them sees faults."""

from __future__ import annotations

import pytest

from weft.extras.proof.hardware.property import Property
from weft.extras.proof.hardware.registry import properties
from weft.extras.proof.tests.support.properties import (
    assert_benches_elaborate,
    assert_proven,
    assert_sees_faults,
    assert_titles_are_unique,
    assert_units_have_whole_properties,
    of_a_room,
)

QUICK = ("lib/", "control/run_state", "matrix/mm_weights", "vector/vec_operands", "vector/vec_writer")
PROVEN, SEEING = of_a_room(properties(), quick=QUICK)


def test_titles_are_unique() -> None:
    assert_titles_are_unique(properties())


def test_units_have_properties_that_see_faults() -> None:
    assert_units_have_whole_properties(properties())


def test_benches_elaborate() -> None:
    assert_benches_elaborate(properties(), 10)


@pytest.mark.parametrize("item", PROVEN)
def test_proven(item: Property) -> None:
    assert_proven(item)


@pytest.mark.parametrize("item", SEEING)
def test_faults_are_seen(item: Property) -> None:
    assert_sees_faults(item, properties())
