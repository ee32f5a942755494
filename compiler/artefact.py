"""A compiled model on disk: one JSON manifest and one blob a segment, checked by hash when read back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.compiler.backend import DeviceProgram, Layer
from weft.compiler.input_rows import Rows
from weft.compiler.ir import Buffer, CompileError, HostSegment, Transfer
from weft.hdl.config import Config, ConfigError
from weft.hdl.isa import WORD_BYTES, IsaError, decode_all

MANIFEST = "program.json"
FORMAT = "weft program 3"

Signature = dict[str, tuple[str, tuple[int, ...]]]


class ProgramFileError(CompileError):
    """A saved program that is missing, damaged or of another version; the message names file and field."""


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled model: segments in order, transfers, the model's signature and where every node runs.

    `segments` holds a `DeviceProgram` or a `HostSegment` each; `inputs` and `outputs` map names to (dtype name, shape).
    """

    config: Config
    segments: tuple[DeviceProgram | HostSegment, ...]
    to_device: tuple[Transfer, ...]
    from_device: tuple[Transfer, ...]
    inputs: Signature
    outputs: Signature
    placement: tuple[tuple[str, str, str, str], ...]

    def save(self, folder: Path) -> None:
        """Write manifest and blobs to `folder`, which must exist."""
        entries = []
        for index, segment in enumerate(self.segments):
            host = isinstance(segment, HostSegment)
            name = f"segment{index}.onnx" if host else f"segment{index}.bin"
            blob = segment.model if isinstance(segment, HostSegment) else segment.constants + segment.code
            (folder / name).write_bytes(blob)
            entry = _host_entry(segment) if isinstance(segment, HostSegment) else _device_entry(segment)
            entries.append(entry | {"file": name, "sha256": hashlib.sha256(blob).hexdigest()})
        manifest = {
            "format": FORMAT,
            "config": self.config.to_dict(),
            "inputs": self.inputs,
            "outputs": self.outputs,
            "segments": entries,
            "to_device": [dataclasses.asdict(item) for item in self.to_device],
            "from_device": [dataclasses.asdict(item) for item in self.from_device],
            "placement": self.placement,
        }
        body = json.dumps(manifest, indent=1)
        digest = hashlib.sha256(body.encode()).hexdigest()
        (folder / MANIFEST).write_text(body + f"\n{digest}\n")


def _host_entry(segment: HostSegment) -> dict[str, Any]:
    return {
        "kind": "host", "name": segment.name, "inputs": segment.inputs, "outputs": segment.outputs,
        "nodes": segment.nodes,
    }  # fmt: skip


def _device_entry(program: DeviceProgram) -> dict[str, Any]:
    return {
        "kind": "device",
        "name": program.name,
        "constants": len(program.constants),
        "layers": [dataclasses.asdict(layer) for layer in program.layers],
        "offsets": program.offsets,
        "buffers": {name: dataclasses.asdict(buffer) for name, buffer in program.buffers.items()},
        "sizes": {str(base): size for base, size in program.sizes.items()},
        "rows": {name: dataclasses.asdict(rows) for name, rows in program.rows.items()},
    }


def load(folder: Path) -> Compiled:
    """Read what `Compiled.save` wrote.

    Raises
    ------
    ProgramFileError
        If a file is missing, damaged, or written by another version.
    """
    path = folder / MANIFEST
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise ProgramFileError(f"cannot read {path}: {why}; compile the model again") from None
    body, _, digest = text.rstrip("\n").rpartition("\n")
    if hashlib.sha256(body.encode()).hexdigest() != digest:
        raise ProgramFileError(f"{path} is damaged: its checksum does not match; compile the model again")
    manifest = json.loads(body)
    if manifest.get("format") != FORMAT:
        raise ProgramFileError(f"{path} has format {manifest.get('format')!r}, this version reads {FORMAT!r}")
    try:
        config = Config.from_dict(manifest["config"])
    except ConfigError as error:
        raise ProgramFileError(f"{path}: {error}") from None
    return Compiled(
        config,
        tuple(_segment(folder, entry) for entry in manifest["segments"]),
        tuple(_transfer(item) for item in manifest["to_device"]),
        tuple(_transfer(item) for item in manifest["from_device"]),
        _signature(manifest["inputs"]),
        _signature(manifest["outputs"]),
        tuple((str(a), str(b), str(c), str(d)) for a, b, c, d in manifest["placement"]),
    )


def _signature(entry: dict[str, Any]) -> Signature:
    return {name: (dtype, tuple(shape)) for name, (dtype, shape) in entry.items()}


def _buffer(entry: dict[str, Any]) -> Buffer:
    n, h, w, c = entry["shape"]
    return Buffer(entry["name"], (n, h, w, c), entry["kind"])


def _transfer(entry: dict[str, Any]) -> Transfer:
    n, h, w, c = entry["nhwc"]
    perm = None if entry["perm"] is None else tuple(entry["perm"])
    return Transfer(
        entry["value"],
        _buffer(entry["buffer"]),
        tuple(entry["shape"]),
        (n, h, w, c),
        perm,
        entry["unsigned"],
        None if entry["model_shape"] is None else tuple(entry["model_shape"]),
    )


def _segment(folder: Path, entry: dict[str, Any]) -> DeviceProgram | HostSegment:
    path = folder / entry["file"]
    try:
        blob = path.read_bytes()
    except OSError as error:
        raise ProgramFileError(f"cannot read {path}: {error.strerror}; compile the model again") from None
    if hashlib.sha256(blob).hexdigest() != entry["sha256"]:
        raise ProgramFileError(f"{path} is damaged: its checksum does not match; compile the model again")
    if entry["kind"] == "host":
        nodes = tuple((str(a), str(b), str(c)) for a, b, c in entry["nodes"])
        return HostSegment(entry["name"], blob, tuple(entry["inputs"]), tuple(entry["outputs"]), nodes)
    at = entry["constants"]
    try:
        instructions = decode_all(blob[at:])
    except IsaError as error:
        raise ProgramFileError(f"{path}: byte {at} on: {error}") from None
    assert len(blob) == at + WORD_BYTES * len(instructions)
    return DeviceProgram(
        entry["name"],
        tuple(instructions),
        blob[:at],
        tuple(Layer(**layer) for layer in entry["layers"]),
        dict(entry["offsets"]),
        {name: _buffer(buffer) for name, buffer in entry["buffers"].items()},
        {int(base): size for base, size in entry["sizes"].items()},
        {name: Rows(**rows) for name, rows in entry["rows"].items()},
    )
