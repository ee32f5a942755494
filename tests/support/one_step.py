"""Models of one layer, all on the device: at most one step from ONNX Runtime, and bit-exact between golden interpreter
and micro-ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from support import qdq_models
from support.golden_compare import compare
from support.graph_runs import on_host, run_graph
from support.ort_sessions import plain_session
from weft.compiler.backend import compile_segment
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph
from weft.hdl.isa.config import PRESETS


@dataclass
class Tally:
    """Counts of compared elements and of those one step off; a larger difference fails at once."""

    elements: int = 0
    wrong: int = 0


def check(
    model: onnx.ModelProto, rng: np.random.Generator, tally: Tally, preset: str | None = "tiny"
) -> Graph:
    """Check a model, all on the device, against ONNX Runtime and, with `preset`, the golden interpreter.

    DequantizeLinear makes its outputs.
    """
    graph = import_model(model)
    assert not on_host(graph), on_host(graph)
    feeds = qdq_models.feeds(model, rng)
    wanted = dict(zip(graph.outputs, plain_session(model).run(None, feeds), strict=True))
    given = run_graph(graph, feeds)
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    scales = {
        node.output[0]: constants[node.input[1]]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
    }
    for name, values in wanted.items():
        assert given[name].shape == values.shape
        steps = np.rint(np.abs(given[name].astype(np.float64) - values) / scales[name])
        assert steps.max(initial=0) <= 1, f"{name} is {steps.max():g} steps off"
        tally.elements += steps.size
        tally.wrong += int(np.count_nonzero(steps))
    if preset is not None:
        on_golden(graph, preset, rng)
    return graph


def on_golden(graph: Graph, preset: str, rng: np.random.Generator) -> None:
    """Check that programs of a graph's device segments give the bytes of the micro-ops."""
    config = PRESETS[preset]
    for segment in graph.segments:
        if isinstance(segment, DeviceSegment):
            read = {view.buffer.name: view.buffer for op in segment.ops for view in op.sources}
            inputs = {name: rng.integers(-128, 128, buffer.shape).astype(np.int8)
                      for name, buffer in read.items() if buffer.kind == "input"}  # fmt: skip
            # An input that is read as a view need not be written.
            compare(compile_segment(segment, config), segment, inputs, config, temps=False)
