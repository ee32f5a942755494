"""Edited program folders with valid checksums: none passes as a program of a named model, and only proven programs
run as certified."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from support.commands import code
from support.manifests import manifest_of, write
from support.qdq_models import Builder, finish_all
from support.state_models import Ring, Svdf

import weft
import weft.extras.proof.certificate
from weft.compiler.artefact import MANIFEST
from weft.compiler.ir.network import decode as decode_network
from weft.compiler.ir.network import encode as encode_network
from weft.extras.proof.programs.graph import Array, Graph, decode, encode
from weft.hdl.isa.config import PRESETS

GRAPH, CERTIFICATE = "network0.graph", "certificate.json"


def network(seed: int) -> onnx.ModelProto:
    """Return a model of two device segments and a host part between; the second has two outputs of equal shape."""
    builder = Builder(np.random.default_rng(1))
    x = builder.conv(builder.input((1, 3, 6, 6), unsigned=True), 4, (3, 3), pads=(1, 1, 1, 1))
    middle = builder.node("LogSoftmax", [builder.dequantise(x)], axis=1)
    z = builder.quantise(middle, x.shape, 0.05, 3, False)
    model = finish_all(builder, builder.conv(z, 4, (1, 1)), builder.conv(z, 4, (1, 1)))
    weight = next(item for item in model.graph.initializer if len(item.dims) == 4)
    raw = bytearray(weight.raw_data)
    raw[seed] ^= 1
    weight.raw_data = bytes(raw)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with two models, which differ in one weight, and their certified programs: `a.onnx` and `a`, and `b`."""
    made = tmp_path_factory.mktemp("forgeries")
    for seed, name in enumerate("ab"):
        onnx.save(network(seed), made / f"{name}.onnx")
        arguments = [
            "compile",
            f"{made / name}.onnx",
            "-o",
            str(made / name),
            "--config",
            "tiny",
            "--certify",
        ]
        assert code([*arguments, "-q"]) == 0
    return made


@pytest.fixture
def folder(folders: Path, tmp_path: Path) -> Path:
    """Copy of the folder with both programs, and an input."""
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    ((name, (dtype, shape)),) = weft.load(tmp_path / "a").inputs.items()
    values = np.random.default_rng(2).normal(0, 1, shape).astype(dtype)
    np.savez(tmp_path / "x.npz", **{name: values})
    return tmp_path


def seal(program: Path, manifest: Any | None = None) -> None:
    """Update all checksums in a program's folder."""
    manifest = manifest_of(program) if manifest is None else manifest
    for index, entry in enumerate(manifest["segments"]):
        raw = (program / f"segment{index}.{'host' if entry['kind'] == 'host' else 'bin'}").read_bytes()
        entry |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    write(program, manifest)
    certificate = json.loads((program / CERTIFICATE).read_text())
    certificate["program_sha256"] = hashlib.sha256((program / MANIFEST).read_bytes()).hexdigest()
    for index, part in enumerate(certificate["parts"]):
        path = program / f"network{index}.graph"
        if path.is_file():
            raw = path.read_bytes()
            part |= {"graph_bytes": len(raw), "graph_sha256": hashlib.sha256(raw).hexdigest()}
    (program / CERTIFICATE).write_text(json.dumps(certificate))


def edit_certificate(program: Path, **changes: Any) -> None:
    certificate = json.loads((program / CERTIFICATE).read_text())
    (program / CERTIFICATE).write_text(json.dumps(certificate | changes))


def of_model(program: Path, model: Path) -> None:
    """Write the hash of another model into a certificate."""
    edit_certificate(program, model_sha256=hashlib.sha256(model.read_bytes()).hexdigest())


def change_graph(program: Path, change: Callable[[Graph], Graph]) -> None:
    path = program / GRAPH
    path.write_bytes(encode(change(decode(path.read_bytes()))))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the error message of a command that fails."""
    capsys.readouterr()
    assert code([str(item) for item in arguments]) in (1, 2)
    said = capsys.readouterr().err
    assert said.count("error:") == 1
    assert "Traceback" not in said
    return said[said.index("error:") :]


def test_verify_compiled_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code(["verify", str(folder / "a"), "--model", str(folder / "a.onnx")]) == 0
    said = capsys.readouterr().out
    assert "those of a.onnx, which was imported again" in said
    assert said.count("are proven") == 2
    assert code(["verify", str(folder / "a")]) == 0
    assert "the network and the host's parts come from the folder" in capsys.readouterr().out


def test_the_program_of_another_network(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused with its own network, and with the network of the named model."""
    of_model(folder / "b", folder / "a.onnx")
    arguments = ("verify", folder / "b", "--model", folder / "a.onnx")
    assert "b is not a program of " in (said := refused(capsys, *arguments))
    assert "network0.graph is another network" in said
    assert code(["verify", str(folder / "b")]) == 0
    shutil.copy(folder / "a" / GRAPH, folder / "b" / GRAPH)
    seal(folder / "b")
    assert "device" in (said := refused(capsys, *arguments))
    assert "is not proven" in said


def remove_all(graph: Graph) -> Graph:
    return msgspec.structs.replace(graph, operators=(), outputs={})


def remove_last(graph: Graph) -> Graph:
    """Remove the network's last operator."""
    return msgspec.structs.replace(graph, operators=graph.operators[:-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (remove_all, "which the network does not compute"),
        (remove_last, "no operator of the network computes"),
    ],
)
def test_an_incomplete_network(
    folder: Path, change: Callable[[Graph], Graph], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change_graph(folder / "a", change)
    seal(folder / "a")
    assert words in refused(capsys, "verify", folder / "a")
    assert words in refused(capsys, "run", folder / "a", "--certified", "--input", folder / "x.npz")
    told = refused(capsys, "verify", folder / "a", "--model", folder / "a.onnx")
    assert "network0.graph is another network" in told


def _other_host(program: Path) -> None:
    index, path = next(
        (index, program / f"segment{index}.host")
        for index, entry in enumerate(manifest_of(program)["segments"])
        if entry["kind"] == "host" and any("LogSoftmax" in node for node in entry["nodes"])
    )
    assert index
    made = decode_network(path.read_bytes())
    for name, value in made.constants.items():
        if value.dtype == np.float32:
            made.constants[name] = np.asarray(value * 2)  # type: ignore[index]
            break
    path.write_bytes(encode_network(made))
    seal(program)


def _swapped_outputs(program: Path) -> None:
    manifest = manifest_of(program)
    one, other = manifest["from_device"][-2:]
    one["buffer"], other["buffer"] = other["buffer"], one["buffer"]
    seal(program, manifest)


def _turned_input(program: Path) -> None:
    manifest = manifest_of(program)
    item = manifest["to_device"][0]
    assert item["shape"][2] == item["shape"][3]
    item["perm"] = [0, 3, 2, 1]
    seal(program, manifest)


def _other_signature(program: Path) -> None:
    manifest = manifest_of(program)
    (name,) = manifest["inputs"]
    manifest["inputs"]["spare"] = manifest["inputs"][name]
    seal(program, manifest)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_host, "the host's part '"),
        (_swapped_outputs, "value from the device 1 is not the model's; value from the device 2"),
        (_turned_input, "value to the device 0 is not the model's"),
        (_other_signature, "input 'spare' is float32 1x3x6x6, the model's missing"),
    ],
)
def test_host_parts_are_compared(
    folder: Path, change: Callable[[Path], None], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are compared only if a model is named."""
    change(folder / "a")
    assert code(["verify", str(folder / "a")]) == 0
    assert words in refused(capsys, "verify", folder / "a", "--model", folder / "a.onnx")


@pytest.mark.parametrize(
    "model_of",
    [Ring(1, taps=3, channels=4, outputs=3), Svdf(1, inputs=6, units=4, rank=2, memory=3)],
    ids=["ring", "svdf"],
)
def test_states_are_compared(
    model_of: Ring | Svdf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state is compared, whether a run writes it in place or moves it at the end."""
    model, program, config = tmp_path / "model.tflite", tmp_path / "program", tmp_path / "config.json"
    model.write_bytes(model_of.build())
    config.write_text(json.dumps(PRESETS["small"].replace(kernel=64).to_dict()))
    arguments = ["compile", str(model), "-o", str(program), "--config", str(config), "--certify", "-q"]
    assert code(arguments) == 0
    assert code(["verify", str(program), "--model", str(model)]) == 0
    path, manifest = program / "states.bin", manifest_of(program)
    made = decode_network(path.read_bytes())
    (name,) = made.constants
    made.constants[name] = made.constants[name] + np.int8(1)  # type: ignore[index]
    raw = encode_network(made)
    path.write_bytes(raw)
    manifest["states"] |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    seal(program, manifest)
    assert "state 0 is not the model's" in refused(capsys, "verify", program, "--model", model)


def test_a_changed_weight_does_not_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = folder / "a"
    index = next(
        index for index, entry in enumerate(manifest_of(program)["segments"]) if entry["kind"] == "device"
    )
    path, other = (folder / name / f"segment{index}.bin" for name in "ab")
    assert path.read_bytes() != other.read_bytes()
    shutil.copy(other, path)
    seal(program)
    arguments = ("run", program, "--certified", "--input", folder / "x.npz", "--output", folder / "y.npz")
    assert "is not proven" in refused(capsys, *arguments)
    assert not (folder / "y.npz").exists()
    assert "is not proven" in refused(capsys, "run", program, "--certified", "--on", "timing")


@pytest.mark.parametrize("name", [GRAPH, "network1.graph", CERTIFICATE])
def test_a_missing_file_is_named(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a" / name).unlink()
    for arguments in (
        ("verify", folder / "a"),
        ("run", folder / "a", "--certified", "--input", folder / "x.npz"),
    ):
        assert name in (said := refused(capsys, *arguments))
        assert "--certify" in said


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail a test that takes longer, for example because it reads from a pipe without a writer."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", [MANIFEST, GRAPH, CERTIFICATE, "segment0.host", "segment1.bin"])
def test_special_files_are_refused(
    folder: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "a" / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with within(60):
        said = refused(capsys, "verify", folder / "a")
    assert f"{name} is damaged: it is not a regular file" in said or f"{name}: it is not a regular" in said


@pytest.mark.parametrize("moment", ["when it was loaded", "when it was proven"])
def test_the_proven_program_runs(
    folder: Path, moment: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link is replaced by another program while a command runs."""
    right, source, link = folder / "right.npz", str(folder / "x.npz"), folder / "link"
    assert code(["run", str(folder / "a"), "--input", source, "--output", str(right), "-q"]) == 0
    link.symlink_to("a")
    loaded = weft.load
    proven = weft.extras.proof.certificate.verify

    def swap() -> None:
        link.unlink()
        link.symlink_to("b")

    def load(path: Any) -> weft.Program:
        actual = loaded(path)
        if moment == "when it was loaded":
            swap()
        return actual

    def verify(*arguments: Any, **options: Any) -> Any:
        actual = proven(*arguments, **options)
        if moment == "when it was proven":
            swap()
        return actual

    monkeypatch.setattr(weft, "load", load, raising=False)
    monkeypatch.setattr(weft.extras.proof.certificate, "verify", verify)
    output = folder / "y.npz"
    arguments = ["run", str(link), "--certified", "--input", source, "--output", str(output), "-q"]
    if moment == "when it was loaded":
        assert "certificate.json belongs to another program" in refused(capsys, *arguments)
        assert not output.exists()
        return
    assert code(arguments) == 0
    with np.load(right) as one, np.load(output) as other:
        assert all(np.array_equal(one[name], other[name]) for name in one.files)


def test_a_program_without_a_device_is_not_certified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = Builder(np.random.default_rng(1))
    x = builder.input((1, 4))
    model = builder.finish_as(builder.node("LogSoftmax", [builder.dequantise(x)]), onnx.TensorProto.FLOAT)
    onnx.save(model, tmp_path / "model.onnx")
    arguments = ("compile", tmp_path / "model.onnx", "-o", tmp_path / "p", "--config", "tiny")
    assert "nothing of this program runs on the device" in refused(capsys, *arguments, "--certify")
    assert not (tmp_path / "p").exists()


def test_changed_weights_in_a_network(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(graph: Graph) -> Graph:
        first = graph.operators[0]
        weight = first.arrays["weight"].numpy.copy()
        weight.flat[0] += 1
        first.arrays["weight"] = Array.of(weight)
        return graph

    change_graph(folder / "a", change)
    assert "is not the network of certificate.json" in refused(capsys, "verify", folder / "a")
    seal(folder / "a")
    assert "is not proven" in refused(capsys, "verify", folder / "a")
