"""Scenarios for values and times that random programs rarely reach, shared by coverage and mutation tests."""

from __future__ import annotations

from collections.abc import Iterator

from support.core_arithmetic import arithmetic
from support.core_balanced import balanced_scenarios
from support.core_cases import Core, Scenario
from support.core_corners import corners
from support.core_crowded import crowded_scenarios
from support.core_large import large
from support.core_nested import nested_scenarios
from support.core_observed import long_loops
from support.core_pairs import beside
from support.core_signals import signals


def special(core: Core) -> Iterator[Scenario]:
    """Yield long and nested loops, corners of arithmetic and operands, large transfers and sums, pairs of instructions,
    contention for memories, and signals."""
    for kind in (
        long_loops,
        nested_scenarios,
        arithmetic,
        balanced_scenarios,
        large,
        beside,
        crowded_scenarios,
        signals,
        corners,
    ):
        yield from kind(core)
