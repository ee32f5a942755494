"""One MLIR operation during conversion, and the record of an operation that weft reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.mlir.builder import Builder, compact, compact_equal
from weft.extras.mlir.program import Op, TensorType, Value

ELEMENTS = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16, "uint4": 21, "int4": 22,
}  # fmt: skip
"""ONNX's number of each element type (`TensorProto.DataType`)."""


@dataclass(eq=False)
class Context:
    """An operation and the builder of the network that it becomes part of."""

    op: Op
    builder: Builder

    def refuse(self, why: str) -> CompileError:
        """Return the error for an operation that cannot be read."""
        return self.op.refuse(why)

    @property
    def short(self) -> str:
        """Name of the operation without its dialect."""
        return self.op.name.partition(".")[2]

    # Operands and attributes

    def operand(self, index: int = 0) -> Value:
        if index >= len(self.op.operands):
            raise self.refuse(f"has {len(self.op.operands)} operands, and none at place {index}")
        return self.op.operands[index]

    def result(self, index: int = 0) -> Value:
        return self.op.results[index]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an operand."""
        return self.operand(index).type.shape

    def array(self, index: int) -> np.ndarray | None:
        """Return the value of an operand if it is constant, else None."""
        return self.builder.arrays.get(self.operand(index))

    def constant_operand(self, index: int, role: str) -> np.ndarray:
        """Return the value of an operand that must be constant; messages call the operand `role`."""
        array = self.array(index)
        if array is None:
            raise self.refuse(f"takes {role} from operand {index}, which is not constant; make it so")
        return array

    def attribute(self, *names: str, default: Any = None) -> Any:
        """Return the first attribute of these names that the operation has, else `default`."""
        return next((self.op.attributes[name] for name in names if name in self.op.attributes), default)

    def integers(
        self, *names: str, default: Sequence[int] | None = None, rank: int | None = None
    ) -> tuple[int, ...]:
        """Return an attribute that is a list of integers, `rank` of them if that is given."""
        numbers = self.attribute(*names, default=default)
        if isinstance(numbers, np.ndarray):
            numbers = numbers.reshape(-1).tolist()
        if not isinstance(numbers, list | tuple) or not all(isinstance(item, int) for item in numbers):
            raise self.refuse(f"has no list of integers {names[0]}")
        if rank is not None and len(numbers) != rank:
            raise self.refuse(f"has {len(numbers)} numbers in {names[0]}; there must be {rank}")
        return tuple(int(item) for item in numbers)

    def axes(self, numbers: Sequence[int], rank: int, role: str) -> tuple[int, ...]:
        """Return `numbers` as axes; refuse the operation if an axis repeats or lies outside the rank."""
        if any(not 0 <= axis < rank for axis in numbers) or len(set(numbers)) < len(numbers):
            raise self.refuse(f"has {role} {list(numbers)} for {rank} dimensions")
        return tuple(numbers)

    # Values

    def real_operand(self, index: int = 0) -> str:
        """Return the network value of an operand as real numbers.

        A constant gets only as many elements as broadcasting needs.
        """
        value = self.operand(index)
        array = self.builder.arrays.get(value)
        if array is None or len(self.op.operands) < 2:
            return self.builder.real_value(value)
        quantisation = value.type.quantisation
        if quantisation is None:
            # Equal elements can shrink only without scales per index, which differ along their axis.
            return self.builder.constant(compact_equal(array), value.name or "constant")
        small = compact(array)
        if quantisation.axis is not None:
            shape = list(small.shape)
            shape[quantisation.axis] = value.type.shape[quantisation.axis]
            small = np.broadcast_to(small, shape)
        name = self.builder.constant(small, value.name or "constant")
        return self.builder.dequantise(name, quantisation, TensorType(value.type.dtype, small.shape))

    def is_plain_integer(self, index: int = 0) -> bool:
        """Return whether an operand has integers without quantisation."""
        type_ = self.operand(index).type
        return type_.quantisation is None and not type_.dtype.startswith(("float", "bfloat"))

    def numeric_operand(self, index: int = 0) -> str:
        """Return an operand as real numbers, or as integers if it has no quantisation."""
        return self.stored_operand(index) if self.is_plain_integer(index) else self.real_operand(index)

    def broadcast_pair(self) -> tuple[str, str]:
        """Return two operands as numbers. ONNX broadcasts one operand where the other has all elements."""
        names = []
        for at in (0, 1):
            value, other = self.operand(at), self.operand(1 - at)
            other_is_full = other not in self.builder.arrays and other not in self.builder.before_broadcast
            small = self.builder.before_broadcast.get(value) if other_is_full else None
            names.append(small or self.numeric_operand(at))
        return names[0], names[1]

    def stored_operand(self, index: int = 0) -> str:
        """Return the network value of an operand in its stored type."""
        return self.builder.stored_value(self.operand(index))

    def emit_constant(self, values: Any, dtype: str = "int64") -> str:
        """Add a constant to the network."""
        return self.builder.constant(np.asarray(values, dtype))

    def emit(self, operator: str, *inputs: str, suffix: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its result."""
        return self.builder.emit(operator, inputs, suffix, **attributes)

    def transpose(self, name: str, perm: Sequence[int]) -> str:
        """Return a value with its axes permuted; no node for the identity."""
        if tuple(perm) == tuple(range(len(perm))):
            return name
        return self.emit("Transpose", name, suffix="transpose", perm=tuple(perm))

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        return self.emit("Reshape", name, self.emit_constant(list(shape)), suffix="reshape")

    # Results

    def finish(self, name: str, index: int = 0) -> None:
        """Set the real numbers of a result, and quantise them as its type says."""
        value = self.result(index)
        quantisation = value.type.quantisation
        if quantisation is None:
            self.put(name, index)
        elif value.type.dtype == "int32":  # a sum of products stays real: rounding it here would round twice
            self.builder.set_real(value, name)
        else:
            self.put(self.builder.quantise(name, quantisation, value.type.dtype), index)

    def put(self, name: str, index: int = 0) -> None:
        """Set the stored value of a result."""
        self.builder.set(self.result(index), name)

    def move(self, operator: str, *others: str, index: int = 0, **attributes: Any) -> None:
        """Move the elements of an operand: in stored form if the result has the same quantisation, else as real
        numbers."""
        one, other = self.operand(index).type, self.result().type
        alike = one.quantisation is None or one.quantisation.same(other.quantisation)
        # Quantised int32 values are sums, which exist as real numbers only, unless they are constant.
        if one.quantisation is not None and one.dtype == "int32":
            alike = self.operand(index) in self.builder.arrays
        if alike and one.dtype == other.dtype:
            self.put(self.emit(operator, self.stored_operand(index), *others, **attributes))
        else:
            self.finish(
                self.emit(operator, self.builder.real_value(self.operand(index)), *others, **attributes)
            )


Fold = Callable[..., np.ndarray | None]


@dataclass(frozen=True)
class Record:
    """Reading of one or more MLIR operations.

    `names` include the dialect. `operands` are the least and the largest number of operands (None: no limit).
    `becomes` lists the ONNX operators, for the documentation. `convert` writes them. `fold` computes the result of
    constant operands: arrays with axes of one element where a number repeats; None leaves the operation to the
    network.
    """

    names: tuple[str, ...]
    operands: tuple[int, int | None]
    becomes: str
    convert: Callable[[Context], None]
    fold: Fold | None = None
