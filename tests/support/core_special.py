"""Scenarios for numbers and times that random programs hardly have, of which coverage and mutants both make use."""

from __future__ import annotations

from collections.abc import Iterator

from support.core_arithmetic import arithmetic
from support.core_balanced import balanced_scenarios
from support.core_cases import Core, Scenario
from support.core_corners import corners
from support.core_crowded import crowded
from support.core_large import large
from support.core_nested import nested
from support.core_observed import long_loops
from support.core_pairs import beside
from support.core_signals import signals


def special(core: Core) -> Iterator[Scenario]:
    """Long loops, within others as well, the corners of arithmetic and of operands, large transfers and sums, pairs of
    instructions, units that meet at a memory, and signals."""
    for kind in (
        long_loops,
        nested,
        arithmetic,
        balanced_scenarios,
        large,
        beside,
        crowded,
        signals,
        corners,
    ):
        yield from kind(core)
