"""QLinearConv and QLinearMatMul as what they stand for: DequantizeLinear, the float operator, QuantizeLinear.

The float operator keeps the node's name, so that a report shows it under the name the model gave it. Nodes whose scales
or zero points are not initialisers stay as they are: the device needs constants, and the host has the operator itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from weft.compiler.ir.graph import CompileError
from weft.compiler.onnx.model_rules import Site, parameters_agree

_PER_AXIS = 13
"""First version of the operator set whose DequantizeLinear takes one scale for each channel."""


def expand_qlinear(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model without the QLinearConv and QLinearMatMul nodes that have a QDQ form; `proto` is left alone.

    Raises
    ------
    CompileError
        If a scale or zero point has a shape that the operator does not take.
    """
    if not any(node.op_type in ("QLinearConv", "QLinearMatMul") for node in proto.graph.node):
        return proto
    expanded = onnx.ModelProto()
    expanded.CopyFrom(proto)
    expansion = _Expansion(expanded)
    nodes = [new for index, node in enumerate(proto.graph.node) for new in expansion.nodes(index, node)]
    del expanded.graph.node[:]
    expanded.graph.node.extend(nodes)
    return expanded


class _Expansion:
    """The initialisers and names of the model that is being rewritten."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        graph = proto.graph
        self._graph = graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._taken = {name for node in graph.node for name in (*node.input, *node.output)}
        self._taken |= {*self._constants, *(value.name for value in graph.input)}
        opset = next((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), 1)
        self._per_axis = opset >= _PER_AXIS

    def nodes(self, index: int, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """What replaces a node: itself if it is another operator, or cannot be written otherwise."""
        if node.op_type not in ("QLinearConv", "QLinearMatMul") or not 8 <= len(node.input) <= 9:
            return [node]
        self._check(f"node {node.name or f'{node.op_type}_{index}'!r} ({node.op_type})", node)
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.input[:8]
        parameters = [self._values(name) for name in (x_scale, x_zero, w_scale, w_zero, y_scale, y_zero)]
        known = [item for item in parameters if item is not None]
        conv = node.op_type == "QLinearConv"
        axis = 0 if conv else -1
        if len(known) < 6 or not self._has_qdq_form(w, axis, *known[2:4]):
            return [node]
        before, floats = [], []
        for name, scale, zero in ((x, *known[:2]), (w, *known[2:4])):
            before.append(self._link("DequantizeLinear", name, scale, zero, axis))
            floats.append(before[-1].output[0])
        if len(node.input) == 9 and node.input[8]:
            scale = known[0].reshape(()) * known[2]
            before.append(
                self._link("DequantizeLinear", node.input[8], scale, np.zeros_like(scale, np.int32), 0)
            )
            floats.append(before[-1].output[0])
        result = self._name(f"{node.output[0]}/float")
        middle = helper.make_node("Conv" if conv else "MatMul", floats, [result], name=node.name)
        middle.attribute.extend(node.attribute)
        after = self._link("QuantizeLinear", result, known[4], known[5], 0)
        after.output[0] = node.output[0]
        return [*before, middle, after]

    def _check(self, label: str, node: onnx.NodeProto) -> None:
        """Raise `CompileError` for shapes of constant scales and zero points that the operator does not take."""
        shapes = tuple(
            tuple(self._constants[name].dims) if name in self._constants else None for name in node.input
        )
        wrong = parameters_agree(Site(node.op_type, {}, shapes, ()))
        if wrong is not None:
            raise CompileError(f"{label} {wrong}")

    def _has_qdq_form(self, weights: str, axis: int, scale: np.ndarray, zero: np.ndarray) -> bool:
        """Whether DequantizeLinear takes these parameters: one for each channel at most, of known weights."""
        if scale.size == zero.size == 1:
            return True
        if not self._per_axis or weights not in self._constants:
            return False
        return max(scale.size, zero.size) == self._constants[weights].dims[axis]

    def _values(self, name: str) -> np.ndarray | None:
        """An initialiser that holds a scale or a zero point; scales as float32, of which float16 is a part."""
        if name not in self._constants:
            return None
        values = numpy_helper.to_array(self._constants[name])
        return values.astype(np.float32) if values.dtype.kind == "f" else values

    def _link(
        self, operator: str, name: str, scale: np.ndarray, zero: np.ndarray, axis: int
    ) -> onnx.NodeProto:
        """A Q or DQ node behind value `name`, with its scale and zero point as new initialisers."""
        base = self._name(f"{name}/{operator}")
        count = max(scale.size, zero.size)
        shape = () if count == 1 else (count,)
        scale, zero = (np.broadcast_to(item.reshape(-1), count).reshape(shape) for item in (scale, zero))
        given = []
        for suffix, values in (("scale", scale), ("zero", zero)):
            given.append(self._name(f"{base}/{suffix}"))
            self._graph.initializer.append(
                numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), given[-1])
            )
        attributes: dict[str, Any] = {} if scale.size == 1 else {"axis": axis}
        return helper.make_node(operator, [name, *given], [base], name=base, **attributes)

    def _name(self, wanted: str) -> str:
        name = wanted
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name
