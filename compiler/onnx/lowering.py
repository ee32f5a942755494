"""Partition of a model between host and device, and its lowering to `weft.compiler.ir.model.Graph`."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.compiler.errors import IrError
from weft.compiler.ir.graph import DeviceOp, DeviceSegment
from weft.compiler.ir.layout import Layout
from weft.compiler.ir.model import (
    COMPUTED_ON_HOST,
    CONVERTING,
    READ_ON_HOST,
    WEIGHTS_ONLY,
    Graph,
    HostSegment,
    Transfer,
)
from weft.compiler.ir.network import Node
from weft.compiler.ir.views import Buffer, View
from weft.compiler.onnx.links import expand
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.patterns import Match
from weft.compiler.onnx.qdq import Recipe, Tensor
from weft.compiler.onnx.states import keep_on_device

BOUNDARY = "graph boundary: float values are {} on the host"


@dataclass(eq=False)
class Partition:
    """Assignment of every node to host or device.

    Attributes
    ----------
    subgraphs : list
        Lists of host nodes or of recipes, in an order in which every value is computed before it is read.
    leaving : dict
        Values that device segments compute and the host reads.
    entering : dict
        Host tensors that device segments read, by storage.
    host : set of int
        Nodes on the host, by index.
    device : dict
        Nodes on the device, by index, with the recipe that covers them.
    """

    subgraphs: list[list[Node] | list[Recipe]] = field(default_factory=list)
    leaving: dict[str, Tensor] = field(default_factory=dict)
    entering: dict[str, Tensor] = field(default_factory=dict)
    host: set[int] = field(default_factory=set)
    device: dict[int, Recipe | None] = field(default_factory=dict)


def partition(match: Match) -> Partition:
    """Assign every node: to the device if a recipe covers it, to the host if a host node needs its value."""
    parts = Partition()
    recipes = _demand(match, parts)
    _schedule(match, parts, recipes)
    return parts


def _demand(match: Match, parts: Partition) -> list[Recipe]:
    """Walk back from the outputs, and fill `leaving`, `entering`, `host` and `device`. Return the recipes needed."""
    model = match.model
    producers = {name: node for node in model.nodes for name in node.outputs if name}
    needed: dict[str, Recipe] = {}
    stack = list(model.outputs)
    seen: set[str] = set()
    while stack:
        name = stack.pop()
        if name in seen or name not in producers:
            continue
        seen.add(name)
        symbol = match.symbols.get(name)
        if isinstance(symbol, Tensor) and not symbol.from_host:
            parts.leaving[name] = symbol
            parts.device.update(dict.fromkeys(symbol.via))
            stack.extend(_need(match, parts, needed, symbol.storage))
            continue
        node = producers[name]
        parts.host.add(node.index)
        stack.extend(node.reads)
    return list(needed.values())


def _need(match: Match, parts: Partition, needed: dict[str, Recipe], storage: str) -> Iterable[str]:
    """Mark the recipe that fills `storage` and its predecessors; yield the values that the host must compute."""
    stack = [storage]
    while stack:
        name = stack.pop()
        if name in needed:
            continue
        recipe = needed[name] = match.recipes[name]
        parts.device.update(dict.fromkeys(recipe.nodes, recipe))
        for tensor in recipe.inputs:
            if tensor.from_host:
                parts.entering[tensor.storage] = tensor
                yield tensor.value
            else:
                stack.append(tensor.storage)


def _schedule(match: Match, parts: Partition, recipes: list[Recipe]) -> None:
    """Alternate greedily: the host runs every node that is ready, then the device every recipe that is ready."""
    model = match.model
    nodes = [node for node in model.nodes if node.index in parts.host]
    waiting = sorted(recipes, key=lambda recipe: max(recipe.nodes, default=-1))
    known = {*model.inputs, *model.network.constants, ""}
    filled: set[str] = set()
    while nodes or waiting:
        host = _ready_nodes(nodes, known)
        if host:
            parts.subgraphs.append(host)
        device = _ready_recipes(waiting, known, filled)
        if device:
            parts.subgraphs.append(device)
            known.update(name for name, tensor in parts.leaving.items() if tensor.storage in filled)
        if not host and not device:
            raise IrError(f"no node is ready: {[node.name for node in nodes]}")


def _ready_nodes(nodes: list[Node], known: set[str]) -> list[Node]:
    """Remove and return the nodes that can run now, in order; their outputs become known."""
    produced = {name for node in nodes for name in node.outputs}
    ready: list[Node] = []
    left: list[Node] = []
    for node in nodes:
        # Bodies of a node may read values of the outer network, which must be known as well.
        if known.issuperset(node.inputs) and not produced.intersection(node.reads) - known:
            ready.append(node)
            known.update(node.outputs)  # later nodes of this pass may depend on them
        else:
            left.append(node)
    nodes[:] = left
    return ready


def _ready_recipes(waiting: list[Recipe], known: set[str], filled: set[str]) -> list[Recipe]:
    """Remove and return the recipes that can run now, in order; their storages become filled."""
    # Kahn's algorithm with a heap: among ready recipes, the first in the model's order runs first.
    missing: list[int] = []
    readers: dict[str, list[int]] = {}
    for place, recipe in enumerate(waiting):
        needs = {tensor.storage for tensor in recipe.inputs if not tensor.from_host} - filled
        on_host = sum(tensor.from_host and tensor.value not in known for tensor in recipe.inputs)
        missing.append(len(needs) + on_host)
        for storage in needs:
            readers.setdefault(storage, []).append(place)
    heap = [place for place, count in enumerate(missing) if not count]  # the first in order runs first
    ready: list[Recipe] = []
    while heap:
        recipe = waiting[heapq.heappop(heap)]
        ready.append(recipe)
        filled.add(recipe.output.storage)
        for place in readers.pop(recipe.output.storage, ()):
            missing[place] -= 1
            if not missing[place]:
                heapq.heappush(heap, place)
    waiting[:] = [recipe for recipe, count in zip(waiting, missing, strict=True) if count]
    return ready


def assignment(match: Match, parts: Partition) -> tuple[tuple[str, str, str, str], ...]:
    """Return (name, operator, "device" or "host", reason) for every node, in the model's order."""
    rows = []
    model = match.model
    alive = {node.index for node in model.nodes}
    for node in sorted((*model.nodes, *model.folded), key=lambda node: node.index):
        if node.index in parts.host:
            rows.append((node.name, title(model, node), "host", reason(match, node)))
        elif node.index in parts.device:
            recipe = parts.device[node.index]
            notes = recipe.notes if recipe is not None and node.index == recipe.nodes[0] else ()
            own = (model.notes[node.name],) if node.name in model.notes else ()
            rows.append((node.name, title(model, node), "device", "; ".join((*own, *notes))))
        else:
            absorbed = (
                "its constant is part of a device operator"
                if node.index in alive
                else "computed at compile time"
            )
            rows.append((node.name, title(model, node), "device", absorbed))
    return tuple(rows)


def title(model: Model, node: Node) -> str:
    """Return the operator of a node for reports: one of `CONVERTING` for an Identity that converts."""
    if node.op != "Identity":
        return node.op
    reads, writes = (model.quantisation(node, name) is not None for name in (node.inputs[0], node.outputs[0]))
    return CONVERTING[reads] if reads != writes else node.op


def reason(match: Match, node: Node) -> str:
    """Return the reason why a node runs on the host."""
    model = match.model
    quantises, dequantises = (title(model, node) == name for name in CONVERTING)
    if quantises and node.inputs[0] in model.inputs:
        return BOUNDARY.format("quantised")
    if dequantises and node.outputs[0] in model.outputs:
        return BOUNDARY.format("dequantised")
    if node.index in match.unsupported and _has_quantised_weights_only(model, node):
        return WEIGHTS_ONLY
    if node.index in match.unsupported:
        source = node.inputs[0] if node.op == "Identity" else ""
        known = not source or match.read(node, source) is not None or bool(match.functions.get(source))
        return match.unsupported[node.index] if known else COMPUTED_ON_HOST
    if match.alone.get(node.index):
        return match.alone[node.index]
    readers = [user.name for user in model.users(node.outputs[0])]
    if not readers or node.outputs[0] in model.outputs:
        stored = node.outputs[0] in model.network.quantisation
        return f"its result is an output of the model{'' if stored else ' in float'}"
    return f"{READ_ON_HOST} by {', '.join(repr(name) for name in readers)}"


def _has_quantised_weights_only(model: Model, node: Node) -> bool:
    """Return whether a node reads a quantised constant in a model without quantised activations."""
    quantised, constants = model.network.quantisation.keys(), model.network.constants.keys()
    return quantised <= constants and not quantised.isdisjoint(node.inputs)


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
    constants = [name for name in model.outputs if name in model.network.constants]
    constants += [item.value for item in entering if item.value in model.network.constants]
    if constants:
        names = dict.fromkeys(constants)
        segments.insert(0, HostSegment("constants", expand(model.network.part((), names)), ()))
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
    rows = tuple((node.name, title(match.model, node), reason(match, node)) for node in nodes)
    return HostSegment(f"host{index}", expand(match.model.network.part(nodes, outputs)), rows)
