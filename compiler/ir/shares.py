"""How a model is divided between device and host: multiplications, and the bytes that cross from one to the other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import COMPUTED_ON_HOST, READ_ON_HOST, Graph
from weft.compiler.ir.network import Network, Node

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
