"""Functions of one quantised value: whatever a model computes of it, element by element, is a table of 256 entries.

A function is the nodes between an int8 tensor, its *root*, and a value; its entries are what those nodes make of the
256 values that an element of the root can have. So they are the model's own to the last bit. Roots of 16 bits have
65,536 values, and as many entries.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.host.evaluate import EvaluationError, Evaluator
from weft.compiler.ir.layout import to_signed
from weft.compiler.ir.network import Network, Node, type_of
from weft.compiler.onnx.qdq import Quant, Tensor
from weft.hdl.isa.config import LOOKUP_ENTRIES


@dataclass(frozen=True, eq=False)
class Entries:
    """A function's value for each that its root can have, as stored from the least on, -128 or -32768: `values` (256,)
    or (65536,), in the model's type.

    Where `undefined` is set, something that the value depends on is not a number; `cause` tells what.
    """

    values: np.ndarray
    undefined: np.ndarray
    cause: str = ""

    @property
    def defined(self) -> bool:
        return not self.undefined.any()

    @property
    def stored(self) -> np.ndarray:
        """Entries of 8 or 16 bits as the device stores them, signed."""
        return to_signed(self.values) if self.values.dtype.kind == "u" else self.values


def key_of(root: Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same bytes in the same order."""
    return root.storage, root.layout.canonical


@dataclass(frozen=True, eq=False)
class Function:
    """A value of the model as function of the tensor `root`, element by element and in the order of its elements.

    `node` computes it of `arguments`: functions of the same root, scalar constants, and None for inputs left out. It
    is None where the value is the root, or with `quant` the real numbers that the root stands for, or has only been
    moved since. `nodes` are all nodes from the root to the value,
    and `sources` the names of the root on the way: values that are in its buffer.
    """

    root: Tensor
    sources: frozenset[str]
    nodes: tuple[int, ...] = ()
    node: Node | None = None
    arguments: tuple[Function | np.ndarray | None, ...] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)
    quant: Quant | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for functions whose roots are the same bytes in the same order."""
        return key_of(self.root)

    def moved(self, root: Tensor, node: Node) -> Function:
        """The same behind a node that moves elements, as it does those of the root."""
        return dataclasses.replace(self, root=root, nodes=(*self.nodes, node.index))

    @functools.cached_property
    def entries(self) -> Entries:
        """What the model's nodes give for all values of the root."""
        size = 1 << 16 if self.root.wide else LOOKUP_ENTRIES
        if self.node is None:
            return _of_root(size, self.root.unsigned, self.root.dtype, self.quant)
        arguments = tuple(item.entries if isinstance(item, Function) else item for item in self.arguments)
        return _of_node(_Call(self.node, arguments, self.opsets, size))


_KEPT = 64
"""Entries that are kept, 300 KB each of 16 bits: the steps of a recurrent network have the same ones."""


@functools.lru_cache(_KEPT)
def _of_root(size: int, unsigned: bool, dtype: str, quant: Quant | None) -> Entries:
    """What all values of a root are, or with `quant` the real numbers that they stand for."""
    stored, none = np.arange(-size // 2, size // 2), np.zeros(size, bool)
    if quant is not None:
        return Entries((stored - quant.zero).astype(np.float32) * np.float32(quant.scale), none)
    return Entries((stored + size // 2 * unsigned).astype(dtype), none)


Arguments = tuple[Entries | np.ndarray | None, ...]


@dataclass(frozen=True, eq=False)
class _Call:
    """A node that is computed of arguments, for so many entries. Calls are equal if they make the same, but for the
    name of the node."""

    node: Node
    arguments: Arguments
    opsets: Mapping[str, int]
    size: int

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        given = (
            (item.dtype.str, item.shape, item.tobytes()) if isinstance(item, np.ndarray) else item
            for item in self.arguments
        )
        attributes = tuple((name, repr(value)) for name, value in sorted(self.node.attributes.items()))
        return self.node.op, attributes, tuple(given), tuple(sorted(self.opsets.items())), self.size

    @property
    def plain(self) -> bool:
        """Whether text tells attributes apart: numbers and names, neither arrays nor networks."""
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
        """The result for all entries."""
        try:
            values = np.broadcast_to(_evaluated(self.node, self.arguments, self.opsets), self.size)
        except EvaluationError as error:
            return Entries(np.zeros(self.size, np.float32), np.ones(self.size, bool), str(error))
        return _checked(self.node, self.arguments, values)


_shared = functools.lru_cache(_KEPT)(_Call.entries)


def _of_node(call: _Call) -> Entries:
    """The result of a node for all entries; calls that are equal share it, unless a message names the node."""
    if not call.plain:
        return call.entries()
    found = _shared(call)
    return call.entries() if found.cause else found


def _evaluated(
    node: Node, arguments: tuple[Entries | np.ndarray | None, ...], opsets: Mapping[str, int]
) -> np.ndarray:
    """The result of a node for all entries at once."""
    given = [item.values if isinstance(item, Entries) else item for item in arguments]
    names = tuple("" if item is None else f"x{index}" for index, item in enumerate(given))
    feeds = {name: item for name, item in zip(names, given, strict=True) if item is not None}
    node = dataclasses.replace(node, inputs=names, outputs=("y",))
    types = {name: type_of(value) for name, value in feeds.items()}
    (result,) = Evaluator(Network((node,), tuple(feeds), ("y",), types, {}, opsets)).run(feeds)
    return np.asarray(result).reshape(-1)


def _checked(node: Node, arguments: tuple[Entries | np.ndarray | None, ...], values: np.ndarray) -> Entries:
    """The entries that a node made, with those that are undefined from here on."""
    entries = [item for item in arguments if isinstance(item, Entries)]
    inherited = np.broadcast_to(_inherited(node, arguments), len(values))
    causes = [item.cause for item in entries if item.cause]
    fresh = np.isnan(values) & ~inherited if values.dtype.kind == "f" else np.zeros(len(values), bool)
    if fresh.any():
        bytes_ = np.flatnonzero(fresh)
        first, last = (float(entries[0].values[index]) for index in (bytes_[0], bytes_[-1]))
        causes.append(f"{node.name!r} makes no number of {first:.6g} to {last:.6g}")
    return Entries(values, inherited | fresh, causes[0] if causes else "")


def _inherited(node: Node, arguments: tuple[Entries | np.ndarray | None, ...]) -> np.ndarray:
    """Entries that are undefined because an argument is; Where reads one of two, and IsNaN is there to ask."""
    masks = [item.undefined if isinstance(item, Entries) else np.zeros(1, bool) for item in arguments]
    if node.op == "IsNaN":
        return np.zeros(1, bool)
    if node.op == "Where":
        condition = arguments[0]
        chosen = condition.values if isinstance(condition, Entries) else condition
        return masks[0] | np.where(np.asarray(chosen, bool), masks[1], masks[2])
    return np.logical_or.reduce(np.broadcast_arrays(*masks))
