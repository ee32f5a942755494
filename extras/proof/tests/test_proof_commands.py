"""`weft prove`: its output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.cli.main import main
from weft.extras.proof.hardware.property import Bench, Property
from weft.hdl.lib.queues import SkidBuffer


def run(*arguments: str) -> int:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    return int(exit_.value.code or 0)


def test_prove(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prove", "lib/skid_buffer", "--mutants", "4") == 0
    output = capsys.readouterr().out
    assert "lib/skid_buffer: order" in output
    assert "1 property: 1 proven" in output
    assert "4 of 4 mutants killed" in output
    assert run("prove", "lib/skid_buffer", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["format"] == "weft prove 1"
    assert [item["outcome"] for item in result["properties"]] == ["proven"]


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prove", "--list") == 0
    output = capsys.readouterr().out
    assert "lib/skid_buffer: order\n    Words come out once" in output
    assert output.count("\n") > 20


def test_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("prove", "lib/skid_buffer", "no such unit") == 2
    assert "no property has 'no such unit' in its name" in capsys.readouterr().err


class Wrong(Bench):
    """Bench with the wrong claim that a skid buffer never refuses a word."""

    def watch(self, m: object) -> None:
        self.claim("never full", self.dut.i.ready)


def test_a_failing_property(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Property("lib/skid_buffer", "wrong", "It never refuses.", lambda: Wrong(SkidBuffer(2)))
    monkeypatch.setattr("weft.extras.proof.hardware.registry.properties", lambda: iter([wrong]))
    monkeypatch.setattr("weft.extras.proof.boards.registry.properties", lambda: iter([]))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    assert run("prove") == 1
    output = capsys.readouterr().out
    assert "never full in cycle" in output
    assert "1 property: 1 failed" in output
    assert f"the trace are in {tmp_path}" in output.replace(
        "netlists, logs and the trace are", "the trace are"
    )
