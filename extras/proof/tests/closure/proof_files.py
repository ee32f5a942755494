"""Saved programs with changed manifests, for attacks on their proofs (see `proof_subjects`)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from support.extras import contributions
from support.extreme_inputs import extreme_inputs
from support.manifests import manifest_of, write
from support.mutated import change_bytes, change_value
from support.qdq_models import Builder, finish_all
from support.state_models import Ring

import weft
from weft.compiler.artefact import MANIFEST
from weft.compiler.errors import CompileError
from weft.extras.proof.certificate import CERTIFICATE, CertificateError, certify, verify
from weft.extras.proof.tests.closure.proof_subjects import SEQUENTIAL, Result, Subject, another, judge
from weft.hdl.errors import ProgramError
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.device import DeviceError

Rng = np.random.Generator
_NOTHING_COMPUTED = ("assignment", "layers", "nodes", "format", "sha256", "bytes", "memory")
"""Manifest keys that do not affect results, or are checksums."""


class FolderSubject:
    """A certified program in a folder, with its model beside it."""

    def __init__(self, model: bytes, suffix: str, config: Config, folder: Path, rng: Rng) -> None:
        self.folder, self.model = folder / "program", folder / f"model{suffix}"
        self.folder.mkdir()
        self.model.write_bytes(model)
        program = weft.compile(self.model, config)
        program.save(self.folder)
        certify(program, self.folder, self.model, _silent)
        self._inputs = _floats(rng, program)
        self._right = self._outputs(weft.load(self.folder))

    def attack(self, rng: Rng) -> Result:
        other = self.folder.with_name("other")
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(self.folder, other)
        changed = "manifests" if rng.random() < 0.6 else "files"
        if changed == "manifests":
            seal(other, self._manifest(rng))
        else:
            path = other / str(rng.choice(sorted(path.name for path in other.glob("segment*"))))
            raw = path.read_bytes()
            path.write_bytes(another(lambda: change_bytes(rng, raw), raw))
            seal(other, manifest_of(other))
        try:
            program = weft.load(other)
            verify(program, other, _silent, model=self.model)
        except (CompileError, ProgramError, CertificateError, MemoryError) as error:
            return judge(changed, str(error), str)
        return judge(changed, "", lambda: self._difference(program))

    def _manifest(self, rng: Rng) -> Any:
        """Change a value in the manifest, most often a buffer's location or an input's conversion."""
        old = manifest_of(self.folder)
        inside: Any = old
        if rng.random() < 0.8:
            name = str(rng.choice(["segments", "to_device", "from_device"]))
            device = [entry for entry in old["segments"] if entry["kind"] == "device"]
            inside = device[int(rng.integers(len(device)))] if name == "segments" else old[name]
        made = another(lambda: change_value(rng, inside, _NOTHING_COMPUTED), inside)
        if inside is old:
            return made
        segments = [made if entry is inside else entry for entry in old["segments"]]
        return old | ({"segments": segments} if isinstance(inside, dict) else {name: made})

    def _difference(self, program: weft.Program) -> str:
        for index, (result, right) in enumerate(zip(self._outputs(program), self._right, strict=True)):
            if result != right:
                return f"input {index}"
        return ""

    def _outputs(self, program: weft.Program) -> list[dict[str, bytes]]:
        result = []
        for point in self._inputs:
            try:
                made = program.run(point, memory=False).outputs
            except (weft.InputError, DeviceError) as error:
                result.append({"error": str(error).encode()})
                continue
            result.append({name: value.tobytes() for name, value in made.items()})
        return result


def seal(folder: Path, manifest: Any) -> None:
    """Write a manifest with valid checksums, and update the certificate to it and its configuration."""
    for index, entry in enumerate(manifest.get("segments", ()) if isinstance(manifest, dict) else ()):
        for path in folder.glob(f"segment{index}.*"):
            if isinstance(entry, dict):
                raw = path.read_bytes()
                entry |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    write(folder, manifest)
    certificate = json.loads((folder / CERTIFICATE).read_text())
    certificate["program_sha256"] = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    with contextlib.suppress(weft.ConfigError, TypeError, KeyError):  # it is refused when it is loaded
        certificate["config_digest"] = Config.from_dict(manifest["config"]).digest
    (folder / CERTIFICATE).write_text(json.dumps(certificate))


def _silent(text: str) -> None:
    """Tells nobody."""


def _floats(rng: Rng, program: weft.Program) -> list[dict[str, np.ndarray]]:
    """Return inputs: integers unchanged, floats in steps of many sizes."""
    shapes = {name: shape for name, (_, shape) in program.inputs.items()}
    result = []
    for point in extreme_inputs(rng, shapes, {}):
        step = float(rng.choice([0.01, 0.05, 0.3]))
        result.append({name: _as(point[name], kind[0], step) for name, kind in program.inputs.items()})
    return result


def _as(value: np.ndarray, dtype: str, step: float) -> np.ndarray:
    if dtype.startswith("float"):
        return (value * step).astype(dtype)
    return (value.astype(np.int64) % 10 if dtype == "int64" else value).astype(dtype)


def several_parts(seed: int) -> bytes:
    """Two device segments with a host part between; the second has two outputs of equal shape."""
    builder = Builder(np.random.default_rng(seed))
    x = builder.conv(builder.input((1, 3, 6, 6), unsigned=bool(seed % 2)), 4, (3, 3), pads=(1, 1, 1, 1))
    middle = builder.node("LogSoftmax", [builder.dequantise(x)], axis=1)
    z = builder.quantise(middle, x.shape, 0.05, 3, False)
    made = finish_all(builder, builder.conv(z, 4, (1, 1)), builder.conv(z, 4, (1, 1)))
    return bytes(made.SerializeToString())


def sums_of_several(seed: int) -> bytes:
    """Two inputs of equal shape whose order matters."""
    builder = Builder(np.random.default_rng(seed))
    a, b = builder.input((1, 4, 5, 5)), builder.input((1, 4, 5, 5))
    made: onnx.ModelProto = finish_all(builder, builder.add(builder.conv(a, 4, (1, 1)), b))
    return bytes(made.SerializeToString())


def folder_of(seed: int, folder: Path, rng: Rng) -> FolderSubject:
    """Write programs with several parts, inputs or outputs, interleaved rows, states, and for the sequential core."""
    kind = seed % 4
    if kind == 3:
        ring = Ring(seed, taps=3, channels=4, outputs=3).build()
        return FolderSubject(ring, ".tflite", PRESETS["small"], folder, rng)
    model = sums_of_several(seed) if kind == 1 else several_parts(seed)
    config = SEQUENTIAL[seed % len(SEQUENTIAL)] if kind == 2 else PRESETS[("tiny", "small")[seed // 4 % 2]]
    return FolderSubject(model, ".onnx", config, folder, rng)


FILES: dict[str, Callable[[int, Path, Rng], Subject]] = {"saved programs": folder_of}
"""Functions that make subjects with files, by kind. Other extras register theirs here."""
for _extra in contributions("certificate_subjects"):
    FILES |= _extra.FILES
