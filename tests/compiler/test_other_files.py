"""Models in files of other tools: each is called by its name, with what takes it, by all commands that read models."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import weft
from weft import __main__ as command
from weft.compiler.frontend import check_kind, import_model
from weft.examples import digits


def zip_file(*names: str) -> bytes:
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w") as file:
        for name in names:
            file.writestr(name, b"content")
    return result.getvalue()


HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(40)
FILES = {
    "model.gguf": (b"GGUF" + bytes(40), "GGUF", "weft generate"),
    "model.pt": (zip_file("model/data.pkl", "model/byteorder"), "PyTorch", "weft quantise"),
    "exported.pt2": (
        zip_file("exported/archive_format", "exported/models/model.json"),
        "PyTorch",
        "weft quantise",
    ),
    "old.pth": (pickle.dumps({"weight": [1.0]}), "PyTorch", "weft quantise"),
    "model.keras": (zip_file("metadata.json", "config.json", "model.weights.h5"), "Keras", "weft compile"),
    "model.h5": (HDF5, "Keras", "weft compile"),
    "model.safetensors": ((2).to_bytes(8, "little") + b'{"a":{}}', "safetensors", "weft quantise"),
}
"""By name: the content, the format's name, and the command that takes it or what is made of it."""


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_tools(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    content, kind, remedy = FILES[name]
    Path(name).write_bytes(content)
    np.save("samples.npy", np.zeros((1, 1), np.float32))
    for line in (
        "compile {} -o new",
        "check {}",
        "estimate {}",
        "quantise {} --data samples.npy -o new.onnx",
    ):
        with pytest.raises(SystemExit) as ended:
            command.main(line.format(name).split())
        assert ended.value.code == 2
        (message,) = (text for text in capsys.readouterr().err.splitlines() if not text.endswith("..."))
        assert re.match(rf"error: {name} is a {kind} file, .*: .*`{remedy}`", message), message
    assert {path.name for path in tmp_path.iterdir()} == {name, "samples.npy"}


@pytest.mark.parametrize("name", [name for name in FILES if name != "old.pth"])
def test_formats_are_detected_by_content(name: str, tmp_path: Path) -> None:
    content, kind, _ = FILES[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for source, what in ((path, path), (content, f"the model of {len(content):,} bytes")):
        with pytest.raises(weft.CompileError, match=f"^{what} is a {kind} file, "):
            import_model(source)


def test_models_by_names_of_other_tools(tmp_path: Path) -> None:
    for name in FILES:
        path = tmp_path / name
        path.write_bytes(digits.model())
        assert import_model(path).inputs
    check_kind(onnx.load(path).SerializeToString()[:64], "model.pt")
