"""Reader of ONNX files, the only module that knows their format. It checks them and returns a
`weft.compiler.ir.network`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from onnx import AttributeProto, helper, numpy_helper

from weft.compiler.errors import CompileError, NetworkError
from weft.compiler.host.onnx_model import INVALID, STANDARD, first_line, types_of
from weft.compiler.ir.layout import PACKED
from weft.compiler.ir.network import MAX_NODES, Network, Node, Type, type_of

Source = str | os.PathLike | bytes | onnx.ModelProto
"""A model as path, as bytes, or in memory."""

_NEWEST = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": onnx.defs.onnx_ml_opset_version(),
}
"""Newest version of each operator set that the onnx package defines."""
LARGEST = "weft.largest."
"""Prefix of metadata keys for `Network.largest`; the node's name follows."""
_DEPTH = 100
"""Greatest depth of function calls. Each level takes several Python frames."""

_MISPLACED = ("SimplifiedLayerNormalization",)
"""Operators of ONNX Runtime that its tools write without a domain."""

_Function = tuple[str, str, str]


def read(source: Source, shapes: Mapping[str, int] | None = None) -> Network:
    """Read and check a model, and inline its functions.

    Parameters and errors are those of `read_proto`.
    """
    return network_of(read_proto(source, shapes))


def read_proto(source: Source, shapes: Mapping[str, int] | None = None) -> onnx.ModelProto:
    """Read and check a model with static inputs, and return it as a proto with its functions inlined.

    Parameters
    ----------
    source : path, bytes or ModelProto
        A ModelProto stays unchanged.
    shapes : mapping of str to int
        Sizes of open dimensions of inputs, by the model's name for them, or by ``input.axis`` for dimensions without a
        name.

    Raises
    ------
    CompileError
        If the model is missing, truncated, not ONNX or not valid, has dynamic shapes, uses operators that ONNX does
        not define, or has no dimension with a name in `shapes`.
    """
    proto = _parse(source)
    if shapes:
        proto = _set_sizes(proto, shapes)
    _check_graph(proto)
    _check_text(proto)
    _check_functions(proto)
    if proto.functions:
        proto = _inline(proto)
    _check_operators(proto.graph.node, proto)
    _check_inputs(proto)
    _check_valid(proto)
    return proto


def read_open(source: Source) -> Network:
    """Read and check a model whose inputs may have open dimensions, and inline its functions.

    Operators that ONNX Runtime's tools write without their domain get it.

    Raises
    ------
    CompileError
        If the model is missing, truncated, not ONNX or not valid.
    """
    proto = _parse(source)
    _check_graph(proto)
    _check_text(proto)
    _check_functions(proto)
    if proto.functions:
        proto = _inline(proto)
    for node in proto.graph.node:
        if node.op_type in _MISPLACED and not node.domain:
            node.domain = "com.microsoft"
    _check_operators(proto.graph.node, proto)
    _check_valid(proto)
    return network_of(proto)


def _parse(source: Source) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, bytes):
        try:
            return onnx.load_from_string(source)
        except DecodeError:
            raise CompileError(f"these {len(source)} bytes are not an ONNX model") from None
    path = Path(source)
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


def _set_sizes(original: onnx.ModelProto, shapes: Mapping[str, int]) -> onnx.ModelProto:
    """Return the model with sizes for its open dimensions, wherever it names them."""
    proto = onnx.ModelProto()
    proto.CopyFrom(original)
    graph = proto.graph
    constants = {tensor.name for tensor in graph.initializer}
    entering = {value.name for value in graph.input} - constants
    known: dict[str, None] = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            names = [dim.dim_param, f"{value.name}.{axis}"] if value.name in entering else [dim.dim_param]
            if value.name in entering:
                known[dim.dim_param or names[1]] = None
            size = next((shapes[name] for name in names if name in shapes), None)
            if size is not None:
                dim.dim_value = size
    missing = [name for name in shapes if name not in known and not _is_place(name, known, original)]
    if missing:
        there = f"; it has {', '.join(map(repr, known))}" if known else "; it has none"
        raise CompileError(f"the model's inputs have no open dimension {missing[0]!r}{there}")
    return proto


def _is_place(name: str, known: Iterable[str], proto: onnx.ModelProto) -> bool:
    """Return whether ``input.axis`` denotes an open dimension that has a name."""
    value, _, axis = name.rpartition(".")
    shapes = {item.name: item.type.tensor_type.shape.dim for item in proto.graph.input}
    places = shapes.get(value, ())
    return axis.isdecimal() and int(axis) < len(places) and places[int(axis)].dim_param in known


def _inline(proto: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.inliner.inline_local_functions(proto)
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise CompileError(f"the model's functions cannot be inlined: {first_line(error)}") from None


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
    for graph in _nested_graphs(proto.graph):
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise CompileError(f"initialiser {name!r} is sparse; export the model with dense initialisers")
    for entry in proto.opset_import:
        newest = _NEWEST.get(entry.domain, (1 << 31) - 1)
        if not 1 <= entry.version <= newest:
            raise CompileError(
                f"the model asks for version {entry.version} of operator set {entry.domain!r}; "
                f"weft supports versions 1 to {newest}"
            )


def _check_text(proto: onnx.ModelProto) -> None:
    """Raise `CompileError` for names that are not UTF-8: protobuf returns them as bytes."""
    for graph in _nested_graphs(proto.graph):
        values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
        names: list[str | bytes] = [value.name for value in values]
        for node in graph.node:
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
            names += [item.name for item in node.attribute]
        for name in names:
            if isinstance(name, bytes):
                raise CompileError(
                    f"the model is damaged: it holds the name {name!r}, which is not UTF-8 text"
                )


def _check_functions(model: onnx.ModelProto) -> None:
    """Raise `CompileError` if local functions are recursive, or expand to more than `MAX_NODES` nodes."""
    bodies = {_key(function): function for function in model.functions}
    # Count before inlining: nested calls can grow exponentially.
    sizes: dict[_Function, int] = {}
    calls: list[_Function] = []

    def inlined_size(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += size(key) if key in bodies else 1
            total += sum(inlined_size(graph.node) for graph in _subgraphs(node))
        return total

    def size(key: _Function) -> int:
        if key in calls:
            raise CompileError(f"the model's function {key[1]!r} calls itself; ONNX does not allow that")
        if key not in sizes:
            if len(calls) >= _DEPTH:
                raise CompileError(f"the model's functions call each other more than {_DEPTH} deep")
            calls.append(key)
            sizes[key] = inlined_size(bodies[key].node)
            calls.pop()
        return sizes[key]

    total = inlined_size(model.graph.node)
    if total > MAX_NODES:
        raise CompileError(
            f"the model has {total:,} nodes with its functions inlined; weft takes up to {MAX_NODES:,}"
        )


def _key(function: onnx.FunctionProto) -> _Function:
    return function.domain, function.name, function.overload


def _nested_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for inner in _subgraphs(node):
            yield from _nested_graphs(inner)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _check_operators(nodes: Iterable[onnx.NodeProto], proto: onnx.ModelProto) -> None:
    """Raise `CompileError` for unknown operators of ONNX's own domains; ONNX Runtime checks all others."""
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    for index, node in enumerate(nodes):
        label = f"node {_name(node, index)!r}"
        domain = _domain(node.domain)
        if domain not in STANDARD:
            continue
        version = versions.get(node.domain, versions.get("", versions.get("ai.onnx", 1)))
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


def _name(node: onnx.NodeProto, index: int) -> str:
    return node.name or f"{node.op_type}_{index}"


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _check_inputs(proto: onnx.ModelProto) -> None:
    """Raise `CompileError` for inputs without a static shape; initialisers that are listed as inputs do not count."""
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
                size = repr(dim.dim_param) if dim.dim_param else "no fixed size"
                name = dim.dim_param or f"{value.name}.{axis}"
                raise CompileError(
                    f"input {value.name!r} has a dynamic dimension {axis} ({size}); give its size with "
                    f"--shape {name}=1, or in Python with shapes={{{name!r}: 1}}"
                )


def _check_valid(proto: onnx.ModelProto) -> None:
    """Raise `CompileError` if the onnx package finds the model invalid.

    The package requires types of outputs, which shape inference only finds later, so untyped outputs get one here.
    """
    untyped = [at for at, value in enumerate(proto.graph.output) if not _is_typed(value.type.tensor_type)]
    if untyped:
        proto, original = onnx.ModelProto(), proto
        proto.CopyFrom(original)
        for at in untyped:
            proto.graph.output[at].type.CopyFrom(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ()))
    try:
        onnx.checker.check_model(proto)
    except INVALID as error:
        raise CompileError(f"the model is not valid ONNX: {first_line(error)}") from None


def _is_typed(tensor: onnx.TypeProto.Tensor) -> bool:
    return tensor.HasField("shape") and tensor.elem_type != onnx.TensorProto.UNDEFINED


def network_of(proto: onnx.ModelProto) -> Network:
    """Return a valid model without functions as a network.

    Raises
    ------
    CompileError
        If a constant or an attribute cannot be read.
    """
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        opsets.setdefault(_domain(entry.domain), int(entry.version))
    return dataclasses.replace(_network(proto.graph, opsets), largest=_largest(proto))


def _largest(proto: onnx.ModelProto) -> dict[str, float]:
    """Return the calibrated magnitudes that `weft quantise` stored in the metadata."""
    magnitudes: dict[str, float] = {}
    for item in proto.metadata_props:
        if not item.key.startswith(LARGEST):
            continue
        try:
            magnitudes[item.key.removeprefix(LARGEST)] = value = float(item.value)
        except ValueError:
            value = -1.0
        if not 0 <= value < math.inf:
            raise CompileError(
                f"the model's metadata {item.key!r} is {item.value!r}: it must be a finite number of at least 0, as "
                "`weft quantise` writes it"
            )
    return magnitudes


def _network(graph: onnx.GraphProto, opsets: dict[str, int]) -> Network:
    constants = {
        item.name: _array(item, f"initialiser {item.name!r} cannot be read") for item in graph.initializer
    }
    try:
        types = types_of((*graph.input, *graph.value_info, *graph.output))
    except NetworkError as error:
        raise CompileError(f"the model is not valid ONNX: {error}") from None
    for name in types.keys() & constants.keys():
        _check_declared(name, types.pop(name), constants[name])
    return Network(
        tuple(_node(node, index) for index, node in enumerate(graph.node)),
        tuple(value.name for value in graph.input if value.name not in constants),
        tuple(value.name for value in graph.output),
        types,
        constants,
        opsets,
    )


def _check_declared(name: str, declared: Type, value: np.ndarray) -> None:
    """Raise `CompileError` if an initialiser contradicts the type that the model declares for it."""
    dtype, shape = type_of(value)
    assert shape is not None
    sizes = shape if declared.shape is None else declared.shape
    agree = len(sizes) == len(shape) and all(
        one in (None, other) for one, other in zip(sizes, shape, strict=True)
    )
    if dtype != declared.dtype or not agree:
        raise CompileError(
            f"the model is not valid ONNX: initialiser {name!r} is {dtype} of shape {shape}, but declared as "
            f"{declared.dtype} of shape {sizes}"
        )


def _node(node: onnx.NodeProto, index: int) -> Node:
    label = f"node {_name(node, index)!r}"
    return Node(
        node.op_type,
        tuple(node.input),
        tuple(node.output),
        {item.name: _attribute(item, label) for item in node.attribute},
        _domain(node.domain),
        node.name,
        index,
    )


def _attribute(item: AttributeProto, label: str) -> Any:
    if item.ref_attr_name:
        raise CompileError(
            f"{label} takes attribute {item.name!r} from {item.ref_attr_name!r} of a function, but is in no function"
        )
    try:
        value = helper.get_attribute_value(item)
    except ValueError:
        value = None
    problem = f"{label} has attribute {item.name!r}, which cannot be read"
    return (
        tuple(_attribute_value(part, problem) for part in value)
        if isinstance(value, list)
        else _attribute_value(value, problem)
    )


def _attribute_value(value: Any, problem: str) -> Any:
    """Return one value of an attribute without its protobuf message."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, onnx.TensorProto):
        return _array(value, problem)
    if isinstance(value, onnx.GraphProto):
        return _network(value, {})
    raise CompileError(f"{problem}: weft reads numbers, text, dense tensors and graphs")


def _array(tensor: onnx.TensorProto, problem: str) -> np.ndarray:
    try:
        values = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise CompileError(f"{problem}: {first_line(error)}") from None
    size, expected = len(tensor.raw_data) or len(tensor.int32_data), -(-values.size // 2)
    # The onnx package ignores excess bytes of packed values, but of no others.
    if str(values.dtype) in PACKED and size > expected:
        raise CompileError(f"{problem}: {values.size} values of 4 bits take {expected} bytes, not {size}")
    return values
