"""What is known of a model before it runs: types and shapes of its values, and those that are constant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from weft.compiler.ir.graph import CompileError
from weft.compiler.onnx.evaluate import (
    STANDARD,
    EvaluationError,
    Evaluator,
    first_line,
    inferred_types,
    reads,
)
from weft.compiler.onnx.limits import check_values
from weft.compiler.onnx.model_rules import Site, check

FOLD_LIMIT = 1 << 24
"""Elements above which a constant is not computed ahead of time."""
_GROWING = ("ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample")
"""Operators whose results may be far larger than their inputs: folded once their size is known."""
_RANDOM = ("Bernoulli", "Dropout", "Multinomial")
_MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
"""Operators that only move elements: tied weights pass them on the way to a second product."""
_CONTROL = ("If", "Loop", "Scan", "SequenceMap")


@dataclass(frozen=True, eq=False)
class Node:
    """One operator of the model. `name` is unique; `inputs` has "" for inputs left out.

    `op` has the domain in front if it is not ONNX's own: "com.microsoft.Attention" is none of ours.
    """

    index: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    proto: onnx.NodeProto

    def input(self, index: int) -> str:
        """The name of an input, "" if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"node {self.name!r} ({self.op})"


@dataclass(eq=False)
class Known:
    """A model with static shapes: `kept` and `folded` nodes, shapes and dtypes (numpy names) of values, constants.

    `moved` are weights that were dequantised and moved, with the nodes that did it.
    """

    kept: list[Node]
    folded: list[Node] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    moved: dict[str, tuple[Node, ...]] = field(default_factory=dict)


def resolve(proto: onnx.ModelProto) -> Known:
    """Infer shapes and fold constants, in turns: either may tell what the other needs.

    Constants are never folded through DequantizeLinear, whose scales matter.

    Raises
    ------
    CompileError
        If the model is not valid, or a value is too large.
    """
    known = Known(nodes(proto), constants={item.name: _array(item) for item in proto.graph.initializer})
    current = proto
    while True:
        inferred = _inferred(current)
        known.shapes, known.dtypes = _types(inferred)
        for name, value in known.constants.items():
            known.shapes[name], known.dtypes[name] = tuple(value.shape), str(value.dtype)
        check_values(known.shapes)
        for node in known.kept:
            check(node.label, _site(node, known))
        fresh = _fold_all(known, list(proto.opset_import))
        if not fresh or all(name in known.shapes for node in known.kept for name in node.outputs if name):
            return known
        current = _without(inferred, known, fresh)


def _inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types of its values, checked."""
    proto = _with_foreign_types(proto)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
        onnx.checker.check_model(inferred)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise CompileError(f"the model is not valid ONNX: {first_line(error)}") from None
    return inferred


def _with_foreign_types(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with types of what operators make that ONNX does not define, as ONNX Runtime says."""
    if all(node.domain in STANDARD for node in proto.graph.node):
        return proto
    try:
        found = inferred_types(proto)
    except EvaluationError as error:
        raise CompileError(str(error)) from None
    typed = onnx.ModelProto()
    typed.CopyFrom(proto)
    typed.graph.value_info.extend(found)
    return typed


def _without(proto: onnx.ModelProto, known: Known, fresh: list[str]) -> onnx.ModelProto:
    """The model with `fresh` constants as initialisers, and without the nodes that made them."""
    reduced = onnx.ModelProto()
    reduced.CopyFrom(proto)
    del reduced.graph.node[:]
    reduced.graph.node.extend(node.proto for node in known.kept)
    values = [value for value in reduced.graph.value_info if value.name not in fresh]
    del reduced.graph.value_info[:]
    reduced.graph.value_info.extend(values)
    reduced.graph.initializer.extend(numpy_helper.from_array(known.constants[name], name) for name in fresh)
    return reduced


def nodes(proto: onnx.ModelProto) -> list[Node]:
    """The nodes of a model, with names that differ."""
    taken: set[str] = set()
    found = []
    for index, node in enumerate(proto.graph.node):
        name = node.name or f"{node.op_type}_{index}"
        while name in taken:
            name += f"_{index}"
        taken.add(name)
        for item in node.attribute:
            if item.ref_attr_name:
                raise CompileError(
                    f"node {name!r} takes attribute {item.name!r} from {item.ref_attr_name!r} of a function, "
                    "but is in none"
                )
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        own = node.domain in ("", "ai.onnx")
        op = node.op_type if own else f"{node.domain}.{node.op_type}"
        found.append(Node(index, name, op, tuple(node.input), tuple(node.output), attributes, node))
    return found


def _array(tensor: onnx.TensorProto) -> np.ndarray:
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise CompileError(f"initialiser {tensor.name!r} cannot be read: {first_line(error)}") from None


def _types(proto: onnx.ModelProto) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or tensor.elem_type == onnx.TensorProto.UNDEFINED:
            continue
        dtypes[value.name] = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes, dtypes


def _site(node: Node, known: Known) -> Site:
    return Site(
        node.op,
        node.attributes,
        tuple(known.shapes.get(name) for name in node.inputs),
        tuple(known.shapes.get(name) for name in node.outputs),
    )


def _fold_all(known: Known, opsets: list[onnx.OperatorSetIdProto]) -> list[str]:
    """Move nodes from `kept` to `folded`; the names of the constants that they made."""
    kept, fresh = [], []
    for node in known.kept:
        values = _fold(node, known, opsets)
        if values is None:
            values = _requantised(node, known, opsets)
        if values is None:
            kept.append(node)
            continue
        known.folded.append(node)
        known.constants.update(values)
        fresh += list(values)
        for name, value in values.items():
            known.shapes[name], known.dtypes[name] = tuple(value.shape), str(value.dtype)
    known.kept = kept
    return fresh


def _fold(node: Node, known: Known, opsets: list[onnx.OperatorSetIdProto]) -> dict[str, np.ndarray] | None:
    """The node's outputs if they are constant, else None: also if nothing here can compute them."""
    if node.op == "Shape" and node.inputs[0] in known.shapes:
        start, end = node.attributes.get("start", 0), node.attributes.get("end")
        return {node.outputs[0]: np.array(known.shapes[node.inputs[0]][start:end], np.int64)}
    if node.op == "DequantizeLinear" or node.op.startswith("Random") or node.op in (*_RANDOM, *_CONTROL):
        return None
    if any(name and name not in known.constants for name in node.inputs):
        return None
    made = [name for name in node.outputs if name]
    sizes = [known.shapes.get(name) for name in made]
    if node.op in _GROWING and None in sizes:
        return None
    if any(size is not None and np.prod(size, dtype=np.int64) > FOLD_LIMIT for size in sizes):
        return None
    feeds = {name: known.constants[name] for name in node.inputs if name}
    try:
        values = run_nodes([node], feeds, made, opsets)
    except EvaluationError:
        return None
    agrees = all(
        str(value.dtype) == known.dtypes.get(name, str(value.dtype)) and size in (None, value.shape)
        for name, size, value in zip(made, sizes, values, strict=True)
    )
    return dict(zip(made, values, strict=True)) if agrees else None


def _requantised(
    node: Node, known: Known, opsets: list[onnx.OperatorSetIdProto]
) -> dict[str, np.ndarray] | None:
    """The result of a QuantizeLinear of weights that were dequantised and moved, None for any other node.

    `known.moved` has the nodes that make each value of that kind, to which this one is added.
    """
    constants, moved = known.constants, known.moved
    if not all(not name or name in constants or name in moved for name in node.inputs):
        return None
    if node.op.endswith("Linear") and not _positive(constants.get(node.input(1))):
        return None
    before = (item for name in node.inputs for item in moved.get(name, ()) if name not in constants)
    nodes = (*dict.fromkeys(before), node)
    if node.op in ("QuantizeLinear", "DequantizeLinear", *_MOVES):
        moved[node.outputs[0]] = nodes
    if node.op != "QuantizeLinear":
        return None
    feeds = {name: constants[name] for item in nodes for name in item.inputs if name in constants}
    try:
        return dict(zip(node.outputs, run_nodes(list(nodes), feeds, node.outputs, opsets), strict=True))
    except EvaluationError:
        return None


def _positive(scale: np.ndarray | None) -> bool:
    """Whether a scale is one that a quantiser writes; others are refused with a message, where nodes are matched."""
    return scale is not None and bool((np.isfinite(scale) & (scale > 0)).all())


def run_nodes(
    nodes: list[Node],
    feeds: dict[str, np.ndarray],
    outputs: Iterable[str],
    opsets: list[onnx.OperatorSetIdProto],
) -> list[np.ndarray]:
    """Evaluate a few nodes on the host.

    Raises
    ------
    EvaluationError
        If one of them cannot be evaluated.
    """
    declared = [onnx.ValueInfoProto(name=name) for name in outputs]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    graph = helper.make_graph([node.proto for node in nodes], "fold", given, declared)
    evaluator = Evaluator(helper.make_model(graph, opset_imports=opsets))
    return [np.asarray(value) for value in evaluator.run(feeds)]


def captured(node: Node) -> set[str]:
    """Outer values that the subgraphs of a control-flow node read (a superset is fine)."""
    return reads(node.proto) - set(node.inputs)
