"""ONNX Runtime as an oracle: a quantised model's values, and the model cut into layers that can be compared one by one.

End to end, one early difference would be counted again wherever it spreads.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import weft
from weft.hdl.isa.config import Config


def quantised_values(model: onnx.ModelProto) -> list[str]:
    return [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]


def layers(model: onnx.ModelProto, inside: Collection[str] = ()) -> Iterator[onnx.ModelProto]:
    """The model cut at every quantised value but those `inside` a layer: one sub-model for each, from the quantised
    values before it."""
    inferred = onnx.shape_inference.infer_shapes(model)
    known = {value.name: value for value in inferred.graph.value_info}
    makers = {output: node for node in model.graph.node for output in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    cuts = [name for name in quantised_values(model) if name not in inside]
    for name in cuts:
        nodes, inputs, used, seen, stack = [], [], [], set(), [name]
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in constants:
                used.append(constants[value])
            elif value in known and value in cuts and value != name:
                inputs.append(known[value])
            elif value in makers:
                nodes.append(makers[value].name or makers[value].output[0])
                stack.extend(item for item in makers[value].input if item)
        if inputs:
            ordered = [node for node in model.graph.node if (node.name or node.output[0]) in nodes]
            graph = helper.make_graph(ordered, name, inputs, [known[name]], used)
            yield helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session of ONNX Runtime without its optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def session_with_values(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Create a session of the model that also outputs its quantised values."""
    known = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    more = onnx.ModelProto()
    more.CopyFrom(model)
    more.graph.output.extend(known[name] for name in quantised_values(model))
    return session(more)


@dataclass(frozen=True)
class Layer:
    """A layer with ONNX Runtime's values before it: what it should give, and what the golden interpreter gives."""

    model: onnx.ModelProto
    program: weft.Program
    inputs: dict[str, np.ndarray]
    wanted: np.ndarray
    result: weft.Result


def compare_layers(
    model: onnx.ModelProto,
    parts: Iterable[onnx.ModelProto],
    feeds: Iterable[dict[str, np.ndarray]],
    config: str | Config,
) -> Iterator[Layer]:
    """Compile `parts`, which are `layers` of the model, for `config`, run each of `feeds` and compare."""
    names, reference = quantised_values(model), session_with_values(model)
    known = [dict(zip(names, reference.run(names, feed), strict=True)) for feed in feeds]
    for layer in parts:
        program = weft.compile(layer, config)
        (output,) = program.outputs
        for values in known:
            inputs = {name: values[name] for name in program.inputs}
            yield Layer(layer, program, inputs, values[output], program.run(inputs))


def steps(wanted: np.ndarray, computed: np.ndarray) -> np.ndarray:
    """Return the differences of quantised values."""
    return np.abs(wanted.astype(np.int32) - computed.astype(np.int32))
