"""Certificates: written with a program, verified, and refused if they belong to another program."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.cli.main import main
from weft.compiler.artefact import MANIFEST
from weft.compiler.backend import DeviceProgram
from weft.extras.proof.certificate import placement_of
from weft.hdl.isa import Store
from weft.hdl.isa.code import Code

MODEL = Path(weft.__file__).parents[1] / "examples/digits/digits.onnx"


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certified") / "program"
    assert run("compile", MODEL, "-o", folder, "--config", "small", "--certify", "-q") == 0
    return folder


@pytest.fixture
def copy(certified: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(certified, tmp_path / "copy"))


def run(*arguments: object) -> int:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as left:
        main([str(item) for item in arguments])
    return int(left.value.code or 0)


def test_verify(certified: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", certified, "--model", MODEL) == 0
    told = capsys.readouterr().out
    assert "all 10 bytes of outputs are proven" in told
    assert run("verify", certified, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["format"] == "weft certificate 2"
    assert record["network"] == "folder"
    assert record["parts"][0]["compared_bytes"] == 10
    assert record["parts"][0]["error_log2"] < -50


def test_certified_programs_run(certified: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", image=np.zeros((1, 1, 8, 8), np.float32))
    assert run("run", certified, "--input", tmp_path / "x.npz", "--certified", "-q") == 0


def edit_field(path: Path, field: str, value: object) -> None:
    record = json.loads(path.read_text())
    place = record["parts"][0] if field in record["parts"][0] else record
    place[field] = value
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("program_sha256", "0" * 64, "belongs to another program"),
        ("config_digest", 1, "is for configuration 0x00000001"),
        ("parts", [], "has 0 parts, and the program 1"),
        ("operators", 3, "operators of part 0 is 3, not 9: it was edited"),
        ("graph_sha256", "1" * 64, "network0.graph is not the network of certificate.json"),
        ("graph_bytes", 11, "network0.graph is damaged: it has "),
        ("compared_bytes", 11, "compared_bytes of part 0 is 11, not 10"),
    ],
)
def test_edited_certificates(
    copy: Path, capsys: pytest.CaptureFixture[str], field: str, value: object, told: str
) -> None:
    edit_field(copy / "certificate.json", field, value)
    assert run("verify", copy) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("error:") == 1


def test_another_model_is_refused(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(MODEL.read_bytes() + b"\0")
    assert run("verify", copy, "--model", other) == 1
    assert f"belongs to another model than {other}" in capsys.readouterr().err


def test_another_program_is_refused(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program for another memory is correct, but is not the certified program."""
    other = tmp_path / "other"
    assert run("compile", MODEL, "-o", other, "--config", "small", "--memory", "1", "-q") == 0
    for path in other.iterdir():
        shutil.copy(path, copy / path.name)
    np.savez(tmp_path / "x.npz", image=np.zeros((1, 1, 8, 8), np.float32))
    assert run("run", copy, "--input", tmp_path / "x.npz", "--certified") == 1
    assert f"{MANIFEST} is not the certified file" in capsys.readouterr().err
    assert run("verify", copy) == 1


def test_damaged_files(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "network0.graph").write_bytes(b"\xc1nothing")
    assert run("verify", copy) == 1
    assert "network0.graph is damaged: it has 8 bytes, not " in capsys.readouterr().err
    (copy / "certificate.json").write_text("{")
    assert run("verify", copy) == 2
    (copy / "certificate.json").unlink()
    assert run("verify", copy) == 2
    assert "has no certificate.json: `weft compile --certify` writes one" in capsys.readouterr().err


def test_attention_is_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model has normalisations, softmax and products of activations."""
    model, folder = MODEL.parents[1] / "attention" / "attention.onnx", tmp_path / "out"
    assert run("compile", model, "-o", folder, "--config", "small", "--certify", "-q") == 0
    assert run("verify", folder, "--model", model) == 0
    assert "all 10 bytes of outputs are proven" in capsys.readouterr().out


def test_embeddings_are_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An embedding reads rows of a table by index."""
    nodes = [
        helper.make_node("DequantizeLinear", ["table", "scale", "zero"], ["rows"]),
        helper.make_node("Gather", ["rows", "index"], ["taken"]),
        helper.make_node("QuantizeLinear", ["taken", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    table = np.arange(-40, 40, dtype=np.int8).reshape(10, 8)
    constants = {"table": table, "scale": np.float32(0.1), "zero": np.int8(0)}
    index = helper.make_tensor_value_info("index", TensorProto.INT64, (3,))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 8))
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "rows", [index], [y], weights)
    model, folder = tmp_path / "rows.onnx", tmp_path / "out"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), model)
    assert run("compile", model, "-o", folder, "--config", "small", "--certify", "-q") == 0
    assert run("verify", folder, "--model", model) == 0
    assert "all 24 bytes of outputs are proven" in capsys.readouterr().out


def test_unproven_programs_are_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler omits the last STORE."""
    monkeypatch.setattr(
        "weft.extras.proof.certificate.placement_of",
        lambda program: placement_of(without_last_store(program)),
    )
    folder = tmp_path / "out"
    assert run("compile", MODEL, "-o", folder, "--config", "small", "--certify") == 1
    assert "is not proven" in capsys.readouterr().err
    assert not folder.exists()


def without_last_store(program: DeviceProgram) -> DeviceProgram:
    items = list(program.instructions)
    last = max(index for index, item in enumerate(items) if isinstance(item, Store))
    return dataclasses.replace(program, instructions=Code.of([*items[:last], *items[last + 1 :]]))
