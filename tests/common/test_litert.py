"""`weft run --against`, and the benchmark that compares whole networks with LiteRT."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import mlperf_tiny
import numpy as np
import pytest
from support import tflite_networks
from support.litert import tensors

import weft
from weft import __main__ as command
from weft import litert
from weft.boards.board import Memory, MemoryKind
from weft.boards.registry import BOARDS
from weft.compiler.tflite.file import parse
from weft.run.board_run import board_model


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder with a program, its model, another model, and an input."""
    monkeypatch.chdir(tmp_path)
    Path("network.tflite").write_bytes(tflite_networks.convolutions())
    Path("other.tflite").write_bytes(tflite_networks.rows())
    np.save("input.npy", np.random.default_rng(0).integers(-128, 128, (1, 9, 8, 3)).astype(np.int8))
    weft.compile("network.tflite", "tiny").save("program")
    return tmp_path


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command.main(["run", "program", *arguments])
    return int(stop.value.code or 0)


RUN = ("--input", "input.npy", "--against")


def test_number_of_differing_values_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*RUN, "network.tflite", "--output", "output.npz") == 0
    content = Path("network.tflite").read_bytes()
    file = parse(content, "it")
    (source,), (result,) = file.inputs, file.outputs
    theirs = tensors(content, {source: np.load("input.npy")})[result].astype(int)
    apart = np.abs(np.load("output.npz")["output0"] - theirs)
    assert apart.any(), "nothing to count"
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"LiteRT: {np.count_nonzero(apart)} of 4 output values differ, by {apart.max()} at most"


def test_equal_values() -> None:
    same = {"a": np.arange(3, dtype=np.uint8)}
    assert litert.describe_differences([same], [same]) == "LiteRT: 0 of 3 output values differ"
    assert litert.describe_differences([same, same], [same, {"a": np.array([0, 1, 255], np.uint8)}]) == (
        "LiteRT: 1 of 6 output values differ, by 253 at most"
    )


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("other.tflite", "other.tflite has inputs uint8 2x10, the program int8 1x9x8x3: it is another model"),
        ("input.npy", "input.npy: LiteRT does not run it: The model is not a valid Flatbuffer buffer"),
        ("none.tflite", "cannot use none.tflite: No such file or directory"),
    ],
)
def test_incomparable_models_are_refused(
    against: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written then."""
    assert call(*RUN, against, "--output", "output.npz") == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {message}"
    assert not Path("output.npz").exists()


def test_without_litert(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    assert call(*RUN, "network.tflite") == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: --against network.tflite needs LiteRT: pip install 'weft[litert]'"
    )


def test_cycle_model_has_no_outputs_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--on", "timing", "--against", "network.tflite") == 2
    assert "--against and --on timing do not go together" in capsys.readouterr().err


def test_model_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*RUN, "network.tflite", "--report", "network.tflite") == 2
    assert "would overwrite network.tflite" in capsys.readouterr().err


def test_benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in zip(list(mlperf_tiny.NETWORKS.values())[:4], range(4), strict=True):
        Path(name).write_bytes(tflite_networks.convolutions(seed))
    monkeypatch.setattr("sys.argv", ["mlperf_tiny.py", ".", "--config", "tiny", "--samples", "2"])
    assert mlperf_tiny.main() == 0
    title, rule, *rows = capsys.readouterr().out.splitlines()
    assert {line.count("|") for line in (title, rule, *rows)} == {10}
    assert [row.split(" | ")[1] for row in rows] == ["15 of 15 nodes"] * 4
    monkeypatch.setattr("sys.argv", ["mlperf_tiny.py", "none"])
    with pytest.raises(weft.CompileError, match=r"cannot read model none.ad01_int8\.tflite"):
        mlperf_tiny.main()


def test_benchmark_on_boards(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in zip(list(mlperf_tiny.NETWORKS.values())[:4], range(4), strict=True):
        Path(name).write_bytes(tflite_networks.convolutions(seed))
    small = replace(BOARDS["icebreaker"], memory=Memory(MemoryKind.SPRAM, 4096), flash=None)
    chosen = ("icesugar-pro", "ulx3s-12f", "ulx3s-25f", "ulx3s-85f", "tang-primer-20k")
    boards = {name: BOARDS[name] for name in chosen} | {"icebreaker": small}
    monkeypatch.setitem(BOARDS, "icebreaker", small)
    monkeypatch.setattr(mlperf_tiny, "BOARDS", boards)
    monkeypatch.setattr("sys.argv", ["mlperf_tiny.py", ".", "--boards"])
    assert mlperf_tiny.main() == 0
    title, rule, *rows = capsys.readouterr().out.splitlines()
    assert title == "| network | iCESugar-Pro, ULX3S 12F, 25F | ULX3S 85F | Tang Primer 20K | iCEBreaker |"
    assert {line.count("|") for line in (title, rule, *rows)} == {6}
    names = ["handwritten digits", *list(mlperf_tiny.NETWORKS)[:4]]
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in names]
    for name, row in zip(mlperf_tiny.NETWORKS.values(), rows[1:], strict=False):
        cells = row.strip("| ").split(" | ")[1:]
        for board, cell in zip(
            (BOARDS[key] for key in chosen if key not in ("ulx3s-12f", "ulx3s-25f")), cells, strict=False
        ):
            program = weft.compile(name, board.name)
            inputs = {key: np.zeros(shape, dtype) for key, (dtype, shape) in program.inputs.items()}
            device = board_model(board, board.config, board.clock)
            cycles = program.run(inputs, on=device, memory=False).report["cycles"]
            assert cell == f"{cycles / board.clock * 1e3:.2f} ms"
        assert re.fullmatch(r"needs \d+ KB", cells[3])
