"""Conversion of networks to ONNX models for ONNX Runtime and the onnx package, with shape inference and checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, helper, numpy_helper

from weft.compiler.errors import NetworkError
from weft.compiler.ir.network import Network, Node, Type, dtype_of
from weft.hdl.schema import printable

STANDARD = ("", "ai.onnx.ml")
"""Operator sets that the onnx package defines."""
INVALID = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError)
"""Exceptions of the onnx package for an invalid model."""
_SHOWN = 400
"""Characters of a library's message. ONNX Runtime's messages list all errors."""
_SMALL = 4096
"""Elements of constants that may be shapes or axes; shape inference needs no values of larger constants."""
_IR_VERSION = 8
"""Version of the file format, unless the operator sets need a newer one."""


def model_of(network: Network, *, weights: bool = True) -> onnx.ModelProto:
    """Return a network without quantised values as an ONNX model; without `weights`, large constants are inputs.

    Raises
    ------
    NetworkError
        If ONNX does not support an attribute, a type or a name.
    """
    assert not network.quantisation, "`weft.compiler.onnx.links.expand` writes quantised values"
    try:
        opsets = [helper.make_opsetid(domain, version) for domain, version in network.opsets.items()]
        version = max(_IR_VERSION, helper.find_min_ir_version_for(opsets, ignore_unknown=True))
        graph = _graph(network, network.opsets, _SMALL if not weights else None)
        return helper.make_model(graph, opset_imports=opsets, ir_version=version)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, DecodeError) as error:
        raise NetworkError(first_line(error)) from None


def _graph(network: Network, opsets: Mapping[str, int], most: int | None = None) -> onnx.GraphProto:
    """Return a network, or a body of control flow, as a graph; constants of more than `most` elements are inputs."""
    large = [name for name, value in network.constants.items() if most is not None and value.size > most]
    own = {*network.inputs, *network.outputs}
    return helper.make_graph(
        [_node(node, opsets) for node in network.nodes],
        "network",
        [_value(network, name) for name in (*network.inputs, *large)],
        [_value(network, name) for name in network.outputs],
        [
            numpy_helper.from_array(value, name)
            for name, value in network.constants.items()
            if name not in large
        ],
        value_info=[
            _value(network, name)
            for name in network.types
            if name not in own and name not in network.constants
        ],
    )


def _value(network: Network, name: str) -> onnx.ValueInfoProto:
    known = network.type_of(name)
    if known is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, _element(known.dtype), known.shape)


def _element(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype_of(dtype))


def _node(node: Node, opsets: Mapping[str, int]) -> onnx.NodeProto:
    proto = onnx.NodeProto(
        op_type=node.operator, name=node.name, domain=node.domain, input=node.inputs, output=node.outputs
    )
    for name, value in node.attributes.items():
        kind = _empty_kind(node, name, opsets) if isinstance(value, tuple) and not value else None
        proto.attribute.append(helper.make_attribute(name, _attribute_value(value, opsets), attr_type=kind))
    return proto


def _attribute_value(value: Any, opsets: Mapping[str, int]) -> object:
    if isinstance(value, Network):
        return _graph(value, opsets)
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    return [_attribute_value(item, opsets) for item in value] if isinstance(value, tuple) else value


def _empty_kind(node: Node, name: str, opsets: Mapping[str, int]) -> int:
    """Return the type of an attribute with an empty list: as ONNX defines it, else integers."""
    version = opsets.get(node.domain, 1)
    if onnx.defs.has(node.operator, version, node.domain):
        known = onnx.defs.get_schema(node.operator, version, node.domain).attributes
        kind = str(known[name].type).rpartition(".")[2] if name in known else ""
        if kind.endswith("S"):
            return AttributeProto.AttributeType.Value(kind)
    return AttributeProto.INTS


def check(network: Network) -> None:
    """Raise `NetworkError` for a network that the onnx package's checker rejects."""
    try:
        onnx.checker.check_model(model_of(network, weights=False))
    except INVALID as error:
        raise NetworkError(first_line(error)) from None


def infer_types(network: Network) -> dict[str, Type]:
    """Return the types of a network's values by shape inference.

    Raises
    ------
    NetworkError
        If types or shapes contradict each other.
    """
    model = model_of(network, weights=False)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except INVALID as error:
        raise NetworkError(first_line(error)) from None
    return types_of((*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output))


def types_of(values: Iterable[onnx.ValueInfoProto]) -> dict[str, Type]:
    """Return the types of values that are tensors of a known element type.

    Raises
    ------
    NetworkError
        If ONNX has no such element type.
    """
    types: dict[str, Type] = {}
    for value in values:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or tensor.elem_type == onnx.TensorProto.UNDEFINED:
            continue
        try:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        except (KeyError, ValueError):
            raise NetworkError(
                f"{value.name!r} has element type {tensor.elem_type}, which ONNX does not define"
            ) from None
        sizes = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
        types[value.name] = Type(dtype, sizes if tensor.HasField("shape") else None)
    return types


def first_line(error: Exception) -> str:
    """Return a library's error as one line without a full stop, shortened in the middle."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[0].rstrip("."), _SHOWN) if lines else type(error).__name__
