"""QLinearConv and QLinearMatMul as what they stand for: DequantizeLinear, the float operator, QuantizeLinear.

Those of ONNX Runtime's own domain are in `weft.compiler.onnx.qoperators`. The float operator keeps the node's name, so
that a report shows it under the name the model gave it. Nodes whose scales or zero points are not initialisers stay as
they are: the device needs constants, and the host has the operator itself.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Network, Node
from weft.compiler.onnx.model_rules import Site, parameters_agree
from weft.compiler.onnx.qoperators import FORMS, Expansion, Form

_FLOAT = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul"}


def expand_qlinear(network: Network) -> Network:
    """The network without the operators of quantised values, and fused ones, that have a QDQ form.

    Raises
    ------
    CompileError
        If a scale or zero point has a shape that the operator does not take.
    """
    if not any(node.op in _FLOAT or _form(node) is not None for node in network.nodes):
        return network
    expansion = _Products(network)
    nodes: list[Node] = []
    for node in network.nodes:
        form = _form(node)
        nodes += expansion.nodes(node) if form is None else form(expansion, node)
    return dataclasses.replace(network, nodes=tuple(nodes), constants=expansion.constants)


def _form(node: Node) -> Form | None:
    return FORMS.get(f"{node.domain}.{node.operator}")


class _Products(Expansion):
    """Those of constant weights, which may have a scale for each channel."""

    def nodes(self, node: Node) -> list[Node]:
        """What replaces a node: itself if it is another operator, or cannot be written otherwise."""
        if node.op not in _FLOAT or not 8 <= len(node.inputs) <= 9:
            return [node]
        self._check(node)
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
        parameters = [self.values(name) for name in (x_scale, x_zero, w_scale, w_zero, y_scale, y_zero)]
        known = [item for item in parameters if item is not None]
        axis = 0 if node.op == "QLinearConv" else -1
        if len(known) < 6 or not self._has_qdq_form(w, axis, *known[2:4]):
            return [node]
        before = [
            self.link("DequantizeLinear", x, known[0], known[1], axis),
            self.link("DequantizeLinear", w, known[2], known[3], axis),
        ]
        if node.input(8):
            scale = known[0].reshape(()) * known[2]
            zero = np.zeros_like(scale, np.int32)
            before.append(self.link("DequantizeLinear", node.input(8), scale, zero, 0))
        result = self.name(f"{node.outputs[0]}/float")
        floats = tuple(link.outputs[0] for link in before)
        middle = dataclasses.replace(node, operator=_FLOAT[node.op], inputs=floats, outputs=(result,))
        after = self.link("QuantizeLinear", result, known[4], known[5], 0)
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
        if not self.per_axis or weights not in self.constants:
            return False
        return max(scale.size, zero.size) == self.constants[weights].shape[axis]
