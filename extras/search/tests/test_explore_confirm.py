"""Confirmation of points on the RTL and by synthesis: differences, data-dependent cycles, and boards that are too
small."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support import attention_models, qdq_models

import weft.extras.search.explore.confirm as confirming
from weft.boards.errors import ToolError
from weft.boards.families.family import Resources
from weft.boards.registry import BOARDS
from weft.examples import attention
from weft.extras.search.explore.confirm import (
    ABANDONED,
    SYNTHESISED,
    VERIFIED,
    Check,
    Name,
    Outcome,
    Outcomes,
    Run,
    Synthesis,
    confirm_all,
    make_checks,
    run_check,
    run_layer,
    synthesise,
)
from weft.extras.search.explore.evaluate import Models
from weft.extras.search.explore.explore import Exploration, Task
from weft.extras.search.explore.output import copy_models
from weft.extras.search.explore.point import MEMORY, Measured, Place, Point, Timing
from weft.extras.search.explore.workers import Workers
from weft.extras.search.tests.support.explored import OBJECTIVES, measure_config, model, task
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.device import DeviceError


@pytest.mark.parametrize(
    ("board", "changes"),
    [
        ("", {}),
        ("tang-nano-9k", {}),
        pytest.param("", {"bus_bytes": 16, "queue_depth": 1}, marks=pytest.mark.long),
        pytest.param("ulx3s-12f", {}, marks=pytest.mark.long),
    ],
)
def test_layers_match_on_the_rtl(tmp_path: Path, board: str, changes: dict[str, int]) -> None:
    """On both cores bytes and cycles match the model."""
    search = task(tmp_path, boards=[board] if board else [])
    config = BOARDS[board].config if board else PRESETS["tiny"].replace(**changes)
    actual = run_layer(measure_config(search, config, tmp_path), search.models)
    assert actual.good, actual
    assert actual.layer
    assert 0 < actual.rtl == actual.model
    json.dumps(actual.to_dict())


def test_attention_on_the_rtl(tmp_path: Path) -> None:
    path = tmp_path / "attention.onnx"
    path.write_bytes(attention.model())
    search = task(tmp_path)
    search = Task(copy_models(tmp_path, [path], {}), search.space, search.places, OBJECTIVES)
    assert run_layer(measure_config(search, PRESETS["tiny"], tmp_path), search.models, seed=2).good


def test_differences_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a byte, and in a cycle."""
    search = task(tmp_path)
    item = measure_config(search, PRESETS["tiny"], tmp_path)
    compared = confirming._compare
    for change, said in (
        (lambda differ, rtl: (3, rtl), "3 bytes of "),
        (lambda differ, rtl: (0, rtl + 1), "the model's "),
    ):
        monkeypatch.setattr(
            confirming, "_compare", lambda *arguments, change=change: change(*compared(*arguments))
        )
        actual = run_layer(item, search.models)
        assert not actual.good
        assert said in actual.summary


def test_bytes_are_compared_with_the_golden_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returns other bytes here."""
    search = task(tmp_path)
    item = measure_config(search, PRESETS["tiny"], tmp_path)
    device = confirming.golden_device

    class Wrong:
        def __init__(self, *arguments: object) -> None:
            self._device = device(*arguments)  # type: ignore[arg-type]

        def __getattr__(self, name: str) -> object:
            return getattr(self._device, name)

        def read(self, address: int, size: int) -> bytes:
            actual = bytearray(self._device.read(address, size))
            actual[-1] ^= 1
            return bytes(actual)

    monkeypatch.setattr(confirming, "golden_device", Wrong)
    actual = run_layer(item, search.models)
    assert actual.mismatches == 1
    assert not actual.good


def test_no_layer_is_small_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "PREFERRED_CYCLES", 50)
    monkeypatch.setattr(confirming, "MAX_CYCLES", 100)
    search = task(tmp_path)
    actual = run_layer(measure_config(search, PRESETS["tiny"], tmp_path), search.models)
    assert actual == Run("")
    assert not actual.good
    assert actual.summary == "nothing to run: no layer with multiplications takes 100 cycles or fewer"


def test_the_shortest_layer_where_all_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model's cycles; among others the largest layer."""
    search = task(tmp_path)
    item = measure_config(search, PRESETS["tiny"], tmp_path)
    cycles = {op.name: cycles for op, _, _, _, cycles in all_layers(item, search.models)}
    shortest, longest = min(cycles, key=lambda name: cycles[name]), max(cycles, key=lambda name: cycles[name])
    assert cycles[shortest] < cycles[longest]
    assert run_layer(item, search.models).layer == longest
    for limit in (cycles[shortest] - 1, 1):
        monkeypatch.setattr(confirming, "PREFERRED_CYCLES", limit)
        actual = run_layer(item, search.models)
        assert actual.layer == shortest
        assert actual.good
        assert actual.rtl == cycles[shortest]
    monkeypatch.setattr(confirming, "PREFERRED_CYCLES", cycles[shortest])
    assert run_layer(item, search.models).layer == shortest
    monkeypatch.setattr(confirming, "PREFERRED_CYCLES", 1)
    monkeypatch.setattr(confirming, "_is_long", lambda *arguments: False)
    assert run_layer(item, search.models).layer == shortest


def all_layers(item: Measured, models: Models) -> list[confirming._Layer]:
    """Return all layers, none of which is short enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confirming, "PREFERRED_CYCLES", 1)
        patch.setattr(confirming, "_is_long", lambda *arguments: False)
        return list(confirming._candidate_layers(item, models, 0))


def test_error_of_estimates() -> None:
    known = Resources(1000, 1000, 0, 10)
    assert Synthesis(known, known).good
    assert Synthesis(dataclasses.replace(known, lut=1099, dsp=1, ram=20), known).good
    assert not Synthesis(dataclasses.replace(known, lut=1101), known).good
    assert not Synthesis(dataclasses.replace(known, ff=890), known).good
    assert Synthesis(dataclasses.replace(known, lut=1050), known).deviations["lut"] == pytest.approx(0.05)


@pytest.mark.long
@pytest.mark.parametrize("board", ["tang-nano-9k", "ulx3s-12f"])
def test_synthesis(tmp_path: Path, board: str) -> None:
    """Of a configuration that the estimates were not fitted to."""
    search = task(tmp_path, boards=[board])
    config = BOARDS[board].config.replace(scratchpad_depth=128, accumulator_depth=64)
    actual = synthesise(measure_config(search, config, tmp_path))
    print(actual.summary)
    assert actual.good, actual.summary


def uncounted_point(name: str, config: Config) -> Measured:
    """Return a point without counted cycles, on which nothing here depends."""
    point = Point.of(config, Place(name))
    return Measured(point, point.resources(), Timing([1], 1, 1, 1))


def only_attention(folder: Path, seed: int) -> Models:
    path = folder / "attention.onnx"
    rng = np.random.default_rng(seed)
    model = attention_models.random_operator(rng)
    attention_models.calibrate_scores(model, qdq_models.feeds(model, rng))
    onnx.save(model, path)
    return copy_models(folder, [path], {})


@pytest.mark.parametrize("config", ["tiny", pytest.param("small", marks=pytest.mark.long)])
def test_division_cycles_depend_on_data(tmp_path: Path, config: str) -> None:
    """On the pipelined core by at most a few cycles a row; bytes match."""
    actual = run_layer(uncounted_point(MEMORY, PRESETS[config]), only_attention(tmp_path, 4), seed=1)
    assert actual.good, actual
    assert actual.mismatches == 0
    assert 0 < abs(actual.rtl - actual.model) <= actual.tolerance
    assert f"the model's {actual.model:,}" in actual.summary
    assert not dataclasses.replace(actual, mismatches=1).good
    for apart in (actual.tolerance + 1, -actual.tolerance - 1):
        assert not dataclasses.replace(actual, rtl=actual.model + apart).good
    assert json.loads(json.dumps(actual.to_dict()))["within"] == actual.tolerance


def test_the_sequential_model_has_the_data(tmp_path: Path) -> None:
    actual = run_layer(
        uncounted_point("tang-nano-9k", BOARDS["tang-nano-9k"].config), only_attention(tmp_path, 2)
    )
    assert actual.good, actual
    assert actual.tolerance == 0
    assert actual.rtl == actual.model > 0


def test_convolutions_come_first(tmp_path: Path) -> None:
    """Attention has the most multiplications."""
    convolutions, larger = copy_models(tmp_path, [model(tmp_path)], {}), only_attention(tmp_path, 4)
    both = Models(larger.paths + convolutions.paths, larger.digests + convolutions.digests)
    item = uncounted_point(MEMORY, PRESETS["tiny"])
    actual = run_layer(item, both)
    assert actual == run_layer(item, convolutions)
    assert actual.good
    assert actual.tolerance == 0


@pytest.mark.parametrize(("name", "good"), [("tang-nano-9k", False), (MEMORY, True)])
def test_a_board_may_be_too_small(monkeypatch: pytest.MonkeyPatch, name: str, good: bool) -> None:
    """However small the error of the estimate; without a board there are no limits."""
    item = uncounted_point(name, BOARDS["tang-nano-9k"].config)
    available = item.point.place.estimate_board.available
    counted = dataclasses.replace(item.need, ram=available.ram + 1)
    monkeypatch.setattr(confirming, "synthesised_resources", lambda *arguments: counted)
    actual = synthesise(item)
    assert actual.good == good
    assert actual.lacking == (() if good else ("ram",))
    assert ("more than the board has" in actual.summary) != good
    assert json.loads(json.dumps(actual.to_dict()))["good"] == good
    full = Resources(**{kind: getattr(available, kind) for kind in Resources.NAMES})
    monkeypatch.setattr(confirming, "synthesised_resources", lambda *arguments: full)
    assert synthesise(item).lacking == ()


def test_tools_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    item = uncounted_point("tang-nano-9k", BOARDS["tang-nano-9k"].config)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolError, match="pip install 'weft\\[boards\\]'"):
        synthesise(item)


KNOWN = Resources(1000, 1000, 0, 10)


class Here(Workers[Check, Outcome]):
    """Worker pool in this process, where tests have replaced functions; the last job runs first."""

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
def front_of_two(tmp_path: Path) -> Exploration:
    search = task(tmp_path)
    items = [measure_config(search, PRESETS["tiny"].replace(lanes=lanes), tmp_path) for lanes in (1, 2)]
    return Exploration(("cycles", "lut"), items)


@pytest.fixture
def checks(front_of_two: Exploration, tmp_path: Path) -> dict[Name, Check]:
    return make_checks(front_of_two, task(tmp_path).models, 0, (VERIFIED, SYNTHESISED), tmp_path / "results")


def confirm_front(wanted: dict[Name, Check]) -> tuple[bool, dict[Name, Outcome], Outcomes]:
    """Return the verdict, the report, and the final results."""
    outcomes_by_name: dict[Name, Outcome] = {}
    last: Outcomes = {}

    def tell(name: Name, check: Check, outcome: Outcome, known: Outcomes) -> None:
        outcomes_by_name[name] = outcome
        assert known[check.item.point.key][check.kind] == outcome.details
        last.update(known)

    return confirm_all(wanted, Here(), tell), outcomes_by_name, last


def results(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Run], synthesised: Callable[..., Synthesis]
) -> None:
    monkeypatch.setattr(confirming, "run_layer", run)
    monkeypatch.setattr(confirming, "synthesise", synthesised)


def test_each_point_of_the_front_is_checked(
    front_of_two: Exploration, checks: dict[Name, Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Run("layer", rtl=5, model=5)
    results(monkeypatch, lambda *arguments: good, lambda *arguments: Synthesis(KNOWN, KNOWN))
    assert set(checks) == {(number, kind) for number in (1, 2) for kind in (VERIFIED, SYNTHESISED)}
    well, outcomes_by_name, known = confirm_front(checks)
    assert well
    assert set(outcomes_by_name) == set(checks)
    assert outcomes_by_name[1, VERIFIED].summary == "layer: 5 cycles"
    assert set(known) == {item.point.key for item in front_of_two.pareto_front}
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
def test_a_point_that_fails_confirmation(
    front_of_two: Exploration,
    checks: dict[Name, Check],
    bad: tuple[Run, Synthesis],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second point fails; the first is confirmed and reported."""
    second = front_of_two.pareto_front[1]
    good = Run("layer"), Synthesis(KNOWN, KNOWN)
    both = [lambda item, *arguments, at=at: (bad if item == second else good)[at] for at in (0, 1)]
    results(monkeypatch, *both)
    well, outcomes_by_name, known = confirm_front(checks)
    assert not well
    assert len(outcomes_by_name) == 4
    wrong = {
        (key, kind) for key, outcomes in known.items() for kind in outcomes if not outcomes[kind]["good"]
    }
    assert len(wrong) == 1
    assert wrong <= {(second.point.key, VERIFIED), (second.point.key, SYNTHESISED)}


def test_failed_jobs_are_retried_and_leave_others(
    front_of_two: Exploration, checks: dict[Name, Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, tried = front_of_two.pareto_front[0], []

    def run(item: Any, *arguments: object) -> Run:
        tried.append(item)
        if item == first:
            raise DeviceError("no end")
        return Run("layer")

    def synthesised(item: Any) -> Synthesis:
        raise ToolError("it is not installed")

    results(monkeypatch, run, synthesised)
    for _ in range(2):
        well, outcomes_by_name, known = confirm_front(checks)
        assert not well
        assert known[first.point.key][VERIFIED] == {"failed": "no end", "good": False}
        assert outcomes_by_name[2, VERIFIED].details["good"]
        assert outcomes_by_name[2, SYNTHESISED] == Outcome.failure("it is not installed")
    assert tried.count(first) == 2
    assert len(tried) == 3  # the other one's run is kept


def test_cached_confirmations_belong_to_one_point(
    checks: dict[Name, Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other inputs, models, memories or configurations have no cached results."""
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
    monkeypatch.setattr(confirming, "run_layer", lambda *arguments: Run("first"))
    assert run_check(check).summary.startswith("first")
    monkeypatch.setattr(confirming, "run_layer", lambda *arguments: Run("second"))
    assert run_check(check).summary.startswith("first")
    assert all(run_check(item).summary.startswith("second") for item in others)


def test_processes_give_equal_results(tmp_path: Path) -> None:
    """Two processes, on the RTL, with other inputs."""
    search = task(tmp_path)
    item = measure_config(search, PRESETS["tiny"], tmp_path)
    actual = Exploration(("cycles",), [item])
    both = [make_checks(actual, search.models, seed, (VERIFIED,), tmp_path / "results") for seed in (0, 1)]
    wanted = {(number, VERIFIED): known[1, VERIFIED] for number, known in enumerate(both, 1)}
    outcomes_by_name: dict[Name, Outcome] = {}
    workers = Workers(2, run_check, ABANDONED)
    assert confirm_all(
        wanted, workers, lambda name, check, outcome, known: outcomes_by_name.update({name: outcome})
    )
    assert set(outcomes_by_name) == set(wanted)
    assert not workers.running
    for (_, kind), outcome in outcomes_by_name.items():
        assert kind == VERIFIED
        assert outcome.details["rtl"] == outcome.details["model"] > 0
    assert outcomes_by_name[1, VERIFIED] == Outcome.of(confirming.run_layer(item, search.models, 0))
