"""Searches: what is measured is what a program takes, nothing is measured twice, and a search goes on."""

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
    drawn,
    entries,
    job,
    model,
    numbers,
    task,
)
from weft.hdl.isa.config import PRESETS
from weft.run.estimate import estimate


@pytest.mark.parametrize("board", ["", "ulx3s-12f", "tang-nano-9k", "icebreaker"])
def test_a_point_takes_what_its_program_takes(tmp_path: Path, board: str) -> None:
    """Compiled and counted by the API; behind a board's memory that is `weft estimate`."""
    made = task(tmp_path, boards=[board] if board else [])
    (place,) = made.places
    config = BOARDS[board].config if board else PRESETS["small"]
    found = measure(job(made, config, place, tmp_path / "results"))
    if board:
        (expected,) = estimate(made.models.paths[0], [board])
        assert (found.cycles, found.moved, found.macs) == ([expected.cycles], expected.moved, expected.macs)
    else:
        program = weft.compile(made.models.paths[0], config)
        inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
        report = program.run(inputs, on="timing").report
        assert (found.cycles, found.moved, found.macs) == (
            [report["cycles"]], report["dram_bytes"], report["macs"])  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_fields_that_do_not_matter(tmp_path: Path, seed: int) -> None:
    """What `relevant` changes changes no cycle; what it leaves does."""
    rng = np.random.default_rng(seed)
    board = ["", "ulx3s-45f"][seed % 2]
    made = task(tmp_path, boards=[board] if board else [], space=Space(VALUES | {
        "row_states": (64, 128, 256), "alignments": (256, 1024), "table_depth": (256, 512, 2048),
        "queue_depth": (1, 2, 8), "depthwise_taps": (0,), "lookup_tables": (0, 1, 4), "kernel": (0, 64, 256),
        "multiply": (0, 1), "probability_bits": (0, 7, 8)}))  # fmt: skip
    (place,), changed = made.places, 0
    without = unused_units(made.models)
    assert without == {"probability_bits", "kernel", "lookup_tables", "multiply"}
    for _ in range(6):
        config = drawn(rng, made.space)
        other = reduce_config(config, without, sequential=False)
        changed += other != config
        work = job(made, config, place, tmp_path)
        one, two = (measure(dataclasses.replace(work, config=item)) for item in (config, other))
        assert one == two, config
    assert changed


def test_units_that_are_used(tmp_path: Path) -> None:
    """Those that a model has operators for."""
    path = tmp_path / "attention.onnx"
    path.write_bytes(attention.model())
    assert "probability_bits" not in unused_units(copy_models(tmp_path, [path], {}))
    both = copy_models(tmp_path, [path, model(tmp_path)], {})
    assert unused_units(both) == unused_units(copy_models(tmp_path, [path], {}))


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_quicker_than_its_roofline(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    board = ["", "ulx3s-45f", "tang-primer-20k"][seed]
    made = task(tmp_path, boards=[board] if board else [])
    roofline, near = Roofline.of(made.models), []
    for _ in range(8):
        config = drawn(rng, made.space)
        point = Point.of(config, made.places[0])
        if missing_feature(config, made.places[0]) or made.rejection_of_point(point):
            continue
        found = measure(job(made, point.config, point.place, tmp_path))
        if not found.refused:
            bound, item = roofline.bound(point), Measured(point, point.resources(), found)
            for name in ("cycles", "ms", "bytes", "energy"):
                assert bound.values[name] <= item.values[name], (name, point.config)
            near.append(bound.cycles / item.cycles)
    assert max(near) > (0.3 if seed < 2 else 0.001)


def check(found: Exploration, made: Task) -> None:
    """The front is the front, and every preset is on it or beaten."""
    best = [values(item, made.objectives) for item in found.pareto_front]
    assert best
    for item in found.measured:
        own = values(item, made.objectives)
        assert own in best or any(dominates(other, own) for other in best)
    assert len({item.point.key for item in found.measured}) == len(found.measured)


def test_a_search_and_one_that_goes_on(tmp_path: Path) -> None:
    made = task(tmp_path)
    first = explore(made, tmp_path, trials=8, seed=1)
    check(first, made)
    assert sum(item.origin == "search" for item in first.measured) >= 8
    assert {item.origin for item in first.measured} >= {f"preset {name}" for name in PRESETS}
    before = entries(tmp_path)
    second = explore(made, tmp_path, trials=5, seed=2)
    check(second, made)
    after = entries(tmp_path)
    assert {name: after[name] for name in before} == before  # nothing was measured again
    assert len(second.measured) >= len(first.measured) + 5
    assert set(numbers(first.measured)) <= set(numbers(second.measured))
    for item in second.measured:
        config = reduce_config(item.point.config, unused_units(made.models), sequential=False)
        assert read_result(job(made, config, item.point.place, tmp_path / "results")) == item.timing


def test_presets_are_beaten_first(tmp_path: Path) -> None:
    """By what is as quick with less: the same without the units that no model uses."""
    found = explore(task(tmp_path, space=Space()), tmp_path, trials=len(PRESETS), jobs=1)
    known = references(found)
    assert [item.origin for item, _ in known] == [f"preset {name}" for name in PRESETS]
    assert all(number > 0 for _, number in known)


def test_a_space_is_searched_to_its_end(tmp_path: Path) -> None:
    """Of a few points all are measured, but for those that cannot be better, and the search ends by itself."""
    space = Space({"n": (2, 4), "lanes": (1, 2), "kernel": (0, 64)}, base="tiny")
    made = task(tmp_path, space=space)
    found = explore(made, tmp_path, trials=1000)
    check(found, made)
    inside = sum(space.indices(item.point.config) is not None for item in found.measured)
    assert inside + found.bounded == 8


def test_boards(tmp_path: Path) -> None:
    """Of one with the sequential core, and one where most configurations do not fit."""
    space = Space(VALUES | {"n": (2, 4, 8, 64)})
    made = task(tmp_path, boards=["tang-nano-9k", "ulx3s-12f"], space=space)
    found = explore(made, tmp_path, trials=6)
    check(found, made)
    assert {item.origin for item in found.measured} >= {"board tang-nano-9k", "board ulx3s-12f"}
    for item in found.measured:
        board = item.point.place.board
        assert board is not None
        if item.origin == "search":
            assert all(count <= getattr(board.available, name) for name, count in item.need.items())
        assert item.point.routed == (item.point.config == board.config)
    assert {item.point.place.name for item in found.pareto_front} == {"tang-nano-9k", "ulx3s-12f"}
    assert found.excluded["LUTs of ulx3s-12f"] > 0


def test_limits(tmp_path: Path) -> None:
    made = task(tmp_path, limits={"lut": 21_000, "ms": 2.0})
    found = explore(made, tmp_path, trials=6)
    searched = [item for item in found.measured if item.origin == "search"]
    assert searched
    assert all(item.values["lut"] <= 21_000 and item.values["ms"] <= 2.0 for item in searched)
    assert found.excluded["the limit of LUTs"] > 0


@pytest.mark.parametrize(
    ("boards", "values", "limits", "said"),
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
                                   limits: dict[str, float], said: str) -> None:  # fmt: skip
    """Which constraint excludes how many."""
    made = task(tmp_path, boards=boards, space=Space(VALUES | values), limits=limits)
    with pytest.raises(
        SpaceError, match=rf"no point of the space is a solution; of [\d,]+ points, .*: {said} [\d,]+"
    ):
        explore(made, tmp_path, trials=4)
    assert not entries(tmp_path)


def test_what_the_host_would_run_is_no_solution(tmp_path: Path) -> None:
    """A configuration without softmax is quick where the host computes it."""
    path = tmp_path / "attention.onnx"
    path.write_bytes(attention.model())
    made = task(tmp_path)
    assert ("Softmax", "device") in {(kind, place) for _, kind, place, _ in import_model(path).assignment}
    made = Task(copy_models(tmp_path, [path], {}), made.space, made.places, OBJECTIVES)
    found = measure(job(made, PRESETS["tiny"].replace(probability_bits=0), made.places[0], tmp_path))
    assert "would run on the host" in found.refused
    assert not measure(job(made, PRESETS["tiny"], made.places[0], tmp_path)).refused


def test_memories_that_are_too_small(tmp_path: Path) -> None:
    """On chip, and on the board."""
    made = task(tmp_path)
    found = measure(job(made, PRESETS["tiny"], made.places[0], tmp_path))
    assert not found.refused
    (nano,) = make_places(["tang-nano-9k"])
    (tmp_path / "large").mkdir()
    large = copy_models(tmp_path, [model(tmp_path / "large", side=96)], {})
    board = Task(large, made.space, (nano,), OBJECTIVES)
    found = measure(job(board, BOARDS["tang-nano-9k"].config, nano, tmp_path))
    assert found.refused == "the memory of tang-nano-9k is too small"


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
    made = task(tmp_path)

    def output(limits: dict[str, float]) -> Output:
        return Output.of(
            tmp_path, made.models, made.space, made.places, made.objectives, limits, ("nsga2", 0)
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
    made = task(tmp_path)
    point = Point.of(PRESETS["tiny"], made.places[0])
    item = Measured(point, point.resources(), measure(job(made, point.config, point.place, tmp_path)))
    timing = item.timing
    expected = 0.3 * timing.macs + 1.25 * (timing.active * (4 + 2 * 16) + timing.moved) + 160 * timing.moved
    assert item.energy == pytest.approx(expected / 1e6)


def test_several_models_are_added_up(tmp_path: Path) -> None:
    made = task(tmp_path)
    (place,) = made.places
    paths = [Path(made.models.paths[0]), tmp_path / "digits.onnx"]
    paths[1].write_bytes(digits.model())
    alone = [
        measure(job(Task(copy_models(tmp_path, [path], {}), made.space, (place,), OBJECTIVES), PRESETS["small"], place,
                  tmp_path)) for path in paths
    ]  # fmt: skip
    both = Task(copy_models(tmp_path, paths, {}), made.space, (place,), OBJECTIVES)
    found = measure(job(both, PRESETS["small"], place, tmp_path))
    assert found.cycles == [item.cycles[0] for item in alone]
    assert found.moved == sum(item.moved for item in alone)
    assert found.macs == sum(item.macs for item in alone)


def test_no_solution_says_how_many() -> None:
    assert no_solution_message(Counter({"a": 2, "b": 1000})).endswith(
        "of 1,002 points, so many were excluded by: b 1,000, a 2"
    )
