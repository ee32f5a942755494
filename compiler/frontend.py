"""The front end: a quantised ONNX, TFLite or MLIR model in, a verified `weft.compiler.ir.model.Graph` out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from weft.compiler.host.segments import prepare
from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.model import Graph, HostSegment
from weft.compiler.ir.network import ModelFormat, Network
from weft.compiler.onnx.lowering import lower
from weft.compiler.onnx.model import COMPLETE, Model, load
from weft.compiler.onnx.model import prepare as prepare_network
from weft.compiler.onnx.partition import plan
from weft.compiler.onnx.patterns import match
from weft.compiler.onnx.reader import Source
from weft.compiler.onnx.recurrent import unrolled
from weft.compiler.tflite import reader as tflite
from weft.compiler.tflite.reader import HOW_TO_QUANTISE
from weft.compiler.verify import verify
from weft.hdl.extras import providers
from weft.hdl.isa.config import Config

_ONNX = b"\x08"
"""Begins ONNX files, whatever their names."""
_ZIP = b"PK\x03\x04"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_LONGEST_HEADER = 100_000_000
"""Bytes of JSON that safetensors allows, whose number is in front of it."""
_FIRST_NAME = 256
"""Bytes of a zip file within which the name of its first member ends."""


@dataclass(frozen=True)
class _Kind:
    """A kind of file: the suffixes of its names, a test of its first bytes, and what messages say."""

    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool]
    description: str
    remedy: str


def _begins_zip(head: bytes, *names: bytes) -> bool:
    return head.startswith(_ZIP) and any(name in head[:_FIRST_NAME] for name in names)


_KINDS = (
    _Kind(
        (".gguf",),
        lambda head: head.startswith(b"GGUF"),
        "a GGUF file, which holds a language model",
        "`weft generate` and `weft serve` take it",
    ),
    _Kind(
        (".pt", ".pth", ".pt2"),
        lambda head: _begins_zip(head, b"/data.pkl", b"/archive_format", b"/byteorder"),
        "a PyTorch file, which only PyTorch can run",
        "export the module with torch.onnx.export and give the ONNX file to `weft quantise`, or call "
        "weft.quantise(module, samples) in Python",
    ),
    _Kind(
        (".keras", ".h5", ".hdf5"),
        lambda head: head.startswith(_HDF5) or _begins_zip(head, b"metadata.json", b"config.json"),
        "a Keras file, which only Keras can run",
        "make a TFLite file of it with tf.lite.TFLiteConverter.from_keras_model, which `weft compile` takes, and "
        + HOW_TO_QUANTISE,
    ),
    _Kind(
        (".safetensors",),
        lambda head: head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < _LONGEST_HEADER,
        "a safetensors file, which holds weights and no network",
        "export the model to ONNX and give that to `weft quantise`",
    ),
)


def check_kind(head: bytes, what: str) -> None:
    """Refuse a file that holds a model in another tool's format.

    Parameters
    ----------
    head : bytes
        The first bytes of the file.
    what : str
        Path of the file, or what messages call it.

    Raises
    ------
    CompileError
        The message names the format, and what takes the file.
    """
    suffix = "" if head.startswith(_ONNX) else PurePath(what).suffix.lower()
    for kind in _KINDS:
        if kind.begins(head) or suffix in kind.suffixes:
            raise CompileError(f"{what} is {kind.description}: {kind.remedy}")


def import_model(
    source: Source,
    *,
    config: Config = COMPLETE,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
) -> Graph:
    """Read a quantised ONNX (QDQ), TFLite or MLIR model (a path, bytes or a `ModelProto`), for devices with the units
    of `config`. What a file is, it says itself.

    `shapes` has sizes for dimensions that the model leaves open (`weft.compiler.onnx.reader.read`), and `states` the
    outputs that inputs become for the next run, by their names (`weft.compiler.onnx.states`).

    What the device cannot do becomes host segments; `Graph.assignment` gives the reason for every node.

    Raises
    ------
    CompileError
        If the model cannot be read or run at all; see `weft.compiler.onnx.model.load`,
        `weft.compiler.ir.network.ModelFormat.read`.
    """
    other = _other(source)
    if other is None:
        return import_loaded(load(source, shapes, states), config=config)
    if shapes:
        given = ", ".join(f"{name}={size}" for name, size in shapes.items())
        raise CompileError(f"the shapes of {other.format.name} are fixed, so {given} cannot be given")
    if states:
        given = ", ".join(f"{name}={target}" for name, target in states.items())
        raise CompileError(f"{other.format.states}, so {given} cannot be given")
    return import_loaded(prepare_network(other.network()), config=config)


def other_network(source: Source) -> Network | None:
    """The network of a file in one of `formats`, with ONNX's operators; None for all others.

    Raises
    ------
    CompileError
        If it cannot be read.
    """
    other = _other(source)
    return None if other is None else other.network()


def import_loaded(model: Model, *, config: Config = COMPLETE) -> Graph:
    """The graph of a model that has been read.

    Raises
    ------
    CompileError
        If it cannot be run at all.
    """
    model.config = config
    model = unrolled(model)
    found = match(model)
    graph = lower(found, plan(found))
    for segment in graph.segments:
        if isinstance(segment, HostSegment):
            prepare(segment)
    verify(graph)
    return graph


class _Other(NamedTuple):
    """A file that is not ONNX: its format, its bytes, and what messages call it."""

    format: ModelFormat
    data: bytes
    what: str

    def network(self) -> Network:
        return self.format.read(self.data, self.what)


_HEAD = 4096
"""Bytes that tell what a file is."""


def formats() -> Iterator[ModelFormat]:
    """Formats that weft reads beside ONNX."""
    yield tflite.FORMAT
    yield from providers("read models")


def _other(source: Source) -> _Other | None:
    """A file in one of `formats`, by its first bytes or its suffix; None for all others.

    Raises `CompileError` for a model in a file of another tool (`weft.compiler.frontend`).
    """
    if isinstance(source, bytes):
        what = f"the model of {len(source):,} bytes"
        head = source[:_HEAD]
        check_kind(head, what)
        return next((_Other(kind, source, what) for kind in formats() if kind.recognises(head)), None)
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    if path.exists() and not path.is_file():
        return None  # a pipe cannot be read twice
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            kind = next((kind for kind in formats() if kind.recognises(head)), None)
            if kind is None:
                check_kind(head, str(path))
                kind = next((kind for kind in formats() if path.suffix.lower() == kind.suffix), None)
            return None if kind is None else _Other(kind, head + file.read(), str(path))
    except OSError:
        return None  # the ONNX reader reports it
