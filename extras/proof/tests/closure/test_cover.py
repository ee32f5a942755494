"""Coverage closure: counts, and detection of idle explanations."""

from __future__ import annotations

import argparse
import dataclasses

import pytest
from closure.cores import CORES

from weft.extras.proof.tests.closure import cover, mutate
from weft.sim.rtl.coverage import Explanation, Point, close, explanations


def test_idle_explanations_are_detected() -> None:
    used = Explanation(1, "one", "toggle", "a", "x[0:0]", "why")
    why = [used, dataclasses.replace(used, line=2, unit="b"), dataclasses.replace(used, line=3, core="two")]
    closure = close("one", {Point("toggle", "a", "x[0]:0->1"): 0}, set(), why)
    assert cover.idle(why, {"one": closure}) == [why[1]]


def test_coverage_is_counted_in_rows() -> None:
    counts = {Point("line", "a", "1"): 3, Point("line", "a", "2"): 0, Point("line", "a", "3"): 0}
    actual = close("one", counts, set(), [Explanation(1, "one", "line", "a", "2", "why")])
    both = argparse.Namespace(core=None, minutes=5.0)
    section = cover.section({"one": actual}, {"one": {}}, cover.command_of(both))
    assert section["with"] == "make coverage MINUTES=5"
    one = argparse.Namespace(core="one", minutes=5.0)
    assert cover.command_of(one) == "python extras/proof/tests/closure/cover.py --core one --minutes 5"
    assert section["rows"] == [["one core, lines of Verilog that run", "1 of 3 (33.3 %), 1 explained, 1 not"]]


def test_explanations_are_well_formed() -> None:
    assert explanations(cover.UNREACHED)
    assert isinstance(explanations(mutate.SURVIVORS), list)


@pytest.mark.long
def test_coverage_of_the_sequential_core() -> None:
    runs = {key: cover.run(core, 60.0) for key, core in CORES["sequential"].items()}
    actual = cover.closed("sequential", runs, explanations(cover.UNREACHED))
    assert actual.covered["line"] == actual.total["line"]
    for kind in ("branch", "toggle"):
        assert actual.covered[kind] > 0.98 * actual.total[kind]
