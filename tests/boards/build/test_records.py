"""Records of builds: the hardware they are of, and the advice that comes from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from weft.boards.board import Board
from weft.boards.build import records
from weft.boards.build.build import elaborate
from weft.boards.build.records import Record, Run, expected_seconds, read, remedy, write
from weft.boards.errors import BoardError
from weft.boards.registry import BOARDS, group_equal_boards
from weft.hdl.isa.config import PRESETS

RUNS = [Run(1, 76e6, 600.0), Run(2, None, 60.0), Run(3, 74e6, 900.0), Run(4, 78.5e6, 840.0)]
RECORD = Record(["ulx3s-85f"], "0" * 16, 75e6, {"lut": 50_000, "ff": 1, "dsp": 1, "ram": 1}, RUNS)
CHEAP = ("icebreaker", "tang-nano-9k")
"""Boards whose hardware is generated in a second or two."""


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_all", lambda: [RECORD])


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(
            record, id=record.boards[-1], marks=[] if record.boards[-1] in CHEAP else [pytest.mark.long]
        )
        for record in read()
    ],
)
def test_records_are_of_the_hardware_of_this_checkout(record: Record) -> None:
    """After a change of the hardware: `make boards`."""
    board = BOARDS[record.boards[-1]]
    assert record.hardware == elaborate(board, board.config, board.clock).hardware


@pytest.mark.long
def test_all_boards_have_been_built() -> None:
    names = [[board.name for board in boards] for boards in group_equal_boards(BOARDS.values())]
    assert [record.boards for record in read()] == names


def faults(record: Record, board: Board) -> list[str]:
    """List why a record is not enough for a board's clock and seed: three of five seeds reach the clock."""
    seeds = record.seeds(record.clock_hz)
    found = {
        "clock": record.clock_hz != board.clock,
        "seed": board.seed not in record.seeds(board.clock),
        "margin": len(seeds) < 3,
        "runs": len(record.runs) > 5,
    }
    return [name for name, wrong in found.items() if wrong]


@pytest.mark.parametrize("record", read(), ids=lambda record: record.boards[-1])
def test_boards_build_as_typed_and_with_margin(record: Record) -> None:
    for name in record.boards:
        assert faults(record, BOARDS[name]) == []


def test_faults_of_records() -> None:
    board = dataclasses.replace(BOARDS["ulx3s-85f"], clock=74e6, seed=4)
    record = msgspec.structs.replace(RECORD, clock_hz=74e6)
    assert faults(record, board) == []
    assert faults(record, dataclasses.replace(board, clock=75e6)) == ["clock"]
    assert faults(record, dataclasses.replace(board, clock=73e6)) == ["clock"]
    assert faults(record, dataclasses.replace(board, seed=2)) == ["seed"]
    assert faults(msgspec.structs.replace(record, runs=RUNS[1:]), board) == ["margin"]
    assert faults(msgspec.structs.replace(record, runs=RUNS + RUNS[:2]), board) == ["runs"]


def test_the_fastest_seeds_come_first() -> None:
    assert RECORD.seeds(75e6) == [4, 1]
    assert RECORD.seeds(80e6) == []
    assert RECORD.fastest_hz == 78.5e6
    assert RECORD.seconds == 600


@pytest.mark.usefixtures("known")
def test_seeds_that_reached_the_clock_are_proposed() -> None:
    board = BOARDS["ulx3s-85f"]
    assert remedy(board, board.config, 75e6, 3, 74.9e6) == (
        "try --seed 4 or 1, which reached it before, or --clock 74"
    )
    assert remedy(board, board.config, 75e6, 4, 70e6).startswith("try --seed 1, which")
    for config, clock in ((board.config, 80e6), (PRESETS["tiny"], 75e6)):
        assert remedy(board, config, clock, 3, 67.3e6) == (
            "try --clock 67, which this placement reached, or another --seed"
        )


@pytest.mark.usefixtures("known")
def test_build_time() -> None:
    board = BOARDS["ulx3s-85f"]
    assert expected_seconds(board, board.config) == 600
    smaller = expected_seconds(board, PRESETS["tiny"])
    assert smaller is not None
    assert 100 < smaller < 400
    other = BOARDS["icebreaker"]
    assert expected_seconds(other, other.config) is None


def test_records_survive_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "builds.json"
    write([RECORD], path)
    assert read(path) == [RECORD]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("weft builds 1", "weft builds 0", "it has format 'weft builds 0'"),
        ("76000000.0", "-1", "builds[0].runs[0].fmax_hz: expected float > 0.0"),
        ('"seed"', '"sead"', "builds[0].runs[0]: object contains unknown field sead"),
        ('"seed"', "seed", "it is not JSON"),
    ],
)
def test_a_damaged_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "builds.json"
    write([RECORD], path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(BoardError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}, which is part of weft, is damaged: {message}")
    assert str(caught.value).endswith("; install weft again")
