"""Saved programs: what is written is read back, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft
from weft.compiler.artefact import MANIFEST, load
from weft.compiler.backend import DeviceProgram
from weft.compiler.errors import ProgramFileError
from weft.examples import digits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weft.compile(digits.model(), "tiny").save(tmp_path)
    return tmp_path


def test_round_trip(tmp_path: Path) -> None:
    made = weft.compile(digits.model(), "default")
    made.save(tmp_path)
    read = weft.load(tmp_path)
    assert read.config == made.config
    assert read.inputs == made.inputs
    assert read.outputs == made.outputs
    device = [segment for segment in made.segments if isinstance(segment, DeviceProgram)]
    assert [segment for segment in read.segments if isinstance(segment, DeviceProgram)] == device
    assert any(segment.rows for segment in device)


def test_compilation_is_deterministic(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    again = tmp_path_factory.mktemp("again")
    weft.compile(digits.model(), "tiny").save(again)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }


def test_missing_manifest(tmp_path: Path) -> None:
    with pytest.raises(
        ProgramFileError, match=rf"^cannot read .*{MANIFEST}: No such file or directory; compile the model"
    ):
        load(tmp_path)


def test_manifest_that_is_not_text(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(
        ProgramFileError, match=r"program.json: it is damaged: its checksum does not match; compile"
    ):
        load(folder)


@pytest.mark.parametrize("name", [MANIFEST, "segment1.bin"])
def test_one_changed_byte(folder: Path, name: str) -> None:
    raw = bytearray((folder / name).read_bytes())
    raw[len(raw) // 2] ^= 1
    (folder / name).write_bytes(raw)
    with pytest.raises(
        ProgramFileError,
        match=rf"{name}(: it)? is damaged: its checksum does not match; compile the model again$",
    ):
        load(folder)


def test_truncated_blob(folder: Path) -> None:
    raw = (folder / "segment1.bin").read_bytes()
    (folder / "segment1.bin").write_bytes(raw[:-10])
    with pytest.raises(ProgramFileError, match=r"segment1.bin is damaged"):
        load(folder)


def test_missing_blob(folder: Path) -> None:
    (folder / "segment1.bin").unlink()
    with pytest.raises(ProgramFileError, match=r"^cannot read .*segment1.bin: No such file or directory"):
        load(folder)


def _rewrite(folder: Path, **changes: object) -> None:
    import hashlib

    body = (folder / MANIFEST).read_text().rstrip("\n").rpartition("\n")[0]
    text = json.dumps(json.loads(body) | changes)
    (folder / MANIFEST).write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")


def test_another_format(folder: Path) -> None:
    _rewrite(folder, format="weft program 0")
    with pytest.raises(
        ProgramFileError,
        match=r"it has format 'weft program 0', and this version of weft reads 'weft program 8'; comp",
    ):
        load(folder)


def test_configuration_that_is_none(folder: Path) -> None:
    _rewrite(folder, config={"n": 3})
    with pytest.raises(
        ProgramFileError, match=r"program.json: configuration field 'n' must be a power of two from 2 to 128"
    ):
        load(folder)
