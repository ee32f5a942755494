"""Clocks that are predicted: those of builds, as near as is said, and never more than any build has reached."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clocks import PAGE, builds

from weft.boards.build import clock
from weft.boards.build.clock import FILE, Sample, fit_clocks, predict_clock, series, text
from weft.boards.errors import BoardError
from weft.boards.registry import BOARDS
from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import PRESETS, Config

SAMPLES = builds(PAGE.read_text())


@pytest.mark.parametrize("name", BOARDS)
def test_own_configurations_reach_the_boards_clock(name: str) -> None:
    board = BOARDS[name]
    assert predict_clock(board, board.config) == clock.Clock(board.clock, 0.0, routed=True)


@pytest.mark.parametrize("name", BOARDS)
def test_presets(name: str) -> None:
    """Each has a clock, no faster than any build of the series; larger arrays are not faster."""
    board = BOARDS[name]
    fastest = max(sample.hz for sample in SAMPLES if series(sample.board) == series(board))
    for config in PRESETS.values():
        found = predict_clock(board, config)
        assert 1e6 < found.hz <= fastest
        assert not found.routed
        assert 0 < found.error < 1
    base = PRESETS["huge"].replace(lanes=2, int4=0, depthwise_taps=0)
    clocks = [predict_clock(board, base.replace(n=1 << side)).hz for side in range(1, 8)]
    assert clocks == sorted(clocks, reverse=True)
    assert clocks[0] > clocks[-1]


def test_the_file_is_of_the_table() -> None:
    """`python benchmarks/clocks.py` changes nothing. Rounded, as machines differ in last digits."""
    found = clock._fit(FILE)
    expected, others = fit_clocks(SAMPLES)
    assert found.samples == expected.samples == len(SAMPLES) == len(others)
    assert found.highest == expected.highest
    for name in ("side", "share", "error"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=2e-4)
    assert found.series == pytest.approx(expected.series, abs=2e-4)
    assert expected.error == pytest.approx(
        max(abs(told / sample.hz - 1) for told, sample in zip(others, SAMPLES, strict=True)), abs=6e-4)  # fmt: skip
    assert expected.error < 0.25


def test_the_fit_to_a_known_law() -> None:
    """Points on a known law are predicted exactly, from other points, too."""
    board = BOARDS["ulx3s-85f"]
    known = [
        Sample(
            board, config, 1e8 * math.exp(-0.1 * math.log2(config.n) - 0.5 * clock.lut_share(board, config))
        )
        for config in (PRESETS["tiny"].replace(n=4, lanes=1), PRESETS["tiny"], PRESETS["small"], board.config)
    ]
    fit, others = fit_clocks(known)
    assert fit.side == pytest.approx(-0.1, abs=1e-3)
    assert fit.share == pytest.approx(-0.5, abs=5e-3)
    assert all(told <= 1.001 * max(item.hz for item in known) for told in others)


def of_all_sides(config: Config) -> list[Config]:
    """Return the valid variants of `config` with another side, the smallest first."""
    found = []
    for side in range(1, 8):
        with suppress(ConfigError):
            found.append(config.replace(n=1 << side))
    return found


@pytest.mark.parametrize("name", BOARDS)
def test_larger_arrays_are_not_faster(name: str) -> None:
    """With all else as in a board's own configuration, or with a bus wide enough for larger arrays."""
    board = BOARDS[name]
    wide = of_all_sides(board.config.replace(bus_bytes=128, int4=0))
    assert len(wide) > 2
    for configs in (of_all_sides(board.config), wide):
        clocks = [predict_clock(board, config).hz for config in configs]
        assert clocks == sorted(clocks, reverse=True)
    assert clocks[0] > clocks[-1]


@pytest.mark.parametrize("name", BOARDS)
def test_the_smallest_array_is_no_faster_than_builds_and_memory(name: str) -> None:
    """Nobody has built it: the line extends beyond all builds."""
    board, config = BOARDS[name], PRESETS["tiny"].replace(n=2, lanes=1)
    found = predict_clock(board, config).hz
    board.sdram(found)
    assert found <= max(sample.hz for sample in SAMPLES if series(sample.board) == series(board))


def test_a_series_without_builds_has_the_boards_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_coefficients(
        tmp_path, monkeypatch, lambda fit: (fit["series"].pop("ecp5"), fit["highest"].pop("ecp5"))
    )
    board = BOARDS["ulx3s-85f"]
    assert predict_clock(board, PRESETS["tiny"]) == clock.Clock(board.clock, 1.0, routed=False)


def damage_coefficients(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object]
) -> Path:
    """Replace weft's coefficients by changed ones."""
    content = json.loads(FILE.read_text())
    change(content["fit"])
    path = folder / "clocks.json"
    path.write_text(json.dumps(content))
    monkeypatch.setattr(clock, "FILE", path)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fit: fit.update(samples=None), "is damaged: fit.samples: expected int, got null"),
        (lambda fit: fit.update(spare=1), "is damaged: fit: object contains unknown field spare"),
        (lambda fit: fit["series"].update(ecp5=1e6), "is damaged: fit.series[...]: expected float <= 25.0"),
        (lambda fit: fit["highest"].update(ecp5=-5.0), "is damaged: fit.highest[...]: expected float > 0.0"),
        (lambda fit: fit.update(side=-1e300), "is damaged: fit.side: expected float >= -5.0"),
        (lambda fit: fit.update(share=0.5), "is damaged: fit.share: expected float <= 0.0"),
        (lambda fit: fit.update(error=-1.0), "is damaged: fit.error: expected float >= 0.0"),
        (lambda fit: fit["highest"].pop("ecp5"), "lacks the highest clock of some series"),
    ],
    ids=["null", "unknown", "offset", "highest", "steep", "rising", "error", "series"],
)
def test_damaged_coefficients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """Are never a clock."""
    path = damage_coefficients(tmp_path, monkeypatch, change)
    with pytest.raises(BoardError) as caught:
        predict_clock(BOARDS["ulx3s-85f"], PRESETS["tiny"])
    assert str(caught.value) == f"{path}, which is part of weft, {message}; install weft again"


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "clocks.json"
    for damage in ("{", text(clock._fit(FILE)).replace("weft clocks 1", "weft clocks 0")):
        path.write_text(damage)
        clock._fit.cache_clear()
        with pytest.raises(BoardError, match=r"is damaged: .*; install weft again"):
            clock._fit(path)
    clock._fit.cache_clear()
