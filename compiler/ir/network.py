"""Neural network as a graph of operators, independent of file formats: the front end's input.

Operators have ONNX's names and semantics; readers of other formats translate theirs.
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

from weft.compiler.errors import CompileError
from weft.compiler.ir.quantisation import Quantisation
from weft.hdl.errors import SchemaError
from weft.hdl.schema import printable, short_repr

LINKS = ("QuantizeLinear", "DequantizeLinear")
"""Operators between real numbers and integers.

In 16 bits ONNX has them from version 21 on, ONNX Runtime in any version.
"""
DTYPES = (
    "bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64",
    "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    "object",
)  # fmt: skip
"""Names of element types, as in numpy or ml_dtypes; "object" is for strings."""

# Limits that are checked before all other work. Devices have 32-bit addresses, so no value of 2**32 bytes fits;
# elements on the host have up to 8 bytes.
MAX_ELEMENTS = 1 << 30
"""Largest number of elements of one value."""
MAX_NODES = 200_000
"""Largest number of nodes of a model, with its local functions inlined."""
MAX_WINDOW = (1 << 16) - 1
"""Largest kernel, stride, dilation and pad. Coordinates have 16 bits."""
_WINDOWS = ("kernel_shape", "strides", "dilations", "pads", "output_padding")


def dtype_of(name: str) -> np.dtype:
    """Return the numpy type of a name in `DTYPES`."""
    return np.dtype(getattr(ml_dtypes, name, name))


class Type(NamedTuple):
    """Type of a value: element type, from `DTYPES`, and shape. Sizes, or the whole shape, may be unknown."""

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Shape if it is fully known, else None."""
        sizes = tuple(size for size in self.shape or () if size is not None)
        return None if self.shape is None or len(sizes) < len(self.shape) else sizes


def type_of(value: np.ndarray) -> Type:
    """Return the type of a constant."""
    return Type("object" if value.dtype.kind in "OSU" else value.dtype.name, value.shape)


@dataclass(frozen=True, eq=False)
class Node:
    """One operator: `operator` of the operator set `domain`; "" is ONNX's own.

    Attributes
    ----------
    inputs : tuple of str
        Names of values; "" for an omitted input.
    attributes : mapping of str to object
        int, float, str (bytes for text that is not UTF-8), ndarray, `Network` for a branch or loop body, or a tuple
        of these.
    index : int
        Place in the order of the whole model.
    raw : bool
        The operator computes on stored integers; otherwise on the real numbers of quantised values.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""
    index: int = 0
    raw: bool = False

    @cached_property
    def op(self) -> str:
        """Operator with its domain, as in "com.microsoft.Attention"; without it for ONNX's own operators and for
        `LINKS`."""
        return (
            f"{self.domain}.{self.operator}" if self.domain and self.operator not in LINKS else self.operator
        )

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"node {self.name!r} ({self.op})"

    def input(self, index: int) -> str:
        """Return the name of an input, "" if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @property
    def reads(self) -> tuple[str, ...]:
        """All values that it and its bodies read, each once."""
        inside = (name for graph in self.bodies for name in graph.captures)
        return tuple(dict.fromkeys((*(name for name in self.inputs if name), *inside)))

    @property
    def bodies(self) -> Iterator[Network]:
        """Networks inside an operator of control flow: loop bodies and branches."""
        for value in self.attributes.values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Network):
                    yield item


class Names:
    """Generator of unique value names."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """Return `name`, with a number appended if it is taken."""
        candidate = name
        while candidate in self._taken:
            self._taken[name] += 1
            candidate = f"{name}_{self._taken[name]}"
        self._taken[candidate] = 0
        return candidate


def producer(nodes: Iterable[Node], name: str) -> Node | None:
    """Return the first node with the output `name`, or None."""
    return next((node for node in nodes if name in node.outputs), None)


@dataclass(frozen=True, eq=False)
class State:
    """A value that persists between runs.

    Input `source` of a network is `initial` in the first run, and afterwards the previous run's output `target`, of
    equal type and shape.
    """

    source: str
    target: str
    initial: np.ndarray


@dataclass(frozen=True, eq=False)
class Network:
    """Operators in topological order, on values of real numbers and of integers.

    A value in `quantisation` stores integers, which represent real numbers. An operator that is not `Node.raw` reads
    the real numbers of its quantised inputs; its results are rounded to the quantisation of its outputs. Identity
    therefore quantises, dequantises and requantises.

    Attributes
    ----------
    types : mapping of str to Type
        Known types of values, without constants. A quantised value has the type of its integers.
    quantisation : mapping of str to Quantisation
        Real numbers that stored integers represent, by value or constant.
    opsets : mapping of str to int
        Version of each operator set. Bodies of control flow have none, and use the enclosing network's.
    states : tuple of State
        Values that persist between runs; `inputs` and `outputs` include theirs.
    largest : mapping of str to float
        Calibrated magnitudes inside nodes, by node name: of an LSTM's cells, or of a Softmax's largest scores per row.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, Type]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    largest: Mapping[str, float] = field(default_factory=dict)
    quantisation: Mapping[str, Quantisation] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators."""
        return self.opsets.get("", 1)

    @property
    def captures(self) -> tuple[str, ...]:
        """Values that a body of control flow reads from enclosing networks."""
        own = {*self.inputs, *self.constants, *(name for node in self.nodes for name in node.outputs)}
        read = (*(name for node in self.nodes for name in node.reads), *self.outputs)
        return tuple(name for name in dict.fromkeys(read) if name not in own)

    def type_of(self, name: str) -> Type | None:
        """Return the type of a value or constant, None if unknown."""
        constant = self.constants.get(name)
        return self.types.get(name) if constant is None else type_of(constant)

    def part(self, nodes: Iterable[Node], outputs: Iterable[str]) -> Network:
        """Return some of the nodes as a network that computes `outputs`; its inputs are in the order of first use."""
        nodes, outputs = tuple(nodes), tuple(outputs)
        produced = dict.fromkeys(
            name for node in nodes for name in node.outputs
        )  # a dict, not a set: order must not vary between runs
        read = dict.fromkeys((*(name for node in nodes for name in node.reads), *outputs))
        outer = [name for name in read if name not in produced]
        return Network(
            nodes,
            tuple(name for name in outer if name not in self.constants),
            outputs,
            {name: self.types[name] for name in (*outer, *produced) if name in self.types},
            {name: self.constants[name] for name in outer if name in self.constants},
            self.opsets,
            quantisation={
                name: self.quantisation[name] for name in (*outer, *produced) if name in self.quantisation
            },
        )


@dataclass(frozen=True)
class ModelFormat:
    """File format of quantised models other than ONNX, and its reader.

    Attributes
    ----------
    name : str
        Name with article, as in "an MLIR model".
    suffix : str
        Suffix of file names.
    recognises : callable
        Whether a file that begins with these bytes has the format.
    read : callable
        Return the network of a file's bytes; the second argument names the file in messages. Raises `CompileError`.
    states : str
        Why states cannot be named for such a model, for messages.
    how_to_quantise : str
        How to quantise a float model before writing this format, for messages.
    """

    name: str
    suffix: str
    recognises: Callable[[bytes], bool]
    read: Callable[[bytes, str], Network]
    states: str
    how_to_quantise: str


_DEPTH = 32
"""Greatest nesting depth of networks."""
_SHOWN = 200
"""Most characters of a library's message to quote."""


class _Stored(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    pass


class _Bytes(_Stored, tag="bytes"):
    data: bytes


class _Tensor(_Stored, tag="tensor"):
    """Tensor's elements in row-major order, little-endian; strings are in `texts` instead."""

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
    """Return a network as bytes for `decode`."""
    return msgspec.msgpack.encode(_to_stored(network))


def decode(raw: bytes) -> Network:
    """Return the network that `raw` encodes. Its consistency is checked by `weft.compiler.host.onnx_model.check`.

    Raises
    ------
    SchemaError
        If the bytes are no network, or a tensor's data contradicts its type or shape.
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


def _to_stored(value: Any) -> Any:
    """Return the storable form of a network or of a part of it."""
    if isinstance(value, Network):
        nodes = tuple(map(_node, value.nodes))
        constants = {name: _to_stored(array) for name, array in value.constants.items()}
        return _Network(nodes, value.inputs, value.outputs, dict(value.types), constants, dict(value.opsets))
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OSU":
            return _Tensor("object", value.shape, b"", tuple(map(str, value.reshape(-1).tolist())))
        return _Tensor(value.dtype.name, value.shape, value.tobytes())
    if isinstance(value, tuple):
        return _List(tuple(map(_to_stored, value)))
    return _Bytes(value) if isinstance(value, bytes) else value


def _node(node: Node) -> _Node:
    attributes = {name: _to_stored(value) for name, value in node.attributes.items()}
    return _Node(node.operator, node.inputs, node.outputs, attributes, node.domain, node.name, node.index)


def _network(stored: _Network, depth: int) -> Network:
    if depth > _DEPTH:
        raise SchemaError("it is nested too deeply")
    for name, kind in stored.types.items():
        if kind.dtype not in DTYPES:
            raise SchemaError(f"value {short_repr(name)} is of the unknown type {short_repr(kind.dtype)}")
    nodes = (
        Node(
            node.operator,
            node.inputs,
            node.outputs,
            _values(node.attributes, depth),
            node.domain,
            node.name,
            node.index,
        )
        for node in stored.nodes
    )
    # Names and types come from a file, which may contain anything.
    constants = _values(stored.constants, depth)
    return Network(tuple(nodes), stored.inputs, stored.outputs, stored.types, constants, stored.opsets)


def _values(stored: Mapping[str, _Value], depth: int) -> dict[str, Any]:
    return {name: _value(name, value, depth) for name, value in stored.items()}


def _value(name: str, value: _Value, depth: int) -> Any:
    if isinstance(value, _Tensor):
        return _array(name, value)
    if isinstance(value, _Network):
        return _network(value, depth + 1)
    if isinstance(value, _List):
        return tuple(_value(name, item, depth) for item in value.items)
    return value.data if isinstance(value, _Bytes) else value


def _array(name: str, tensor: _Tensor) -> np.ndarray:
    label = f"tensor {short_repr(name)}"
    if tensor.dtype not in DTYPES:
        raise SchemaError(f"{label} is of the unknown type {short_repr(tensor.dtype)}")
    textual, dtype = tensor.dtype == "object", dtype_of(tensor.dtype)
    count = len(tensor.texts) if textual else len(tensor.data) / dtype.itemsize
    # `math.prod` of two negative sizes would be positive.
    if min(tensor.shape, default=0) < 0 or count != math.prod(tensor.shape):
        raise SchemaError(f"{label} is not of the shape {short_repr(tensor.shape)} that it is said to have")
    # numpy takes any byte as a bool, so check that all are 0 or 1.
    if tensor.dtype == "bool" and tensor.data.translate(None, b"\0\1"):
        raise SchemaError(f"{label} is of bool, and holds other numbers than 0 and 1")
    try:
        if textual:
            return np.array(tensor.texts, object).reshape(tensor.shape)
        return np.frombuffer(tensor.data, dtype).reshape(tensor.shape)
    except ValueError as error:
        raise SchemaError(f"{label} of shape {short_repr(tensor.shape)}: {error}") from None


def check_values(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `CompileError` for a value of more than `MAX_ELEMENTS` elements, or of a negative size."""
    for name, shape in shapes.items():
        text = f"shape {'x'.join(map(str, shape))}"
        if min(shape, default=1) < 0:
            raise CompileError(
                f"value {name!r} would have {text}: its operator asks for more elements than its input has"
            )
        if math.prod(shape) > MAX_ELEMENTS:
            size = f"{text}, {math.prod(shape):,} elements"
            raise CompileError(f"value {name!r} has {size}; weft takes values of up to {MAX_ELEMENTS:,}")


def check_windows(network: Network) -> None:
    """Raise `CompileError` for a kernel, stride, dilation or pad above `MAX_WINDOW`."""
    for node in network.nodes:
        for name in _WINDOWS:
            sizes = node.attributes.get(name)
            if isinstance(sizes, tuple) and max(sizes, default=0) > MAX_WINDOW:
                raise CompileError(
                    f"{node.label} has {name} {list(sizes)}; each must be at most {MAX_WINDOW:,}"
                )
        for graph in node.bodies:
            check_windows(graph)
