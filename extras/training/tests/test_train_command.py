"""`weft train`: its output and report; wrong input gives one sentence and leaves no file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import trained_nets

import weft
from weft import __main__ as command


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model = trained_nets.quantise_by_samples(trained_nets.perceptron(np.random.default_rng(71), (6, 8, 3)))
    onnx.save(model, "model.onnx")
    x, labels = trained_nets.samples(model, 60)
    np.savez("data.npz", x=x, labels=labels)
    np.savez("unlabelled.npz", x=x)
    np.savez("double.npz", x=x.astype(np.float64), labels=labels)
    np.savez("wrong.npz", x=x, labels=labels + 7)
    return tmp_path


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        command.main(list(arguments))
    return int(left.value.code or 0)


def train(*options: str, data: str = "data.npz", output: str = "trained.onnx") -> int:
    return call("train", "model.onnx", "--data", data, "-o", output, "--batch", "10", *options)


def test_report_and_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epochs", "4", "--rate", "0.1", "--all-layers", "--report", "report.json") == 0
    out, _ = capsys.readouterr()
    report = json.loads(Path("report.json").read_text())
    assert report["format"] == "weft train 1"
    assert len(report["epochs"]) == 4
    assert report["accuracy"]["after"] > report["accuracy"]["before"]
    assert {node["place"] for node in report["nodes"]} == {"device", "host"}
    before, after = report["accuracy"]["before"], report["accuracy"]["after"]
    assert f"accuracy on data.npz: {before:.1%} before, {after:.1%} after" in out
    assert "trained.onnx: model.onnx with 4 trained constants" in out
    program = weft.compile("trained.onnx", "tiny")
    with np.load("data.npz") as data:
        rows = [program.run({"x": sample[None]}).outputs["y"].argmax() for sample in data["x"]]
        assert (np.array(rows) == data["labels"]).mean() == pytest.approx(after, abs=0.05)


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        (
            (),
            "unlabelled.npz",
            "unlabelled.npz has no array 'labels' with the class of each sample; it has 'x'",
        ),
        ((), "wrong.npz", "is not a class of the model, which has 3"),
        (("--layer", "nothing"), "data.npz", "the model has no layer 'nothing' to train; it has"),
        (("--batch", "61"), "data.npz", "there are 60 samples, fewer than the 61 of a batch"),
        (("--port", "/dev/null"), "data.npz", "--port and --on golden do not go together"),
        (("--report", "data.npz"), "data.npz", "data.npz"),
        ((), "missing.npz", "missing.npz"),
        ((), "double.npz", "double.npz: array 'x' is float64, but the model takes float32"),
        (("--held-out", "double.npz"), "data.npz", "double.npz: array 'x' is float64"),
    ],
)
def test_wrong_input(
    options: tuple[str, ...], data: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {path.name for path in folder.iterdir()}
    assert train(*options, data=data) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("error: ")
    assert message in err
    assert {path.name for path in folder.iterdir()} == names
