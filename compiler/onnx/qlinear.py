"""Expansion of QOperator nodes to the QDQ format: DequantizeLinear, the float operator, QuantizeLinear.

This covers ONNX's QLinearConv and QLinearMatMul, and operators of ONNX Runtime's own domain. The float operator keeps
the node's name for the report. Nodes whose scales or zero points are not initialisers stay: the device needs constants,
and the host supports the operator itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.layout import BITS
from weft.compiler.ir.network import Network, Node
from weft.compiler.onnx.model_rules import Site, parameters_agree

_PER_AXIS = 13
"""First opset whose DequantizeLinear has an axis, and whose Softmax normalises over a single axis."""


WIDE_SINCE = 21
"""First opset whose QuantizeLinear supports 16 bits."""


Step = tuple[str, Sequence[str], dict[str, object]]
"""Operator, inputs and attributes."""


class Expansion:
    """Constants and names of the network that is being rewritten."""

    def __init__(self, network: Network) -> None:
        self.constants = dict(network.constants)
        self.network = network
        self.per_axis = network.opset >= _PER_AXIS
        self._taken = {name for node in network.nodes for name in (*node.inputs, *node.outputs)}
        self._taken |= {*self.constants, *network.inputs}
        self._latest: dict[str, str] = {}
        """Last unique name per requested name."""

    def values(self, name: str) -> np.ndarray | None:
        """Return a constant scale or zero point; scales as float32, which represents float16 exactly."""
        values = self.constants.get(name)
        return values.astype(np.float32) if values is not None and values.dtype.kind == "f" else values

    def link(self, operator: str, name: str, scale: np.ndarray, zero: np.ndarray, axis: int) -> Node:
        """Return a Q or DQ node after value `name`, with scale and zero point as new constants."""
        base = self.name(f"{name}/{operator}")
        count = max(scale.size, zero.size)
        shape = () if count == 1 else (count,)
        parameters = []
        for suffix, values in (("scale", scale), ("zero", zero)):
            parameters.append(
                self.constant(f"{base}/{suffix}", np.broadcast_to(values.reshape(-1), count).reshape(shape))
            )
        return Node(operator, (name, *parameters), (base,), {"axis": axis} if shape else {}, name=base)

    def constant(self, wanted: str, values: np.ndarray) -> str:
        """Add a constant and return its name."""
        name = self.name(wanted)
        self.constants[name] = values
        return name

    def name(self, wanted: str) -> str:
        """Return a unique name."""
        # Continue after the last name: trying all suffixes again takes quadratic time for many equal requests.
        name = self._latest.get(wanted, wanted)
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        self._latest[wanted] = name
        return name

    def rank(self, name: str) -> int | None:
        """Return the rank of a value; None if it is unknown."""
        known = self.network.type_of(name)
        return None if known is None or known.shape is None else len(known.shape)

    def parameters(self, scale: str, zero: str, dtype: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the constant scale and zero point of an activation; an omitted zero point is 0 of type `dtype`."""
        scale_value, offset = self.values(scale), self.values(zero) if zero else np.zeros((), dtype)
        if scale_value is None or offset is None or not scale_value.size == offset.size == 1:
            return None
        return scale_value, offset

    def chain(self, node: Node, steps: Sequence[Step]) -> list[Node]:
        """Return operators in a row; each has the previous result as its first input.

        The first has the node's name, the last its output.
        """
        nodes: list[Node] = []
        for index, (operator, inputs, attributes) in enumerate(steps):
            before = (nodes[-1].outputs[0],) if nodes else ()
            last = index == len(steps) - 1
            output = node.outputs[0] if last else self.name(f"{node.outputs[0]}/{operator}")
            name = self.name(f"{node.name}/{operator}") if nodes and node.name else node.name
            nodes.append(
                Node(operator, (*before, *inputs), (output,), attributes, name=name, index=node.index)
            )
        return nodes


Form = Callable[[Expansion, Node], list[Node]]
Triple = tuple[int, int, int]
"""Indices of a value, its scale and its zero point among the inputs."""


def _around(
    expansion: Expansion,
    node: Node,
    operands: Sequence[Triple | int],
    ends: tuple[int, int],
    middle: Callable[[tuple[str, ...]], list[Step]],
) -> list[Node]:
    """Return DequantizeLinear for each operand, the nodes of `middle`, and QuantizeLinear.

    Operands that are single indices pass unchanged. If a scale or zero point is not constant, the node stays.
    """
    links, names, dtype = [], [], "uint8"
    for item in operands:
        if isinstance(item, int):
            names.append(node.input(item))
            continue
        known = expansion.network.type_of(node.input(item[0]))
        parameters = expansion.parameters(
            node.input(item[1]), node.input(item[2]), known.dtype if known else dtype
        )
        if parameters is None:
            return [node]
        dtype = str(parameters[1].dtype)
        links.append(expansion.link("DequantizeLinear", node.input(item[0]), *parameters, 0))
        names.append(links[-1].outputs[0])
    parameters = expansion.parameters(node.input(ends[0]), node.input(ends[1]), dtype)
    if parameters is None:
        return [node]
    scale, zero = (
        expansion.constant(f"{node.outputs[0]}/{suffix}", values.reshape(()))
        for suffix, values in zip(("scale", "zero"), parameters, strict=True)
    )
    return [*links, *expansion.chain(node, [*middle(tuple(names)), ("QuantizeLinear", (scale, zero), {})])]


def _elementwise_form(
    operator: str, operands: Sequence[Triple | int], ends: tuple[int, int], *attributes: str
) -> Form:
    def form(expansion: Expansion, node: Node) -> list[Node]:
        shared = {name: node.attributes[name] for name in attributes if name in node.attributes}
        return _around(expansion, node, operands, ends, lambda names: [(operator, names, shared)])

    return form


def _pool_form(operator: str) -> Form:
    """Return the form of a pool; ONNX Runtime also has pools with channels last."""

    def form(expansion: Expansion, node: Node) -> list[Node]:
        shared = {name: value for name, value in node.attributes.items() if name != "channels_last"}
        rank = (
            len(node.attributes["kernel_shape"]) + 2
            if "kernel_shape" in shared
            else expansion.rank(node.inputs[0])
        )
        if not node.attributes.get("channels_last", 0):
            return _around(expansion, node, [(0, 1, 2)], (3, 4), lambda names: [(operator, names, shared)])
        if rank is None:
            return [node]
        first: dict[str, object] = {"perm": (0, rank - 1, *range(1, rank - 1))}
        last: dict[str, object] = {"perm": (0, *range(2, rank), 1)}
        return _around(expansion, node, [(0, 1, 2)], (3, 4), lambda names: [
            ("Transpose", names, first), (operator, (), shared), ("Transpose", (), last)])  # fmt: skip

    return form


def _softmax_form(expansion: Expansion, node: Node) -> list[Node]:
    """Return QLinearSoftmax in QDQ form, if both versions agree on its axes.

    Its attribute `opset` selects one of Softmax's two definitions; they agree for the last axis.
    """
    axis, meant = int(node.attributes.get("axis", -1)), int(node.attributes["opset"]) >= _PER_AXIS
    rank = expansion.rank(node.inputs[0])
    if meant != expansion.per_axis and axis != -1 and (rank is None or axis != rank - 1):
        return [node]
    return _around(expansion, node, [(0, 1, 2)], (3, 4), lambda names: [("Softmax", names, {"axis": axis})])


def _concat_form(expansion: Expansion, node: Node) -> list[Node]:
    operands = [(at, at + 1, at + 2) for at in range(2, len(node.inputs), 3)]
    axis = {"axis": node.attributes["axis"]}
    return _around(expansion, node, operands, (0, 1), lambda names: [("Concat", names, axis)])


def _gemm_form(expansion: Expansion, node: Node) -> list[Node]:
    """Return QGemm in QDQ form; `alpha` goes into the scale of the second matrix."""
    first = expansion.parameters(node.input(1), node.input(2), "uint8")
    scale, zero = expansion.values(node.input(4)), expansion.values(node.input(5))
    alpha = np.float32(node.attributes.get("alpha", 1.0))
    if first is None or scale is None or zero is None or not alpha > 0:
        return [node]
    if max(scale.size, zero.size) > 1 and not expansion.per_axis:
        return [node]
    each, axis = scale * alpha, 0 if node.attributes.get("transB", 0) else 1
    links = [
        expansion.link("DequantizeLinear", node.inputs[0], *first, 0),
        expansion.link("DequantizeLinear", node.inputs[3], each, zero, axis),
    ]
    if node.input(6):
        steps = first[0].reshape(()) * each
        links.append(
            expansion.link("DequantizeLinear", node.input(6), steps, np.zeros_like(steps, np.int32), 0)
        )
    names = [link.outputs[0] for link in links]
    shared = {name: node.attributes[name] for name in ("transA", "transB") if name in node.attributes}
    steps_after: list[Step] = [("Gemm", names, shared)]
    if node.input(7):
        parameters = expansion.parameters(node.input(7), node.input(8), "uint8")
        if parameters is None:
            return [node]
        ends = [expansion.constant(f"{node.outputs[0]}/end", values.reshape(())) for values in parameters]
        steps_after.append(("QuantizeLinear", ends, {}))
    return [*links, *expansion.chain(node, steps_after)]


_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}  # fmt: skip
"""Activations of fused operators, with the names of their parameters."""


def _fused_form(operator: str) -> Form:
    def form(expansion: Expansion, node: Node) -> list[Node]:
        ours = ("activation", "activation_params", "activation_alpha", "activation_beta", "activation_gamma")
        shared = {name: value for name, value in node.attributes.items() if name not in ours}
        steps: list[Step] = [(operator, node.inputs[:3], shared)]
        if node.input(3):
            steps.append(("Add", (node.input(3),), {}))
        kind = node.attributes.get("activation", "")
        numbers = node.attributes.get("activation_params") or tuple(
            node.attributes[name] for name in ours[2:4] if name in node.attributes
        )
        if kind and (kind not in _ACTIVATIONS or len(numbers) != len(_ACTIVATIONS[kind])):
            return [node]
        if kind == "Clip" and expansion.network.opset >= 11:
            bounds = [
                expansion.constant(f"{node.outputs[0]}/bound", np.array(value, np.float32))
                for value in numbers
            ]
            steps.append((kind, bounds, {}))
        elif kind:
            steps.append((kind, (), dict(zip(_ACTIVATIONS[kind], numbers, strict=True))))
        return expansion.chain(node, steps)

    return form


def _matmul_form(expansion: Expansion, node: Node) -> list[Node]:
    """Return FusedMatMul as transposes of the last two axes, the product, and a factor."""
    if node.attributes.get("transBatchA", 0) or node.attributes.get("transBatchB", 0):
        return [node]
    transposes, names = [], []
    for name, key in zip(node.inputs, ("transA", "transB"), strict=True):
        rank = expansion.rank(name)
        if node.attributes.get(key, 0) and rank != 1:
            if rank is None:
                return [node]
            output = expansion.name(f"{name}/Transpose")
            perm = (*range(rank - 2), rank - 1, rank - 2)
            transposes.append(Node("Transpose", (name,), (output,), {"perm": perm}, name=output))
            name = output
        names.append(name)
    alpha = np.float32(node.attributes.get("alpha", 1.0))
    steps: list[Step] = [("MatMul", names, {})]
    if alpha != 1:
        steps.append(("Mul", (expansion.constant(f"{node.outputs[0]}/alpha", np.array(alpha)),), {}))
    return [*transposes, *expansion.chain(node, steps)]


def _standard_form(expansion: Expansion, node: Node) -> list[Node]:
    """Return QuantizeLinear or DequantizeLinear in ONNX's own domain, where it supports the type.

    ONNX has 8 bits (and int32 for biases), and since opset 21 also 16 bits.
    """
    scale, zero = expansion.values(node.input(1)), expansion.values(node.input(2))
    activations = [name for name, bits in BITS.items() if bits == 8 or expansion.network.opset >= WIDE_SINCE]
    known = [*activations, "int32"] if node.operator == "DequantizeLinear" else activations
    if scale is None or zero is None or str(zero.dtype) not in known:
        return [node]
    if scale.size > 1 and not expansion.per_axis:
        return [node]
    attributes = {"axis": node.attributes.get("axis", 1)} if scale.size > 1 else {}
    if scale.size > 1:
        return [dataclasses.replace(node, domain="", attributes=attributes)]
    ends = [expansion.constant(f"{node.outputs[0]}/single", values.reshape(())) for values in (scale, zero)]
    return [dataclasses.replace(node, domain="", inputs=(node.inputs[0], *ends), attributes={})]


_TWO: tuple[Triple, Triple] = ((0, 1, 2), (3, 4, 5))

FORMS: dict[str, Form] = {
    f"com.microsoft.{name}": form
    for name, form in {
        "DequantizeLinear": _standard_form,
        "FusedConv": _fused_form("Conv"),
        "FusedGemm": _fused_form("Gemm"),
        "FusedMatMul": _matmul_form,
        "QGemm": _gemm_form,
        "QLinearAdd": _elementwise_form("Add", _TWO, (6, 7)),
        "QLinearAveragePool": _pool_form("AveragePool"),
        "QLinearConcat": _concat_form,
        "QLinearGlobalAveragePool": _pool_form("GlobalAveragePool"),
        "QLinearLeakyRelu": _elementwise_form("LeakyRelu", [(0, 1, 2)], (3, 4), "alpha"),
        "QLinearMul": _elementwise_form("Mul", _TWO, (6, 7)),
        "QLinearSigmoid": _elementwise_form("Sigmoid", [(0, 1, 2)], (3, 4)),
        "QLinearSoftmax": _softmax_form,
        "QLinearWhere": _elementwise_form("Where", [0, (1, 2, 3), (4, 5, 6)], (7, 8)),
        "QuantizeLinear": _standard_form,
    }.items()
}
"""QDQ form of each operator, by domain and name."""


_FLOAT = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul"}


def expand_qlinear(network: Network) -> Network:
    """Return the network with quantised and fused operators in QDQ form, where they have one.

    Raises
    ------
    CompileError
        If the operator does not support the shape of a scale or zero point.
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
    """Expansion of products with constant weights, which may have a scale per output channel."""

    def nodes(self, node: Node) -> list[Node]:
        """Return the replacement of a node: the node itself if it has no QDQ form."""
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
        """Raise `CompileError` for constant scales and zero points with shapes that the operator does not support."""
        shapes = tuple(self.constants[name].shape if name in self.constants else None for name in node.inputs)
        wrong = parameters_agree(Site(node.op, {}, shapes, ()))
        if wrong is not None:
            raise CompileError(f"node {node.name or f'{node.op}_{node.index}'!r} ({node.op}) {wrong}")

    def _has_qdq_form(self, weights: str, axis: int, scale: np.ndarray, zero: np.ndarray) -> bool:
        """Return whether DequantizeLinear supports these parameters: per tensor, or per channel of known weights."""
        if scale.size == zero.size == 1:
            return True
        if not self.per_axis or weights not in self.constants:
            return False
        return max(scale.size, zero.size) == self.constants[weights].shape[axis]
