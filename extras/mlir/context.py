"""One operation of a program on its way into the network: what the functions of `weft.extras.mlir.operators` are
given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.extras.mlir.builder import Builder, compact, reduced
from weft.extras.mlir.program import Op, TensorType, Value

ELEMENTS = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16, "uint4": 21, "int4": 22,
}  # fmt: skip
"""ONNX's numbers of the types of elements."""


@dataclass(eq=False)
class Context:
    """An operation, and the network that is being built."""

    op: Op
    builder: Builder

    def refuse(self, why: str) -> CompileError:
        """The error for an operation that cannot be read."""
        return self.op.refuse(why)

    @property
    def short(self) -> str:
        """The operation's name without its dialect."""
        return self.op.name.partition(".")[2]

    # Operands and attributes

    def operand(self, index: int = 0) -> Value:
        if index >= len(self.op.operands):
            raise self.refuse(f"has {len(self.op.operands)} operands, and none at place {index}")
        return self.op.operands[index]

    def result(self, index: int = 0) -> Value:
        return self.op.results[index]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of an operand."""
        return self.operand(index).type.shape

    def array(self, index: int) -> np.ndarray | None:
        """An operand that is constant."""
        return self.builder.arrays.get(self.operand(index))

    def constant(self, index: int, what: str) -> np.ndarray:
        """An operand that must be constant, which the operation calls `what`."""
        found = self.array(index)
        if found is None:
            raise self.refuse(f"takes {what} from operand {index}, which is not constant; make it so")
        return found

    def attribute(self, *names: str, default: Any = None) -> Any:
        """An attribute by the first of its names that there is."""
        return next((self.op.attributes[name] for name in names if name in self.op.attributes), default)

    def integers(
        self, *names: str, default: Sequence[int] | None = None, rank: int | None = None
    ) -> tuple[int, ...]:
        """An attribute that is a list of integers; `rank`: as many as there must be."""
        found = self.attribute(*names, default=default)
        if isinstance(found, np.ndarray):
            found = found.reshape(-1).tolist()
        if not isinstance(found, list | tuple) or not all(isinstance(item, int) for item in found):
            raise self.refuse(f"has no list of integers {names[0]}")
        if rank is not None and len(found) != rank:
            raise self.refuse(f"has {len(found)} numbers in {names[0]}; there must be {rank}")
        return tuple(int(item) for item in found)

    def axes(self, numbers: Sequence[int], rank: int, what: str) -> tuple[int, ...]:
        """Axes, each once and below the rank."""
        if any(not 0 <= axis < rank for axis in numbers) or len(set(numbers)) < len(numbers):
            raise self.refuse(f"has {what} {list(numbers)} for {rank} dimensions")
        return tuple(numbers)

    # Values

    def real(self, index: int = 0) -> str:
        """An operand as real numbers; of constants only as many elements as broadcasting needs."""
        value = self.operand(index)
        found = self.builder.arrays.get(value)
        if found is None or len(self.op.operands) < 2:
            return self.builder.real(value)
        quantisation = value.type.quantisation
        if quantisation is None:
            return self.builder.constant(reduced(found), value.name or "constant")
        small = compact(found)
        if quantisation.axis is not None:
            shape = list(small.shape)
            shape[quantisation.axis] = value.type.shape[quantisation.axis]
            small = np.broadcast_to(small, shape)
        name = self.builder.constant(small, value.name or "constant")
        return self.builder.dequantised(name, quantisation, TensorType(value.type.dtype, small.shape))

    def whole(self, index: int = 0) -> bool:
        """Whether an operand is integers that stand for themselves."""
        given = self.operand(index).type
        return given.quantisation is None and not given.dtype.startswith(("float", "bfloat"))

    def number(self, index: int = 0) -> str:
        """An operand as real numbers, but integers that stand for themselves as they are."""
        return self.stored(index) if self.whole(index) else self.real(index)

    def pair(self) -> tuple[str, str]:
        """Two operands as numbers, of which ONNX repeats one as it needs."""
        names = []
        for at in (0, 1):
            value, other = self.operand(at), self.operand(1 - at)
            whole = other not in self.builder.arrays and other not in self.builder.repeated
            small = self.builder.repeated.get(value) if whole else None
            names.append(small or self.number(at))
        return names[0], names[1]

    def stored(self, index: int = 0) -> str:
        """An operand as it is stored."""
        return self.builder.stored(self.operand(index))

    def numbers(self, values: Any, dtype: str = "int64") -> str:
        """A constant of the operation's own."""
        return self.builder.constant(np.asarray(values, dtype))

    def emit(self, operator: str, *inputs: str, suffix: str = "", **attributes: Any) -> str:
        """Add a node, whose result is returned."""
        return self.builder.emit(operator, inputs, suffix, **attributes)

    def transposed(self, name: str, perm: Sequence[int]) -> str:
        """A value with its axes in another order."""
        if tuple(perm) == tuple(range(len(perm))):
            return name
        return self.emit("Transpose", name, suffix="transpose", perm=tuple(perm))

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        return self.emit("Reshape", name, self.numbers(list(shape)), suffix="reshape")

    # Results

    def finish(self, name: str, index: int = 0) -> None:
        """Give a result its real numbers: they are quantised as its type says."""
        value = self.result(index)
        quantisation = value.type.quantisation
        if quantisation is None:
            self.put(name, index)
        elif value.type.dtype == "int32":  # sums of products, which are whole multiples of their scale
            self.builder.set_real(value, name)
        else:
            self.put(self.builder.quantised(name, quantisation, value.type.dtype), index)

    def put(self, name: str, index: int = 0) -> None:
        """Give a result what is stored."""
        self.builder.set(self.result(index), name)

    def move(self, operator: str, *others: str, index: int = 0, **attributes: Any) -> None:
        """Move elements of an operand: what is stored if it means the same in the result."""
        one, other = self.operand(index).type, self.result().type
        alike = one.quantisation is None or one.quantisation.same(other.quantisation)
        if one.quantisation is not None and one.dtype == "int32":  # sums, which are real numbers alone
            alike = self.operand(index) in self.builder.arrays
        if alike and one.dtype == other.dtype:
            self.put(self.emit(operator, self.stored(index), *others, **attributes))
        else:
            self.finish(self.emit(operator, self.builder.real(self.operand(index)), *others, **attributes))


Fold = Callable[..., np.ndarray | None]


@dataclass(frozen=True)
class Record:
    """Operations by `names` with their dialect, the number of operands that they take at least and at most (None: any),
    what of ONNX they become, for the documentation, and the function that writes it. `fold` computes the result of
    constant operands: arrays whose axes have one element where a number is repeated; None for what is not
    computed ahead.
    """

    names: tuple[str, ...]
    operands: tuple[int, int | None]
    becomes: str
    convert: Callable[[Context], None]
    fold: Fold | None = None
