"""Lowering of a partitioned model to `weft.compiler.ir.model.Graph`: device buffers, transfers, and host segments."""

from __future__ import annotations

from weft.compiler.ir.graph import Buffer, DeviceOp, DeviceSegment, View
from weft.compiler.ir.layout import Layout
from weft.compiler.ir.model import Graph, HostSegment, Transfer
from weft.compiler.ir.network import Node
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.partition import Partition, assignment, reason
from weft.compiler.onnx.patterns import Match
from weft.compiler.onnx.qdq import Recipe, Tensor
from weft.compiler.onnx.states import keep_on_device


def lower(match: Match, partition: Partition) -> Graph:
    """Return the graph of a partition. Device segments share no buffers: values pass between two of them through the
    host.
    """
    model = match.model
    segments: list[DeviceSegment | HostSegment] = []
    entering: list[Transfer] = []
    leaving: list[Transfer] = []
    for index, subgraph in enumerate(partition.subgraphs):
        nodes = [item for item in subgraph if isinstance(item, Node)]
        recipes = [item for item in subgraph if isinstance(item, Recipe)]
        if nodes:
            segments.append(_host(match, partition, index, nodes))
        else:
            segments.append(_device(match, partition, index, recipes, entering, leaving))
    constants = [name for name in model.outputs if name in model.constants]
    constants += [item.value for item in entering if item.value in model.constants]
    if constants:
        names = dict.fromkeys(constants)
        segments.insert(0, HostSegment("constants", model.network.part((), names), ()))
    states = model.network.states
    states_io = {name for state in states for name in (state.source, state.target)}
    graph = Graph(
        segments=tuple(segments),
        to_device=tuple(entering),
        from_device=tuple(leaving),
        inputs={
            name: (model.dtypes[name], model.shapes[name]) for name in model.inputs if name not in states_io
        },
        outputs={
            name: (model.dtypes[name], model.shapes[name]) for name in model.outputs if name not in states_io
        },
        assignment=assignment(match, partition),
        states=states,
    )
    return keep_on_device(graph)


def _device(
    match: Match,
    partition: Partition,
    index: int,
    recipes: list[Recipe],
    entering: list[Transfer],
    leaving: list[Transfer],
) -> DeviceSegment:
    """Return a device segment, and add its transfers to `entering` and `leaving`."""
    here = {recipe.output.storage for recipe in recipes}
    sent = _read_elsewhere(match, partition, index, here)
    used = {transfer.buffer.name for transfer in (*entering, *leaving)}
    renamed: dict[str, tuple[str, str]] = {}
    for recipe in recipes:
        for tensor in recipe.inputs:
            if tensor.storage in here or tensor.storage in renamed:
                continue
            # Segments share no buffers: a value that several segments read gets a buffer in each.
            name = tensor.storage if tensor.storage not in used else f"{tensor.storage}@{index}"
            kind = "input" if tensor.rows is None else "table"
            renamed[tensor.storage] = (name, kind)
            source = tensor if tensor.from_host else match.recipes[tensor.storage].output
            entering.append(_transfer(match.model, source.value, source, source.source, name, kind))
        storage = recipe.output.storage
        renamed[storage] = (storage, "output" if storage in sent else "temp")
    for storage, values in sent.items():
        for value, tensor in values.items():
            leaving.append(_transfer(match.model, value, tensor, tensor.layout, storage, "output"))
    ops = [_rename(op, renamed) for recipe in recipes for op in recipe.ops]
    return DeviceSegment(f"device{index}", tuple(ops))


def _read_elsewhere(
    match: Match, partition: Partition, index: int, here: set[str]
) -> dict[str, dict[str, Tensor]]:
    """Return the storages filled `here` that the host or other segments read, with their values."""
    later = (
        item for subgraph in partition.subgraphs[index + 1 :] for item in subgraph if isinstance(item, Recipe)
    )
    read = (
        match.recipes[tensor.storage].output
        for item in later
        for tensor in item.inputs
        if tensor.storage in here
    )
    sent: dict[str, dict[str, Tensor]] = {}
    for value, tensor in (*partition.leaving.items(), *((output.value, output) for output in read)):
        if tensor.storage in here:
            sent.setdefault(tensor.storage, {})[value] = tensor
    return sent


def _transfer(model: Model, value: str, tensor: Tensor, layout: Layout, name: str, kind: str) -> Transfer:
    perm = None if layout.perm == tuple(range(len(layout.perm))) else layout.perm
    nhwc, wide = layout.nhwc, tensor.wide
    buffer = Buffer(name, (nhwc[0] * (1 + wide), *nhwc[1:]), kind)
    return Transfer(
        value, buffer, layout.shape, nhwc, perm, tensor.unsigned, model.shapes[value], wide, tensor.index,
        tensor.rows,
    )  # fmt: skip


def _rename(op: DeviceOp, names: dict[str, tuple[str, str]]) -> DeviceOp:
    def view(old: View) -> View:
        name, kind = names.get(old.buffer.name, (old.buffer.name, "temp"))
        buffer = Buffer(name, old.buffer.shape, kind)
        return View(buffer, old.shape, old.y, old.x, old.c, old.step, old.image)

    return op.map_views(view)


def _host(match: Match, partition: Partition, index: int, nodes: list[Node]) -> HostSegment:
    """Return a host segment. Its outputs are the values that later segments or the user read."""
    needed = set(match.model.outputs) | {tensor.value for tensor in partition.entering.values()}
    for later in partition.subgraphs[index + 1 :]:
        for item in later:
            if isinstance(item, Node):
                needed.update(item.reads)
    outputs = [name for node in nodes for name in node.outputs if name in needed]
    rows = tuple((node.name, node.op, reason(match, node)) for node in nodes)
    return HostSegment(f"host{index}", match.model.network.part(nodes, outputs), rows)
