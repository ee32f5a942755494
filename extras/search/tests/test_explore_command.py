"""The command `weft explore`: output, refusals and interrupts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import weft.extras.search.explore.confirm as checks
import weft.extras.search.explore.workers as workers
from weft.cli import main
from weft.extras.search.explore.confirm import Check, Name, Outcome
from weft.extras.search.explore.space import FORMAT
from weft.extras.search.explore.workers import WorkersError
from weft.extras.search.tests.support.explored import VALUES, entries, model
from weft.hdl.isa.config import PRESETS, Config

SMALL = {name: list(known) for name, known in VALUES.items()} | {
    "n": [2, 4],
    "kernel": [0],
    "depthwise_taps": [0],
}


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main.main([str(item) for item in arguments])
    return int(caught.value.code or 0)


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.json"
    path.write_text(json.dumps({"format": FORMAT, "fields": SMALL}))
    return path


def points(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "exploration.json").read_text())["points"])


def test_a_search(tmp_path: Path, space: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    about = ("explore", model(tmp_path), "-o", out, "--space", space, "--seed", 3, "--jobs", 2)
    assert call(*about, "--trials", 5) == 0
    said = capsys.readouterr().out
    actual = points(out)
    assert sum(item["origin"] == "search" for item in actual) >= 5
    assert f"{len(actual)} points measured, {sum(item['front'] for item in actual)} on the front" in said
    assert all(Config.from_dict(item["config"]) for item in actual)
    tiny = next(item for item in actual if item["origin"] == "preset tiny")
    assert tiny["config"] == PRESETS["tiny"].to_dict()
    assert tiny["ms"] == pytest.approx(tiny["cycles"] / 75e3)
    assert "<svg" in (out / "front.html").read_text()
    assert call(*about, "--trials", 2) == 0
    assert {item["origin"] for item in points(out)} == {item["origin"] for item in actual}
    assert len(points(out)) >= len(actual) + 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--space", "{wrong}"], "is not a valid space of configurations: a space has no field 'side'"),
        (["--space", "{missing}"], "missing.json"),
        (["--board", "arty"], "unknown board 'arty'"),
        (["--objectives", "ms,speed"], "'objectives' are names of cycles"),
        (["--limit", "lut"], "--limit is NAME=MOST"),
        (["--limit", "lut=few"], "--limit is NAME=MOST"),
        (["--limit", "lut=10"], "no point of the space is a solution; reasons among "),
        (["--sampler", "grid"], "'sampler' is one of nsga2, tpe, not 'grid'"),
        (["--trials", "0"], "--trials"),
        (["--bandwidth", "0"], "--bandwidth"),
        (["--scheduler", "tcp://127.0.0.1:9"], "no Dask scheduler answers at tcp://127.0.0.1:9"),
    ],
)
def test_refused_arguments(
    tmp_path: Path,
    space: Path,
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence and exit code 2; nothing is measured."""
    monkeypatch.setattr(workers, "ANSWER_SECONDS", 0.5)
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"format": FORMAT, "fields": {"side": [4]}}))
    names = {"wrong": wrong, "missing": tmp_path / "missing.json"}
    options = [item.format(**names) for item in arguments]
    standard = [] if "--space" in options else ["--space", space]
    code = call("explore", model(tmp_path), "-o", tmp_path / "out", *standard, *options)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") <= 3
    assert "Traceback" not in error
    assert code == 2
    assert not entries(tmp_path / "out")


def test_another_search_in_the_same_folder(
    tmp_path: Path, space: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = ("explore", model(tmp_path), "-o", tmp_path / "out", "--space", space, "--trials", 1, "--jobs", 1)
    assert call(*about) == 0
    before = (tmp_path / "out" / "exploration.json").read_bytes()
    assert call(*about, "--objectives", "cycles,ff") == 2
    assert "is of a search with other objectives" in capsys.readouterr().err
    assert (tmp_path / "out" / "exploration.json").read_bytes() == before


@pytest.mark.parametrize("wrong", [["--limit", "lut=10"], ["--scheduler", "nonsense"]])
def test_a_refused_search_leaves_no_state(
    tmp_path: Path, space: Path, wrong: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another search may use the folder."""
    monkeypatch.setattr(workers, "ANSWER_SECONDS", 0.5)
    about = ("explore", model(tmp_path), "-o", tmp_path / "out", "--space", space, "--trials", 1, "--jobs", 1)
    assert call(*about, *wrong) == 2
    assert call(*about, "--objectives", "cycles,ff") == 0
    assert points(tmp_path / "out")


def test_an_interrupt_keeps_results(tmp_path: Path, space: Path) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "weft", "explore", str(model(tmp_path)), "-o", str(out), "--space", str(space),
        "--trials", "10000", "--jobs", "2",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        # Up to four results are in flight: written by workers but not yet read.
        if len(entries(out)) > 2 + 4 or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert error.endswith("results are kept; the same command resumes the search\nerror: interrupted\n")
    assert "Traceback" not in error
    assert "points measured" in said
    assert len(points(out)) > 2
    assert not list(out.glob(".*"))


@pytest.fixture
def one_point_search(tmp_path: Path) -> tuple[object, ...]:
    """Write a search whose front is the smallest preset alone, to be confirmed."""
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"format": FORMAT, "base": "tiny", "fields": {"n": [4]}}))
    out = tmp_path / "out"
    about = (model(tmp_path), "-o", out, "--space", path, "--trials", 1, "--objectives", "lut", "--jobs", 1)
    return ("explore", *about, "--verify")


def test_the_front_is_confirmed(
    tmp_path: Path, one_point_search: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Confirmations are cached."""
    for _ in range(2):
        assert call(*one_point_search) == 0
        assert "number 1, 4 x 4 on memory, verified: " in capsys.readouterr().out
        (best,) = (item for item in points(tmp_path / "out") if item["front"])
        assert best["verified"]["good"]
        assert best["verified"]["rtl"] == best["verified"]["model"] > 0
        assert "synthesised" not in best
    assert len(list((tmp_path / "out" / "results").glob("run-*"))) == 1


def test_failed_confirmations(
    one_point_search: tuple[object, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1; an interrupt keeps results, and a lost scheduler gives 2."""
    outcome = Outcome("3 bytes differ", {"good": False})

    def bad(
        wanted: Mapping[Name, Check], workers: object, tell: Callable[..., None], progress: object
    ) -> bool:
        ((name, check),) = wanted.items()
        tell(name, check, outcome, {check.item.point.key: {check.kind: outcome.details}})
        return False

    monkeypatch.setattr(checks, "confirm_all", bad)
    assert call(*one_point_search) == 1
    assert "verified: 3 bytes differ (failed)" in capsys.readouterr().out
    actual = (WorkersError("the scheduler is lost"), KeyboardInterrupt())

    def fails(*arguments: object, error: BaseException) -> bool:
        bad(*arguments)  # type: ignore[arg-type]
        raise error

    monkeypatch.setattr(checks, "confirm_all", partial(fails, error=actual[0]))
    assert call(*one_point_search) == 2
    assert "the scheduler is lost" in capsys.readouterr().err
    monkeypatch.setattr(checks, "confirm_all", partial(fails, error=actual[1]))
    with pytest.raises(KeyboardInterrupt):
        main.main([str(item) for item in one_point_search])
    assert "results are kept; the same command resumes the confirmation" in capsys.readouterr().err
    (best,) = (item for item in points(Path(str(one_point_search[3]))) if item["front"])
    assert best["verified"] == {"good": False}
