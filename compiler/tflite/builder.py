"""Builder of operators for a TFLite graph, and of the values that represent the file's tensors.

TFLite's images are (N, H, W, C), ONNX's (N, C, H, W). A tensor of rank 4 exists in either order, created on demand: as
in the file, or channels first. A Transpose connects the two orders, and two Transposes in a row merge.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError, NetworkError
from weft.compiler.host.onnx_model import infer_types
from weft.compiler.ir.network import Names, Network, Node, Type
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.onnx.links import as_real, stored_types
from weft.compiler.tflite.file import File, Tensor
from weft.compiler.tflite.variables import Key, Variables

OPSET = 21
"""Version of ONNX's operators: the first whose QuantizeLinear supports int16."""
FIRST = (0, 3, 1, 2)
"""Permutation from (N, H, W, C) to (N, C, H, W)."""
LAST = (0, 2, 3, 1)
"""Permutation from (N, C, H, W) to (N, H, W, C)."""
_COPIES = 16
"""Largest size of all constants, in other orders of axes, as a multiple of their size in the file."""
_SMALL = 1 << 26
"""Bytes that constants may have in any case."""
QUANTISED = ("int8", "uint8", "int16")
"""Types of tensors that represent real numbers if they have scales."""


MOVES = (
    "Concat", "DepthToSpace", "Expand", "Gather", "Identity", "Pad", "Reshape", "Resize", "Slice", "SpaceToDepth",
    "Split", "Tile", "Transpose",
)  # fmt: skip
"""Operators that may move elements only. Their results keep the quantisation of their operand."""


class Order(enum.Enum):
    """Order of axes of a value of rank 4: as in the file, or channels first."""

    FILE = "file"
    CHANNELS_FIRST = "channels first"


class Builder:
    """Builder of a file's network.

    `contents` are the initial values of variables by subgraph, as in `Variables`.
    """

    def __init__(self, file: File, contents: Mapping[int, Mapping[Key, np.ndarray]] | None = None) -> None:
        self.file = file
        self._room = _SMALL + _COPIES * sum(
            item.data.nbytes for item in file.tensors if item.data is not None
        )
        self.unique = Names().unique
        self._nodes: list[Node] = []
        self._constants: dict[str, np.ndarray] = {}
        self._declared: dict[str, Type] = {}
        self._types: dict[str, Type] = {}
        self._quantisation: dict[str, Quantisation] = {}
        self._rounded: set[str] = set()
        self._settled = 0
        self.variables = Variables(self, contents or {})
        self._makers: dict[str, str] = {}
        self._values: dict[int, dict[Order, str]] = {}
        self._reals: dict[str, str] = {}
        self._moves: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._operator: tuple[str, tuple[int, ...]] = ("", ())
        self._moved: dict[tuple[str, tuple[int, ...]], str] = {}
        self._names = {tensor.index: self.unique(tensor.name) for tensor in file.tensors}

    def begin(self, name: str, inputs: tuple[int, ...]) -> None:
        """Set the operator of the next nodes, which names what becomes of its constants."""
        self._operator = name, inputs

    def _base(self, name: str, tensor: Tensor) -> str:
        """Return the prefix for names of nodes that transform value `name` of a tensor."""
        operator, inputs = self._operator
        if tensor.data is not None and tensor.index in inputs:
            return f"{operator}.input{inputs.index(tensor.index)}"
        return self._makers.get(name, self._names[tensor.index])

    def node(
        self,
        operator: str,
        inputs: Iterable[str],
        outputs: Sequence[str],
        name: str,
        *,
        raw: bool = False,
        **attributes: Any,
    ) -> None:
        """Add a node; with `raw` it computes on stored integers."""
        present = {key: value for key, value in attributes.items() if value is not None}
        node = Node(
            operator, tuple(inputs), tuple(outputs), present, name=name, index=len(self._nodes), raw=raw
        )
        self._nodes.append(node)
        moved = None if raw else self._moved_quantisation(node)
        if moved is not None:
            self._quantisation |= {item: moved for item in outputs if item not in self._declared}

    def _moved_quantisation(self, node: Node) -> Quantisation | None:
        """Return the quantisation of all elements that a node moves; None for other nodes."""
        if node.operator not in MOVES or node.attributes.get("mode") == "linear":
            return None
        if node.operator == "Pad" and node.input(2):
            return None
        names = node.inputs if node.operator == "Concat" else node.inputs[:1]
        found = {self._quantisation.get(name) for name in names}
        (one,) = found if len(found) == 1 else (None,)
        return one if one is not None and one.per_tensor else None

    def emit(
        self, operator: str, inputs: Iterable[str], name: str, *, raw: bool = False, **attributes: Any
    ) -> str:
        """Add a node with one result, and return the result's name."""
        value = self.unique(f"{name}:result")
        self.node(operator, inputs, (value,), name, raw=raw, **attributes)
        return value

    def assign(self, tensor: Tensor, value: str, order: Order, name: str, *, raw: bool = False) -> None:
        """Write a value to a tensor: its node does so, if nothing else reads the value, else an Identity.

        With `raw` the value is the tensor's stored integers.
        """
        target = self.target(tensor, order)
        self.set(tensor, target, order, name)
        place, before = self._private(value), self._quantisation.get(value)
        # Other operators may read the transposed value as well.
        shared = value in self._moves and before != self._quantisation.get(target)
        if place is None or shared:
            self.node("Identity", (value,), (target,), f"{name}.identity", raw=raw)
            return
        node = self._nodes[place]
        outputs = tuple(target if item == value else item for item in node.outputs)
        self._nodes[place] = dataclasses.replace(node, outputs=outputs)
        self._quantisation.pop(value, None)
        if value in self._moves:
            self._moves[target] = self._moves.pop(value)
            self._moved = {key: target if moved == value else moved for key, moved in self._moved.items()}

    def _private(self, value: str) -> int | None:
        """Return the position of the node of this operator that makes a value which nothing reads or has rounded."""
        recent = range(self._settled, len(self._nodes))
        if value in self._rounded or any(value in self._nodes[place].inputs for place in recent):
            return None
        return next((place for place in recent if value in self._nodes[place].outputs), None)

    def round(self, value: str, quantisation: Quantisation, name: str) -> str:
        """Return a value rounded to a quantisation."""
        if self._private(value) is None or value in self._quantisation:
            value = self.emit("Identity", (value,), f"{name}.quantise")
        self._quantisation[value] = quantisation
        self._rounded.add(value)
        return value

    def reinterpret(self, value: str, quantisation: Quantisation, name: str) -> str:
        """Return a value whose stored integers represent other real numbers."""
        value = self.emit("Identity", (value,), f"{name}.reinterpret", raw=True)
        self._quantisation[value] = quantisation
        return value

    def quantised_constant(self, values: np.ndarray, quantisation: Quantisation, name: str) -> str:
        """Add a constant of stored integers, and return its name."""
        name = self.constant(values, name)
        self._quantisation[name] = quantisation
        return name

    def constant(self, values: np.ndarray, name: str) -> str:
        """Add a constant, and return its name."""
        name = self.unique(name)
        self._add_constant(name, values)
        return name

    def _add_constant(self, name: str, values: np.ndarray) -> None:
        self._room -= values.nbytes
        if self._room < 0:
            raise CompileError(
                f"the file's constants take more than {_COPIES} times their bytes in the orders in which operators "
                "read them"
            )
        self._constants[name] = np.ascontiguousarray(values)

    def is_known(self, tensor: Tensor) -> bool:
        """Return whether a tensor has a value already."""
        return (
            tensor.data is not None or tensor.index in self._values or tensor.index in self.variables.handles
        )

    def native(self, tensor: Tensor) -> Order:
        """Return the order in which a tensor was created, which needs no Transpose."""
        return next(iter(self._values.get(tensor.index, {Order.FILE: ""})))

    def value(self, tensor: Tensor, order: Order = Order.FILE) -> str:
        """Return the stored value of a tensor."""
        if tensor.rank != 4:
            order = Order.FILE
        values = self._values.setdefault(tensor.index, {})
        if not values:
            if tensor.data is None:
                raise CompileError(f"{tensor.label} is read before an operator writes it")
            if not tensor.data.size:
                raise CompileError(f"{tensor.label} is read, but has no elements")
            values[Order.FILE] = self._names[tensor.index]
            self._add_constant(self._names[tensor.index], tensor.data)
            self._note(self._names[tensor.index], tensor, tuple(range(tensor.rank)))
        if order not in values:
            (name,) = values.values()
            base = self._base(name, tensor)
            if order is Order.FILE:
                target = self._names[tensor.index]
                self._transpose(name, LAST, target, base)
            else:
                target = self.unique(f"{self._names[tensor.index]}:channels_first")
                self._transpose(name, FIRST, target, base)
            values[order] = self._declare(target, tensor, order)
            self._makers[target] = base
        return values[order]

    def transpose(self, value: str, perm: Sequence[int], name: str) -> str:
        """Return a value with its axes permuted."""
        key = (value, tuple(perm))
        if key not in self._moved:
            source, before = self._moves.get(value, (value, tuple(range(len(perm)))))
            if tuple(before[axis] for axis in perm) == tuple(range(len(perm))):
                return source
            self._moved[key] = self.unique(f"{name}:transposed")
            self._transpose(*key, self._moved[key], name)
        return self._moved[key]

    def transpose_to(self, value: str, perm: Sequence[int], tensor: Tensor, name: str) -> None:
        """Write a value with its axes permuted to a tensor, in the file's order."""
        target = self.target(tensor, Order.FILE)
        self._transpose(value, tuple(perm), target, name)
        self.set(tensor, target, Order.FILE, name)

    def _transpose(self, value: str, perm: tuple[int, ...], target: str, base: str) -> None:
        if value in self._constants:
            self._add_constant(target, self._constants[value].transpose(perm))
            if value in self._quantisation:
                self._quantisation[target] = self._quantisation[value].transpose(perm)
            return
        # Compose with an earlier Transpose, so that none follows another.
        source, before = self._moves.get(value, (value, tuple(range(len(perm)))))
        combined = tuple(before[axis] for axis in perm)
        self._moves[target] = source, combined
        if combined == tuple(range(len(perm))):
            self.node("Identity", (source,), (target,), f"{base}.identity")
        else:
            self.node("Transpose", (source,), (target,), f"{base}.transpose", perm=combined)

    def add_input(self, tensor: Tensor) -> None:
        """Add a tensor as an input of the model."""
        name = self._names[tensor.index]
        self.add_value(name, Type(tensor.dtype, tensor.shape))
        self._note(name, tensor, tuple(range(tensor.rank)))
        self._values[tensor.index] = {Order.FILE: name}

    def add_value(self, name: str, type_: Type) -> None:
        """Add a value that no operator writes."""
        self._declared[name] = self._types[name] = type_

    def name_of(self, tensor: Tensor) -> str:
        """Return the name of a tensor's value in the file's order."""
        return self._names[tensor.index]

    def target(self, tensor: Tensor, order: Order) -> str:
        """Return a name for the value that an operator writes to a tensor, in an order."""
        name = self._names[tensor.index]
        return name if order is Order.FILE or tensor.rank != 4 else self.unique(f"{name}:channels_first")

    def set(self, tensor: Tensor, name: str, order: Order, base: str) -> None:
        """Record that value `name` is a stored tensor, and the operator that wrote it."""
        order = order if tensor.rank == 4 else Order.FILE
        self._values[tensor.index] = {order: self._declare(name, tensor, order)}
        self._makers[name] = base

    def _declare(self, name: str, tensor: Tensor, order: Order) -> str:
        axes = tuple(range(tensor.rank)) if order is Order.FILE else FIRST
        self._declared[name] = Type(tensor.dtype, tuple(tensor.shape[axis] for axis in axes))
        self._note(name, tensor, axes)
        return name

    def _note(self, name: str, tensor: Tensor, axes: tuple[int, ...]) -> None:
        """Record the quantisation of a tensor's value with permuted `axes`, if its stored numbers have one."""
        stored = QUANTISED if tensor.data is None else (*QUANTISED, "int32")
        if tensor.quantisation is not None and tensor.dtype in stored:
            self._quantisation[name] = tensor.quantisation.transpose(axes)

    def settle(self) -> None:
        """Infer the types of all values since the last call, and compare those of tensors with the file.

        This happens after every operator, because later operators rely on the file's shapes.

        Raises
        ------
        CompileError
            If they contradict each other.
        """
        nodes, self._settled = self._nodes[self._settled :], len(self._nodes)
        if not nodes:
            return
        outputs = [name for node in nodes for name in node.outputs]
        real, quantised = as_real(self._part(nodes, outputs))
        try:
            inferred = stored_types(infer_types(real), quantised)
        except NetworkError as error:
            raise CompileError(f"operator {self._operator[0]!r} contradicts itself: {error}") from None
        makers = {name: node.label for node in nodes for name in node.outputs}
        for name in outputs:
            type_ = inferred.get(name)
            if type_ is None or type_.sizes is None:
                raise CompileError(f"{makers[name]} has a result whose shape is only known at run time")
            declared = self._declared.get(name, type_)
            if type_ != declared:
                raise CompileError(
                    f"{makers[name]} returns {_describe(type_)}, but the file says {_describe(declared)}"
                )
            self._types[name] = type_

    def real(self, tensor: Tensor, order: Order = Order.FILE) -> str:
        """Return a tensor's value as real numbers: a quantised value, or one that needs no scale."""
        name = self.value(tensor, order)
        if tensor.quantisation is None and tensor.dtype in QUANTISED:
            raise CompileError(f"{tensor.label} of type {tensor.dtype} has no scale; convert the model again")
        if tensor.quantisation is None or tensor.dtype.startswith("float") or name in self._quantisation:
            return name
        if name not in self._reals:
            axes = FIRST if order is Order.CHANNELS_FIRST and tensor.rank == 4 else tuple(range(tensor.rank))
            quantisation, stored = tensor.quantisation.transpose(axes), self._constants.get(name)
            if stored is None:
                self._reals[name] = self.reinterpret(name, quantisation, self._base(name, tensor))
            else:  # biases of int16 networks are int64
                scales, zeros = quantisation.parameters(stored.shape)
                real = ((stored - zeros) * scales.astype(np.float64)).astype(np.float32)
                self._reals[name] = self.constant(real, f"{name}:real")
        return self._reals[name]

    def set_state(self, name: str, tensor: Tensor) -> None:
        """Record that value `name` is a variable of a tensor's encoding."""
        self._note(name, tensor, tuple(range(tensor.rank)))

    def part(self, outputs: Sequence[str]) -> Network:
        """Return the network of some values that depend on no input."""
        self.settle()
        return self._part(self._nodes, outputs)

    def _part(self, nodes: Sequence[Node], outputs: Sequence[str]) -> Network:
        known = Network(
            (), (), (), self._types, self._constants, {"": OPSET}, quantisation=self._quantisation
        )
        return known.part(nodes, outputs)

    def network(self) -> Network:
        """Return the whole network."""
        tensors = self.file.tensors
        states = tuple(self.variables.states())
        self._constants.update(self.variables.constants())
        inputs = (*(self._names[index] for index in self.file.inputs), *(state.source for state in states))
        outputs = tuple(self.value(tensors[index]) for index in self.file.outputs)
        outputs = (*outputs, *(state.target for state in states))
        self.settle()
        types = {name: self._types[name] for name in inputs}
        read = {*outputs, *(name for node in self._nodes for name in node.inputs)}
        made = {*inputs, *(name for node in self._nodes for name in node.outputs)}
        constants = {name: value for name, value in self._constants.items() if name in read}
        quantisation = {name: value for name, value in self._quantisation.items() if name in read | made}
        return Network(
            tuple(self._nodes),
            inputs,
            outputs,
            types,
            constants,
            {"": OPSET},
            states,
            quantisation=quantisation,
        )


def _describe(type_: Type) -> str:
    return f"{type_.dtype} of shape {'x'.join(map(str, type_.shape or ())) or '()'}"
