"""The front end: a quantised ONNX, TFLite or MLIR model in, a verified `weft.compiler.ir.model.Graph` out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from weft.compiler.host.segments import prepare
from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.model import Graph, HostSegment
from weft.compiler.ir.network import Network
from weft.compiler.mlir import reader as mlir
from weft.compiler.onnx.lowering import lower
from weft.compiler.onnx.model import COMPLETE, Model, load
from weft.compiler.onnx.model import prepare as prepare_network
from weft.compiler.onnx.partition import plan
from weft.compiler.onnx.patterns import match
from weft.compiler.onnx.reader import Source
from weft.compiler.onnx.recurrent import unrolled
from weft.compiler.other_files import check_kind
from weft.compiler.tflite import reader as tflite
from weft.compiler.verify import verify
from weft.hdl.isa.config import Config


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
    outputs that inputs become for the next run, by their names (`weft.compiler.onnx.state_inputs`).

    What the device cannot do becomes host segments; `Graph.assignment` gives the reason for every node.

    Raises
    ------
    CompileError
        If the model cannot be read or run at all; see `weft.compiler.onnx.model.load`,
        `weft.compiler.tflite.reader.read` and `weft.compiler.mlir.reader.read`.
    """
    other = _other(source)
    if other is None:
        return import_loaded(load(source, shapes, states), config=config)
    if shapes:
        given = ", ".join(f"{name}={size}" for name, size in shapes.items())
        raise CompileError(f"the shapes of {other.article} model are fixed, so {given} cannot be given")
    if states:
        given = ", ".join(f"{name}={target}" for name, target in states.items())
        raise CompileError(f"{other.keeps}, so {given} cannot be given")
    return import_loaded(prepare_network(other.network()), config=config)


def other_network(source: Source) -> Network | None:
    """The network of a TFLite or MLIR file, with ONNX's operators; None for what is none.

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
    """A file that is no ONNX: its bytes, what messages call it, and whether it is TFLite or MLIR."""

    data: bytes
    what: str
    mlir: bool

    @property
    def article(self) -> str:
        return "an MLIR" if self.mlir else "a TFLite"

    @property
    def keeps(self) -> str:
        """What keeps values from run to run."""
        if self.mlir:
            return "an MLIR model keeps nothing from run to run"
        return "a TFLite model says itself what it keeps from run to run"

    def network(self) -> Network:
        """The network that its reader makes."""
        return (mlir.read if self.mlir else tflite.read)(self.data, self.what)


_HEAD = 4096
"""Bytes that tell what a file is."""


def _other(source: Source) -> _Other | None:
    """A TFLite or MLIR file; None for what is none, by its first bytes and its suffix.

    Raises `CompileError` for a model in a file of another tool (`weft.compiler.other_files`).
    """
    if isinstance(source, bytes):
        what = f"the model of {len(source):,} bytes"
        check_kind(source[:_HEAD], what)
        found = tflite.is_tflite(source), mlir.is_mlir(source[:_HEAD])
        return _Other(source, what, found[1]) if any(found) else None
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    if path.exists() and not path.is_file():
        return None  # a pipe cannot be read twice
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            if not tflite.is_tflite(head) and not mlir.is_mlir(head):
                check_kind(head, str(path))
            suffix = path.suffix.lower()
            is_tflite = suffix == tflite.SUFFIX or tflite.is_tflite(head)
            is_mlir = not is_tflite and (suffix == mlir.SUFFIX or mlir.is_mlir(head))
            return _Other(head + file.read(), str(path), is_mlir) if is_tflite or is_mlir else None
    except OSError:
        return None  # which the other reader tells of
