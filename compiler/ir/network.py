"""A neural network as graph of operators, in no file format: what readers make, and what the front end works on.

Operators have ONNX's names and meanings. Readers of other formats express theirs in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import ml_dtypes
import msgspec
import numpy as np

from weft.hdl.schema import SchemaError, printable, short_repr

LINKS = ("QuantizeLinear", "DequantizeLinear")
"""Between real numbers and integers. ONNX Runtime has them for 16 bits in any version, ONNX from version 21 on."""
DTYPES = (
    "bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64",
    "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    "object",
)  # fmt: skip
"""Names of the element types that values may have, as numpy or ml_dtypes call them; "object" holds strings."""


def dtype_of(name: str) -> np.dtype:
    """The element type of a name in `DTYPES`."""
    return np.dtype(getattr(ml_dtypes, name, name))


class Type(NamedTuple):
    """The type of a value: its elements, one of `DTYPES`, and its shape; sizes, or the whole shape, may be unknown."""

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape, if all of it is known."""
        found = tuple(size for size in self.shape or () if size is not None)
        return None if self.shape is None or len(found) < len(self.shape) else found


def type_of(value: np.ndarray) -> Type:
    """The type of a constant."""
    return Type("object" if value.dtype.kind in "OSU" else value.dtype.name, value.shape)


@dataclass(frozen=True, eq=False)
class Node:
    """One operator: `operator` of the operator set `domain`, of which "" is ONNX's own.

    `inputs` has "" for inputs that are left out. `attributes` are what it is told beside them: int, float, str (bytes
    for text that is not UTF-8), ndarray, `Network` for a branch or the body of a loop, or a tuple of one of these.
    `index` is its place in the whole model.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""
    index: int = 0

    @cached_property
    def op(self) -> str:
        """The operator with the domain in front if it is not ONNX's own: "com.microsoft.Attention" is another. Those of
        `LINKS` are the same in all domains."""
        return (
            f"{self.domain}.{self.operator}" if self.domain and self.operator not in LINKS else self.operator
        )

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"node {self.name!r} ({self.op})"

    def input(self, index: int) -> str:
        """The name of an input, "" if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @property
    def reads(self) -> tuple[str, ...]:
        """All values that it reads, those that only its bodies read included; each once."""
        inside = (name for graph in self.bodies for name in graph.captured)
        return tuple(dict.fromkeys((*(name for name in self.inputs if name), *inside)))

    @property
    def bodies(self) -> Iterator[Network]:
        """The networks inside an operator of control flow: bodies of loops, and branches."""
        for value in self.attributes.values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Network):
                    yield item


class Names:
    """Names of the values of a network that is made."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """A name that no value has yet: the one that is asked for, or with a number behind it."""
        found = name
        while found in self._taken:
            self._taken[name] += 1
            found = f"{name}_{self._taken[name]}"
        self._taken[found] = 0
        return found


def producer(nodes: Iterable[Node], name: str) -> Node | None:
    """The first node that has the output `name`."""
    return next((node for node in nodes if name in node.outputs), None)


@dataclass(frozen=True, eq=False)
class State:
    """A value that is kept from run to run: input `source` of a network is `initial` in the first run, and afterwards
    what output `target`, of the same type and shape, was in the run before."""

    source: str
    target: str
    initial: np.ndarray


@dataclass(frozen=True, eq=False)
class Network:
    """Operators in topological order.

    `types` has those of values as far as they are known, constants left out, and `opsets` the version of each
    operator set. Bodies of control flow have no `opsets`: they are those of the network around them. `states` are kept
    from run to run; `inputs` and `outputs` have theirs. `largest` has what a calibration found inside nodes, by their
    names: the largest absolute value of an LSTM's cells, and of the largest scores of rows that a Softmax reads.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, Type]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    largest: Mapping[str, float] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return self.opsets.get("", 1)

    @property
    def captured(self) -> tuple[str, ...]:
        """The values that a body of control flow reads from the networks around it."""
        own = {*self.inputs, *self.constants, *(name for node in self.nodes for name in node.outputs)}
        read = (*(name for node in self.nodes for name in node.reads), *self.outputs)
        return tuple(name for name in dict.fromkeys(read) if name not in own)

    def type_of(self, name: str) -> Type | None:
        """The type of a value or a constant, None if it is not known."""
        constant = self.constants.get(name)
        return self.types.get(name) if constant is None else type_of(constant)

    def part(self, nodes: Iterable[Node], outputs: Iterable[str]) -> Network:
        """Some of the nodes as a network of their own, which makes `outputs`; inputs are in the order of reading."""
        nodes, outputs = tuple(nodes), tuple(outputs)
        made = dict.fromkeys(
            name for node in nodes for name in node.outputs
        )  # in order, as files are the same then
        read = dict.fromkeys((*(name for node in nodes for name in node.reads), *outputs))
        outer = [name for name in read if name not in made]
        return Network(
            nodes,
            tuple(name for name in outer if name not in self.constants),
            outputs,
            {name: self.types[name] for name in (*outer, *made) if name in self.types},
            {name: self.constants[name] for name in outer if name in self.constants},
            self.opsets,
        )


@dataclass(frozen=True)
class ModelFormat:
    """A file format of quantised models beside ONNX, and its reader.

    Attributes
    ----------
    name : str
        As in "an MLIR model", with its article.
    suffix : str
        Of file names.
    recognises : callable
        Whether a file that begins with these bytes has the format.
    read : callable
        The network of a file's bytes; the second argument is what messages call the file. Raises `CompileError`.
    states : str
        Says in messages why no states can be named for a model.
    how_to_quantise : str
        Says in messages how a float model is quantised before it is written in this format.
    """

    name: str
    suffix: str
    recognises: Callable[[bytes], bool]
    read: Callable[[bytes, str], Network]
    states: str
    how_to_quantise: str


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
            raise SchemaError(f"value {short_repr(name)} is of the unknown type {short_repr(found.dtype)}")
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
    what = f"tensor {short_repr(name)}"
    if tensor.dtype not in DTYPES:
        raise SchemaError(f"{what} is of the unknown type {short_repr(tensor.dtype)}")
    textual, dtype = tensor.dtype == "object", dtype_of(tensor.dtype)
    count = len(tensor.texts) if textual else len(tensor.data) / dtype.itemsize
    if min(tensor.shape, default=0) < 0 or count != math.prod(tensor.shape):
        raise SchemaError(f"{what} is not of the shape {short_repr(tensor.shape)} that it is said to have")
    if tensor.dtype == "bool" and tensor.data.translate(None, b"\0\1"):
        raise SchemaError(f"{what} is of bool, and holds other numbers than 0 and 1")
    try:
        if textual:
            return np.array(tensor.texts, object).reshape(tensor.shape)
        return np.frombuffer(tensor.data, dtype).reshape(tensor.shape)
    except ValueError as error:
        raise SchemaError(f"{what} of shape {short_repr(tensor.shape)}: {error}") from None
