"""Plausible design faults are noticed by properties of their unit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from weft.extras.proof.boards import registry as boards
from weft.extras.proof.hardware import registry as hdl
from weft.extras.proof.tests.closure.planted import NOTICED, FaultError, faults, substitute, tried

FAULTS = faults()
CHEAP = (
    "a decoder ignores the first bit of each group",
    "an error of the last memory is not reported",
    "the spare word is overwritten while it is full",
)


def test_every_fault_can_be_planted() -> None:
    """Each substitution fits its source, is unique, and belongs to a unit with properties."""
    units = {item.unit for item in (*hdl.properties(), *boards.properties())}
    for fault in FAULTS:
        substitute(fault)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60
    assert {fault.unit for fault in FAULTS} <= units


def test_few_survive() -> None:
    survivors = [fault for fault in FAULTS if fault.survives]
    assert len(survivors) <= (1 - NOTICED) * len(FAULTS)


@pytest.mark.parametrize(
    ("changes", "count"),
    [({"old": "no such text"}, "0 times"), ({"old": "part"}, "times"), ({"new": None}, "once")],
)
def test_a_fault_that_does_not_fit_is_refused(changes: dict[str, str | None], count: str) -> None:
    fault = FAULTS[0]
    fields = {name: fault.old if text is None else text for name, text in changes.items()}
    with pytest.raises(FaultError, match=f"{re.escape(fault.name)}.*{count}"):
        substitute(replace(fault, **fields))


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "name",
    [pytest.param(fault.name, marks=() if fault.name in CHEAP else pytest.mark.long) for fault in FAULTS],
)
def test_a_property_of_the_unit_notices(name: str) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    actual = tried(fault, 120)
    assert bool(actual.noticed) != bool(fault.survives), actual.how
