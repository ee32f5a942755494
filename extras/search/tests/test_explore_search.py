"""Searches: measurements match programs, nothing is measured twice, and searches resume."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.boards.registry import BOARDS
from weft.compiler.frontend import import_model
from weft.errors import FileError, InputError
from weft.examples import attention, digits
from weft.extras.search.explore.evaluate import measure, read_result, reduce_config, unused_units
from weft.extras.search.explore.explore import (
    Exploration,
    Roofline,
    SpaceError,
    Task,
    explore,
    missing_feature,
    no_solution_message,
)
from weft.extras.search.explore.output import Output, copy_models, references
from weft.extras.search.explore.point import Measured, Point, dominates, make_places, values
from weft.extras.search.explore.space import Space
from weft.extras.search.tests.support.explored import (
    OBJECTIVES,
    VALUES,
    draw_points,
    entries,
    job,
    model,
    numbers,
    task,
)
from weft.hdl.isa.config import PRESETS
from weft.run.estimate import estimate


@pytest.mark.parametrize("board", ["", "ulx3s-12f", "tang-nano-9k", "icebreaker"])
def test_points_match_their_programs(tmp_path: Path, board: str) -> None:
    """Compiled and counted through the API; with a board's memory, by `weft estimate`."""
    search = task(tmp_path, boards=[board] if board else [])
    (place,) = search.places
    config = BOARDS[board].config if board else PRESETS["small"]
    actual = measure(job(search, config, place, tmp_path / "results"))
    if board:
        (expected,) = estimate(search.models.paths[0], [board])
        assert (actual.cycles, actual.moved, actual.macs) == (
            [expected.cycles],
            expected.moved,
            expected.macs,
        )
    else:
        program = weft.compile(search.models.paths[0], config)
        inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
        report = program.run(inputs, on="timing").report
        assert (actual.cycles, actual.moved, actual.macs) == (
            [report["cycles"]], report["dram_bytes"], report["macs"])  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_irrelevant_fields(tmp_path: Path, seed: int) -> None:
    """Fields that `relevant` normalises change no cycle; the others do."""
    rng = np.random.default_rng(seed)
    board = ["", "ulx3s-45f"][seed % 2]
    search = task(tmp_path, boards=[board] if board else [], space=Space(VALUES | {
        "row_states": (64, 128, 256), "alignments": (256, 1024), "table_depth": (256, 512, 2048),
        "queue_depth": (1, 2, 8), "depthwise_taps": (0,), "lookup_tables": (0, 1, 4), "kernel": (0, 64, 256),
        "multiply": (0, 1), "probability_bits": (0, 7, 8)}))  # fmt: skip
    (place,), changed = search.places, 0
    without = unused_units(search.models)
    assert without == {"probability_bits", "kernel", "lookup_tables", "multiply"}
    for _ in range(6):
        config = draw_points(rng, search.space)
        other = reduce_config(config, without, sequential=False)
        changed += other != config
        work = job(search, config, place, tmp_path)
        one, two = (measure(dataclasses.replace(work, config=item)) for item in (config, other))
        assert one == two, config
    assert changed


def test_units_that_are_used(tmp_path: Path) -> None:
    """Units that a model has operators for."""
    path = tmp_path / "attention.onnx"
    path.write_bytes(attention.model())
    assert "probability_bits" not in unused_units(copy_models(tmp_path, [path], {}))
    both = copy_models(tmp_path, [path, model(tmp_path)], {})
    assert unused_units(both) == unused_units(copy_models(tmp_path, [path], {}))


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_quicker_than_its_roofline(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    board = ["", "ulx3s-45f", "tang-primer-20k"][seed]
    search = task(tmp_path, boards=[board] if board else [])
    roofline, near = Roofline.of(search.models), []
    for _ in range(8):
        config = draw_points(rng, search.space)
        point = Point.of(config, search.places[0])
        if missing_feature(config, search.places[0]) or search.rejection_of_point(point):
            continue
        actual = measure(job(search, point.config, point.place, tmp_path))
        if not actual.refused:
            bound, item = roofline.bound(point), Measured(point, point.resources(), actual)
            for name in ("cycles", "ms", "bytes", "energy"):
                assert bound.values[name] <= item.values[name], (name, point.config)
            near.append(bound.cycles / item.cycles)
    assert max(near) > (0.3 if seed < 2 else 0.001)


def check(exploration: Exploration, search: Task) -> None:
    """Check the front, and that every preset is on it or dominated."""
    best = [values(item, search.objectives) for item in exploration.pareto_front]
    assert best
    for item in exploration.measured:
        own = values(item, search.objectives)
        assert own in best or any(dominates(other, own) for other in best)
    assert len({item.point.key for item in exploration.measured}) == len(exploration.measured)


def test_a_search_resumes(tmp_path: Path) -> None:
    search = task(tmp_path)
    first = explore(search, tmp_path, trials=8, seed=1)
    check(first, search)
    assert sum(item.origin == "search" for item in first.measured) >= 8
    assert {item.origin for item in first.measured} >= {f"preset {name}" for name in PRESETS}
    before = entries(tmp_path)
    second = explore(search, tmp_path, trials=5, seed=2)
    check(second, search)
    after = entries(tmp_path)
    assert {name: after[name] for name in before} == before  # nothing was measured again
    assert len(second.measured) >= len(first.measured) + 5
    assert set(numbers(first.measured)) <= set(numbers(second.measured))
    for item in second.measured:
        config = reduce_config(item.point.config, unused_units(search.models), sequential=False)
        assert read_result(job(search, config, item.point.place, tmp_path / "results")) == item.timing


def test_presets_are_improved_first(tmp_path: Path) -> None:
    """Dropping units that no model uses gives equal speed at lower cost."""
    actual = explore(task(tmp_path, space=Space()), tmp_path, trials=len(PRESETS), jobs=1)
    known = references(actual)
    assert [item.origin for item, _ in known] == [f"preset {name}" for name in PRESETS]
    assert all(number > 0 for _, number in known)


def test_a_small_space_is_exhausted(tmp_path: Path) -> None:
    """All points are measured except those that cannot be better, and the search ends."""
    space = Space({"n": (2, 4), "lanes": (1, 2), "kernel": (0, 64)}, base="tiny")
    search = task(tmp_path, space=space)
    actual = explore(search, tmp_path, trials=1000)
    check(actual, search)
    inside = sum(space.indices(item.point.config) is not None for item in actual.measured)
    assert inside + actual.bounded == 8


def test_boards(tmp_path: Path) -> None:
    """A board with the sequential core, and a board that most configurations exceed."""
    space = Space(VALUES | {"n": (2, 4, 8, 64)})
    search = task(tmp_path, boards=["tang-nano-9k", "ulx3s-12f"], space=space)
    actual = explore(search, tmp_path, trials=6)
    check(actual, search)
    assert {item.origin for item in actual.measured} >= {"board tang-nano-9k", "board ulx3s-12f"}
    for item in actual.measured:
        board = item.point.place.board
        assert board is not None
        if item.origin == "search":
            assert all(count <= getattr(board.available, name) for name, count in item.need.items())
        assert item.point.routed == (item.point.config == board.config)
    assert {item.point.place.name for item in actual.pareto_front} == {"tang-nano-9k", "ulx3s-12f"}
    assert actual.excluded["LUTs of ulx3s-12f"] > 0


def test_limits(tmp_path: Path) -> None:
    search = task(tmp_path, limits={"lut": 21_000, "ms": 2.0})
    actual = explore(search, tmp_path, trials=6)
    searched = [item for item in actual.measured if item.origin == "search"]
    assert searched
    assert all(item.values["lut"] <= 21_000 and item.values["ms"] <= 2.0 for item in searched)
    assert actual.excluded["the limit of LUTs"] > 0


@pytest.mark.parametrize(
    ("boards", "values", "limits", "reason"),
    [
        (["ulx3s-12f"], {"n": (64,)}, {}, "LUTs of ulx3s-12f"),
        (["tang-nano-9k"], {"loops": (1,)}, {}, "what the sequential core does not have"),
        ([], {}, {"lut": 10}, "the limit of LUTs"),
        (
            [],
            {"scratchpad_banks": (64,), "scratchpad_depth": (1 << 15,)},
            {},
            "memories of more than 65,536 rows",
        ),
    ],
)
def test_spaces_without_a_solution(tmp_path: Path, boards: list[str], values: dict[str, tuple[int, ...]],
                                   limits: dict[str, float], reason: str) -> None:  # fmt: skip
    """Reports how many points each constraint excludes."""
    search = task(tmp_path, boards=boards, space=Space(VALUES | values), limits=limits)
    with pytest.raises(
        SpaceError,
        match=rf"no point of the space is a solution; reasons among [\d,]+ points: .*{reason} [\d,]+",
    ):
        explore(search, tmp_path, trials=4)
    assert not entries(tmp_path)


def test_points_that_need_the_host_are_excluded(tmp_path: Path) -> None:
    """Without softmax a configuration is fast because the host computes it."""
    path = tmp_path / "attention.onnx"
    path.write_bytes(attention.model())
    search = task(tmp_path)
    assert ("Softmax", "device") in {(kind, place) for _, kind, place, _ in import_model(path).assignment}
    search = Task(copy_models(tmp_path, [path], {}), search.space, search.places, OBJECTIVES)
    actual = measure(job(search, PRESETS["tiny"].replace(probability_bits=0), search.places[0], tmp_path))
    assert "would run on the host" in actual.refused
    assert not measure(job(search, PRESETS["tiny"], search.places[0], tmp_path)).refused


def test_memories_that_are_too_small(tmp_path: Path) -> None:
    """On chip and on the board."""
    search = task(tmp_path)
    actual = measure(job(search, PRESETS["tiny"], search.places[0], tmp_path))
    assert not actual.refused
    (nano,) = make_places(["tang-nano-9k"])
    (tmp_path / "large").mkdir()
    large = copy_models(tmp_path, [model(tmp_path / "large", side=96)], {})
    board = Task(large, search.space, (nano,), OBJECTIVES)
    actual = measure(job(board, BOARDS["tang-nano-9k"].config, nano, tmp_path))
    assert actual.refused == "the memory of tang-nano-9k is too small"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objectives": ("ms", "speed")}, "'objectives' are names of cycles, ms"),
        ({"objectives": ()}, "one or more names"),
        ({"objectives": ("ms", "ms")}, "each once"),
        ({"limits": {"watts": 1.0}}, "'watts'"),
    ],
)
def test_wrong_objectives(tmp_path: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        task(tmp_path, **change)  # type: ignore[arg-type]


def test_a_folder_of_another_search(tmp_path: Path) -> None:
    search = task(tmp_path)

    def output(limits: dict[str, float]) -> Output:
        return Output.of(
            tmp_path, search.models, search.space, search.places, search.objectives, limits, ("nsga2", 0)
        )

    output({"lut": 1.0})
    output({}).write(Exploration(OBJECTIVES))  # that search never began
    (tmp_path / "journal.log").touch()
    output({})
    with pytest.raises(FileError, match="is of a search with other limits"):
        output({"lut": 1.0})
    path = tmp_path / "exploration.json"
    with_points = json.dumps(json.loads(path.read_text()) | {"points": [{}]})
    path.write_text(with_points)
    (tmp_path / "journal.log").unlink()
    with pytest.raises(FileError, match="is of a search with other limits"):
        output({"lut": 1.0})
    assert path.read_text() == with_points
    known = json.loads(path.read_text())
    for text, said in (
        (
            json.dumps(known | {"format": "weft exploration 0"}),
            "is no result of a search: .*weft exploration 0",
        ),
        ("{", "is no result of a search: it is not JSON"),
        (json.dumps(known | {"about": known["about"] | {"sources": "0"}}), "is from another version of weft"),
    ):
        path.write_text(text)
        with pytest.raises(FileError, match=said):
            output({})


def test_energy_by_hand(tmp_path: Path) -> None:
    search = task(tmp_path)
    point = Point.of(PRESETS["tiny"], search.places[0])
    item = Measured(point, point.resources(), measure(job(search, point.config, point.place, tmp_path)))
    timing = item.timing
    expected = 0.3 * timing.macs + 1.25 * (timing.active * (4 + 2 * 16) + timing.moved) + 160 * timing.moved
    assert item.energy == pytest.approx(expected / 1e6)


def test_models_are_summed(tmp_path: Path) -> None:
    search = task(tmp_path)
    (place,) = search.places
    paths = [Path(search.models.paths[0]), tmp_path / "digits.onnx"]
    paths[1].write_bytes(digits.model())
    alone = [
        measure(
            job(
                Task(copy_models(tmp_path, [path], {}), search.space, (place,), OBJECTIVES),
                PRESETS["small"],
                place,
                tmp_path,
            )
        )
        for path in paths
    ]
    both = Task(copy_models(tmp_path, paths, {}), search.space, (place,), OBJECTIVES)
    actual = measure(job(both, PRESETS["small"], place, tmp_path))
    assert actual.cycles == [item.cycles[0] for item in alone]
    assert actual.moved == sum(item.moved for item in alone)
    assert actual.macs == sum(item.macs for item in alone)


def test_reports_count_excluded_points() -> None:
    assert no_solution_message(Counter({"a": 2, "b": 1000})).endswith(
        "reasons among 1,002 points: b 1,000, a 2"
    )
