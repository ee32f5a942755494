"""The front end: a quantised ONNX or TFLite model in, a verified `weft.compiler.ir.model.Graph` out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from weft.compiler.gguf.file import is_gguf
from weft.compiler.host.segments import prepare
from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.model import Graph, HostSegment
from weft.compiler.onnx.lowering import lower
from weft.compiler.onnx.model import COMPLETE, Model, load
from weft.compiler.onnx.model import prepare as prepare_network
from weft.compiler.onnx.partition import plan
from weft.compiler.onnx.patterns import match
from weft.compiler.onnx.reader import Source
from weft.compiler.onnx.recurrent import unrolled
from weft.compiler.tflite.reader import SUFFIX, is_tflite, read
from weft.compiler.verify import verify
from weft.hdl.isa.config import Config


def import_model(
    source: Source,
    *,
    config: Config = COMPLETE,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
) -> Graph:
    """Read a quantised ONNX (QDQ) or TFLite model (a path, bytes or a `ModelProto`), for devices with the units of
    `config`. What a file is, it says itself.

    `shapes` has sizes for dimensions that the model leaves open (`weft.compiler.onnx.reader.read`), and `states` the
    outputs that inputs become for the next run, by their names (`weft.compiler.onnx.state_inputs`).

    What the device cannot do becomes host segments; `Graph.assignment` gives the reason for every node.

    Raises
    ------
    CompileError
        If the model cannot be read or run at all; see `weft.compiler.onnx.model.load` and
        `weft.compiler.tflite.reader.read`.
    """
    tflite = _tflite(source)
    if tflite is None:
        return import_loaded(load(source, shapes, states), config=config)
    if shapes:
        given = ", ".join(f"{name}={size}" for name, size in shapes.items())
        raise CompileError(f"the shapes of a TFLite model are fixed, so {given} cannot be given")
    if states:
        given = ", ".join(f"{name}={target}" for name, target in states.items())
        raise CompileError(
            f"a TFLite model says itself what it keeps from run to run, so {given} cannot be given"
        )
    return import_loaded(prepare_network(read(*tflite)), config=config)


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


def _tflite(source: Source) -> tuple[bytes, str] | None:
    """The bytes of a TFLite file and its name in messages; None for what is none, by its first bytes and its suffix.

    Raises `CompileError` for a language model, which is another kind of thing.
    """
    if isinstance(source, bytes):
        _check_kind(source, f"the model of {len(source):,} bytes")
        return (source, f"the model of {len(source):,} bytes") if is_tflite(source) else None
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    if path.exists() and not path.is_file():
        return None  # a pipe cannot be read twice
    try:
        with path.open("rb") as file:
            head = file.read(8)
            _check_kind(head, str(path))
            wanted = path.suffix.lower() == SUFFIX or is_tflite(head)
            return (head + file.read(), str(path)) if wanted else None
    except OSError:
        return None  # which the other reader tells of


def _check_kind(head: bytes, what: str) -> None:
    if is_gguf(head):
        raise CompileError(
            f"{what} is a GGUF file, which holds a language model; weft checks and compiles ONNX and TFLite files"
        )
