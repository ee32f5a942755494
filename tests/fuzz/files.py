"""Damaged bytes of every file that weft reads."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from fuzz import seeds
from fuzz.command import call
from fuzz.outcome import Failure, Outcome, check_sentence
from fuzz.targets import targets

from weft.boards.errors import FrameError
from weft.boards.link.frames import LONGEST, Answer, Identity, Parser, Request, frame

Edit = list[Any]
"""JSON value: an edit's kind and its parameters."""
_SHARES = {
    "npz": 3, "npz member": 3, "npy": 1, "onnx": 5, "tflite": 5, "manifest": 1, "manifest body": 4, "segment": 1,
    "segment resealed": 4, "configuration": 1, "line": 1, "frame": 1,
}  # fmt: skip


def shares() -> dict[str, int]:
    """Return how often each file of the core or of an extra, or part of one behind its checksum, is damaged."""
    return _SHARES | {name: target.share for name, target in targets().items()}


def draw(rng: np.random.Generator) -> list[Edit]:
    """Draw the file, and up to six changes of its bytes."""
    names, weights = list(shares()), np.array(list(shares().values()))
    target = str(rng.choice(names, p=weights / weights.sum()))
    model = str(rng.choice(list(seeds.models())))
    damages = [_damage(rng, len(_content(target, model))) for _ in range(int(rng.choice([1, 1, 2, 3, 6])))]
    return [["target", target, model], *damages]


def run(edits: list[Edit], folder: Path) -> Outcome:
    """Offer the damaged file to weft, and return its outcome."""
    (_, target, model), *damages = edits
    content = functools.reduce(damage, damages, _content(target, model))
    return verdict(_offer(target, model, content, folder))


def verdict(refusal: str) -> Outcome:
    return Outcome("refused", refusal) if refusal else Outcome("done")


def _damage(rng: np.random.Generator, size: int) -> Edit:
    at, other = (int(value) for value in rng.integers(0, max(size, 1), 2))
    if rng.random() < 0.3:  # headers and directories are at the ends
        at = int(rng.integers(0, min(size, 128) or 1)) if rng.integers(2) else max(0, size - 1 - at % 128)
    length = int(rng.choice([1, 2, 4, 8, 64, 1000]))
    kind = str(rng.choice(["flip", "flip", "flip", "set", "set", "cut", "delete", "insert", "copy"]))
    if kind == "flip":
        return [kind, at, int(rng.integers(8))]
    if kind == "set":
        return [kind, at, rng.choice(_VALUES) if rng.integers(2) else rng.bytes(1).hex()]
    if kind == "insert":
        return [kind, at, rng.bytes(length).hex()]
    return [kind, at] if kind == "cut" else [kind, at, length, other]


_VALUES = ["00", "ff", "7f", "80", "ffffffff", "ffffff7f", "00000080", "ffffffffffffffff", "0a", "7b", "1b5b"]


def damage(content: bytes, edit: Edit) -> bytes:
    kind, at, *rest = edit
    if kind == "flip" and at < len(content):
        return content[:at] + bytes([content[at] ^ 1 << rest[0]]) + content[at + 1 :]
    if kind == "set":
        value = bytes.fromhex(rest[0])
        return content[:at] + value + content[at + len(value) :]
    if kind == "insert":
        return content[:at] + bytes.fromhex(rest[0]) + content[at:]
    if kind == "delete":
        return content[:at] + content[at + rest[0] :]
    if kind == "copy":
        return content[:at] + content[rest[1] : rest[1] + rest[0]] + content[at + rest[0] :]
    return content[:at]


@functools.cache
def _content(target: str, model: str) -> bytes:
    """Return the bytes to damage."""
    if target in ("npz", "npz member", "npy"):
        arrays = seeds.inputs(model)
        return archive(arrays) if target == "npz" else _member(next(iter(arrays.values())))
    if target in targets():
        return targets()[target].seed(model)
    if target in ("onnx", "tflite"):
        return (seeds.models if target == "onnx" else seeds.tflite)()[model]
    if target.startswith("manifest"):
        manifest = seeds.program(model)["program.json"]
        return manifest.rstrip(b"\n").rpartition(b"\n")[0] if target == "manifest body" else manifest
    if target.startswith("segment"):
        return b"".join(content for _, content in _segments(model))
    if target in ("line", "frame"):
        return b"".join(map(frame, seeds.frames())) if target == "line" else seeds.frames()[1]
    return seeds.configuration()


def _segments(model: str) -> list[tuple[str, bytes]]:
    return [(name, content) for name, content in seeds.program(model).items() if name != "program.json"]


def add_checksum(body: bytes) -> bytes:
    """Return a manifest with the checksum of its body."""
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def with_segments(model: str, content: bytes, *, seal: bool) -> dict[str, bytes]:
    """Return a program's files with other segments, cut from `content` in order; `seal` updates their hashes."""
    files = dict(seeds.program(model))
    manifest = json.loads(files["program.json"].rstrip(b"\n").rpartition(b"\n")[0])
    entries = manifest["segments"]
    for index, (name, old) in enumerate(_segments(model)):
        last = index == len(entries) - 1
        files[name], content = (content, b"") if last else (content[: len(old)], content[len(old) :])
        entries[index]["sha256"] = hashlib.sha256(files[name]).hexdigest()
        if "bytes" in entries[index]:
            entries[index]["bytes"] = len(files[name])
    if not seal:
        return files
    return files | {"program.json": add_checksum(json.dumps(manifest, indent=1).encode())}


def _offer(target: str, model: str, content: bytes, folder: Path) -> str:
    """Offer the file to weft; return the reason of a refusal."""
    if target in ("npz", "npz member", "npy"):
        program = seeds.write(seeds.program(model), folder / "program")
        return offer_inputs(program, _archive(target, model, content), target == "npy", folder)
    if target in targets():
        return targets()[target].offer(content, folder)
    if target in ("onnx", "tflite"):
        return offer_model(content, folder, suffix=target)
    if target == "configuration":
        return offer_values(content, folder)
    if target in ("line", "frame"):
        return offer_frames(content if target == "line" else frame(content[:LONGEST]), target == "line")
    files = dict(seeds.program(model))
    if target == "segment":
        files = with_segments(model, content, seal=False)
    elif target == "segment resealed":
        files = with_segments(model, content, seal=True)
    else:
        files["program.json"] = add_checksum(content) if target == "manifest body" else content
    return offer_program(files, model, folder)


def archive(arrays: dict[str, np.ndarray]) -> bytes:
    """Return a .npz file; names are arbitrary."""
    return _zip({name: _member(array) for name, array in arrays.items()})


def _member(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


def _archive(target: str, model: str, content: bytes) -> bytes:
    if target != "npz member":
        return content
    members = {name: _member(array) for name, array in seeds.inputs(model).items()}
    return _zip(members | {next(iter(members)): content})


def offer_inputs(program: Path, content: bytes, single: bool, folder: Path) -> str:
    source, output = folder / ("in.npy" if single else "in.npz"), folder / "out.npz"
    source.write_bytes(content)
    return call(folder, "run", program, "--input", source, "--output", output, makes=(output,))


def offer_model(content: bytes, folder: Path, config: str = "tiny", suffix: str = "onnx") -> str:
    """Check and compile the model, and run it on zeros if it has few inputs."""
    model, program = folder / f"model.{suffix}", folder / "program"
    model.write_bytes(content)
    call(folder, "check", model)
    if said := call(folder, "compile", model, "-o", program, "--config", config, makes=(program,)):
        return said
    import weft

    shapes = weft.load(program).inputs
    if sum(int(np.prod(shape)) for _, shape in shapes.values()) < 1 << 20:
        source, output = folder / "in.npz", folder / "out.npz"
        arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()}
        source.write_bytes(archive(arrays))
        return call(folder, "run", program, "--input", source, "--output", output, makes=(output,))
    return ""


def offer_program(files: dict[str, bytes], model: str, folder: Path) -> str:
    """Disassemble the program, and run it on two devices."""
    program, source, output = folder / "program", folder / "in.npz", folder / "out.npz"
    seeds.write(files, program)
    source.write_bytes(archive(seeds.inputs(model)))
    if said := call(folder, "dis", program):
        return said
    call(folder, "run", program, "--on", "timing")
    return call(folder, "run", program, "--input", source, "--output", output, makes=(output,))


def offer_frames(content: bytes, damaged_later: bool) -> str:
    """Receive bytes as a host does: damaged frames must be noticed."""
    said, known = [""], True
    for body in Parser().feed(content):
        if damaged_later and body not in seeds.frames():
            raise Failure("wrong", f"the damaged frame {body.hex()} counts as whole", "frame")
        known = False
        for kind in (Request, Answer, Identity):
            try:
                kind.decode(body)
                known = True
            except FrameError as error:
                check_sentence(str(error))
                said.append(str(error))
    return "" if known else said[-1]


def offer_values(content: bytes, folder: Path, options: tuple[str, ...] = ("--config",)) -> str:
    """Compile a model with a configuration, or with another file that the last of the `options` names."""
    model, file, program = folder / "model.onnx", folder / "values.json", folder / "program"
    model.write_bytes(seeds.models()["convolutions"])
    file.write_bytes(content)
    return call(folder, "compile", model, "-o", program, *options, file, makes=(program,))
