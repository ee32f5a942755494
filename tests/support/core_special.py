"""Scenarios for numbers and times that random programs hardly have, of which coverage and mutants both make use."""

from __future__ import annotations

from collections.abc import Iterator

from support.core_arithmetic import arithmetic
from support.core_cases import Core, Scenario
from support.core_large import large
from support.core_observed import long_loops
from support.core_pairs import beside


def special(core: Core) -> Iterator[Scenario]:
    """Long loops, the corners of arithmetic, large transfers and sums, and pairs of instructions."""
    for kind in (long_loops, arithmetic, large, beside):
        yield from kind(core)
