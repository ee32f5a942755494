"""From a placed model to `weft.compiler.ir.graph.Graph`: device buffers, transfers, and sub-models for the host."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from weft.compiler.ir.graph import (
    Add,
    Attention,
    Buffer,
    DeviceOp,
    DeviceSegment,
    Graph,
    HostSegment,
    Transfer,
    View,
)
from weft.compiler.ir.layout import Layout
from weft.compiler.onnx.importer import Model, Node, captured
from weft.compiler.onnx.partition import Plan, placement, reason
from weft.compiler.onnx.patterns import Match
from weft.compiler.onnx.qdq import Recipe, Tensor


def lower(match: Match, made: Plan) -> Graph:
    """Build the graph of a plan. Device segments share no buffers: a value crosses between two through the host."""
    model = match.model
    segments: list[DeviceSegment | HostSegment] = []
    entering: list[Transfer] = []
    leaving: list[Transfer] = []
    for index, turn in enumerate(made.turns):
        if isinstance(turn[0], Node):
            segments.append(_host(match, made, index))
        else:
            segments.append(_device(match, made, index, entering, leaving))
    constants = [name for name in model.outputs if name in model.constants]
    constants += [item.value for item in entering if item.value in model.constants]
    if constants:
        segments.insert(0, _constants(model, list(dict.fromkeys(constants))))
    return Graph(
        segments=tuple(segments),
        to_device=tuple(entering),
        from_device=tuple(leaving),
        inputs={name: (model.dtypes[name], model.shapes[name]) for name in model.inputs},
        outputs={name: (model.dtypes[name], model.shapes[name]) for name in model.outputs},
        placement=placement(match, made),
    )


def _device(
    match: Match, made: Plan, index: int, entering: list[Transfer], leaving: list[Transfer]
) -> DeviceSegment:
    """One device segment; its transfers are added to `entering` and `leaving`."""
    turn: list[Recipe] = made.turns[index]  # type: ignore[assignment]
    here = {recipe.output.storage for recipe in turn}
    sent = _read_elsewhere(made, index, here)
    used = {transfer.buffer.name for transfer in (*entering, *leaving)}
    renamed: dict[str, tuple[str, str]] = {}
    for recipe in turn:
        for tensor in recipe.inputs:
            if tensor.storage in here or tensor.storage in renamed:
                continue
            name = tensor.storage if tensor.storage not in used else f"{tensor.storage}@{index}"
            renamed[tensor.storage] = (name, "input")
            source = tensor if tensor.hosted else match.recipes[tensor.storage].output
            entering.append(_transfer(match.model, source.value, source.source, name, "input"))
        storage = recipe.output.storage
        renamed[storage] = (storage, "output" if storage in sent else "temp")
    for storage, values in sent.items():
        for value, tensor in values.items():
            leaving.append(_transfer(match.model, value, tensor.layout, storage, "output"))
    ops = [_renamed(op, renamed) for recipe in turn for op in recipe.ops]
    return DeviceSegment(f"device{index}", tuple(ops))


def _read_elsewhere(made: Plan, index: int, here: set[str]) -> dict[str, dict[str, Tensor]]:
    """Storages filled `here` that others read: for each the values they hold."""
    sent: dict[str, dict[str, Tensor]] = {}
    for value, tensor in made.leaving.items():
        if tensor.storage in here:
            sent.setdefault(tensor.storage, {})[value] = tensor
    for later in made.turns[index + 1 :]:
        for item in later:
            if isinstance(item, Recipe):
                for tensor in item.inputs:
                    if tensor.storage in here:
                        output = made_output(made, tensor.storage)
                        sent.setdefault(tensor.storage, {})[output.value] = output
    return sent


def made_output(made: Plan, storage: str) -> Tensor:
    """The tensor that a recipe of the plan makes in `storage`."""
    for turn in made.turns:
        for item in turn:
            if isinstance(item, Recipe) and item.output.storage == storage:
                return item.output
    raise KeyError(storage)


def _transfer(model: Model, value: str, layout: Layout, name: str, kind: str) -> Transfer:
    perm = None if layout.perm == tuple(range(len(layout.perm))) else layout.perm
    return Transfer(
        value,
        Buffer(name, layout.nhwc, kind),
        layout.shape,
        layout.nhwc,
        perm,
        model.dtypes[value] == "uint8",
        model.shapes[value],
    )


def _renamed(op: DeviceOp, names: dict[str, tuple[str, str]]) -> DeviceOp:
    def view(old: View) -> View:
        name, kind = names[old.buffer.name]
        return dataclasses.replace(old, buffer=Buffer(name, old.buffer.shape, kind))

    if isinstance(op, Add):
        return dataclasses.replace(op, a=view(op.a), b=view(op.b), dst=view(op.dst))
    if isinstance(op, Attention):
        return dataclasses.replace(op, q=view(op.q), k=view(op.k), v=view(op.v), dst=view(op.dst))
    return dataclasses.replace(op, src=view(op.src), dst=view(op.dst))


def _host(match: Match, made: Plan, index: int) -> HostSegment:
    """A sub-model of the nodes of a turn: reads what others make, gives what others (or the user) read."""
    nodes: list[Node] = made.turns[index]  # type: ignore[assignment]
    model = match.model
    here = {name for node in nodes for name in node.outputs if name}
    reads = dict.fromkeys(
        name for node in nodes for name in (*node.inputs, *captured(node)) if name and name not in here
    )
    inputs = tuple(name for name in reads if name not in model.constants and name in model.shapes)
    wanted = set(model.outputs) | {tensor.value for tensor in made.entering.values()}
    for turn in made.turns[index + 1 :]:
        for item in turn:
            if isinstance(item, Node):
                wanted.update((*item.inputs, *captured(item)))
    outputs = tuple(name for node in nodes for name in node.outputs if name in wanted)
    rows = tuple((node.name, node.op, reason(match, node)) for node in nodes)
    proto = _submodel(model, nodes, inputs, outputs, tuple(name for name in reads if name in model.constants))
    return HostSegment(f"host{index}", proto.SerializeToString(), inputs, outputs, rows)


def _submodel(
    model: Model,
    nodes: list[Node],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    constants: tuple[str, ...],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node.proto for node in nodes],
        "host",
        [_value(model, name) for name in inputs],
        [_value(model, name) for name in outputs],
        [numpy_helper.from_array(model.constants[name], name) for name in constants],
        value_info=[
            _value(model, name)
            for node in nodes
            for name in node.outputs
            if name in model.shapes and name not in outputs
        ],
    )
    return helper.make_model(graph, opset_imports=model.proto.opset_import, ir_version=model.proto.ir_version)


def _value(model: Model, name: str) -> onnx.ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(_dtype(model.dtypes[name]))
    return helper.make_tensor_value_info(name, dtype, model.shapes[name])


def _dtype(name: str) -> object:
    return np.dtype(getattr(ml_dtypes, name, name))


def _constants(model: Model, names: list[str]) -> HostSegment:
    """Constants that are outputs, or operands the device reads from a buffer."""
    nodes = [helper.make_node("Identity", [f"{name}:constant"], [name]) for name in names]
    values = [numpy_helper.from_array(model.constants[name], f"{name}:constant") for name in names]
    graph = helper.make_graph(nodes, "constants", [], [_value(model, name) for name in names], values)
    proto = helper.make_model(
        graph, opset_imports=model.proto.opset_import, ir_version=model.proto.ir_version
    )
    return HostSegment("constants", proto.SerializeToString(), (), tuple(names), ())
