"""Saved programs whose manifests are changed, and decoders, for attacks on their proofs: see `proof_subjects`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from closure.proof_subjects import SEQUENTIAL, Result, another, judged
from support.certified_decoders import (
    SIZES,
    Point,
    Trial,
    computed,
    definition,
    in_blocks,
    instructions_of,
    memory_of,
    numbers_of,
    program_of,
    with_code,
    with_contents,
)
from support.extreme_inputs import COUNT, extreme_inputs
from support.manifests import manifest_of, write
from support.mutated import change_bytes, change_value, change_words
from support.qdq_models import Builder, finished
from support.state_models import Ring

import weft
from weft.compiler.artefact import MANIFEST
from weft.compiler.errors import CompileError
from weft.extras.language.certificate.certificate import describe_model
from weft.extras.language.certificate.language import Language, Token
from weft.extras.language.run.decoder_run import DecoderMemory
from weft.extras.proof.certificate import CERTIFICATE, CertificateError, certify, verify
from weft.hdl.errors import ProgramError
from weft.hdl.isa import End
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.device import DeviceError

Rng = np.random.Generator
_NOTHING_COMPUTED = ("assignment", "layers", "nodes", "format", "sha256", "bytes", "memory")
"""Keys of manifests whose values compute nothing, or are checksums."""


class FolderSubject:
    """A certified program in a folder, of a model beside it."""

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
            return judged(changed, str(error), str)
        return judged(changed, "", lambda: self._difference(program))

    def _manifest(self, rng: Rng) -> Any:
        """The manifest with another value: most often where buffers lie, or how values get there."""
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
        for index, (found, right) in enumerate(zip(self._outputs(program), self._right, strict=True)):
            if found != right:
                return f"input {index}"
        return ""

    def _outputs(self, program: weft.Program) -> list[dict[str, bytes]]:
        found = []
        for point in self._inputs:
            try:
                made = program.run(point, memory=False).outputs
            except (weft.InputError, DeviceError) as error:
                found.append({"error": str(error).encode()})
                continue
            found.append({name: value.tobytes() for name, value in made.items()})
        return found


def seal(folder: Path, manifest: Any) -> None:
    """Write a manifest with checksums that fit, and have the certificate name it and its configuration."""
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
    """Inputs of a program: integers as they are, and floats in steps of many sizes."""
    shapes = {name: shape for name, (_, shape) in program.inputs.items()}
    found = []
    for point in extreme_inputs(rng, shapes, {}):
        step = float(rng.choice([0.01, 0.05, 0.3]))
        found.append({name: _as(point[name], kind[0], step) for name, kind in program.inputs.items()})
    return found


def _as(value: np.ndarray, dtype: str, step: float) -> np.ndarray:
    if dtype.startswith("float"):
        return (value * step).astype(dtype)
    return (value.astype(np.int64) % 10 if dtype == "int64" else value).astype(dtype)


def several_parts(seed: int) -> bytes:
    """Two device segments, the second one with two outputs of one shape, and the host between."""
    builder = Builder(np.random.default_rng(seed))
    x = builder.conv(builder.input((1, 3, 6, 6), unsigned=bool(seed % 2)), 4, (3, 3), pads=(1, 1, 1, 1))
    middle = builder.node("LogSoftmax", [builder.dequantise(x)], axis=1)
    z = builder.quantise(middle, x.shape, 0.05, 3, False)
    made = finished(builder, builder.conv(z, 4, (1, 1)), builder.conv(z, 4, (1, 1)))
    return bytes(made.SerializeToString())


def sums_of_several(seed: int) -> bytes:
    """Two inputs of one shape, whose order matters."""
    builder = Builder(np.random.default_rng(seed))
    a, b = builder.input((1, 4, 5, 5)), builder.input((1, 4, 5, 5))
    made: onnx.ModelProto = finished(builder, builder.add(builder.conv(a, 4, (1, 1)), b))
    return bytes(made.SerializeToString())


def folder_of(seed: int, folder: Path, rng: Rng) -> FolderSubject:
    """Programs with several parts, inputs or outputs, rows side by side, states, and for the sequential core."""
    kind = seed % 4
    if kind == 3:
        ring = Ring(seed, taps=3, channels=4, outputs=3).build()
        return FolderSubject(ring, ".tflite", PRESETS["small"], folder, rng)
    model = sums_of_several(seed) if kind == 1 else several_parts(seed)
    config = SEQUENTIAL[seed % len(SEQUENTIAL)] if kind == 2 else PRESETS[("tiny", "small")[seed // 4 % 2]]
    return FolderSubject(model, ".onnx", config, folder, rng)


class DecoderSubject:
    """A decoder's program, or that for `prompts`."""

    def __init__(self, memory: DecoderMemory, rng: Rng, *, prompts: bool) -> None:
        self.memory, self.prompts = memory, prompts
        self._model = describe_model(memory.decoder.numbers)
        self._trial = Trial(memory, _points(memory, rng, prompts=prompts), prompts=prompts)

    def attack(self, rng: Rng) -> Result:
        kinds = ["words", "weights and constants", "networks"]
        changed = str(rng.choice(kinds, p=[0.5, 0.35, 0.15]))
        if changed == "networks":
            return self._network(rng)
        if changed == "words":
            items = instructions_of(program_of(self.memory, self.prompts).decoder)[:-1]
            own = another(lambda: change_words(rng, items), items)
            other = with_code(self.memory, [*own, End()], prompts=self.prompts)
        else:
            name = str(rng.choice(["constants", "records"]))
            raw = bytes(getattr(self.memory.decoder.contents, name))
            other = with_contents(self.memory, name, another(lambda: change_bytes(rng, raw), raw))
        refusal = self._refusal(other)
        return judged(changed, refusal, lambda: self._trial.difference(other))

    def _refusal(self, other: DecoderMemory) -> str:
        if other.memory_bytes != self.memory.memory_bytes:
            return "its words take other room"
        return self._trial.refused(other)

    def _network(self, rng: Rng) -> Result:
        """A model that says something else, or a program of another one."""
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(self._model))
        changed = another(lambda: change_value(rng, stored), stored)
        try:
            model = msgspec.msgpack.decode(msgspec.msgpack.encode(changed), type=Language)
        except (msgspec.MsgspecError, OverflowError) as error:
            return judged("networks", str(error), str)
        return judged("networks", self._trial.of(model), lambda: self._says(rng, model))

    def _says(self, rng: Rng, model: Language) -> str:
        """Where a model says something else than the program computes, at some tokens and places."""
        if self.prompts or self.memory.decoder.places.rows > 1:
            memory = memory_of(self.memory.decoder.numbers)  # which is of the same model
        else:
            memory = self.memory
        shape = (
            len(model.layers),
            2,
            SIZES.context,
            model.key_value_heads,
            memory.decoder.places.sizes.key_length,
        )
        for _ in range(5):
            token, place = (
                int(rng.integers(memory.decoder.places.sizes.vocabulary)),
                int(rng.integers(SIZES.context)),
            )
            caches = rng.integers(0, 256, shape)
            meant, found = (
                definition(memory, model, token, place, caches),
                computed(memory, token, place, caches),
            )
            parts = slice(1, None) if self.prompts else slice(None)  # prompts have no logits
            if not all(map(np.array_equal, meant[parts], found[parts])):
                return f"token {token} at place {place}"
        return ""


def _points(memory: DecoderMemory, rng: Rng, *, prompts: bool) -> list[Point]:
    """Steps with any keys and values, with saturated ones, and with few values."""
    context, rows = SIZES.context, 2 if prompts else memory.decoder.places.rows
    caches: tuple[tuple[int, ...], ...] = ((), (), (128,), (127,), (128, 127), (0,), (255, 0, 1))
    found = []
    for index in range(COUNT):
        place = int(rng.integers(context // rows)) * rows if prompts else int(rng.integers(context))
        tokens = [
            Token(0, place + row) if prompts else Token(row, (place + 3 * row) % context)
            for row in range(rows)
        ]
        found.append(Point(int(rng.integers(1 << 30)), tuple(tokens), caches[index % len(caches)]))
    return found


def decoder_of(seed: int, folder: Path, rng: Rng) -> DecoderSubject:
    """Of both architectures, with rows side by side, prompts, and weights in blocks of 4 bits."""
    kind, architecture = seed % 4, ("llama", "gpt2")[seed // 4 % 2]
    numbers = in_blocks(folder, architecture, seed=seed) if kind == 3 else numbers_of(architecture, seed)
    memory = memory_of(numbers, rows=2 if kind == 1 else 1, prompt_rows=4 if kind == 2 else 0)
    return DecoderSubject(memory, rng, prompts=kind == 2)


FILES: dict[str, Callable[[int, Path, Rng], FolderSubject | DecoderSubject]] = {
    "saved programs": folder_of, "decoders": decoder_of,
}  # fmt: skip
