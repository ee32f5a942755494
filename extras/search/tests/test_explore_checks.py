"""Checks of a front's points: done by several workers, told when they are known, kept, and ended by an interrupt."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weft.extras.search.explore.confirm as confirming
from weft.boards.build.tools import ToolError
from weft.boards.families.family import Resources
from weft.extras.search.explore.checks import (
    ABANDONED,
    SYNTHESISED,
    VERIFIED,
    Check,
    Name,
    Outcome,
    Outcomes,
    confirm_all,
    make_checks,
    run_check,
)
from weft.extras.search.explore.confirm import Run, Synthesis
from weft.extras.search.explore.explore import Exploration
from weft.extras.search.explore.workers import Workers
from weft.extras.search.tests.support.explored import measured, task
from weft.hdl.isa.config import PRESETS
from weft.sim.device import DeviceError

KNOWN = Resources(1000, 1000, 0, 10)


class Here(Workers[Check, Outcome]):
    """The same, but in this process, where tests have replaced functions; the last job comes first."""

    def __init__(self) -> None:
        super().__init__(1, run_check, ABANDONED)
        self._added: list[tuple[Any, Check]] = []

    @property
    def running(self) -> int:
        return len(self._added)

    def add(self, name: Any, job: Check, lives: int = 1) -> None:
        self._added.append((name, job))

    def collect(self, seconds: float) -> Iterator[tuple[Any, Outcome]]:
        name, job = self._added.pop()
        yield name, run_check(job)


@pytest.fixture
def found(tmp_path: Path) -> Exploration:
    """Two points on a front."""
    made = task(tmp_path)
    items = [measured(made, PRESETS["tiny"].replace(lanes=lanes), tmp_path) for lanes in (1, 2)]
    return Exploration(("cycles", "lut"), items)


@pytest.fixture
def checks(found: Exploration, tmp_path: Path) -> dict[Name, Check]:
    return make_checks(found, task(tmp_path).models, 0, (VERIFIED, SYNTHESISED), tmp_path / "results")


def carried_out(wanted: dict[Name, Check]) -> tuple[bool, dict[Name, Outcome], Outcomes]:
    """Whether all is well, what was told, and what was known in the end."""
    told: dict[Name, Outcome] = {}
    last: Outcomes = {}

    def tell(name: Name, check: Check, outcome: Outcome, known: Outcomes) -> None:
        told[name] = outcome
        assert known[check.item.point.key][check.kind] == outcome.details
        last.update(known)

    return confirm_all(wanted, Here(), tell), told, last


def results(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Run], synthesised: Callable[..., Synthesis]
) -> None:
    monkeypatch.setattr(confirming, "run_layer", run)
    monkeypatch.setattr(confirming, "synthesise", synthesised)


def test_each_point_of_the_front_is_checked(
    found: Exploration, checks: dict[Name, Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Run("layer", rtl=5, model=5)
    results(monkeypatch, lambda *given: good, lambda *given: Synthesis(KNOWN, KNOWN))
    assert set(checks) == {(number, what) for number in (1, 2) for what in (VERIFIED, SYNTHESISED)}
    well, told, known = carried_out(checks)
    assert well
    assert set(told) == set(checks)
    assert told[1, VERIFIED].summary == "layer: 5 cycles"
    assert set(known) == {item.point.key for item in found.pareto_front}
    for outcomes in known.values():
        assert outcomes[VERIFIED] == good.to_dict()
        assert outcomes[SYNTHESISED]["counted"] == dict(KNOWN.items())
    json.dumps(list(known.values()))


@pytest.mark.parametrize(
    "bad",
    [
        (Run("layer", mismatches=1), Synthesis(KNOWN, KNOWN)),
        (Run("layer"), Synthesis(dataclasses.replace(KNOWN, lut=1101), KNOWN)),
    ],
)
def test_one_that_is_not_as_it_should_be(
    found: Exploration,
    checks: dict[Name, Check],
    bad: tuple[Run, Synthesis],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the second point only: the others are, and are told."""
    second = found.pareto_front[1]
    good = Run("layer"), Synthesis(KNOWN, KNOWN)
    both = [lambda item, *given, at=at: (bad if item == second else good)[at] for at in (0, 1)]
    results(monkeypatch, *both)
    well, told, known = carried_out(checks)
    assert not well
    assert len(told) == 4
    wrong = {
        (key, what) for key, outcomes in known.items() for what in outcomes if not outcomes[what]["good"]
    }
    assert len(wrong) == 1
    assert wrong <= {(second.point.key, VERIFIED), (second.point.key, SYNTHESISED)}


def test_what_fails_leaves_the_others_and_is_tried_again(
    found: Exploration, checks: dict[Name, Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, tried = found.pareto_front[0], []

    def run(item: Any, *given: object) -> Run:
        tried.append(item)
        if item == first:
            raise DeviceError("no end")
        return Run("layer")

    def synthesised(item: Any) -> Synthesis:
        raise ToolError("it is not installed")

    results(monkeypatch, run, synthesised)
    for _ in range(2):
        well, told, known = carried_out(checks)
        assert not well
        assert known[first.point.key][VERIFIED] == {"failed": "no end", "good": False}
        assert told[2, VERIFIED].details["good"]
        assert told[2, SYNTHESISED] == Outcome.failure("it is not installed")
    assert tried.count(first) == 2
    assert len(tried) == 3  # the other one's run is kept


def test_what_is_kept_is_of_the_same_point(
    checks: dict[Name, Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other inputs, models, memory or configuration nothing is known."""
    check = checks[1, VERIFIED]
    point, models = check.item.point, check.models

    def at(**changes: object) -> Check:
        changed = dataclasses.replace(point, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(check, item=dataclasses.replace(check.item, point=changed))

    others = [
        dataclasses.replace(check, seed=1),
        dataclasses.replace(check, models=dataclasses.replace(models, digests=("0",))),
        dataclasses.replace(check, models=dataclasses.replace(models, shapes=(("n", 2),))),
        at(config=point.config.replace(queue_depth=8)),
        at(place=dataclasses.replace(point.place, latency=31)),
        at(place=dataclasses.replace(point.place, bandwidth=1.5)),
    ]
    assert len({item.key for item in (check, *others)}) == len(others) + 1
    monkeypatch.setattr(confirming, "run_layer", lambda *given: Run("first"))
    assert run_check(check).summary.startswith("first")
    monkeypatch.setattr(confirming, "run_layer", lambda *given: Run("second"))
    assert run_check(check).summary.startswith("first")
    assert all(run_check(item).summary.startswith("second") for item in others)


def test_processes_do_the_same(tmp_path: Path) -> None:
    """Two of them, on the RTL, with other inputs."""
    made = task(tmp_path)
    item = measured(made, PRESETS["tiny"], tmp_path)
    found = Exploration(("cycles",), [item])
    both = [make_checks(found, made.models, seed, (VERIFIED,), tmp_path / "results") for seed in (0, 1)]
    wanted = {(number, VERIFIED): known[1, VERIFIED] for number, known in enumerate(both, 1)}
    told: dict[Name, Outcome] = {}
    workers = Workers(2, run_check, ABANDONED)
    assert confirm_all(wanted, workers, lambda name, check, outcome, known: told.update({name: outcome}))
    assert set(told) == set(wanted)
    assert not workers.running
    for (_, what), outcome in told.items():
        assert what == VERIFIED
        assert outcome.details["rtl"] == outcome.details["model"] > 0
    assert told[1, VERIFIED] == Outcome.of(confirming.run_layer(item, made.models, 0))
