"""Board commands: tables, files, exit codes and messages; tests/boards tests the functions that they call."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from weft.boards.board import Board, MemoryKind
from weft.boards.build import build as building
from weft.boards.build.build import Build
from weft.boards.errors import TimingError
from weft.boards.registry import BOARDS
from weft.boards.sdram.eye import best_eye
from weft.cli import main
from weft.hdl.isa.config import Config

REPORT: dict[str, Any] = {
    "board": "icebreaker",
    "clock_hz": 24e6,
    "baud": 1_500_000,
    "sdram": {
        "phase_degrees": 252.35,
        "capture_cycles": 2,
        "margins_ns": {"write_setup": 7.25, "read_hold": 2.76},
    },
    "peak_gops": 0.768,
    "resources": {
        "lut": {"synthesised": 4000, "placed": 4100, "available": 5280, "percent": 77.7},
        "ff": {"synthesised": 2000, "placed": 2000, "available": 5280, "percent": 37.9},
        "dsp": {"synthesised": 8, "placed": 8, "available": 8, "percent": 100.0},
        "ram": {"synthesised": 20, "placed": 20, "available": 30, "percent": 66.7},
    },
    "timing": {
        "fmax_hz": 25_123_456,
        "met": True,
        "critical_path": [
            {"ns": 1.0, "kind": "clk-to-q", "cell": "first", "net": None, "sources": []},
            {"ns": 2.0, "kind": "routing", "cell": "last", "net": "x", "sources": ["hdl/matrix/pe.py:84"]},
        ],
    },
    "notes": ["80 % of its clock is believed"],
    "seconds": {"synthesis": 10.0, "total": 60.5},
}


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main.main(list(arguments))
    return int(stop.value.code or 0)


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*") if path.is_file()}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Empty working folder, and a build that writes its files and records its arguments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path.parent / "cache"))
    calls: list[dict[str, Any]] = []

    def build(board: Board, config: Config, cache: Path, *, progress: Any, **options: Any) -> Build:
        calls.append({"board": board.name, "config": config, "cache": cache} | options)
        folder = cache / "one"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (
            ("weft.bin", "bits"),
            ("report.json", json.dumps(REPORT)),
            ("floorplan.svg", "<svg/>"),
        ):
            (folder / name).write_text(text)
        (folder / "yosys.log").write_text("")
        return Build(folder, folder / "weft.bin", REPORT)

    monkeypatch.setattr(building, "build", build)
    return calls


def test_boards_lists_resources_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("boards") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-2]] == list(BOARDS)
    assert re.search(
        r"^icebreaker +5,280 +8 +30 +128 KB spram +21 MHz +4 x 4 +\d+% +100% +\d+% +1,500,000 +- +none",
        "\n".join(lines),
        re.M,
    )
    for board in BOARDS.values():
        if board.memory.kind is MemoryKind.SDRAM:
            least = f"{best_eye(board.clock).min_margin:.1f}"
            assert re.search(rf"^{board.name} .*% +{board.baud:,} +{least} ", "\n".join(lines), re.M)
    assert "huge" not in "\n".join(lines)


def test_build_writes_bitstream_report_and_floorplan(
    calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("build", "--board", "icebreaker") == 0
    assert files() == {f"build/icebreaker/{name}" for name in ("weft.bin", "report.json", "floorplan.svg")}
    assert calls == [
        {"board": "icebreaker", "config": BOARDS["icebreaker"].config, "cache": calls[0]["cache"],
         "seed": BOARDS["icebreaker"].seed, "clock": None, "allow_timing_fail": False}
    ]  # fmt: skip
    text = capsys.readouterr().out
    assert re.search(r"LUTs +4,100 +5,280 +77\.7\n", text)
    assert "clock: 24 MHz wanted, 25.1 MHz reached: met\n" in text
    assert "critical path: first to last, through hdl/matrix/pe.py:84\n" in text
    assert "SDRAM: clock late by 252.35 degrees; margins in ns: write setup 7.25, read hold 2.76\n" in text
    assert "link: 1,500,000 baud\n" in text
    assert "note: 80 % of its clock is believed\n" in text
    assert text.endswith(
        "build/icebreaker/weft.bin: the bitstream; report.json and floorplan.svg are next to it\n"
    )


def test_build_uses_the_seed_of_the_board(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOARDS, "ulx3s-85f", dataclasses.replace(BOARDS["ulx3s-85f"], seed=3))
    assert call("build", "--board", "ulx3s-85f") == 0
    assert call("build", "--board", "ulx3s-85f", "--seed", "1") == 0
    assert [given["seed"] for given in calls] == [3, 1]


def test_build_passes_options_to_the_tools(calls: list[dict[str, Any]]) -> None:
    arguments = ["--config", "small", "--seed", "7", "--clock", "30", "--allow-timing-fail", "-o", "out"]
    assert call("build", "--board", "icebreaker", *arguments) == 0
    given = calls[0]
    assert (given["config"].n, given["seed"], given["clock"], given["allow_timing_fail"]) == (
        8,
        7,
        30e6,
        True,
    )
    assert Path("out/weft.bin").read_text() == "bits"


def test_design_that_misses_timing_exits_with_1_and_writes_nothing(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(*given: Any, **options: Any) -> None:
        raise TimingError("icebreaker reaches 20.0 MHz but its clock is 24 MHz: try another --seed")

    monkeypatch.setattr(building, "build", slow)
    assert call("build", "--board", "icebreaker") == 1
    assert files() == set()
    assert capsys.readouterr().err.endswith(
        "error: icebreaker reaches 20.0 MHz but its clock is 24 MHz: try another --seed\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "--board", "arty"], "unknown board 'arty'; choose icebreaker, "),
        (["build", "--board", "icebreaker", "--config", "vast"],
         "unknown configuration 'vast'; choose a preset (tiny, "),
        (["build", "--board", "tang-primer-20k", "--config", "huge"],
         "the configuration does not fit tang-primer-20k: "),
        (["build", "--board", "icebreaker", "--config", "tiny"], "'probability_bits' must be 7 or 0 for ice40"),
        (["build", "--board", "ulx3s-85f", "--clock", "3000"], "cannot make a clock of 3000 MHz; the nearest is "),
        (["build", "--board", "ulx3s-45f", "--clock", "150"],
         "the SDRAM cannot run at 150 MHz: its clock cycle is at least 7 ns; the nearest clock that can be used is 142 "
         "MHz"),
        (["flash", "--board", "arty"], "unknown board 'arty'; choose icebreaker, "),
        (["flash", "--board", "icebreaker"],
         "there is no bitstream build/icebreaker/weft.bin: build it with weft build --board icebreaker"),
        (["flash", "--board", "icebreaker", "my.bin"], "there is no bitstream my.bin: build it with "),
    ],
    ids=lambda value: "-".join(value)[:40],
)  # fmt: skip
def test_bad_input_prints_one_sentence_and_exits_with_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    assert call(*arguments) == 2
    assert files() == set()
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("...")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert message in errors[0]


def test_flash_prints_the_programmer_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("my bits.bin").write_text("")
    assert call("flash", "--board", "icebreaker", "--dry-run", "my bits.bin") == 0
    assert capsys.readouterr().out == "iceprog 'my bits.bin'\n"
    assert call("flash", "--board", "icebreaker", "my bits.bin") == 1
    assert "error: no program to write to icebreaker is installed" in capsys.readouterr().err
