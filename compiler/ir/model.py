"""A whole model for device and host: segments, and how values get from one to the other."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from weft.compiler.ir.graph import Attention, Buffer, DeviceSegment, View
from weft.compiler.ir.network import Network, Node, State
from weft.compiler.ir.products import RowIndices

READ_ON_HOST = "its result is read on the host"
COMPUTED_ON_HOST = "its input is computed on the host"
"""How reasons begin that a node is on the host for because its neighbours are."""
CLAMPED = "are clamped"
"""What notes on nodes of the device say of values that have no range of the device's: results are wrong there."""

Assignment = tuple[tuple[str, str, str, str], ...]
"""(name, operator, "device" or "host", reason) of every node."""


def clamps(assignment: Iterable[tuple[str, str, str, str]]) -> tuple[str, ...]:
    """The warnings of an assignment: a sentence for each value of the device that may be clamped."""
    return tuple(
        f"{name} ({operator}): {note}"
        for name, operator, place, reason in assignment
        if place == "device"
        for note in reason.split("; ")
        if CLAMPED in note
    )


@dataclass(frozen=True, eq=False)
class HostSegment:
    """A part of the model that the host evaluates (`weft.compiler.host`).

    `nodes` are (node name, operator type, reason) for the report.
    """

    name: str
    network: Network
    nodes: tuple[tuple[str, str, str], ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values that it reads."""
        return self.network.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The values that it makes."""
        return self.network.outputs


@dataclass(frozen=True)
class Transfer:
    """A value of the model that the host writes to a device buffer, or reads from one.

    The value, which has the model's shape and order of axes, is reshaped to `shape`, transposed by `perm` and reshaped
    to `nhwc`: that is the content of the buffer. `unsigned` marks uint8 values, which are stored minus 128.
    `model_shape` is the value's own shape (None: it is `shape`). With `wide` values have 16 bits (unsigned ones are
    stored minus 32768), and the buffer has two planes of shape `nhwc`, as `View.planes` tells. With `index` the value
    is int64, of which that many bits are stored. With `rows` it has indices, and their offsets are stored.
    """

    value: str
    buffer: Buffer
    shape: tuple[int, ...]
    nhwc: tuple[int, int, int, int]
    perm: tuple[int, ...] | None
    unsigned: bool
    model_shape: tuple[int, ...] | None = None
    wide: bool = False
    index: bool = False
    rows: RowIndices | None = None

    @property
    def dtype(self) -> str:
        """The type of the value's elements."""
        if self.rows is not None:
            return self.rows.dtype
        return "int64" if self.index else self.stored

    @property
    def stored(self) -> str:
        """The type of the elements that are stored."""
        return f"{'u' if self.unsigned else ''}int{16 if self.wide else 8}"


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole model: segments in order, how values enter and leave device buffers, and the model's signature.

    `inputs` and `outputs` map names to (numpy dtype name, shape). They are those of the user: `states`, which are kept
    from run to run, are apart.
    """

    segments: tuple[DeviceSegment | HostSegment, ...]
    to_device: tuple[Transfer, ...]
    from_device: tuple[Transfer, ...]
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    outputs: dict[str, tuple[str, tuple[int, ...]]]
    assignment: tuple[tuple[str, str, str, str], ...] = ()
    """(node name, operator type, "device" or "host", reason) for every node of the model, in order."""
    states: tuple[State, ...] = ()


def dump(graph: Graph) -> str:
    """All segments, in order."""
    parts = (
        dump_segment(item)
        if isinstance(item, DeviceSegment)
        else f"host {item.name}: {', '.join(item.inputs)} -> {', '.join(item.outputs)}\n"
        for item in graph.segments
    )
    return "".join(parts)


def dump_segment(segment: DeviceSegment) -> str:
    """A device segment: operators with operands, results and plans, and what is known of buffers."""
    lines = [f"device {segment.name}:"]
    lines += [f"  rows of {name} side by side: {rows}" for name, rows in segment.rows.items()]
    lines += [f"  {name} stays on chip at vector {address}" for name, address in segment.resident.items()]
    lines += [f"  {name} becomes {made} at the end" for name, made in segment.states.items()]
    lines += [f"  operators {first} to {stop - 1} are a chain in strips" for first, stop, _ in segment.strips]
    for index, op in enumerate(segment.ops):
        read = ", ".join(map(_view, op.sources))
        lines.append(f"  {type(op).__name__.lower()} {op.name}: {read} -> {_view(op.dst)}{_details(op)}")
        if segment.regions:
            lines.append("    vectors {} to {}".format(*segment.regions[index]))
        if index in segment.overlapped:
            lines.append("    runs beside the next one")
        if op.plan is not None:
            lines.append(f"    {op.plan}")
    return "\n".join(lines) + "\n"


def _view(view: View) -> str:
    at = "" if view.contiguous else f"@{view.y},{view.x},{view.c}"
    at += "" if view.step == (1, 1) else f":{view.step[0]},{view.step[1]}"
    return f"{view.buffer.name}{at}[{'x'.join(map(str, view.shape))}]"


def _details(op: Any) -> str:
    parts = []
    for key in ("window", "pool"):
        window = getattr(op, key, None)
        if window is not None:
            parts.append(f"{key}(k{window.kernel} s{window.stride} d{window.dilation} p{window.pad})")
    if op.lookup is not None:
        parts.append(f"lookup({zlib.crc32(op.lookup.tobytes()):08x})")
    epilogue = getattr(op, "epilogue", None)
    if epilogue is not None:
        parts.append(f"epilogue({type(epilogue).__name__.lower()} {epilogue.name})")
    if isinstance(op, Attention):
        mask = f" causal{op.offset:+d}" if op.causal else ""
        rounded = "" if op.rounding is None else f" scores[{op.rounding.low}, {op.rounding.high}]"
        parts.append(f"heads({op.heads} on {op.kv_heads}) lengths{op.lengths}{mask}{rounded}")
    return (" " + " ".join(parts)) if parts else ""


_PRODUCTS = ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul")
_CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv")


@dataclass(frozen=True)
class Shares:
    """Multiplications of convolutions and matrix products by where they run, and bytes that cross in each run."""

    device_macs: int
    host_macs: int
    bytes_to_device: int
    bytes_from_device: int

    @property
    def crossing(self) -> int:
        """Bytes that cross in either direction."""
        return self.bytes_to_device + self.bytes_from_device

    @property
    def on_device(self) -> float:
        """The share of multiplications that the device does; 1 of none at all."""
        total = self.device_macs + self.host_macs
        return self.device_macs / total if total else 1.0


def shares(graph: Graph) -> Shares:
    """The shares of an imported model. Multiplications of host operators whose shapes are not known count as none."""
    device = host = 0
    for segment in graph.segments:
        if isinstance(segment, DeviceSegment):
            device += sum(op.macs for op in segment.ops)
        else:
            host += sum(_macs(node, segment.network) for node in segment.network.nodes)
    entering, leaving = (
        sum(item.buffer.size for item in way) for way in (graph.to_device, graph.from_device)
    )
    return Shares(device, host, entering, leaving)


def _macs(node: Node, network: Network) -> int:
    """Multiplications of a node that the host runs."""
    if node.op not in (*_PRODUCTS, *_CONVOLUTIONS, "ConvTranspose"):
        return 0
    shapes = [_shape(network, name) for name in (*node.inputs, node.outputs[0])]
    first, result = shapes[0], shapes[-1]
    second = shapes[3 if node.op.startswith("QLinear") else 1]
    if first is None or second is None or result is None:
        return 0
    if node.op in _PRODUCTS:
        return prod(result) * (first[0] if node.attributes.get("transA", 0) else first[-1])
    return prod(first if node.op == "ConvTranspose" else result) * prod(second[1:])


def _shape(network: Network, name: str) -> tuple[int, ...] | None:
    """The shape of a value, None if it is not known."""
    known = network.type_of(name) if name else None
    return None if known is None else known.sizes


def reasons(assignment: Iterable[tuple[str, str, str, str]]) -> Counter[str]:
    """How many nodes of `Graph.assignment` run on the host for each reason, without those that follow their neighbours.

    What a reason says in brackets at its end is of one node only, and left out.
    """
    follows = (READ_ON_HOST, COMPUTED_ON_HOST)
    own = (why for _, _, place, why in assignment if place == "host" and not why.startswith(follows))
    return Counter(re.sub(r" \(.*\)$", "", why) for why in own)
