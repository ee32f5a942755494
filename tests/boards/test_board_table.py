"""The table of `make boards`: its rows from builds' reports, and its place in a file."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from weft.boards.board import BoardError
from weft.boards.registry import BOARDS, find, titles
from weft.boards.tools import ToolCrash
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
    counts = {"lut": (1200, 40), "ff": (700, 10), "dsp": (8, 25), "ram": (3, 5.5)}
    resources = {
        kind: {"synthesised": 1, "placed": placed, "available": 0, "percent": percent}
        for kind, (placed, percent) in counts.items()
    }
    report = {
        "resources": resources,
        "timing": {"fmax_hz": fmax},
        "clock_hz": 24e6,
        "peak_gops": 0.768,
        "seed": seed,
        "seconds": {"total": 150},
    }
    return SimpleNamespace(report=report)


def test_a_row_is_the_fastest_seeds(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    board = replace(find("icebreaker"), seed=1)
    calls: list[tuple[Any, int]] = []

    def build(
        board: Any, config: Config, cache: Path, *, seed: int, allow_timing_fail: bool
    ) -> SimpleNamespace:
        assert allow_timing_fail
        calls.append((board.name, seed))
        return built({1: 25e6, 2: 27.46e6, 3: 26e6}[seed], seed)

    monkeypatch.setattr(table, "build", build)
    assert table.row([board], table.OWN, board.config, 3) == (
        "| iCEBreaker | 4 x 4 (its own) | 1,200 (40 %) | 700 (10 %) | 8 (25 %) | 3 (6 %) | 75 | 0.50 | 24 | 27.5 | 0.8 "
        "| 2 | 2 min |"
    )
    assert calls == [("icebreaker", 1), ("icebreaker", 2), ("icebreaker", 3)]


@pytest.mark.parametrize(
    ("works", "seeds", "shown"), [(2, 1, "| 2 | 2 min |"), (9, 1, "crashed"), (2, 2, "| 2 |")]
)
def test_where_a_tool_crashes_the_next_seed_is_tried(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch, works: int, seeds: int, shown: str
) -> None:
    tried: list[int] = []

    def build(*_: Any, seed: int, **__: Any) -> SimpleNamespace:
        tried.append(seed)
        if seed != works:
            raise ToolCrash("nextpnr crashed")
        return built(25e6, seed)

    monkeypatch.setattr(table, "build", build)
    board = replace(find("icebreaker"), seed=1)
    text = table.row([board], table.OWN, board.config, seeds)
    assert shown in text
    assert text.count("|") == table.HEADER.splitlines()[0].count("|")
    assert tried == ([1, 2] if works == 2 else [1, 2, 3])


def test_what_does_not_fit_is_a_row_as_well(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*arguments: Any, **options: Any) -> None:
        raise BoardError("it needs 300 of 208 block RAMs")

    monkeypatch.setattr(table, "build", build)
    board = find("ulx3s-85f")
    text = table.row([board], "default", Config.load("default"), 1)
    assert text.startswith("| ULX3S 85F | 16 x 16 (`default`) | it needs 300 of 208 block RAMs |")
    assert text.count("|") == table.HEADER.splitlines()[0].count("|")


@pytest.mark.parametrize("name", BOARDS)
def test_estimates_are_fitted_to_what_boards_have(table: ModuleType, name: str) -> None:
    """As well as to one change at a time, all of them on one board."""
    board = find(name)
    samples = list(table.fitted_to(board))
    assert (board, table.OWN, board.config) in samples
    assert {(where.family, where.core) for where, _, _ in samples} == {(board.family, board.core)}
    assert len([where for where, what, _ in samples if what != table.OWN]) == len(table.CHANGES[board.core])
    assert {where.name for where, what, _ in samples if what != table.OWN} == {name}


def test_boards_of_the_same_chip_share_rows(table: ModuleType) -> None:
    groups = table.alike(map(find, BOARDS))
    (shared,) = (group for group in groups if len(group) > 1)
    assert [board.name for board in shared] == ["ulx3s-12f", "ulx3s-25f"]
    assert titles(shared) == "ULX3S 12F, 25F"
    assert sum(len(group) for group in groups) == len(BOARDS)
    others = [find(name) for name in ("icepi-zero", "icesugar-pro", "tang-nano-9k", "tang-primer-20k")]
    assert titles([*others, *shared]) == (
        "Icepi Zero, iCESugar-Pro, Tang Nano 9K, Tang Primer 20K, ULX3S 12F, 25F"
    )


def test_the_table_replaces_the_one_before(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table, "build", lambda *_, seed, **__: built(30e6, seed))
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{table.BEGIN}old\n{table.END}\nAfter\n")
    monkeypatch.setattr(sys, "argv", ["boards.py", "--board", "icebreaker", "--write", str(page)])
    assert table.main() == 0
    before, _, rest = page.read_text().partition(table.BEGIN)
    inside, _, after = rest.partition(table.END)
    assert (before, after) == ("# Before\n\n", "\nAfter\n")
    assert inside.startswith(table.HEADER + "\n| iCEBreaker | 4 x 4 (its own) |")

    page.write_text("no place\n")
    with pytest.raises(
        SystemExit, match=r"^error: .*page.md has no lines <!-- make boards --> and <!-- end -->"
    ):
        table.main()
    assert page.read_text() == "no place\n"


@pytest.mark.parametrize(
    ("options", "rows"),
    [([], ["its own", "`tiny`", "`small`"]), (["--own"], ["its own"]), (["--config", "small"], ["`small`"])],
)
def test_which_configurations(
    table: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    rows: list[str],
) -> None:
    monkeypatch.setattr(table, "build", lambda *_, seed, **__: built(30e6, seed))
    monkeypatch.setattr(sys, "argv", ["boards.py", "--board", "ulx3s-85f", *options])
    assert table.main() == 0
    printed = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[1].split("(")[1].rstrip(")") for line in printed] == rows


def test_the_docs_have_a_place_for_it(table: ModuleType) -> None:
    text = (SOURCE.parents[1] / "docs" / "boards.md").read_text()
    assert text.count(table.BEGIN) == text.count(table.END) == 1
    assert table.HEADER.splitlines()[0] in text.partition(table.BEGIN)[2].partition(table.END)[0]
