"""Expansion of ONNX Runtime's fused operators into operators of ONNX, which can be quantised.

A fused operator without such an expansion stays in the model, and then runs on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from weft.quantiser.rewriting import Nodes, Rewriting, attributes_of, input_of

DOMAIN = "com.microsoft"
# First opsets with LayerNormalization and Gelu.
_LAYER_NORMALIZATION_OPSET, _GELU_OPSET = 17, 20


def has_any(model: onnx.ModelProto) -> bool:
    """Return True if a model has operators that `expand` may replace."""
    return any(node.domain == DOMAIN and node.op_type in _FORMS for node in model.graph.node)


def expand(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model whose fused operators are expanded where possible. All types must be known."""
    expanded = onnx.ModelProto()
    expanded.CopyFrom(model)
    _Fused(expanded).run({name: _of_domain(form) for name, form in _FORMS.items()})
    return expanded


class _Fused(Rewriting):
    """Model whose fused operators are being expanded, with the shapes of its values."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        graph = model.graph
        self.opset = next(int(item.version) for item in model.opset_import if item.domain in ("", "ai.onnx"))
        self.shapes = {
            value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in (*graph.input, *graph.value_info, *graph.output)
        }
        self.shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self.read = {name for node in graph.node for name in node.input} | {
            item.name for item in graph.output
        }

    def uses_outputs(self, node: onnx.NodeProto, first: int) -> bool:
        """Return True if output `first` of a node, or a later output, is read."""
        return any(name in self.read for name in node.output[first:])


class _Chain:
    """Nodes that replace a fused node, named after it."""

    def __init__(self, fused: _Fused, node: onnx.NodeProto) -> None:
        self._fused, self._node = fused, node
        self.nodes: list[onnx.NodeProto] = []

    def add(self, operator: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """Add a node. Returns the name of its result, which is `to` if given."""
        name = to or self._fused.new_value(f"{self._node.output[0]}/{operator}")
        label = f"{self._node.name}/{len(self.nodes)}" if self.nodes else self._node.name
        self.nodes.append(helper.make_node(operator, list(inputs), [name], label, **attributes))
        return name

    def cast(self, value: str, kind: int, to: str = "") -> str:
        name = self.add("Cast", value, to=to)
        self.nodes[-1].attribute.append(helper.make_attribute("to", kind))
        return name

    def constant(self, value: Any) -> str:
        return self._fused.new_constant(f"{self._node.output[0]}/constant", np.asarray(value))

    def float_constant(self, value: float) -> str:
        return self.constant(np.float32(value))

    def int_constant(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def gelu(self, x: str, approximate: str = "none") -> None:
        """Compute the node's output as GELU of `x`, expanded if the opset has no Gelu."""
        to = self._node.output[0]
        if self._fused.opset >= _GELU_OPSET:
            self.add("Gelu", x, to=to, approximate=approximate)
            return
        # x / 2 * (1 + erf(x / sqrt(2))), or its approximation by tanh.
        if approximate == "none":
            inside = self.add("Erf", self.add("Div", x, self.float_constant(math.sqrt(2))))
        else:
            cube = self.add("Mul", self.add("Mul", self.add("Mul", x, x), x), self.float_constant(0.044715))
            scaled = self.add("Mul", self.add("Add", x, cube), self.float_constant(math.sqrt(2 / math.pi)))
            inside = self.add("Tanh", scaled)
        half = self.add("Mul", x, self.float_constant(0.5))
        self.add("Mul", half, self.add("Add", inside, self.float_constant(1)), to=to)

    def normalise(self, x: str, scale: str, bias: str, epsilon: float) -> None:
        """Compute the node's output as layer normalisation of `x` over the last axis."""
        inputs = [x, scale, *([bias] if bias else [])]
        self.add("LayerNormalization", *inputs, to=self._node.output[0], axis=-1, epsilon=epsilon)


_Form = Callable[[_Fused, onnx.NodeProto], Nodes]


def _of_domain(form: _Form) -> _Form:
    return lambda fused, node: form(fused, node) if node.domain == DOMAIN else None


def _gelu(approximate: str) -> _Form:
    """Expand Gelu, BiasGelu and FastGelu: add the bias, if any, and apply GELU."""

    def form(fused: _Fused, node: onnx.NodeProto) -> Nodes:
        chain = _Chain(fused, node)
        bias = input_of(node, 1)
        chain.gelu(chain.add("Add", node.input[0], bias) if bias else node.input[0], approximate)
        return chain.nodes

    return form


def _quick_gelu(fused: _Fused, node: onnx.NodeProto) -> Nodes:
    chain, x = _Chain(fused, node), node.input[0]
    alpha = chain.float_constant(attributes_of(node).get("alpha", 1.702))
    chain.add("Mul", x, chain.add("Sigmoid", chain.add("Mul", x, alpha)), to=node.output[0])
    return chain.nodes


def _skip_normalisation(fused: _Fused, node: onnx.NodeProto) -> Nodes:
    """Expand SkipLayerNormalization, whose fourth output is the sum before normalisation."""
    if fused.opset < _LAYER_NORMALIZATION_OPSET or any(
        name in fused.read for name in node.output[1:3] if name
    ):
        return None
    chain = _Chain(fused, node)
    total = node.output[3] if len(node.output) > 3 else ""
    bias = input_of(node, 4)
    value = chain.add("Add", node.input[0], node.input[1], to="" if bias else total)
    if bias:
        value = chain.add("Add", value, bias, to=total)
    chain.normalise(value, node.input[2], input_of(node, 3), attributes_of(node).get("epsilon", 1e-12))
    return chain.nodes


def _product(fused: _Fused, node: onnx.NodeProto) -> Nodes:
    """Expand FusedMatMul: transpose the last two dimensions, multiply, and scale."""
    settings, names, chain = attributes_of(node), [], _Chain(fused, node)
    if settings.get("transBatchA", 0) or settings.get("transBatchB", 0):
        return None
    for name, key in zip(node.input, ("transA", "transB"), strict=True):
        rank = len(fused.shapes.get(name, ()))
        if settings.get(key, 0) and rank > 1:
            name = chain.add("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])
        elif settings.get(key, 0) and rank == 0:
            return None
        names.append(name)
    alpha = settings.get("alpha", 1.0)
    value = chain.add("MatMul", *names, to=node.output[0] if alpha == 1 else "")
    if alpha != 1:
        chain.add("Mul", value, chain.float_constant(alpha), to=node.output[0])
    return chain.nodes


def _embedding(fused: _Fused, node: onnx.NodeProto) -> Nodes:
    """Expand EmbedLayerNormalization, whose second output counts the tokens that the mask keeps."""
    ids, segments, words, places, kinds, scale, bias, mask, at = (input_of(node, index) for index in range(9))
    shape, table = fused.shapes.get(ids, ()), fused.array(places)
    if fused.opset < _LAYER_NORMALIZATION_OPSET or len(shape) != 2 or table is None or len(table) < shape[1]:
        return None
    chain = _Chain(fused, node)
    value = chain.add("Gather", words, ids, axis=0)
    value = chain.add(
        "Add",
        value,
        chain.add("Gather", places, at, axis=0) if at else chain.constant(table[None, : shape[1]]),
    )
    total = node.output[2] if len(node.output) > 2 else ""
    if segments:
        value = chain.add("Add", value, chain.add("Gather", kinds, segments, axis=0), to=total)
    elif total and total in fused.read:
        return None
    chain.normalise(value, scale, bias, attributes_of(node).get("epsilon", 1e-12))
    if len(node.output) > 1 and node.output[1] in fused.read:
        if not mask:
            return None
        counted = chain.add("ReduceSum", mask, chain.int_constant(1), keepdims=0)
        chain.cast(counted, TensorProto.INT32, node.output[1])
    return chain.nodes


def _attention(fused: _Fused, node: onnx.NodeProto) -> Nodes:
    """Expand Attention, whose queries, keys and values come from one product of the input."""
    settings = attributes_of(node)
    weights, shape = fused.array(input_of(node, 1)), fused.shapes.get(node.input[0], ())
    heads = int(settings.get("num_heads", 0))
    plain = not any(input_of(node, index) for index in (4, 6)) and not fused.uses_outputs(node, 1)
    plain = plain and not settings.get("do_rotary", 0) and heads > 0 and len(shape) == 3
    if weights is None or weights.ndim != 2 or not plain:
        return None
    third = weights.shape[1] // 3
    widths = list(settings.get("qkv_hidden_sizes", ())) or [third] * 3
    ends = np.cumsum([0, *widths])
    bias = fused.array(input_of(node, 2)) if input_of(node, 2) else np.zeros(weights.shape[1], np.float32)
    if bias is None or ends[-1] != weights.shape[1] or any(width % heads for width in widths):
        return None
    chain = _Chain(fused, node)
    parts = []
    # Queries and values become (batch, heads, tokens, width), keys their transpose.
    for index, perm in enumerate(((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))):
        own = slice(int(ends[index]), int(ends[index + 1]))
        value = chain.add("MatMul", node.input[0], chain.constant(weights[:, own]))
        value = chain.add("Add", value, chain.constant(bias[own]))
        split = chain.int_constant(shape[0], shape[1], heads, widths[index] // heads)
        parts.append(chain.add("Transpose", chain.add("Reshape", value, split), perm=list(perm)))
    scale = settings.get("scale", 0.0) or 1 / math.sqrt(widths[0] // heads)
    scores = chain.add("Mul", chain.add("MatMul", parts[0], parts[1]), chain.float_constant(scale))
    masked = _add_masks(fused, chain, node, scores, shape[1])
    if masked is None:
        return None
    mixed = chain.add("MatMul", chain.add("Softmax", masked, axis=-1), parts[2])
    flat = chain.int_constant(shape[0], shape[1], widths[2])
    chain.add("Reshape", chain.add("Transpose", mixed, perm=[0, 2, 1, 3]), flat, to=node.output[0])
    return chain.nodes


def _add_masks(fused: _Fused, chain: _Chain, node: onnx.NodeProto, scores: str, tokens: int) -> str | None:
    """Add the causal mask, the mask of keys or key lengths, and the bias to scores; None for other kinds of mask."""
    settings, mask = attributes_of(node), input_of(node, 3)
    least = float(settings.get("mask_filter_value", -10000.0))  # ONNX Runtime's default
    if settings.get("unidirectional", 0):
        # Each query sees the keys up to its own position.
        later = np.triu(np.full((tokens, tokens), least, np.float32), 1)
        scores = chain.add("Add", scores, chain.constant(later))
    if mask:
        shape = fused.shapes.get(mask, ())
        if len(shape) == 1:  # the number of keys of each image
            places = chain.constant(np.arange(tokens, dtype=np.int32)[None])
            mask = chain.add("Less", places, chain.add("Unsqueeze", mask, chain.int_constant(1)))
        axes = {1: (1, 2), 2: (1, 2), 3: (1,)}.get(len(shape))
        if axes is None or (len(shape) == 1 and shape != fused.shapes[node.input[0]][:1]):
            return None
        floats = chain.cast(chain.add("Unsqueeze", mask, chain.int_constant(*axes)), TensorProto.FLOAT)
        hidden = chain.add("Sub", chain.float_constant(1), floats)
        scores = chain.add("Add", scores, chain.add("Mul", hidden, chain.float_constant(least)))
    if input_of(node, 5):
        scores = chain.add("Add", scores, input_of(node, 5))
    return scores


_FORMS: dict[str, _Form] = {
    "Attention": _attention,
    "BiasGelu": _gelu("none"),
    "EmbedLayerNormalization": _embedding,
    "FastGelu": _gelu("tanh"),
    "FusedMatMul": _product,
    "Gelu": _gelu("none"),
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_normalisation,
}
"""Function that expands a node, by operator."""
