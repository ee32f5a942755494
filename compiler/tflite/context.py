"""One operator of a TFLite file on its way into the network: what the functions of `weft.compiler.tflite.operators` are
given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Type
from weft.compiler.tflite.builder import FIRST, LAST, QUANTISED, Builder, Order
from weft.compiler.tflite.file import Operator, Quantisation, Tensor

_INTEGERS = ("int32", "int64", "int8", "int16", "uint8")
_ELEMENTS = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "int4": 22,
}  # fmt: skip
"""ONNX's numbers of the types that tensors may have."""
_CLAMPS = {1: (0.0, None), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
"""Fused activations that clamp: RELU, RELU_N1_TO_1, RELU6."""
_LEFT_OUT = {4: "TANH", 5: "SIGN_BIT"}
"""Fused activations that the file format has and LiteRT's kernels leave out, or refuse."""
_PADDINGS = ("SAME", "VALID")


class Kept(NamedTuple):
    """A quantised value as it is stored, and the real numbers that it stands for."""

    stored: str
    real: str


@dataclass(eq=False)
class Context:
    """An operator, and the network that is being built."""

    operator: Operator
    builder: Builder

    @property
    def name(self) -> str:
        """The name of the main node that it becomes; others have it in front."""
        return f"{self.operator.name.lower()}_{self.operator.index}"

    def refuse(self, why: str) -> CompileError:
        """The error for an operator that cannot be read."""
        outputs = self.operator.outputs
        tensors = self.builder.file.tensors
        makes = (
            f", which makes {tensors[outputs[0]].label},"
            if outputs and 0 <= outputs[0] < len(tensors)
            else ""
        )
        return CompileError(f"{self.operator.label}{makes} {why}")

    # Tensors

    def has(self, index: int) -> bool:
        """Whether there is an input, which may be left out."""
        return index < len(self.operator.inputs) and self.operator.inputs[index] >= 0

    def tensor(self, index: int = 0) -> Tensor:
        """An input."""
        if not self.has(index):
            raise self.refuse(f"has {len(self.operator.inputs)} inputs, and none at place {index}")
        return self.builder.file.tensors[self.operator.inputs[index]]

    def output(self, index: int = 0) -> Tensor:
        """A result."""
        if index >= len(self.operator.outputs):
            raise self.refuse(f"has {len(self.operator.outputs)} results, and none at place {index}")
        return self.builder.file.tensors[self.operator.outputs[index]]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """All inputs that are not left out."""
        return tuple(self.tensor(index) for index in range(len(self.operator.inputs)) if self.has(index))

    def image(self, index: int = 0) -> Tensor:
        """An input that must have four dimensions."""
        tensor = self.tensor(index)
        if tensor.rank != 4:
            raise self.refuse(f"takes images of four dimensions; {tensor.label} has {tensor.rank}")
        return tensor

    def numbers(self, index: int, what: str) -> np.ndarray:
        """A constant input of integers, which the operator calls `what`, as a list."""
        tensor = self.tensor(index)
        if tensor.data is None:
            raise self.refuse(f"takes {what} from {tensor.label}, which is not constant; make it so")
        if tensor.dtype not in _INTEGERS:
            raise self.refuse(
                f"takes {what} from {tensor.label} of type {tensor.dtype}; they must be integers"
            )
        return tensor.data.astype(np.int64).reshape(-1)

    def axes(self, index: int, what: str, rank: int) -> tuple[int, ...]:
        """A constant input of axes, none of them negative."""
        return tuple(self.axis(int(axis), what, rank) for axis in self.numbers(index, what))

    def axis(self, axis: int, what: str, rank: int) -> int:
        """An axis, counted from the front."""
        if not -rank <= axis < rank:
            raise self.refuse(f"has {what} {axis} for {rank} dimensions")
        return axis % rank

    # Options

    def option(self, name: str, default: float | str = 0) -> Any:
        """An option by the format's name."""
        return self.operator.options.get(name, default)

    def positive(self, *names: str) -> tuple[int, ...]:
        """Options that must be above zero."""
        found = tuple(int(self.option(name)) for name in names)
        for name, value in zip(names, found, strict=True):
            if value < 1:
                raise self.refuse(f"has {name} {value}; it must be above 0")
        return found

    @property
    def same(self) -> bool:
        """Whether padding is SAME, else it is VALID."""
        padding = int(self.option("Padding"))
        if padding not in (0, 1):
            raise self.refuse(f"has padding {padding}; there are {' and '.join(_PADDINGS)}")
        return padding == 0

    # Values

    def order(self, *indices: int) -> Order:
        """The order of axes in which the inputs are already: of the first that has four and is not constant."""
        for index in indices or range(len(self.operator.inputs)):
            if self.has(index) and self.tensor(index).rank == 4 and self.tensor(index).data is None:
                return self.builder.native(self.tensor(index))
        return Order.FILE

    def real(self, index: int = 0, order: Order = Order.FILE) -> str:
        """An input as real numbers."""
        return self.builder.real(self.tensor(index), order)

    def stored(self, index: int = 0, order: Order = Order.FILE) -> str:
        """An input as it is stored."""
        return self.builder.value(self.tensor(index), order)

    def aligned(self, index: int, rank: int, order: Order, *, stored: bool = False) -> str:
        """An input with axes of one element in front, so that it has `rank`, to be broadcast in an order of axes."""
        tensor = self.tensor(index)
        read = self.stored if stored else self.real
        if tensor.rank == rank or order is Order.FILE:
            return read(index, order)
        if tensor.quantisation is not None and not tensor.quantisation.whole:
            raise self.refuse(f"reads {tensor.label}, which has a scale for each element of a dimension")
        shape = (1,) * (rank - tensor.rank) + tensor.shape
        wide = self.reshaped(read(index), shape)
        return self.builder.transposed(wide, FIRST, self.name)

    def array(
        self, values: float | Sequence[int] | Sequence[float] | np.ndarray, dtype: str = "int64"
    ) -> str:
        """A constant of the operator's own."""
        try:
            with np.errstate(over="raise"):
                return self.builder.constant(np.asarray(values, dtype), f"{self.name}:constant")
        except (OverflowError, FloatingPointError):
            raise self.refuse(f"has numbers that do not fit {np.dtype(dtype).itemsize * 8} bits") from None

    def emit(self, operator: str, *inputs: str, suffix: str = "", **attributes: Any) -> str:
        """Add a node, whose result is returned; those besides the main one have a `suffix`."""
        name = f"{self.name}.{suffix}" if suffix else self.name
        return self.builder.emit(operator, inputs, name, **attributes)

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """A value in another shape."""
        return self.emit("Reshape", value, self.array(shape), suffix="reshape")

    def parts(self, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        """A value split along an axis."""
        names = [self.builder.unique(f"{self.name}:part") for _ in sizes]
        self.builder.node("Split", (value, self.array(sizes)), names, self.name, axis=axis)
        return names

    # What is kept from run to run

    def parameters(self, index: int) -> tuple[str, str]:
        """Scale and zero point of an input."""
        tensor = self.tensor(index)
        return self.builder.parameters(self._scale(tensor), tensor, self.name)

    def keeps(self, index: int) -> Kept:
        """What a variable is at the start of a run."""
        tensor = self.tensor(index)
        stored = self.builder.variables.read(tensor.index)
        return Kept(stored, self.builder.dequantised(stored, tensor, range(tensor.rank)))

    def keep(self, index: int, stored: str) -> None:
        """Keep a stored value in a variable until the next run."""
        tensor = self.tensor(index)
        self.builder.variables.assign(tensor.index, stored, Type(tensor.dtype, tensor.shape))

    # Results

    def activated(self, value: str) -> str:
        """A value behind the fused activation."""
        kind = int(self.option("FusedActivationFunction"))
        if not kind:
            return value
        if kind in _LEFT_OUT:
            raise self.refuse(
                f"has fused activation {_LEFT_OUT[kind]}, which LiteRT does not compute: make it an operator of its own"
            )
        if kind not in _CLAMPS:
            raise self.refuse(f"has fused activation {kind}, which weft does not read")
        low, high = _CLAMPS[kind]
        if high is None:
            return self.emit("Relu", value, suffix="relu")
        return self.emit(
            "Clip", value, self.array(low, "float32"), self.array(high, "float32"), suffix="clip"
        )

    def finish(self, value: str, order: Order = Order.FILE, index: int = 0) -> None:
        """Give a result its real numbers: they are quantised as the file says."""
        tensor = self.output(index)
        if tensor.dtype in QUANTISED:
            inputs = (value, *self.builder.parameters(self._scale(tensor), tensor, self.name))
            self._set("QuantizeLinear", inputs, "quantise", order, tensor)
        elif tensor.quantisation is not None and not tensor.dtype.startswith("float"):
            raise self.refuse(
                f"makes {tensor.label} of type {tensor.dtype} with a scale; weft reads int8 to int16"
            )
        else:
            self.store(value, order, index)

    def _scale(self, tensor: Tensor) -> Quantisation:
        """The quantisation of a result."""
        if tensor.quantisation is None:
            raise self.refuse(f"makes {tensor.label} of type {tensor.dtype}, which has no scale")
        if not tensor.quantisation.whole:
            raise self.refuse(
                f"makes {tensor.label}, which has {tensor.quantisation.scales.size} scales; results have one"
            )
        return tensor.quantisation

    def store(self, value: str, order: Order = Order.FILE, index: int = 0) -> None:
        """Give a result the value that is stored, quantised or not."""
        self._set("Identity", (value,), "identity", order, self.output(index))

    def put(
        self, operator: str, *inputs: str, order: Order = Order.FILE, index: int = 0, **attributes: Any
    ) -> None:
        """Add the main node, whose result is what is stored."""
        self._set(operator, inputs, "", order, self.output(index), **attributes)

    def put_all(self, operator: str, *inputs: str, order: Order = Order.FILE, **attributes: Any) -> None:
        """Add the main node, which has all results as they are stored."""
        outputs = [self.output(index) for index in range(len(self.operator.outputs))]
        targets = [self.builder.target(tensor, order) for tensor in outputs]
        self.builder.node(operator, inputs, targets, self.name, **attributes)
        for tensor, target in zip(outputs, targets, strict=True):
            self.builder.set(tensor, target, order, self.name)

    def _set(
        self,
        operator: str,
        inputs: Sequence[str],
        suffix: str,
        order: Order,
        tensor: Tensor,
        **attributes: Any,
    ) -> None:
        target = self.builder.target(tensor, order)
        name = f"{self.name}.{suffix}" if suffix else self.name
        self.builder.node(operator, inputs, (target,), name, **attributes)
        self.builder.set(tensor, target, order, self.name)

    def quantised(self, value: str, index: int = 0) -> str:
        """Real numbers as the bytes of a result, which is still to be reshaped."""
        tensor = self.output(index)
        if tensor.dtype not in QUANTISED:
            return value
        parameters = self.builder.parameters(self._scale(tensor), tensor, self.name)
        return self.emit("QuantizeLinear", value, *parameters, suffix="quantise")

    def finish_reshaped(self, value: str, order: Order = Order.FILE, index: int = 0) -> None:
        """Give a result its real numbers, which are in another shape, and have an order of axes if they have four."""
        self.store_reshaped(self.quantised(value, index), order, index)

    def store_reshaped(self, value: str, order: Order = Order.FILE, index: int = 0) -> None:
        """Give a result what is stored, which is in another shape, and has an order of axes if it has four."""
        if order is Order.CHANNELS_FIRST:
            value = self.builder.transposed(value, LAST, self.name)
        target = self.builder.target(self.output(index), Order.FILE)
        shape = self.array(self.output(index).shape)
        self.builder.node("Reshape", (value, shape), (target,), f"{self.name}.reshape")
        self.builder.set(self.output(index), target, Order.FILE, self.name)

    def move(
        self,
        operator: str,
        index: int,
        *others: str,
        order: Order = Order.FILE,
        reshape: bool = False,
        **attributes: Any,
    ) -> None:
        """Add a node that moves elements of an input: of its bytes if they mean the same in the result."""
        alike = self.alike(self.tensor(index))
        value = self.stored(index, order) if alike else self.real(index, order)
        if alike and not reshape:
            return self.put(operator, value, *others, order=order, **attributes)
        moved = self.emit(operator, value, *others, **attributes)
        if not reshape:
            return self.finish(moved, order)
        return (self.store_reshaped if alike else self.finish_reshaped)(moved, order)

    def alike(self, *tensors: Tensor) -> bool:
        """Whether bytes of `tensors` mean the same in the first result, so that operators may move them as they are."""
        output = self.output()
        return all(tensor.dtype == output.dtype and _same_scale(tensor, output) for tensor in tensors)

    def same_kind(self, index: int) -> bool:
        """Whether a result has the scale of the first."""
        tensor = self.output(index)
        return tensor.dtype == self.output().dtype and _same_scale(tensor, self.output())

    def cast(self, value: str) -> str:
        """A value in the type of the result."""
        return self.emit("Cast", value, suffix="cast", to=_ELEMENTS[self.output().dtype])


def _same_scale(one: Tensor, other: Tensor) -> bool:
    a, b = one.quantisation, other.quantisation
    if a is None or b is None:
        return a is b
    return a.whole and b.whole and bool(a.scales[0] == b.scales[0] and a.zeros[0] == b.zeros[0])


def nchw(axis: int) -> int:
    """Where an axis of (N, H, W, C) is in (N, C, H, W)."""
    return FIRST.index(axis)


Convert = Callable[[Context], None]
