"""The demonstration of a language model, with a small random model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from weft import __main__ as command
from weft.extras.language import example
from weft.extras.language.gguf.writer import write
from weft.extras.language.tests.support.language_models import SIZES, random_model
from weft.sim.rtl.device import RtlDevice


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        command.main(list(arguments))
    return int(exit_.value.code or 0)


@pytest.fixture
def small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a model in blocks of 4 bits whose heads and widths fit an 8 x 8 array."""
    sizes = dataclasses.replace(SIZES, context=32, key_length=16, value_length=16)
    model = random_model(np.random.default_rng(4), "llama", sizes, biases=False)
    write(model, str(tmp_path / "model.gguf"), "Q4_0")
    monkeypatch.setattr(example, "model", (tmp_path / "model.gguf").read_bytes)
    monkeypatch.setattr(example, "PROMPT", "the quick")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_text_on_the_rtl(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("demo", "llm", "--config", "small", "--tokens", "3", "--keep", "kept")
    assert call(*arguments) == 0
    shown = capsys.readouterr().out
    assert "configuration: small with loops=1, kernel=256, int4=2" in shown
    assert "\nthe quick" in shown
    assert "mismatching bytes: 0" in shown
    report = json.loads(Path("kept/report.json").read_text())
    assert (len(report["tokens"]), report["mismatching_bytes"], report["config"]["loops"]) == (3, 0, 1)
    assert report["text"] in shown
    assert "module" in Path("kept/weft.v").read_text()


def test_a_byte_that_differs_is_counted(
    small_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flips the last byte of memory, which the comparison after each step does not cover."""
    read = RtlDevice.read

    def wrong(self: RtlDevice, address: int, size: int) -> bytes:
        actual = read(self, address, size)
        return actual if address else actual[:-1] + bytes([actual[-1] ^ 1])

    monkeypatch.setattr(RtlDevice, "read", wrong)
    assert call("demo", "llm", "--config", "small", "--tokens", "1", "--keep", "kept") == 1
    assert "mismatching bytes: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llm", "--images", "2"), "--images and the example llm do not go together"),
        (("digits", "--tokens", "2"), "--tokens and the example digits do not go together"),
        (("llm", "--config", "icebreaker"), "do not run on configuration icebreaker: they need loops=1"),
    ],
)
def test_wrong_input(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("demo", *arguments, "--keep", str(tmp_path / "kept")) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


def test_example_of_a_language_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("example", "llm", "-o", "new") == 0
    model, prompt = Path("new/model.gguf"), Path("new/prompt.txt")
    assert capsys.readouterr().out.startswith(f"{model}: a language model")
    assert (model.read_bytes(), prompt.read_text()) == (example.model(), example.PROMPT)
    for missing, there in ((model, prompt), (prompt, model)):
        there.write_bytes(b"mine")
        missing.unlink()
        assert call("example", "llm", "-o", "new") == 2
        assert capsys.readouterr().err == (
            f"error: {there} exists: --force overwrites it, --output names another folder\n"
        )
        assert (there.read_bytes(), missing.exists()) == (b"mine", False)
        assert call("example", "llm", "-o", "new", "--force", "--quiet") == 0
    assert (model.read_bytes(), prompt.read_text()) == (example.model(), example.PROMPT)
