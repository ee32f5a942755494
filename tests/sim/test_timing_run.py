"""Programs on the cycle model, from Python and from the command line: a report and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.api import Program
from weft.cli import main
from weft.examples import attention, digits
from weft.run.attention import PagedAttention, Quantisation
from weft.sim.timing.library import library


@pytest.fixture(scope="module")
def program() -> Program:
    return weft.compile(digits.model(), config="tiny")


def test_report_is_that_of_the_rtl(program: Program) -> None:
    images, _ = digits.held_out()
    inputs = {"image": images[:1]}
    memory = {"latency": 12, "bandwidth": 2.5}
    result = program.run(inputs, on="timing", **memory)
    rtl = program.run(inputs, on="rtl", **memory)
    assert rtl.outputs["logits"].shape == (1, 10)
    assert result.outputs == {}
    assert result.memory == b""
    assert result.report["counters"] == rtl.report["counters"]
    later = zip(result.report["layers"][1:], rtl.report["layers"][1:], strict=True)
    assert all(mine == real for mine, real in later)
    assert result.report["cycles"] != program.run(inputs, on="timing").report["cycles"]


def test_inputs_are_still_checked(program: Program) -> None:
    with pytest.raises(weft.api.InputError, match="input 'image' is missing"):
        program.run({}, on="timing")


def test_host_parts_are_left_out() -> None:
    """The transformer's device parts are timed although the host's results are missing."""
    program = weft.compile(attention.model(), config="tiny")
    images, _ = attention.held_out()
    result = program.run({"image": images[:1]}, on="timing")
    golden = program.run({"image": images[:1]})
    assert result.outputs == {}
    assert golden.outputs
    assert [row["name"] for row in result.report["layers"]] == [
        row["name"] for row in golden.report["layers"]
    ]
    assert all(row["cycles"] > 0 for row in result.report["layers"])


def test_paged_attention_has_no_output() -> None:
    quantisation = Quantisation(0.05, 0.05)
    cache = PagedAttention(
        "tiny", heads=2, head_size=8, page=4, pages=5, capacity=3, quantisation=quantisation
    )
    pool = np.ones((5, 4, 2, 8), np.int8)
    q = np.ones((1, 2, 8), np.int8)
    timed = cache.run(q, pool, pool, [2, 0], 6, on="timing")
    assert (timed.outputs, timed.memory) == ({}, b"")
    cycles = cache.run(q, pool, pool, [2, 0], 6, on="rtl").report["cycles"]
    assert timed.report["cycles"] == pytest.approx(cycles, rel=0.05)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main.main(list(arguments))
    return int(left.value.code or 0)


def test_command_line(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program.save("built")
    assert call("run", "built", "--on", "timing", "--latency", "50", "--report", "report.json") == 0
    report = json.loads(Path("report.json").read_text())
    expected = program.run({"image": np.zeros((1, 1, 8, 8), np.float32)}, on="timing", latency=50).report
    assert report == expected
    text = capsys.readouterr().out
    assert re.search(rf"^total +{report['cycles']:,} ", text, re.MULTILINE)
    share = report["counters"]["mm_semaphore"] / report["cycles"]
    assert re.search(rf"^mm: busy .*, semaphore {share:.1%}, weights .*, port ", text, re.MULTILINE)
    assert "nothing was computed" in text


def test_command_line_refuses(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program.save("built")
    assert call("run", "built", "--on", "timing", "--output", "out.npz") == 2
    assert "--output and --on timing do not go together" in capsys.readouterr().err
    assert call("run", "built") == 2
    assert "--input is missing" in capsys.readouterr().err


def test_a_model_that_runs_out_of_memory(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C++ exception does not end Python."""

    def run(request: Any, outcome: Any) -> Any:
        request._obj.mark_count = 1 << 58  # as many as no memory holds
        return library().weft_timing_run(request, outcome)

    class Library:
        weft_timing_run = staticmethod(run)

    monkeypatch.setattr("weft.sim.timing.device.library", Library)
    inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    with pytest.raises(
        MemoryError, match=r"^the cycle model needs more memory for this program than there is$"
    ):
        program.run(inputs, on="timing")
