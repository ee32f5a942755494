"""One operator of a TFLite file during conversion: the argument of the functions in
`weft.compiler.tflite.operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import Type
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.tflite.builder import FIRST, LAST, QUANTISED, Builder, Order
from weft.compiler.tflite.file import Operator, Tensor

_INTEGERS = ("int32", "int64", "int8", "int16", "uint8")
_ELEMENTS = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "int4": 22,
}  # fmt: skip
"""ONNX's element type numbers of tensor types."""
_CLAMPS = {1: (0.0, None), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
"""Bounds of fused activations that clamp: RELU, RELU_N1_TO_1, RELU6."""
_UNSUPPORTED_ACTIVATIONS = {4: "TANH", 5: "SIGN_BIT"}
"""Fused activations of the file format that LiteRT's kernels ignore or refuse."""
_PADDINGS = ("SAME", "VALID")


@dataclass(eq=False)
class Context:
    """An operator, and the network that is being built."""

    operator: Operator
    builder: Builder

    @property
    def name(self) -> str:
        """Name of the operator's main node, and prefix of the names of its other nodes."""
        return f"{self.operator.name.lower()}_{self.operator.index}"

    def refuse(self, why: str) -> CompileError:
        """Return the error for an operator that weft cannot read."""
        outputs = self.operator.outputs
        tensors = self.builder.file.tensors
        result = (
            f", which makes {tensors[outputs[0]].label},"
            if outputs and 0 <= outputs[0] < len(tensors)
            else ""
        )
        return CompileError(f"{self.operator.label}{result} {why}")

    # Tensors

    def has(self, index: int) -> bool:
        """Return whether an input is present; inputs may be omitted."""
        return index < len(self.operator.inputs) and self.operator.inputs[index] >= 0

    def tensor(self, index: int = 0) -> Tensor:
        """Return an input."""
        if not self.has(index):
            raise self.refuse(f"has {len(self.operator.inputs)} inputs, and no input {index}")
        return self.builder.file.tensors[self.operator.inputs[index]]

    def output(self, index: int = 0) -> Tensor:
        """Return a result."""
        if index >= len(self.operator.outputs):
            raise self.refuse(f"has {len(self.operator.outputs)} results, and no result {index}")
        return self.builder.file.tensors[self.operator.outputs[index]]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """All inputs that are not omitted."""
        return tuple(self.tensor(index) for index in range(len(self.operator.inputs)) if self.has(index))

    def image(self, index: int = 0) -> Tensor:
        """Return an input that must have rank 4."""
        tensor = self.tensor(index)
        if tensor.rank != 4:
            raise self.refuse(f"takes images of four dimensions; {tensor.label} has {tensor.rank}")
        return tensor

    def numbers(self, index: int, label: str) -> np.ndarray:
        """Return a constant input of integers, which messages call `label`, as a list."""
        tensor = self.tensor(index)
        if tensor.data is None:
            raise self.refuse(f"takes {label} from {tensor.label}, which is not constant; make it so")
        if tensor.dtype not in _INTEGERS:
            raise self.refuse(
                f"takes {label} from {tensor.label} of type {tensor.dtype}; they must be integers"
            )
        return tensor.data.astype(np.int64).reshape(-1)

    def axes(self, index: int, label: str, rank: int) -> tuple[int, ...]:
        """Return a constant input of axes, from 0 on."""
        return tuple(self.axis(int(axis), label, rank) for axis in self.numbers(index, label))

    def axis(self, axis: int, label: str, rank: int) -> int:
        """Return an axis, from 0 on."""
        if not -rank <= axis < rank:
            raise self.refuse(f"has {label} {axis} for {rank} dimensions")
        return axis % rank

    # Options

    def option(self, name: str, default: float | str = 0) -> Any:
        """Return an option by the format's name."""
        return self.operator.options.get(name, default)

    def positive(self, *names: str) -> tuple[int, ...]:
        """Return options that must be above zero."""
        values = tuple(int(self.option(name)) for name in names)
        for name, value in zip(names, values, strict=True):
            if value < 1:
                raise self.refuse(f"has {name} {value}; it must be above 0")
        return values

    @property
    def pads_same(self) -> bool:
        """True if the padding is SAME, False if it is VALID."""
        padding = int(self.option("Padding"))
        if padding not in (0, 1):
            raise self.refuse(f"has padding {padding}; there are {' and '.join(_PADDINGS)}")
        return padding == 0

    # Values

    def order(self, *indices: int) -> Order:
        """Return the present order of axes of the first input that has rank 4 and is not constant."""
        for index in indices or range(len(self.operator.inputs)):
            if self.has(index) and self.tensor(index).rank == 4 and self.tensor(index).data is None:
                return self.builder.native(self.tensor(index))
        return Order.FILE

    def real(self, index: int = 0, order: Order = Order.FILE) -> str:
        """Return an input as real numbers."""
        return self.builder.real(self.tensor(index), order)

    def raw(self, index: int = 0, order: Order = Order.FILE) -> str:
        """Return an input as stored."""
        return self.builder.value(self.tensor(index), order)

    def align(self, index: int, rank: int, order: Order) -> str:
        """Return an input of rank `rank`, with axes of one element in front, ready to broadcast in an order of axes."""
        tensor = self.tensor(index)
        if tensor.rank == rank or order is Order.FILE:
            return self.real(index, order)
        if tensor.quantisation is not None and not tensor.quantisation.per_tensor:
            raise self.refuse(f"reads {tensor.label}, which has a scale for each element of a dimension")
        shape = (1,) * (rank - tensor.rank) + tensor.shape
        wide = self.reshape(self.real(index), shape)
        return self.builder.transpose(wide, FIRST, self.name)

    def array(
        self, values: float | Sequence[int] | Sequence[float] | np.ndarray, dtype: str = "int64"
    ) -> str:
        """Return a new constant of the operator."""
        try:
            with np.errstate(over="raise"):
                return self.builder.constant(np.asarray(values, dtype), f"{self.name}:constant")
        except (OverflowError, FloatingPointError):
            raise self.refuse(f"has numbers that do not fit {np.dtype(dtype).itemsize * 8} bits") from None

    def emit(
        self, operator: str, *inputs: str, suffix: str = "", raw: bool = False, **attributes: Any
    ) -> str:
        """Add a node, and return its result; with `raw` it computes on stored integers.

        All nodes but the main node have a `suffix`.
        """
        name = f"{self.name}.{suffix}" if suffix else self.name
        return self.builder.emit(operator, inputs, name, raw=raw, **attributes)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Return a value with another shape."""
        return self.emit("Reshape", value, self.array(shape), suffix="reshape")

    def parts(self, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Return a value split along an axis."""
        names = [self.builder.unique(f"{self.name}:part") for _ in sizes]
        self.builder.node("Split", (value, self.array(sizes)), names, self.name, axis=axis)
        return names

    # State between runs

    def read_state(self, index: int) -> str:
        """Return the value of a variable at the start of a run."""
        tensor = self.tensor(index)
        value = self.builder.variables.read(tensor.index)
        self.builder.set_state(value, tensor)
        return value

    def write_state(self, index: int, value: str) -> None:
        """Assign a value in the variable's encoding to a variable for the next run."""
        tensor = self.tensor(index)
        self.builder.variables.assign(tensor.index, value, Type(tensor.dtype, tensor.shape))

    # Results

    def activate(self, value: str) -> str:
        """Return a value after the fused activation."""
        kind = int(self.option("FusedActivationFunction"))
        if not kind:
            return value
        if kind in _UNSUPPORTED_ACTIVATIONS:
            raise self.refuse(
                f"has fused activation {_UNSUPPORTED_ACTIVATIONS[kind]}, which LiteRT does not compute: use a separate "
                "operator for it"
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
        """Assign real numbers to a result, quantised as the file says."""
        tensor = self.output(index)
        if tensor.dtype in QUANTISED:
            self._scale(tensor)
            self.store(value, order, index)
        elif tensor.quantisation is not None and not tensor.dtype.startswith("float"):
            raise self.refuse(
                f"makes {tensor.label} of type {tensor.dtype} with a scale; weft reads int8 to int16"
            )
        else:
            self.store(value, order, index)

    def _scale(self, tensor: Tensor) -> Quantisation:
        """Return the quantisation of a result, which must have one scale."""
        if tensor.quantisation is None:
            raise self.refuse(f"makes {tensor.label} of type {tensor.dtype}, which has no scale")
        if not tensor.quantisation.per_tensor:
            raise self.refuse(
                f"makes {tensor.label}, which has {tensor.quantisation.scales.size} scales; results have one"
            )
        return tensor.quantisation

    def store(self, value: str, order: Order = Order.FILE, index: int = 0, *, raw: bool = False) -> None:
        """Assign a value to a result; with `raw` it is the result's stored integers."""
        self.builder.assign(self.output(index), value, order, self.name, raw=raw)

    def quantise(self, value: str, index: int = 0) -> str:
        """Return real numbers in the encoding of a result that has yet to be reshaped."""
        tensor = self.output(index)
        if tensor.dtype not in QUANTISED:
            return value
        return self.builder.round(value, self._scale(tensor), self.name)

    def finish_reshaped(self, value: str, order: Order = Order.FILE, index: int = 0) -> None:
        """Assign real numbers of another shape to a result; values of rank 4 have an order of axes."""
        self.store_reshaped(self.quantise(value, index), order, index)

    def store_reshaped(self, value: str, order: Order = Order.FILE, index: int = 0) -> None:
        """Assign a stored value of another shape to a result; values of rank 4 have an order of axes."""
        if order is Order.CHANNELS_FIRST:
            value = self.builder.transpose(value, LAST, self.name)
        self.store(self.reshape(value, self.output(index).shape), index=index)

    def move(
        self,
        operator: str,
        index: int,
        *others: str,
        order: Order = Order.FILE,
        reshape: bool = False,
        **attributes: Any,
    ) -> None:
        """Add a node that moves elements of an input."""
        value, finish = self.movable(index, order, reshape=reshape)
        finish(self.emit(operator, value, *others, **attributes), order)

    def movable(
        self, index: int, order: Order = Order.FILE, *, reshape: bool = False
    ) -> tuple[str, Callable[..., None]]:
        """Return an input to be moved, and the function that assigns it to a result, which `reshape` also reshapes.

        Without a scale, stored integers of equal types are moved.
        """
        if self.same_encoding(self.tensor(index)):
            return self.raw(index, order), self.store_reshaped if reshape else self.store
        return self.real(index, order), self.finish_reshaped if reshape else self.finish

    def same_encoding(self, *tensors: Tensor) -> bool:
        """Return whether stored values of `tensors` have the type and scale of the first result."""
        output = self.output()
        return all(tensor.dtype == output.dtype and _same_scale(tensor, output) for tensor in tensors)

    def result_has_same_encoding(self, index: int) -> bool:
        """Return whether a result has the type and scale of the first result."""
        tensor = self.output(index)
        return tensor.dtype == self.output().dtype and _same_scale(tensor, self.output())

    def cast(self, value: str) -> str:
        """Return a value in the type of the result."""
        return self.emit("Cast", value, suffix="cast", raw=True, to=_ELEMENTS[self.output().dtype])


def _same_scale(one: Tensor, other: Tensor) -> bool:
    a, b = one.quantisation, other.quantisation
    return a is b if a is None or b is None else a == b and a.per_tensor


def nchw(axis: int) -> int:
    """Return the position in (N, C, H, W) of an axis of (N, H, W, C)."""
    return FIRST.index(axis)


Convert = Callable[[Context], None]
