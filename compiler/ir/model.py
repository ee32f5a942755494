"""A whole model for device and host: segments, and the transfers between them."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from weft.compiler.ir.graph import Attention, DeviceSegment
from weft.compiler.ir.network import Network, Node, State
from weft.compiler.ir.products import RowIndices
from weft.compiler.ir.views import Buffer, View

READ_ON_HOST = "its result is read on the host"
CONVERTING = ("Quantise", "Dequantise")
"""Names in reports of conversions between real numbers and integers. They run on the host only because their
neighbours do."""
WEIGHTS_ONLY = "the model has quantised weights only, so its activations have no fixed ranges"
COMPUTED_ON_HOST = "its input is computed on the host"
"""Openings of the reasons that keep a node on the host because of its neighbours."""
CLAMPED = "are clamped"
"""Mark of notes on device nodes whose values may exceed the device's range, which makes results wrong."""

Assignment = tuple[tuple[str, str, str, str], ...]
"""(name, operator, "device" or "host", reason) of every node."""


def clamp_warnings(assignment: Iterable[tuple[str, str, str, str]]) -> tuple[str, ...]:
    """Return a warning for each device value that may be clamped."""
    return tuple(
        f"{name} ({operator}): {note}"
        for name, operator, place, reason in assignment
        if place == "device"
        for note in reason.split("; ")
        if CLAMPED in note
    )


@dataclass(frozen=True, eq=False)
class HostSegment:
    """Part of the model that the host evaluates (`weft.compiler.host`).

    `nodes` are (node name, operator type, reason) for the report.
    """

    name: str
    network: Network
    nodes: tuple[tuple[str, str, str], ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Values that it reads."""
        return self.network.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Values that it computes."""
        return self.network.outputs


@dataclass(frozen=True)
class Transfer:
    """A value of the model that the host writes to a device buffer, or reads from it.

    The buffer's contents are the value, reshaped to `shape`, transposed by `perm` and reshaped to `nhwc`.

    Attributes
    ----------
    model_shape : tuple of int or None
        Shape of the value; None if it is `shape`.
    unsigned : bool
        Whether values are unsigned; these are stored minus half their range.
    wide : bool
        Whether values have 16 bits; the buffer then has two planes of shape `nhwc` (`View.planes`).
    index : bool
        Whether the value is int64, of which only the low 8 or 16 bits are stored.
    rows : RowIndices or None
        If set, the value has row indices, and their byte offsets are stored.
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
        """Type of the value's elements."""
        if self.rows is not None:
            return self.rows.dtype
        return "int64" if self.index else self.stored_dtype

    @property
    def stored_dtype(self) -> str:
        """Type of the stored elements."""
        return f"{'u' if self.unsigned else ''}int{16 if self.wide else 8}"


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole model: segments in order, transfers, and the model's signature.

    `inputs` and `outputs` map names to (numpy dtype name, shape). They are the user's; `states`, which persist
    between runs, are separate.
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
    """Return all segments as text, in order."""
    parts = (
        dump_segment(item)
        if isinstance(item, DeviceSegment)
        else f"host {item.name}: {', '.join(item.inputs)} -> {', '.join(item.outputs)}\n"
        for item in graph.segments
    )
    return "".join(parts)


def dump_segment(segment: DeviceSegment) -> str:
    """Return a device segment as text: buffers, and operators with operands, results and plans."""
    lines = [f"device {segment.name}:"]
    lines += [f"  rows of {name} side by side: {rows}" for name, rows in segment.rows.items()]
    lines += [f"  {name} stays on chip at vector {address}" for name, address in segment.resident.items()]
    lines += [f"  {name} becomes {output} at the end" for name, output in segment.states.items()]
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
    """Multiply-accumulates of convolutions and matrix products by where they run, and bytes transferred per run."""

    device_macs: int
    host_macs: int
    bytes_to_device: int
    bytes_from_device: int

    @property
    def crossing(self) -> int:
        """Bytes transferred in both directions."""
        return self.bytes_to_device + self.bytes_from_device

    @property
    def on_device(self) -> float:
        """Fraction of multiply-accumulates on the device; 1 if there are none at all."""
        total = self.device_macs + self.host_macs
        return self.device_macs / total if total else 1.0


def shares(graph: Graph) -> Shares:
    """Return the shares of an imported model. Host operators of unknown shape count as no multiplications."""
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
    """Return a host node's multiply-accumulates."""
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
    known = network.type_of(name) if name else None
    return None if known is None else known.sizes


def host_reasons(assignment: Iterable[tuple[str, str, str, str]]) -> Counter[str]:
    """Count the host nodes of `Graph.assignment` by reason, without nodes that follow their neighbours.

    Remarks in brackets at the end of a reason concern one node only, and are left out.
    """
    # Nodes that only follow their neighbours would hide the reasons that matter.
    follows = (READ_ON_HOST, COMPUTED_ON_HOST)
    own = (why for _, _, place, why in assignment if place == "host" and not why.startswith(follows))
    return Counter(re.sub(r" \(.*\)$", "", why) for why in own)
