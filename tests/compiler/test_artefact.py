"""Saved programs: read back unchanged, also with 16-bit values and indices of rows; damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.manifests import manifest_of, refusal, write
from support.qdq_models import Builder

import weft
from weft.compiler.artefact import MANIFEST, load
from weft.compiler.backend import DeviceProgram
from weft.compiler.errors import ProgramFileError
from weft.examples import digits
from weft.hdl.isa.config import PRESETS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weft.compile(digits.model(), "tiny").save(tmp_path)
    return tmp_path


def test_round_trip(tmp_path: Path) -> None:
    program = weft.compile(digits.model(), "default")
    program.save(tmp_path)
    read = weft.load(tmp_path)
    assert read.config == program.config
    assert read.inputs == program.inputs
    assert read.outputs == program.outputs
    device = [segment for segment in program.segments if isinstance(segment, DeviceProgram)]
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


def test_invalid_configuration(folder: Path) -> None:
    _rewrite(folder, config={"n": 3})
    with pytest.raises(
        ProgramFileError, match=r"program.json: configuration field 'n' must be a power of two from 2 to 128"
    ):
        load(folder)


@pytest.fixture(scope="module")
def wide() -> weft.Program:
    """Values of 16 bits that enter, leave, and lie between two segments."""
    builder = Builder(np.random.default_rng(1), bits=16)
    x = builder.conv(builder.input((1, 3, 8, 8)), 4, (1, 1))
    middle = builder.node("LogSoftmax", [builder.dequantise(x)], axis=1)
    model = builder.finish(builder.conv(builder.quantise(middle, x.shape, 0.05, 3, False), 4, (1, 1)))
    return weft.compile(model, PRESETS["tiny"].replace(kernel=64))


def test_programs_of_16_bits_on_disk(wide: weft.Program, tmp_path: Path) -> None:
    wide.save(tmp_path)
    loaded = weft.load(tmp_path)
    (name,) = wide.inputs
    x = {name: np.random.default_rng(0).normal(0, 2, (1, 3, 8, 8)).astype(np.float32)}
    (ours,), (theirs,) = wide.run(x).outputs.values(), loaded.run(x).outputs.values()
    assert ours.any()
    assert np.array_equal(ours, theirs)


def _narrow(item: Any) -> None:
    item["wide"] = False


def _narrow_of_twice_the_size(item: Any) -> None:
    item["wide"] = False
    for shape in (item["nhwc"], item["shape"], item["model_shape"]):
        shape[0] *= 2


@pytest.mark.parametrize("change", [_narrow, _narrow_of_twice_the_size])
@pytest.mark.parametrize(
    ("side", "at"), [("to_device", 0), ("to_device", 1), ("from_device", 0), ("from_device", 1)]
)
def test_values_that_have_16_bits(
    wide: weft.Program, tmp_path: Path, side: str, at: int, change: Any
) -> None:
    """A transfer that says that they have 8 is refused: sizes, or types of values on the host, disagree."""
    wide.save(tmp_path)
    manifest = manifest_of(tmp_path)
    change(manifest[side][at])
    write(tmp_path, manifest)
    message = refusal(tmp_path)
    assert ("which does not fill" if change is _narrow else "int16 of shape") in message


@pytest.fixture(scope="module")
def embedding_model() -> weft.Program:
    """Rows of a table of 50 x 12 by indices that are an input."""
    built = Builder(np.random.default_rng(0))
    built.inputs.append(helper.make_tensor_value_info("places", TensorProto.INT64, (2, 3)))
    table = built.constant(np.arange(600, dtype=np.float32).reshape(50, 12) / 100)
    value = built.node("Gather", [table, "places"])
    return weft.compile(built.finish(built.quantise(value, (2, 3, 12), 0.05, 0, False)), "tiny")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rows", {"dtype": "int8", "rows": 50, "pitch": 12}, "has indices of type 'int8', not int32 or int64"),
        ("rows", {"dtype": "int32", "rows": 50, "pitch": 12}, "is int64 of shape (2, 3), but int32"),
        ("rows", {"dtype": "int64", "rows": 0, "pitch": 12}, "has indices of 0 rows of 12 bytes"),
        ("rows", {"dtype": "int64", "rows": 50, "pitch": 1 << 40}, "but constants have"),
        ("rows", None, "tables hold indices, and only tables do"),
        ("shape", [2, 4], "which does not fill"),
        ("nhwc", [1, 1, 6, 3], "which does not fill"),
    ],
)  # fmt: skip
def test_indices(embedding_model: weft.Program, tmp_path: Path, field: str, value: Any, message: str) -> None:
    embedding_model.save(tmp_path)
    manifest = manifest_of(tmp_path)
    manifest["to_device"][0][field] = value
    write(tmp_path, manifest)
    assert message in refusal(tmp_path)


def test_a_table_that_is_an_input(embedding_model: weft.Program, tmp_path: Path) -> None:
    embedding_model.save(tmp_path)
    manifest = manifest_of(tmp_path)
    (name,) = (name for name, item in manifest["segments"][0]["buffers"].items() if item["kind"] == "table")
    manifest["segments"][0]["buffers"][name]["kind"] = "input"
    write(tmp_path, manifest)
    assert "tables hold indices, and only tables do" in refusal(tmp_path)
