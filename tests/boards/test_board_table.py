"""`make boards`: seeds that are built and recorded, and the table of the records in a page."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from weft.boards.build.records import read, write
from weft.boards.build.tools import ToolCrash
from weft.boards.registry import BOARDS, find, titles
from weft.hdl.isa.config import Config

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "boards.py"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    # By its file, as the folder of the boards has the same name.
    spec = importlib.util.spec_from_file_location("board_table", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "board_table", module)
    spec.loader.exec_module(module)
    return module


def built(fmax: float, seed: int) -> SimpleNamespace:
    counts = {"lut": 1200, "ff": 700, "dsp": 8, "ram": 3}
    return SimpleNamespace(
        report={
            "resources": {kind: {"synthesised": 1, "placed": placed} for kind, placed in counts.items()},
            "timing": {"fmax_hz": fmax},
            "seed": seed,
            "seconds": {"total": 150},
        }
    )


@pytest.fixture
def builds(table: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Builds:
    """Builds are recorded in a file of their own, and none is real."""
    path = tmp_path / "builds.json"
    write([], path)
    monkeypatch.setattr(table, "read", lambda: read(path))
    monkeypatch.setattr(table, "write", lambda records: write(records, path))
    monkeypatch.setattr(table, "elaborate", lambda *_: SimpleNamespace(hardware="5" * 16))
    found = Builds(path)
    monkeypatch.setattr(table, "build", found.build)
    return found


class Builds:
    """Clock that seeds reach in MHz, 0 where the tool crashes; and the seeds that were built."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reached = {1: 25.0, 2: 19.5, 3: 21.0, 4: 20.9, 5: 30.0}
        self.seeds: list[int] = []

    def build(
        self, board: Any, config: Config, cache: Path, *, seed: int, allow_timing_fail: bool
    ) -> SimpleNamespace:
        assert allow_timing_fail
        assert config == board.config
        self.seeds.append(seed)
        if not self.reached[seed]:
            raise ToolCrash("nextpnr crashed")
        return built(self.reached[seed] * 1e6, seed)


@pytest.mark.parametrize(
    ("reached", "seeds"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({2: 22.0}, [1, 2, 3]),
        ({1: 19.0, 3: 19.0}, [1, 2, 3]),
        ({2: 0.0}, [1, 2, 3, 4, 5]),
    ],
)
def test_seeds_are_built_until_enough_are_met_or_missed(
    table: ModuleType, builds: Builds, reached: dict[int, float], seeds: list[int]
) -> None:
    builds.reached |= reached
    table.build_seeds([find("icebreaker")], 5, 3)
    assert builds.seeds == seeds
    (record,) = read(builds.path)
    assert (record.boards, record.hardware, record.clock_hz) == (["icebreaker"], "5" * 16, 21e6)
    assert [run.seed for run in record.runs] == seeds
    assert [run.fmax_hz for run in record.runs] == [
        builds.reached[seed] * 1e6 if builds.reached[seed] else None for seed in seeds
    ]


def test_a_run_that_was_ended_goes_on(table: ModuleType, builds: Builds) -> None:
    """Unless the hardware has changed."""
    board = find("icebreaker")
    table.build_seeds([board], 2, 2)
    table.build_seeds([find("tang-nano-9k")], 1, 1)
    table.build_seeds([board], 5, 3)
    assert builds.seeds == [1, 2, 1, 3, 4, 5]
    assert [record.boards for record in read(builds.path)] == [["icebreaker"], ["tang-nano-9k"]]
    table.elaborate = lambda *_: SimpleNamespace(hardware="6" * 16)
    table.build_seeds([board], 5, 1)
    assert builds.seeds[6:] == [1]
    assert [record.hardware[0] for record in read(builds.path)] == ["6", "5"]


def test_a_row(table: ModuleType, builds: Builds) -> None:
    builds.reached[2] = 0.0
    table.build_seeds([find("icebreaker")], 3, 2)
    (record,) = read(builds.path)
    row = table.row(record)
    assert row.startswith(
        "| iCEBreaker | 4 x 4 | 1,200 (23%) | 700 (13%) | 8 (100%) | 3 (10%) | 21 | 1: 25.0, 2: failed, "
    )
    assert row.endswith("3: 21.0 | 0.7 | 2 min | `5555555555555555` |")
    assert row.count("|") == table.HEADER.splitlines()[0].count("|")


@pytest.mark.parametrize("name", BOARDS)
def test_estimates_are_fitted_to_what_boards_have(table: ModuleType, name: str) -> None:
    """Every board's configuration, and one change of it at a time."""
    board = find(name)
    samples = list(table.fitted_to(board))
    assert (board, table.OWN, board.config) in samples
    assert {(where.family, where.core) for where, _, _ in samples} == {(board.family, board.core)}
    assert len([where for where, what, _ in samples if what != table.OWN]) == len(table.CHANGES[board.core])
    assert {where.name for where, what, _ in samples if what != table.OWN} == {name}


def test_boards_of_the_same_chip_share_rows(table: ModuleType) -> None:
    groups = table.group_equal_boards(map(find, BOARDS))
    (shared,) = (group for group in groups if len(group) > 1)
    assert [board.name for board in shared] == ["ulx3s-12f", "ulx3s-25f"]
    assert titles(shared) == "ULX3S 12F, 25F"
    assert sum(len(group) for group in groups) == len(BOARDS)
    others = [find(name) for name in ("icepi-zero", "icesugar-pro", "tang-nano-9k", "tang-primer-20k")]
    assert titles([*others, *shared]) == (
        "Icepi Zero, iCESugar-Pro, Tang Nano 9K, Tang Primer 20K, ULX3S 12F, 25F"
    )


def test_the_table_replaces_the_one_before(
    table: ModuleType, builds: Builds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{table.BEGIN}old\n{table.END}\nAfter\n")
    monkeypatch.setattr(table, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["boards.py", "--board", "icebreaker"])
    assert table.main() == 0
    before, _, rest = page.read_text().partition(table.BEGIN)
    inside, _, after = rest.partition(table.END)
    assert (before, after) == ("# Before\n\n", "\nAfter\n")
    assert inside.startswith(table.HEADER + "\n| iCEBreaker | 4 x 4 |")

    page.write_text("no place\n")
    with pytest.raises(
        SystemExit, match=r"^error: .*page.md has no lines <!-- make boards --> and <!-- end -->"
    ):
        table.main()
    assert page.read_text() == "no place\n"


def test_the_docs_have_the_table(table: ModuleType) -> None:
    text = table.PAGE.read_text()
    assert text.count(table.BEGIN) == text.count(table.END) == 1
    shown = text.partition(table.BEGIN)[2].partition(table.END)[0]
    assert shown.splitlines() == [*table.HEADER.splitlines(), *map(table.row, read())]
