"""Functions of one quantised value: elementwise nodes that become a look-up table of 256 entries.

A function covers the nodes between an int8 tensor, its *root*, and a value. Its entries are the nodes' results for the
256 possible values of the root's elements, so they equal the model's results bit for bit. Roots of 16 bits have 65,536
entries.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.errors import EvaluationError
from weft.compiler.host.evaluate import Evaluator
from weft.compiler.ir.layout import to_signed
from weft.compiler.ir.network import Network, Node, type_of
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.onnx.qdq import Quant, Tensor
from weft.hdl.isa.config import LOOKUP_ENTRIES


@dataclass(frozen=True, eq=False)
class Entries:
    """A function's values for all values of its root: (256,) or (65536,), in the model's type.

    They start at the least stored value, -128 or -32768. `undefined` marks entries that depend on a NaN; `cause` names
    the node that made it.
    """

    values: np.ndarray
    undefined: np.ndarray
    cause: str = ""

    @property
    def is_defined(self) -> bool:
        return not self.undefined.any()

    @property
    def stored_values(self) -> np.ndarray:
        """Entries of 8 or 16 bits as signed integers, as the device stores them."""
        return to_signed(self.values) if self.values.dtype.kind == "u" else self.values


def key_of(root: Tensor) -> tuple[object, ...]:
    """Return a key that is equal for tensors with equal bytes in equal order."""
    return root.storage, root.layout.canonical


@dataclass(frozen=True, eq=False)
class Function:
    """A value of the model as an elementwise function of the tensor `root`, in the order of the root's elements.

    Attributes
    ----------
    sources : frozenset of str
        Values in the root's buffer on the way.
    nodes : tuple of int
        All nodes from the root to the value.
    node : Node or None
        Last node that computes; None if the value is the root, or the root moved.
    arguments : tuple
        Inputs of `node`: functions of this root, scalar constants, and None for omitted inputs.
    quant : Quant or None
        Without `node`: the value is the real numbers that the root represents with these parameters.
    conversion : Quantisation or None
        Without `node`: the value is the argument, rounded to these parameters if the argument is real, else the real
        numbers that the argument's integers represent.
    """

    root: Tensor
    sources: frozenset[str]
    nodes: tuple[int, ...] = ()
    node: Node | None = None
    arguments: tuple[Function | np.ndarray | None, ...] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)
    quant: Quant | None = None
    conversion: Quantisation | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Key that is equal for functions whose roots are equal bytes in equal order."""
        return key_of(self.root)

    def after_move(self, root: Tensor, node: Node) -> Function:
        """Return the function after a node that moves elements, and moved the root's to `root`."""
        return dataclasses.replace(self, root=root, nodes=(*self.nodes, node.index))

    def convert(self, quantisation: Quantisation, value: str) -> Function:
        """Return the function in the other form: the integers `value`, or the real numbers that they represent."""
        return dataclasses.replace(
            self,
            sources=self.sources | {value},
            node=None,
            arguments=(self,),
            quant=None,
            conversion=quantisation,
        )

    @functools.cached_property
    def entries(self) -> Entries:
        """Results of the model's nodes for all values of the root."""
        size = 1 << 16 if self.root.wide else LOOKUP_ENTRIES
        if self.conversion is not None:
            (argument,) = self.arguments
            assert isinstance(argument, Function)
            return _converted_entries(argument.entries, self.conversion)
        if self.node is None:
            return _root_entries(size, self.root.unsigned, self.root.dtype, self.quant)
        arguments = tuple(item.entries if isinstance(item, Function) else item for item in self.arguments)
        return _node_entries(_Call(self.node, arguments, self.opsets, size))


_CACHED = 64
"""Cached entries, 300 KB each for 16 bits. The steps of a recurrent network share them."""


@functools.lru_cache(_CACHED)
def _root_entries(size: int, unsigned: bool, dtype: str, quant: Quant | None) -> Entries:
    """Return all values of a root, or with `quant` the real numbers that they represent."""
    stored, defined = np.arange(-size // 2, size // 2), np.zeros(size, bool)
    if quant is not None:
        return Entries((stored - quant.zero).astype(np.float32) * np.float32(quant.scale), defined)
    return Entries((stored + size // 2 * unsigned).astype(dtype), defined)


@functools.lru_cache(_CACHED)
def _converted_entries(entries: Entries, quantisation: Quantisation) -> Entries:
    """Return real numbers as integers, or integers as real numbers."""
    real = entries.values.dtype.kind == "f"
    values = quantisation.quantise(entries.values) if real else quantisation.dequantise(entries.values)
    return Entries(values, entries.undefined, entries.cause)


Arguments = tuple[Entries | np.ndarray | None, ...]


@dataclass(frozen=True, eq=False)
class _Call:
    """A node applied to arguments with `size` entries. Calls are equal if their results are, the node's name aside."""

    node: Node
    arguments: Arguments
    opsets: Mapping[str, int]
    size: int

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        arguments = (
            (item.dtype.str, item.shape, item.tobytes()) if isinstance(item, np.ndarray) else item
            for item in self.arguments
        )
        attributes = tuple((name, repr(value)) for name, value in sorted(self.node.attributes.items()))
        return self.node.op, attributes, tuple(arguments), tuple(sorted(self.opsets.items())), self.size

    @property
    def plain(self) -> bool:
        """True if `repr` distinguishes the attributes: numbers and text, no arrays or networks."""
        plain = (int, float, str, bytes)
        return all(
            isinstance(item, plain)
            for value in self.node.attributes.values()
            for item in (value if isinstance(value, tuple) else (value,))
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self.key == other.key

    def entries(self) -> Entries:
        try:
            values = np.broadcast_to(_evaluate(self.node, self.arguments, self.opsets), self.size)
        except EvaluationError as error:
            return Entries(np.zeros(self.size, np.float32), np.ones(self.size, bool), str(error))
        return _mark_undefined(self.node, self.arguments, values)


_shared = functools.lru_cache(_CACHED)(_Call.entries)


def _node_entries(call: _Call) -> Entries:
    """Return the result of a node for all entries. Equal calls share it, unless a message names the node."""
    if not call.plain:
        return call.entries()
    shared = _shared(call)
    return call.entries() if shared.cause else shared


def _evaluate(
    node: Node, arguments: tuple[Entries | np.ndarray | None, ...], opsets: Mapping[str, int]
) -> np.ndarray:
    values = [item.values if isinstance(item, Entries) else item for item in arguments]
    names = tuple("" if item is None else f"x{index}" for index, item in enumerate(values))
    feeds = {name: item for name, item in zip(names, values, strict=True) if item is not None}
    node = dataclasses.replace(node, inputs=names, outputs=("y",))
    types = {name: type_of(value) for name, value in feeds.items()}
    (result,) = Evaluator(Network((node,), tuple(feeds), ("y",), types, {}, opsets)).run(feeds)
    return np.asarray(result).reshape(-1)


def _mark_undefined(
    node: Node, arguments: tuple[Entries | np.ndarray | None, ...], values: np.ndarray
) -> Entries:
    """Return a node's entries, with entries that become undefined here marked."""
    entries = [item for item in arguments if isinstance(item, Entries)]
    inherited = np.broadcast_to(_inherit_undefined(node, arguments), len(values))
    causes = [item.cause for item in entries if item.cause]
    # NaNs that this node creates; other undefined entries come from its arguments.
    fresh = np.isnan(values) & ~inherited if values.dtype.kind == "f" else np.zeros(len(values), bool)
    if fresh.any():
        bytes_ = np.flatnonzero(fresh)
        first, last = (float(entries[0].values[index]) for index in (bytes_[0], bytes_[-1]))
        causes.append(f"{node.name!r} computes NaN for inputs from {first:.6g} to {last:.6g}")
    return Entries(values, inherited | fresh, causes[0] if causes else "")


def _inherit_undefined(node: Node, arguments: tuple[Entries | np.ndarray | None, ...]) -> np.ndarray:
    """Return which entries are undefined because an argument is. Where reads only one branch, and IsNaN reads NaNs."""
    masks = [item.undefined if isinstance(item, Entries) else np.zeros(1, bool) for item in arguments]
    if node.op == "IsNaN":
        return np.zeros(1, bool)
    if node.op == "Where":
        condition = arguments[0]
        selects = condition.values if isinstance(condition, Entries) else condition
        return masks[0] | np.where(np.asarray(selects, bool), masks[1], masks[2])
    return np.logical_or.reduce(np.broadcast_arrays(*masks))
