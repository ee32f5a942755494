"""A language model on a complete board in simulation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.commands import code

from weft.boards import registry
from weft.extras.language.gguf.writer import write
from weft.extras.language.tests.support.language_models import random_model


def test_a_language_model_on_a_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text, logits byte by byte, and cycles match the model of core and SDRAM, also in blocks of 4 bits."""
    monkeypatch.chdir(tmp_path)
    name, board = "ulx3s-85f-lm", registry.find("ulx3s-85f-lm")
    write(random_model(np.random.default_rng(5), biases=False), tmp_path / "model.gguf", "Q4_0")
    options = ["generate", "model.gguf", "--prompt", "a fox", "--tokens", "3", "--config", name]
    assert code([*options, "--on", "timing", "--json", "--quiet"]) == 0
    model = json.loads(capsys.readouterr().out)
    place = ["--on", "board", "--port", f"virtual:{name}"]
    assert code([*options, *place, "--compare"]) == 0
    out, err = capsys.readouterr()
    assert out == model["text"] + "\n"
    summary = err.splitlines()
    assert any(re.search(r"^code and weights: [\d,]+ bytes uploaded$", line) for line in summary)
    assert summary[-1] == "mismatching bytes: 0"
    assert re.search(r"^[\d.]+ s with the link and the host; the core computed for 0\.\d\d s", summary[-2])
    for line, (part, known) in zip(summary[-4:-2], list(model["timing"].items())[:2], strict=True):
        actual = re.search(rf"^{part}: .* steps, ([\d,]+) cycles a token.* ([\d,]+) bytes a token", line)
        assert actual is not None
        cycles, moved = (int(number.replace(",", "")) for number in actual.groups())
        assert moved * known["tokens"] == known["moved"]
        assert known["cycles"] / known["tokens"] == pytest.approx(cycles, rel=0.02)
        assert f"; at {board.clock / 1e6:g} MHz " in line
