"""The front end: a QDQ ONNX model in, a verified `weft.compiler.ir.model.Graph` out."""

from __future__ import annotations

from collections.abc import Mapping

from weft.compiler.host.segments import prepare
from weft.compiler.ir.model import Graph, HostSegment
from weft.compiler.onnx.lowering import lower
from weft.compiler.onnx.model import COMPLETE, load
from weft.compiler.onnx.partition import plan
from weft.compiler.onnx.patterns import match
from weft.compiler.onnx.reader import Source
from weft.compiler.verify import verify
from weft.hdl.isa.config import Config


def import_model(
    source: Source, *, config: Config = COMPLETE, shapes: Mapping[str, int] | None = None
) -> Graph:
    """Read a quantised (QDQ) ONNX model (a path, bytes or a `ModelProto`), for devices with the units of `config`.

    `shapes` has sizes for dimensions that the model leaves open (`weft.compiler.onnx.reader.read`).

    What the device cannot do becomes host segments; `Graph.assignment` gives the reason for every node.

    Raises
    ------
    CompileError
        If the model cannot be read or run at all; see `weft.compiler.onnx.model.load`.
    """
    model = load(source, shapes)
    model.config = config
    found = match(model)
    graph = lower(found, plan(found))
    for segment in graph.segments:
        if isinstance(segment, HostSegment):
            prepare(segment)
    verify(graph)
    return graph
