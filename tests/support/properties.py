"""What is asked of every property: it is proven, and it sees faults."""

from __future__ import annotations

from weft.hdl.formal.property import Property
from weft.sim.formal.mutants import mutants
from weft.sim.formal.prove import prove


def assert_proven(item: Property) -> None:
    result = prove(item, 600)
    assert result.good, f"{result.outcome}: {result.how} {result.folder}"


def assert_sees_faults(item: Property) -> None:
    """At least 8 of 10 mutants of the unit: others may change what the property says nothing of, or nothing."""
    found = mutants(item, 10, 1)
    assert found.killed >= 8, f"survived: {found.survivors} {found.undecided}"
