"""Loading an ONNX model: checks with one-sentence errors, static shapes, folded constants, plain nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError

from weft.compiler.ir.graph import CompileError
from weft.compiler.onnx.evaluate import STANDARD, first_line
from weft.compiler.onnx.folding import Node, captured, resolve
from weft.compiler.onnx.limits import check_functions, check_windows
from weft.compiler.onnx.qlinear import expand_qlinear

_NEWEST = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": onnx.defs.onnx_ml_opset_version(),
}
"""The last version of each operator set that the onnx package defines."""
HOW_TO_QUANTISE = (
    "quantise it first, for example with "
    "onnxruntime.quantization.quantize_static(..., quant_format=QuantFormat.QDQ)"
)
_QOPERATORS = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")


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
    check_functions(proto)
    if proto.functions:
        proto = _inlined(proto)
    check_windows(proto.graph)
    _check_operators(proto.graph.node, proto)
    _check_inputs(proto)
    proto = expand_qlinear(proto)
    _check_quantised(proto)
    return _simplify(proto)


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.inliner.inline_local_functions(proto)
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise CompileError(f"the model's functions cannot be written out: {first_line(error)}") from None


def _read(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path)
    except (DecodeError, ValueError) as error:
        raise CompileError(f"{path} is not an ONNX model or is truncated: {first_line(error)}") from None
    except IsADirectoryError:
        raise CompileError(f"cannot read model {path}: it is a directory") from None
    except OSError as error:
        raise CompileError(f"cannot read model {path}: {error.strerror or first_line(error)}") from None
    except onnx.checker.ValidationError as error:
        raise CompileError(f"cannot read the external data of model {path}: {first_line(error)}") from None


def _check_graph(proto: onnx.ModelProto) -> None:
    if not proto.opset_import or not proto.graph.node:
        raise CompileError(
            "the model holds no graph with operators: the file is empty, truncated or not ONNX"
        )
    if not proto.graph.output:
        raise CompileError("the model's graph has no outputs")
    for value in proto.graph.output:
        if value.type.WhichOneof("value") is None:
            raise CompileError(f"output {value.name!r} has no type")
    if proto.graph.sparse_initializer:
        raise CompileError(
            f"initialiser {proto.graph.sparse_initializer[0].values.name!r} is sparse; export the model with dense ones"
        )
    for entry in proto.opset_import:
        newest = _NEWEST.get(entry.domain, (1 << 31) - 1)
        if not 1 <= entry.version <= newest:
            raise CompileError(
                f"the model asks for version {entry.version} of operator set {entry.domain!r}; "
                f"versions 1 to {newest} are known"
            )


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
    """Operators of ONNX's own domains must be known; those of others are for ONNX Runtime."""
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    for index, node in enumerate(nodes):
        label = f"node {node.name or f'{node.op_type}_{index}'!r}"
        if node.domain not in STANDARD:
            continue
        version = versions.get(node.domain, versions.get("", versions.get("ai.onnx", 1)))
        domain = "" if node.domain == "ai.onnx" else node.domain
        if not onnx.defs.has(node.op_type, version, domain):
            raise CompileError(
                f"{label} uses operator {node.op_type!r}, which ONNX opset {version} does not define"
            )
        known = onnx.defs.get_schema(node.op_type, version, domain).attributes
        for attribute in node.attribute:
            if attribute.name not in known:
                raise CompileError(
                    f"{label} has attribute {attribute.name!r}, which ONNX opset {version} does not define for "
                    f"{node.op_type}"
                )


def _check_inputs(proto: onnx.ModelProto) -> None:
    """Every input needs a static shape; initialisers that are listed as inputs (old IR versions) do not count."""
    initialisers = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name in initialisers:
            continue
        if not value.type.HasField("tensor_type"):
            raise CompileError(f"input {value.name!r} is not a tensor")
        if value.type.tensor_type.elem_type == onnx.TensorProto.UNDEFINED:
            raise CompileError(f"input {value.name!r} has no element type")
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
    """Static shapes, folded constants, and no nodes that nobody reads."""
    known = resolve(proto)
    outputs = tuple(value.name for value in proto.graph.output)
    alive = _alive(known.kept, outputs)
    for node in alive:
        _check_static(node, known.shapes)
    used = (node for name, nodes in known.moved.items() if name in known.constants for node in nodes[:-1])
    return Model(
        proto=proto,
        nodes=alive,
        folded=[*known.folded, *(node for node in dict.fromkeys(used) if node not in alive)],
        shapes=known.shapes,
        dtypes=known.dtypes,
        constants=known.constants,
        inputs=tuple(value.name for value in proto.graph.input if value.name not in known.constants),
        outputs=outputs,
    )


def _check_static(node: Node, shapes: dict[str, tuple[int, ...]]) -> None:
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
