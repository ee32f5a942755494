"""Front end: a quantised ONNX, TFLite or MLIR model in, a verified `weft.compiler.ir.model.Graph` out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from weft.compiler.errors import CompileError
from weft.compiler.host.segments import prepare
from weft.compiler.ir.model import Graph, HostSegment
from weft.compiler.ir.network import ModelFormat, Network
from weft.compiler.onnx.links import expand
from weft.compiler.onnx.lowering import lower, partition
from weft.compiler.onnx.model import COMPLETE, Model, load
from weft.compiler.onnx.model import prepare as prepare_network
from weft.compiler.onnx.patterns import match
from weft.compiler.onnx.reader import Source
from weft.compiler.onnx.recurrent import unroll
from weft.compiler.tflite import reader as tflite
from weft.compiler.tflite.reader import HOW_TO_QUANTISE
from weft.compiler.verify import verify
from weft.hdl.extras import providers
from weft.hdl.isa.config import Config

_ONNX = b"\x08"
"""First byte of ONNX files."""
_ZIP = b"PK\x03\x04"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_LONGEST_HEADER = 100_000_000
"""Most bytes of JSON in safetensors files; the number precedes the JSON."""
_FIRST_NAME = 256
"""Leading bytes of a zip file that contain the name of its first member."""


@dataclass(frozen=True)
class _Kind:
    """Unsupported kind of file: name suffixes, a test of its first bytes, and texts for messages."""

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


def check_kind(head: bytes, name: str) -> None:
    """Reject a file that holds a model in another tool's format.

    Parameters
    ----------
    head : bytes
        The first bytes of the file.
    name : str
        Path of the file, or its name in messages.

    Raises
    ------
    CompileError
        The message names the format, and the command that takes the file.
    """
    # An ONNX file may have any name.
    suffix = "" if head.startswith(_ONNX) else PurePath(name).suffix.lower()
    for kind in _KINDS:
        if kind.begins(head) or suffix in kind.suffixes:
            raise CompileError(f"{name} is {kind.description}: {kind.remedy}")


def import_model(
    source: Source,
    *,
    config: Config = COMPLETE,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
) -> Graph:
    """Read a quantised ONNX (QDQ), TFLite or MLIR model (a path, bytes or a `ModelProto`), for devices with units of
    `config`.

    The format is detected from the contents. Operators that the device cannot run become host segments;
    `Graph.assignment` gives the reason for every node.

    Parameters
    ----------
    shapes : mapping of str to int
        Sizes of dimensions that the model leaves open (`weft.compiler.onnx.reader.read`).
    states : mapping of str to str
        For each state input the output that replaces it for the next run (`weft.compiler.onnx.states`).

    Raises
    ------
    CompileError
        If the model cannot be read or run at all; see `weft.compiler.onnx.model.load` and
        `weft.compiler.ir.network.ModelFormat.read`.
    """
    other = _foreign_file(source)
    if other is None:
        return import_loaded(load(source, shapes, states), config=config)
    if shapes:
        values = ", ".join(f"{name}={size}" for name, size in shapes.items())
        raise CompileError(f"the shapes of {other.format.name} are fixed, so {values} cannot be given")
    if states:
        values = ", ".join(f"{name}={target}" for name, target in states.items())
        raise CompileError(f"{other.format.states}, so {values} cannot be given")
    return import_loaded(prepare_network(other.network()), config=config)


def other_network(source: Source) -> Network | None:
    """Return the network of a file in one of `formats`, in ONNX's operators with QuantizeLinear and DequantizeLinear.

    None for other files.

    Raises
    ------
    CompileError
        If it cannot be read.
    """
    other = _foreign_file(source)
    return None if other is None else expand(other.network())


def import_loaded(model: Model, *, config: Config = COMPLETE) -> Graph:
    """Return the graph of a model that has been read.

    Raises
    ------
    CompileError
        If it cannot be run at all.
    """
    model.config = config
    # Loops and recurrent steps become plain operators before matching.
    model = unroll(model)
    matched = match(model)
    graph = lower(matched, partition(matched))
    for segment in graph.segments:
        if isinstance(segment, HostSegment):
            # Fail now, not at the first run, if the host cannot evaluate a segment.
            prepare(segment)
    verify(graph)
    return graph


class _ForeignFile(NamedTuple):
    """File that is not ONNX: its format, bytes, and name in messages."""

    format: ModelFormat
    data: bytes
    what: str

    def network(self) -> Network:
        return self.format.read(self.data, self.what)


_HEAD = 4096
"""Leading bytes that identify a format."""


def formats() -> Iterator[ModelFormat]:
    """Yield the formats other than ONNX that weft reads."""
    yield tflite.FORMAT
    yield from providers("read models")


def _foreign_file(source: Source) -> _ForeignFile | None:
    """Return a file in one of `formats`, by its first bytes or suffix; None for other files.

    Raises `CompileError` for another tool's model file.
    """
    if isinstance(source, bytes):
        name = f"the model of {len(source):,} bytes"
        head = source[:_HEAD]
        check_kind(head, name)
        return next((_ForeignFile(kind, source, name) for kind in formats() if kind.recognises(head)), None)
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
            return None if kind is None else _ForeignFile(kind, head + file.read(), str(path))
    except OSError:
        return None  # the ONNX reader reports it
