"""Draws of a test's cases: few of them in a run, in time all of them, and all in the long regression."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import drawn_cases

TESTS = """
import pytest

@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("number", [*range(5), pytest.param(5, marks=pytest.mark.long)])
def test_drawn(number, name):
    pass

@pytest.mark.drawn(3)
@pytest.mark.parametrize("number", range(2))
def test_of_few_cases(number):
    pass

def test_other():
    pass
"""


@pytest.fixture
def items(tmp_path: Path, request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Return the cases of `TESTS`, collected as a part of this session."""
    path = tmp_path / "test_some.py"
    path.write_text(TESTS)
    module = pytest.Module.from_parent(request.session, path=path)
    return list(request.session.genitems(module))


def unmarked(items: list[pytest.Item], seed: str) -> set[str]:
    """Return the names of cases that are not long after a draw, which is undone."""
    before = {item: list(item.own_markers) for item in items}
    drawn_cases.mark_others(items, seed)
    found = {item.name for item in items if not item.get_closest_marker("long")}
    for item, markers in before.items():
        item.own_markers[:] = markers
    return found


def test_a_run_draws_some_cases_of_each_test(items: list[pytest.Item]) -> None:
    seen: set[str] = set()
    for seed in range(40):
        found = unmarked(items, str(seed))
        assert found == unmarked(items, str(seed))
        drawn = {name for name in found if name.startswith("test_drawn")}
        assert len(drawn) == 3
        assert found - drawn == {"test_of_few_cases[0]", "test_of_few_cases[1]", "test_other"}
        seen |= drawn
    assert seen == {f"test_drawn[{number}-{name}]" for number in range(5) for name in "ab"}


def test_without_a_seed_every_drawn_case_is_long(items: list[pytest.Item]) -> None:
    assert unmarked(items, "") == {"test_other"}


def test_all_draws_every_case(items: list[pytest.Item]) -> None:
    long = {"test_drawn[5-a]", "test_drawn[5-b]"}
    assert unmarked(items, drawn_cases.ALL) == {item.name for item in items} - long


def test_the_seed_stays_if_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(drawn_cases.SEED, "7")
    drawn_cases.configure()
    assert os.environ[drawn_cases.SEED] == "7"
    seeds = set()
    for _ in range(5):
        monkeypatch.delenv(drawn_cases.SEED)
        drawn_cases.configure()
        seeds.add(os.environ[drawn_cases.SEED])
    assert len(seeds) > 1
