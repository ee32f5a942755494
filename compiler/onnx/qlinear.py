"""QLinearConv and QLinearMatMul as what they stand for: DequantizeLinear, the float operator, QuantizeLinear.

The float operator keeps the node's name, so that a report shows it under the name the model gave it. Nodes whose scales
or zero points are not initialisers stay as they are: the device needs constants, and the host has the operator itself.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Network, Node
from weft.compiler.onnx.model_rules import Site, parameters_agree

_FLOAT = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul"}
_PER_AXIS = 13
"""First version of the operator set whose DequantizeLinear takes one scale for each channel."""


def expand_qlinear(network: Network) -> Network:
    """The network without the QLinearConv and QLinearMatMul nodes that have a QDQ form.

    Raises
    ------
    CompileError
        If a scale or zero point has a shape that the operator does not take.
    """
    if not any(node.op in _FLOAT for node in network.nodes):
        return network
    expansion = _Expansion(network)
    nodes = tuple(new for node in network.nodes for new in expansion.nodes(node))
    return dataclasses.replace(network, nodes=nodes, constants=expansion.constants)


class _Expansion:
    """The constants and names of the network that is being rewritten."""

    def __init__(self, network: Network) -> None:
        self.constants = dict(network.constants)
        self._taken = {name for node in network.nodes for name in (*node.inputs, *node.outputs)}
        self._taken |= {*self.constants, *network.inputs}
        self._per_axis = network.opset >= _PER_AXIS

    def nodes(self, node: Node) -> list[Node]:
        """What replaces a node: itself if it is another operator, or cannot be written otherwise."""
        if node.op not in _FLOAT or not 8 <= len(node.inputs) <= 9:
            return [node]
        self._check(node)
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
        parameters = [self._values(name) for name in (x_scale, x_zero, w_scale, w_zero, y_scale, y_zero)]
        known = [item for item in parameters if item is not None]
        axis = 0 if node.op == "QLinearConv" else -1
        if len(known) < 6 or not self._has_qdq_form(w, axis, *known[2:4]):
            return [node]
        before = [
            self._link("DequantizeLinear", x, known[0], known[1], axis),
            self._link("DequantizeLinear", w, known[2], known[3], axis),
        ]
        if node.input(8):
            scale = known[0].reshape(()) * known[2]
            zero = np.zeros_like(scale, np.int32)
            before.append(self._link("DequantizeLinear", node.input(8), scale, zero, 0))
        result = self._name(f"{node.outputs[0]}/float")
        floats = tuple(link.outputs[0] for link in before)
        middle = dataclasses.replace(node, operator=_FLOAT[node.op], inputs=floats, outputs=(result,))
        after = self._link("QuantizeLinear", result, known[4], known[5], 0)
        return [*before, middle, dataclasses.replace(after, outputs=(node.outputs[0],))]

    def _check(self, node: Node) -> None:
        """Raise `CompileError` for shapes of constant scales and zero points that the operator does not take."""
        shapes = tuple(self.constants[name].shape if name in self.constants else None for name in node.inputs)
        wrong = parameters_agree(Site(node.op, {}, shapes, ()))
        if wrong is not None:
            raise CompileError(f"node {node.name or f'{node.op}_{node.index}'!r} ({node.op}) {wrong}")

    def _has_qdq_form(self, weights: str, axis: int, scale: np.ndarray, zero: np.ndarray) -> bool:
        """Whether DequantizeLinear takes these parameters: one for each channel at most, of known weights."""
        if scale.size == zero.size == 1:
            return True
        if not self._per_axis or weights not in self.constants:
            return False
        return max(scale.size, zero.size) == self.constants[weights].shape[axis]

    def _values(self, name: str) -> np.ndarray | None:
        """A constant that holds a scale or a zero point; scales as float32, of which float16 is a part."""
        values = self.constants.get(name)
        return values.astype(np.float32) if values is not None and values.dtype.kind == "f" else values

    def _link(self, operator: str, name: str, scale: np.ndarray, zero: np.ndarray, axis: int) -> Node:
        """A Q or DQ node behind value `name`, with its scale and zero point as new constants."""
        base = self._name(f"{name}/{operator}")
        count = max(scale.size, zero.size)
        shape = () if count == 1 else (count,)
        given = []
        for suffix, values in (("scale", scale), ("zero", zero)):
            given.append(self._name(f"{base}/{suffix}"))
            self.constants[given[-1]] = np.broadcast_to(values.reshape(-1), count).reshape(shape)
        return Node(operator, (name, *given), (base,), {"axis": axis} if shape else {}, name=base)

    def _name(self, wanted: str) -> str:
        name = wanted
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name
