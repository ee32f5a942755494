"""Report on presets and boards' own configurations: better points, and reasons for exclusion."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.boards.families.family import Resources
from weft.extras.search.explore.evaluate import evaluators
from weft.extras.search.explore.explore import Exploration, Search
from weft.extras.search.explore.output import references, show
from weft.extras.search.explore.point import Measured, Place, Point, Timing
from weft.extras.search.explore.space import Study
from weft.extras.search.tests.support.explored import task
from weft.hdl.isa.config import PRESETS, Config


def point(cycles: int, lut: int, origin: str = "search", config: Config = PRESETS["tiny"]) -> Measured:
    result = Point(config, Place("memory"), 50e6, routed=False)
    return Measured(result, Resources(lut, 1, 1, 1), Timing([cycles], 1, 1, 1), origin)


FOUND = Exploration(
    ("cycles", "lut"),
    [
        point(100, 50, "preset tiny"), point(300, 10, "preset small"), point(400, 30, "preset default"),
        point(90, 60), point(100, 50), point(200, 30), point(300, 20),
    ],
    unsuitable={"preset large on memory": "LUTs of memory"},
)  # fmt: skip


def test_references_and_dominating_points() -> None:
    """The front is (90, 60), (100, 50), (200, 30), (300, 10). Equal points do not dominate."""
    assert [(item.origin, number) for item, number in references(FOUND)] == [
        ("preset tiny", 0), ("preset small", 0), ("preset default", 3),
    ]  # fmt: skip


def test_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    show(FOUND, tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "preset default memory 400 30 0.008 1 1 1 number 3" in said
    assert "preset small memory 300 10 0.006 1 1 1 none" in said
    assert "3 memory 4 x 4 search 200 30" in said
    assert "1 of 3 presets and boards' own configurations are dominated by a point of the front" in said
    assert "not solutions: preset large on memory (LUTs of memory)" in said


def test_excluded_presets(tmp_path: Path) -> None:
    """By a board's resources or by measurement; the board's own configuration is a solution."""
    run = task(tmp_path, boards=["ulx3s-12f"])
    study = Study(tmp_path / "journal.log", "weft", run.space, run.places, run.objectives, "nsga2", seed=1)
    search = Search(run, study, evaluators(1), tmp_path / "results")
    actual = search.run(0, 60)
    fit = {item.origin for item in actual.measured}
    assert "board ulx3s-12f" in fit
    assert {name.removesuffix(" on ulx3s-12f") for name in actual.unsuitable} | fit >= {
        f"preset {name}" for name in PRESETS
    }
    assert actual.unsuitable["preset default on ulx3s-12f"].endswith(" of ulx3s-12f")
    assert not {name.removesuffix(" on ulx3s-12f") for name in actual.unsuitable} & fit
