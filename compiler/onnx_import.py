"""Loading an ONNX model: checks with one-sentence errors, static shapes, folded constants, plain nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from weft.compiler.evaluate import Evaluator
from weft.compiler.ir import CompileError
from weft.compiler.qlinear import expand_qlinear

HOST_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
"""Operator sets that the host can evaluate."""
HOW_TO_QUANTISE = (
    "quantise it first, for example with "
    "onnxruntime.quantization.quantize_static(..., quant_format=QuantFormat.QDQ)"
)
_QOPERATORS = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")
_MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
"""Operators that only move elements: tied weights pass them on the way to a second product."""
_FOLD_LIMIT = 1 << 24
"""Elements above which a constant is not computed ahead of time."""


@dataclass(frozen=True, eq=False)
class Node:
    """One operator of the model. `name` is unique; `inputs` has "" for inputs left out."""

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


@dataclass(eq=False)
class Model:
    """A checked model with static shapes.

    `nodes` are in topological order without those that were folded into `constants`; `folded` are those.
    `shapes` and `dtypes` (numpy names) cover every value, constants included. `softmax` tells whether the device
    has a softmax unit.
    """

    proto: onnx.ModelProto
    nodes: list[Node]
    folded: list[Node]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    constants: dict[str, np.ndarray]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    softmax: bool = True
    consumers: dict[str, list[Node]] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return next(
            (int(item.version) for item in self.proto.opset_import if item.domain in ("", "ai.onnx")), 1
        )

    def __post_init__(self) -> None:
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    self.consumers.setdefault(name, []).append(node)

    def users(self, value: str) -> list[Node]:
        return self.consumers.get(value, [])


def load(source: str | os.PathLike[str] | onnx.ModelProto) -> Model:
    """Read, check and simplify a model.

    Raises
    ------
    CompileError
        If the file is missing, truncated or not ONNX; the model is invalid, not quantised (no QuantizeLinear or
        DequantizeLinear in it), has dynamic shapes, or uses operators that ONNX does not define.
    """
    proto = source if isinstance(source, onnx.ModelProto) else _read(Path(source))
    _check_graph(proto)
    _check_text(proto)
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    _check_operators(proto.graph.node, proto)
    _check_inputs(proto)
    proto = expand_qlinear(proto)
    _check_quantised(proto)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
        onnx.checker.check_model(inferred)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise CompileError(f"the model is not valid ONNX: {_first_line(error)}") from None
    return _simplify(inferred)


def _read(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path)
    except (DecodeError, ValueError) as error:
        raise CompileError(f"{path} is not an ONNX model or is truncated: {_first_line(error)}") from None
    except IsADirectoryError:
        raise CompileError(f"cannot read model {path}: it is a directory") from None
    except OSError as error:
        raise CompileError(f"cannot read model {path}: {error.strerror or _first_line(error)}") from None
    except onnx.checker.ValidationError as error:
        raise CompileError(f"cannot read the external data of model {path}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _check_graph(proto: onnx.ModelProto) -> None:
    if not proto.opset_import or not proto.graph.node:
        raise CompileError(
            "the model holds no graph with operators: the file is empty, truncated or not ONNX"
        )
    if not proto.graph.output:
        raise CompileError("the model's graph has no outputs")
    for entry in proto.opset_import:
        if not 1 <= entry.version < 1 << 31:
            raise CompileError(f"the model asks for version {entry.version} of operator set {entry.domain!r}")


def _check_text(proto: onnx.ModelProto) -> None:
    """Damaged names come out of protobuf as bytes, which nothing after this expects."""
    for node in proto.graph.node:
        names = [node.name, node.op_type, node.domain, *node.input, *node.output]
        for name in (*names, *(item.name for item in node.attribute)):
            if isinstance(name, bytes):
                raise CompileError(
                    f"the model is damaged: it holds the name {name!r}, which is not UTF-8 text"
                )


def _check_operators(nodes: Iterable[onnx.NodeProto], proto: onnx.ModelProto) -> None:
    """Unknown operators are errors: neither the device nor the host could run them."""
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    for index, node in enumerate(nodes):
        label = f"node {node.name or f'{node.op_type}_{index}'!r}"
        if node.domain not in HOST_DOMAINS:
            raise CompileError(
                f"{label} uses operator {node.op_type!r} of domain {node.domain!r}, which is not part of ONNX; "
                "export the model with standard operators only"
            )
        version = versions.get(node.domain, versions.get("", versions.get("ai.onnx", 1)))
        domain = "" if node.domain == "ai.onnx" else node.domain
        if not onnx.defs.has(node.op_type, version, domain):
            raise CompileError(
                f"{label} uses operator {node.op_type!r}, which ONNX opset {version} does not define"
            )


def _check_inputs(proto: onnx.ModelProto) -> None:
    """Every input needs a static shape; initialisers that are listed as inputs (old IR versions) do not count."""
    initialisers = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name in initialisers:
            continue
        if not value.type.HasField("tensor_type"):
            raise CompileError(f"input {value.name!r} is not a tensor")
        if not value.type.tensor_type.HasField("shape"):
            raise CompileError(f"input {value.name!r} has no shape; export the model with static shapes")
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value < 1:
                what = repr(dim.dim_param) if dim.dim_param else "no fixed size"
                raise CompileError(
                    f"input {value.name!r} has a dynamic dimension {axis} ({what}); fix it to a number, for example "
                    "with python -m onnxruntime.tools.make_dynamic_shape_fixed (--dim_param, --dim_value)"
                )


def _check_quantised(proto: onnx.ModelProto) -> None:
    operators = {node.op_type for node in proto.graph.node}
    if operators & {"QuantizeLinear", "DequantizeLinear"}:
        return
    for name in _QOPERATORS:
        if name in operators:
            raise CompileError(
                f"the model uses {name}; weft reads the QDQ format (QuantizeLinear and DequantizeLinear around "
                f"float operators): {HOW_TO_QUANTISE}"
            )
    raise CompileError(
        f"the model is not quantised (no QuantizeLinear or DequantizeLinear): {HOW_TO_QUANTISE}"
    )


def _simplify(proto: onnx.ModelProto) -> Model:
    """Fold constants (never through DequantizeLinear, whose scales matter) and drop nodes nobody reads."""
    constants = {tensor.name: _array(tensor) for tensor in proto.graph.initializer}
    shapes, dtypes = _types(proto)
    kept, folded = [], []
    opsets = list(proto.opset_import)
    moved: dict[str, tuple[Node, ...]] = {}
    for node in _nodes(proto):
        values = _fold(node, constants, shapes, opsets)
        if values is None:
            values = _requantised(node, constants, moved, opsets)
        if values is None:
            kept.append(node)
        else:
            folded.append(node)
            constants.update(values)
    for name, value in constants.items():
        shapes[name], dtypes[name] = tuple(value.shape), str(value.dtype)
    outputs = tuple(value.name for value in proto.graph.output)
    for node in kept:
        _check_static(node, shapes, dtypes)
    alive = _alive(kept, outputs)
    used = (node for name, nodes in moved.items() if name in constants for node in nodes[:-1])
    return Model(
        proto=proto,
        nodes=alive,
        folded=[*folded, *(node for node in dict.fromkeys(used) if node not in alive)],
        shapes=shapes,
        dtypes=dtypes,
        constants=constants,
        inputs=tuple(value.name for value in proto.graph.input if value.name not in constants),
        outputs=outputs,
    )


def _array(tensor: onnx.TensorProto) -> np.ndarray:
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise CompileError(f"initialiser {tensor.name!r} cannot be read: {_first_line(error)}") from None


def _nodes(proto: onnx.ModelProto) -> list[Node]:
    taken: set[str] = set()
    nodes = []
    for index, node in enumerate(proto.graph.node):
        name = node.name or f"{node.op_type}_{index}"
        while name in taken:
            name += f"_{index}"
        taken.add(name)
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        nodes.append(Node(index, name, node.op_type, tuple(node.input), tuple(node.output), attributes, node))
    return nodes


def _types(proto: onnx.ModelProto) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        if all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
        dtypes[value.name] = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return shapes, dtypes


def _fold(
    node: Node,
    constants: dict[str, np.ndarray],
    shapes: dict[str, tuple[int, ...]],
    opsets: list[onnx.OperatorSetIdProto],
) -> dict[str, np.ndarray] | None:
    """The node's outputs if they are constant, else None."""
    if node.op == "Shape" and node.inputs[0] in shapes:
        start, end = node.attributes.get("start", 0), node.attributes.get("end")
        return {node.outputs[0]: np.array(shapes[node.inputs[0]][start:end], np.int64)}
    if node.op == "DequantizeLinear" or node.op.startswith("Random") or node.op in ("If", "Loop", "Scan"):
        return None
    if any(name and name not in constants for name in node.inputs):
        return None
    size = int(np.prod(shapes.get(node.outputs[0], ()), dtype=np.int64))
    if size > _FOLD_LIMIT:
        return None
    feeds = {name: constants[name] for name in node.inputs if name}
    return dict(zip(node.outputs, run_nodes([node], feeds, node.outputs, opsets), strict=True))


def _requantised(
    node: Node,
    constants: dict[str, np.ndarray],
    moved: dict[str, tuple[Node, ...]],
    opsets: list[onnx.OperatorSetIdProto],
) -> dict[str, np.ndarray] | None:
    """The result of a QuantizeLinear of weights that were dequantised and moved, None for any other node.

    `moved` has the nodes that make each value of that kind, to which this one is added.
    """
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
    return dict(zip(node.outputs, run_nodes(list(nodes), feeds, node.outputs, opsets), strict=True))


def _positive(scale: np.ndarray | None) -> bool:
    """Whether a scale is one that a quantiser writes; others are refused with a message, where nodes are matched."""
    return scale is not None and bool((np.isfinite(scale) & (scale > 0)).all())


def run_nodes(
    nodes: list[Node],
    feeds: dict[str, np.ndarray],
    outputs: Iterable[str],
    opsets: list[onnx.OperatorSetIdProto],
) -> list[np.ndarray]:
    """Evaluate a few nodes with the ONNX reference implementation."""
    declared = [helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in outputs]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    graph = helper.make_graph([node.proto for node in nodes], "fold", given, declared)
    model = helper.make_model(graph, opset_imports=opsets)
    try:
        return [np.asarray(value) for value in Evaluator(model).run(feeds)]
    except Exception as error:  # the reference evaluator raises anything
        raise CompileError(f"node {nodes[0].name!r} cannot be evaluated: {_first_line(error)}") from None


def _check_static(node: Node, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str]) -> None:
    for name in node.outputs:
        if name and name not in shapes:
            raise CompileError(
                f"node {node.name!r} ({node.op}) has output {name!r} whose shape is not known before running; "
                "weft needs static shapes"
            )
        if name and 0 in shapes[name]:
            raise CompileError(
                f"node {node.name!r} ({node.op}) has empty output {name!r} of shape {shapes[name]}"
            )


def _alive(nodes: list[Node], outputs: tuple[str, ...]) -> list[Node]:
    """Nodes whose results reach an output."""
    wanted = set(outputs)
    alive = []
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted.update(name for name in node.inputs if name)
            wanted.update(captured(node))
            alive.append(node)
    return alive[::-1]


def captured(node: Node) -> set[str]:
    """Outer values that the subgraphs of a control-flow node read (a superset is fine)."""
    names: set[str] = set()
    for value in node.attributes.values():
        if isinstance(value, onnx.GraphProto):
            for inner in value.node:
                names.update(inner.input)
    return names
