"""Networks as bytes: MessagePack by a schema, with the elements of tensors as they lie in memory.

What is read may come from anybody: sizes, element types and depth are checked, and nothing in it names a file or runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from weft.compiler.ir.network import DTYPES, Network, Node, Type, dtype_of
from weft.hdl.files.schema import SchemaError, printable, shown

_DEPTH = 32
"""Largest depth of networks inside each other."""
_SHOWN = 200
"""Characters of a library's message that are shown."""


class _Stored(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    pass


class _Bytes(_Stored, tag="bytes"):
    """Text that is not UTF-8."""

    data: bytes


class _Tensor(_Stored, tag="tensor"):
    """The elements of a tensor in row-major order and little endian; for strings there are `texts` instead."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    texts: tuple[str, ...] = ()


class _Node(_Stored):
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, _Value]
    domain: str
    name: str
    index: int


class _Network(_Stored, tag="network"):
    nodes: tuple[_Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: dict[str, Type]
    constants: dict[str, _Tensor]
    opsets: dict[str, int]


class _List(_Stored, tag="list"):
    items: tuple[int | float | str | _Bytes | _Tensor | _Network, ...]


_Value = int | float | str | _Bytes | _Tensor | _Network | _List


def encode(network: Network) -> bytes:
    """The bytes of a network, for `decode`."""
    return msgspec.msgpack.encode(_stored(network))


def decode(raw: bytes) -> Network:
    """The network that some bytes stand for. Whether it makes sense is for `weft.compiler.host.onnx_model.check`.

    Raises
    ------
    SchemaError
        If they stand for none, or for tensors of another size or type than they say.
    """
    try:
        stored = msgspec.msgpack.decode(raw, type=_Network)
    except msgspec.ValidationError as error:
        raise SchemaError(printable(str(error).replace("`", ""), _SHOWN)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SchemaError(f"it is no network ({printable(str(error), _SHOWN)})") from None
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None
    return _network(stored, 0)


def _stored(value: Any) -> Any:
    """A network, or a part of one, as it is stored."""
    if isinstance(value, Network):
        nodes = tuple(map(_node, value.nodes))
        constants = {name: _stored(array) for name, array in value.constants.items()}
        return _Network(nodes, value.inputs, value.outputs, dict(value.types), constants, dict(value.opsets))
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OSU":
            return _Tensor("object", value.shape, b"", tuple(map(str, value.reshape(-1).tolist())))
        return _Tensor(value.dtype.name, value.shape, value.tobytes())
    if isinstance(value, tuple):
        return _List(tuple(map(_stored, value)))
    return _Bytes(value) if isinstance(value, bytes) else value


def _node(node: Node) -> _Node:
    attributes = {name: _stored(value) for name, value in node.attributes.items()}
    return _Node(node.operator, node.inputs, node.outputs, attributes, node.domain, node.name, node.index)


def _network(stored: _Network, depth: int) -> Network:
    if depth > _DEPTH:
        raise SchemaError("it is nested too deeply")
    for name, found in stored.types.items():
        if found.dtype not in DTYPES:
            raise SchemaError(f"value {shown(name)} is of the unknown type {shown(found.dtype)}")
    nodes = (
        Node(node.operator, node.inputs, node.outputs, _values(node.attributes, depth), node.domain, node.name,
             node.index)
        for node in stored.nodes
    )  # fmt: skip
    constants = _values(stored.constants, depth)
    return Network(tuple(nodes), stored.inputs, stored.outputs, stored.types, constants, stored.opsets)


def _values(stored: Mapping[str, _Value], depth: int) -> dict[str, Any]:
    return {name: _value(name, value, depth) for name, value in stored.items()}


def _value(name: str, value: _Value, depth: int) -> Any:
    """An attribute or a constant as networks have it."""
    if isinstance(value, _Tensor):
        return _array(name, value)
    if isinstance(value, _Network):
        return _network(value, depth + 1)
    if isinstance(value, _List):
        return tuple(_value(name, item, depth) for item in value.items)
    return value.data if isinstance(value, _Bytes) else value


def _array(name: str, tensor: _Tensor) -> np.ndarray:
    what = f"tensor {shown(name)}"
    if tensor.dtype not in DTYPES:
        raise SchemaError(f"{what} is of the unknown type {shown(tensor.dtype)}")
    textual, dtype = tensor.dtype == "object", dtype_of(tensor.dtype)
    count = len(tensor.texts) if textual else len(tensor.data) / dtype.itemsize
    if min(tensor.shape, default=0) < 0 or count != math.prod(tensor.shape):
        raise SchemaError(f"{what} is not of the shape {shown(tensor.shape)} that it is said to have")
    if tensor.dtype == "bool" and tensor.data.translate(None, b"\0\1"):
        raise SchemaError(f"{what} is of bool, and holds other numbers than 0 and 1")
    try:
        if textual:
            return np.array(tensor.texts, object).reshape(tensor.shape)
        return np.frombuffer(tensor.data, dtype).reshape(tensor.shape)
    except ValueError as error:
        raise SchemaError(f"{what} of shape {shown(tensor.shape)}: {error}") from None
