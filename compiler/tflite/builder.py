"""What a TFLite graph becomes: ONNX nodes, and the values in them that stand for the file's tensors.

TFLite's images are (N, H, W, C), ONNX's (N, C, H, W). A tensor of rank 4 is a value in either order, made when it is
asked for: as the file has it, or channels first. Between the two there is a Transpose, and never two behind each other.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.compiler.host.onnx_model import NetworkError, infer_types
from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Names, Network, Node, Type
from weft.compiler.tflite.file import File, Quantisation, Tensor
from weft.compiler.tflite.variables import Key, Variables

OPSET = 21
"""The version of ONNX's operators: the first whose QuantizeLinear makes int16."""
FIRST = (0, 3, 1, 2)
"""From (N, H, W, C) to (N, C, H, W)."""
LAST = (0, 2, 3, 1)
"""Back."""
_COPIES = 16
"""How many times as large as what the file has constants may become, in other orders of axes."""
_SMALL = 1 << 26
"""Bytes that constants may have in any case."""
QUANTISED = ("int8", "uint8", "int16")
"""Types of tensors that hold real numbers, if they have scales."""


class Order(enum.Enum):
    """How the axes of a value of rank 4 follow each other: as in the file, or with the second of ONNX's images last."""

    FILE = "file"
    CHANNELS_FIRST = "channels first"


class Builder:
    """Makes the network of a file, whose variables may start with `contents`, as `Variables` has it."""

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
        """Note the operator whose nodes follow, after which what is made of its constants is named."""
        self._operator = name, inputs

    def _base(self, name: str, tensor: Tensor) -> str:
        """What the names of nodes begin with that change value `name`, which is a tensor."""
        operator, inputs = self._operator
        if tensor.data is not None and tensor.index in inputs:
            return f"{operator}.input{inputs.index(tensor.index)}"
        return self._makers.get(name, self._names[tensor.index])

    def node(
        self, operator: str, inputs: Iterable[str], outputs: Sequence[str], name: str, **attributes: Any
    ) -> None:
        """Add a node."""
        given = {key: value for key, value in attributes.items() if value is not None}
        index = len(self._nodes)
        self._nodes.append(Node(operator, tuple(inputs), tuple(outputs), given, name=name, index=index))

    def emit(self, operator: str, inputs: Iterable[str], name: str, **attributes: Any) -> str:
        """Add a node with one result, whose name is returned."""
        value = self.unique(f"{name}:result")
        self.node(operator, inputs, (value,), name, **attributes)
        return value

    def constant(self, values: np.ndarray, name: str) -> str:
        """Add a constant."""
        name = self.unique(name)
        self._keep(name, values)
        return name

    def _keep(self, name: str, values: np.ndarray) -> None:
        self._room -= values.nbytes
        if self._room < 0:
            raise CompileError(
                f"the file's constants take more than {_COPIES} times their bytes in the order in which they are read"
            )
        self._constants[name] = np.ascontiguousarray(values)

    def known(self, tensor: Tensor) -> bool:
        """Whether there is a value for a tensor already."""
        return (
            tensor.data is not None or tensor.index in self._values or tensor.index in self.variables.handles
        )

    def native(self, tensor: Tensor) -> Order:
        """The order in which a tensor was made, which costs nothing."""
        return next(iter(self._values.get(tensor.index, {Order.FILE: ""})))

    def value(self, tensor: Tensor, order: Order = Order.FILE) -> str:
        """The value of a tensor as it is stored."""
        if tensor.rank != 4:
            order = Order.FILE
        values = self._values.setdefault(tensor.index, {})
        if not values:
            if tensor.data is None:
                raise CompileError(f"{tensor.label} is read before an operator makes it")
            if not tensor.data.size:
                raise CompileError(f"{tensor.label} is read as values, but holds none")
            values[Order.FILE] = self._names[tensor.index]
            self._keep(self._names[tensor.index], tensor.data)
        if order not in values:
            (name,) = values.values()
            base = self._base(name, tensor)
            if order is Order.FILE:
                made = self._names[tensor.index]
                self._transpose(name, LAST, made, base)
            else:
                made = self.unique(f"{self._names[tensor.index]}:channels_first")
                self._transpose(name, FIRST, made, base)
            values[order] = self._declare(made, tensor, order)
            self._makers[made] = base
        return values[order]

    def transposed(self, value: str, perm: Sequence[int], name: str) -> str:
        """A value with its axes in another order."""
        key = (value, tuple(perm))
        if key not in self._moved:
            source, before = self._moves.get(value, (value, tuple(range(len(perm)))))
            if tuple(before[axis] for axis in perm) == tuple(range(len(perm))):
                return source
            self._moved[key] = self.unique(f"{name}:transposed")
            self._transpose(*key, self._moved[key], name)
        return self._moved[key]

    def transpose_to(self, value: str, perm: Sequence[int], tensor: Tensor, name: str) -> None:
        """Make a tensor, as the file has it, of a value with its axes in another order."""
        target = self.target(tensor, Order.FILE)
        self._transpose(value, tuple(perm), target, name)
        self.set(tensor, target, Order.FILE, name)

    def _transpose(self, value: str, perm: tuple[int, ...], made: str, base: str) -> None:
        if value in self._constants:
            self._keep(made, self._constants[value].transpose(perm))
            return
        source, before = self._moves.get(value, (value, tuple(range(len(perm)))))
        whole = tuple(before[axis] for axis in perm)
        self._moves[made] = source, whole
        if whole == tuple(range(len(perm))):
            self.node("Identity", (source,), (made,), f"{base}.identity")
        else:
            self.node("Transpose", (source,), (made,), f"{base}.transpose", perm=whole)

    def add_input(self, tensor: Tensor) -> None:
        """Take a tensor as an input of the model."""
        name = self._names[tensor.index]
        self.add_value(name, Type(tensor.dtype, tensor.shape))
        self._values[tensor.index] = {Order.FILE: name}

    def add_value(self, name: str, type_: Type) -> None:
        """Take a value that no operator makes."""
        self._declared[name] = self._types[name] = type_

    def name_of(self, tensor: Tensor) -> str:
        """The name of the value that a tensor is, as the file has it."""
        return self._names[tensor.index]

    def target(self, tensor: Tensor, order: Order) -> str:
        """The name for the value that an operator makes of a tensor, in an order."""
        name = self._names[tensor.index]
        return name if order is Order.FILE or tensor.rank != 4 else self.unique(f"{name}:channels_first")

    def set(self, tensor: Tensor, name: str, order: Order, base: str) -> None:
        """Note that the value `name` is a tensor, as it is stored, and which operator made it."""
        order = order if tensor.rank == 4 else Order.FILE
        self._values[tensor.index] = {order: self._declare(name, tensor, order)}
        self._makers[name] = base

    def _declare(self, name: str, tensor: Tensor, order: Order) -> str:
        shape = tensor.shape if order is Order.FILE else tuple(tensor.shape[axis] for axis in FIRST)
        self._declared[name] = Type(tensor.dtype, shape)
        return name

    def settle(self) -> None:
        """Infer the types of all values since the last time, and compare those of tensors with what the file says.

        This is done operator by operator: what follows is made by the shapes that the file says.

        Raises
        ------
        CompileError
            If they contradict each other.
        """
        nodes, self._settled = self._nodes[self._settled :], len(self._nodes)
        if not nodes:
            return
        known = Network((), (), (), self._types, self._constants, {"": OPSET})
        made = [name for node in nodes for name in node.outputs]
        try:
            found = infer_types(known.part(nodes, made))
        except NetworkError as error:
            raise CompileError(f"operator {self._operator[0]!r} contradicts itself: {error}") from None
        makers = {name: node.label for node in nodes for name in node.outputs}
        for name in made:
            type_ = found.get(name)
            if type_ is None or type_.sizes is None:
                raise CompileError(f"{makers[name]} makes something whose shape is not known before running")
            declared = self._declared.get(name, type_)
            if type_ != declared:
                raise CompileError(
                    f"{makers[name]} makes {_told(type_)} for what the file says is {_told(declared)}"
                )
            self._types[name] = type_

    def real(self, tensor: Tensor, order: Order = Order.FILE) -> str:
        """The value of a tensor as real numbers: a DequantizeLinear of what is quantised, anything else as it is."""
        name = self.value(tensor, order)
        if tensor.quantisation is None or tensor.dtype.startswith("float"):
            if tensor.dtype in QUANTISED:
                raise CompileError(
                    f"{tensor.label} of type {tensor.dtype} has no scale; convert the model anew"
                )
            return name
        axes = FIRST if order is Order.CHANNELS_FIRST and tensor.rank == 4 else tuple(range(tensor.rank))
        return self.dequantised(name, tensor, axes)

    def dequantised(self, name: str, tensor: Tensor, axes: Sequence[int]) -> str:
        """What stored value `name` stands for, which is a quantised tensor with its axes as in `axes`."""
        if name in self._reals:
            return self._reals[name]
        quantisation, base = tensor.quantisation, self._base(name, tensor)
        assert quantisation is not None
        axis = None if quantisation.whole else tuple(axes).index(quantisation.axis)
        stored = self._constants.get(name)
        if (
            stored is not None and stored.dtype == np.int64
        ):  # biases of int16 networks: ONNX has no such type there
            self._reals[name] = self.constant(_floats(stored, quantisation, axis), f"{name}:real")
        else:
            inputs = (name, *self.parameters(quantisation, tensor, base))
            self._reals[name] = self.emit("DequantizeLinear", inputs, f"{base}.dequantise", axis=axis)
        return self._reals[name]

    def parameters(self, quantisation: Quantisation, tensor: Tensor, base: str) -> tuple[str, str]:
        """Constants for the scales and zero points of a tensor."""
        shape = () if quantisation.whole else (quantisation.scales.size,)
        scale = self.constant(quantisation.scales.reshape(shape), f"{base}:scale")
        zero = self.constant(quantisation.zeros.reshape(shape).astype(tensor.dtype), f"{base}:zero")
        return scale, zero

    def part(self, outputs: Sequence[str]) -> Network:
        """What makes some values, of no inputs."""
        self.settle()
        return Network((), (), (), self._types, self._constants, {"": OPSET}).part(self._nodes, outputs)

    def network(self) -> Network:
        """The network, and its types as far as the file tells them."""
        tensors = self.file.tensors
        states = tuple(self.variables.states())
        self._constants.update(self.variables.constants())
        inputs = (*(self._names[index] for index in self.file.inputs), *(state.source for state in states))
        outputs = tuple(self.value(tensors[index]) for index in self.file.outputs)
        outputs = (*outputs, *(state.target for state in states))
        self.settle()
        types = {name: self._types[name] for name in inputs}
        read = {*outputs, *(name for node in self._nodes for name in node.inputs)}
        constants = {name: value for name, value in self._constants.items() if name in read}
        return Network(tuple(self._nodes), inputs, outputs, types, constants, {"": OPSET}, states)


def _floats(stored: np.ndarray, quantisation: Quantisation, axis: int | None) -> np.ndarray:
    """The real numbers of a constant."""
    shape = [-1 if axis == other else 1 for other in range(stored.ndim)]
    scales, zeros = quantisation.scales.reshape(shape), quantisation.zeros.reshape(shape)
    return ((stored - zeros) * scales.astype(np.float64)).astype(np.float32)


def _told(type_: Type) -> str:
    """A type in a message."""
    return f"{type_.dtype} of shape {'x'.join(map(str, type_.shape or ())) or '()'}"
