"""What a program of MLIR becomes: nodes of ONNX, and the values in them that stand for the program's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.host.onnx_model import NetworkError, inferred
from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Names, Network, Node, Type
from weft.extras.mlir.program import Op, Program, Quantisation, TensorType, Value

OPSETS = {"": 21, "ai.onnx.ml": 4}
"""The versions of ONNX's operators: the first whose QuantizeLinear makes int16, and that of LabelEncoder."""
_COPIES = 16
"""How many times as large as what the text has constants may become, written out and in other orders of axes."""
_SMALL = 1 << 26
"""Bytes that constants may have in any case."""


@dataclass(frozen=True, eq=False)
class Sum:
    """A value of integers of 32 bits, of which channels of the last axis lie in [low, high]: arrays of one element, or
    of one for each channel.

    `emit_scaled` makes them as floats, times a scale for each channel or one for all, in a form that the device has. `table`
    are the integers for each byte from the least on, if they are a function of one `source` of 8 bits alone.
    """

    low: np.ndarray
    high: np.ndarray
    emit_scaled: Callable[[np.ndarray], str]
    source: Value | None = None
    table: np.ndarray | None = None


class Builder:
    """Makes the network of a program. `arrays` has the values that are constant, and `makers` who makes each value.

    Of TOSA's integers `sums` has what they are, and `clamped` how results of 8 bits are made between two bounds: a
    clamp that alone reads them is then no operator of its own. `users` counts who reads each value, and
    `repeated` has what broadcasting repeats along axes of one element.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.arrays: dict[Value, np.ndarray] = {}
        self.producers: dict[Value, Op] = {}
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self._room = _SMALL + _COPIES * sum(
            compact(item).nbytes
            for op in program.ops
            for item in op.attributes.values()
            if isinstance(item, np.ndarray)
        )
        self.unique = Names().unique
        self._stored: dict[Value, str] = {}
        self._reals: dict[Value, str] = {}
        self._lazy: dict[Value, Callable[[], str]] = {}
        self._lazy_reals: dict[Value, Callable[[], str]] = {}
        self.before_broadcast: dict[Value, str] = {}
        self.sums: dict[Value, Sum] = {}
        self.clampable: dict[Value, Callable[[int, int], str]] = {}
        self.use_counts = Counter(value for op in program.ops for value in op.operands)
        self.use_counts.update(program.results)
        self._declared: dict[str, Type] = {}
        self._labels: dict[str, str] = {}
        self.op: Op | None = None

    # Nodes

    def emit(self, operator: str, inputs: Iterable[str], suffix: str = "", **attributes: Any) -> str:
        """Add a node of the operation at hand, with one result, whose name is returned."""
        (made,) = self.emit_all(operator, inputs, 1, suffix, **attributes)
        return made

    def emit_all(
        self, operator: str, inputs: Iterable[str], count: int, suffix: str = "", **attributes: Any
    ) -> list[str]:
        """The same of a node with several results."""
        assert self.op is not None
        domain, _, kind = operator.rpartition(":")
        base = self.op.name.rpartition(".")[2]
        name = self.unique(f"{base}_{self.op.line}{'.' + suffix if suffix else ''}")
        made = [self.unique(f"{name}:result") for _ in range(count)]
        given = {key: value for key, value in attributes.items() if value is not None}
        node = Node(kind, tuple(inputs), tuple(made), given, domain, name=name, index=len(self.nodes))
        self.nodes.append(node)
        self._labels[name] = self.op.label
        return made

    def constant(self, values: np.ndarray, name: str = "constant") -> str:
        """Add a constant."""
        self._room -= values.nbytes
        if self._room < 0:
            raise CompileError(
                f"{self.op.label if self.op else 'the file'} makes constants of more than {_COPIES} times the bytes "
                "that the file has for them; compute them in the model, or print them as they are"
            )
        name = self.unique(name)
        self.constants[name] = np.ascontiguousarray(values).reshape(values.shape)
        return name

    # Values

    def set(self, value: Value, name: str) -> None:
        """Note what a value is as it is stored."""
        self._stored[value] = name
        self._declared[name] = Type(value.type.dtype, value.type.shape)

    def set_real(self, value: Value, name: str) -> None:
        """Note what real numbers a quantised value, or an integer one, stands for."""
        self._reals[value] = name

    def set_lazy(self, value: Value, stored: Callable[[], str], real: Callable[[], str]) -> None:
        """Note how to make a value of integers, and its numbers as floats: whoever reads it first has it made."""
        self._lazy[value], self._lazy_reals[value] = stored, real

    def set_sum(self, value: Value, found: Sum, stored: Callable[[], str]) -> None:
        """Note what integers of 32 bits are, and how the host makes them."""
        self.sums[value] = found
        self.set_lazy(value, stored, lambda: found.emit_scaled(np.ones(1, np.float32)))

    def set_clampable(self, value: Value, make: Callable[[int, int], str]) -> None:
        """Note how to make a value of 8 bits between two bounds: whoever reads it first has it made."""
        limits = np.iinfo(value.type.dtype)
        self.clampable[value] = make
        self._lazy[value] = lambda: make(int(limits.min), int(limits.max))

    def has_real(self, value: Value) -> bool:
        """Whether a value of integers can be made as floats."""
        return value in self._lazy_reals

    def stored_value(self, value: Value) -> str:
        """A value as it is stored."""
        if value not in self._stored:
            if value in self._lazy:
                self.set(value, self._emit_earlier(self._lazy[value]))
            elif value in self.arrays:
                self._stored[value] = self.constant(self.arrays[value], value.name or "constant")
            else:
                raise self._refuse(
                    f"reads {value.type} as integers, which are not there: quantise to 8 or 16 bits first"
                )
        return self._stored[value]

    def _emit_earlier(self, make: Callable[[], str]) -> str:
        """What an operation in front of the one at hand makes."""
        op = self.op
        made = make()
        self.op = op
        return made

    def real_value(self, value: Value) -> str:
        """A value as real numbers: a DequantizeLinear of what is quantised, integers as floats, floats as they are."""
        if value not in self._reals:
            quantisation = value.type.quantisation
            if quantisation is not None:
                self._reals[value] = self.dequantise(self.stored_value(value), quantisation, value.type)
            elif value in self._lazy_reals:
                self._reals[value] = self._emit_earlier(self._lazy_reals[value])
            else:
                self._reals[value] = self.stored_value(value)
        return self._reals[value]

    def emit_transposed_real(self, value: Value, perm: Sequence[int]) -> str:
        """Real numbers with their axes in another order; of constants it is what is stored that is moved."""
        if tuple(perm) == tuple(range(len(perm))):
            return self.real_value(value)
        quantisation = value.type.quantisation
        if value not in self.arrays or value in self._reals:
            return self.emit("Transpose", (self.real_value(value),), "transpose", perm=tuple(perm))
        moved = self.constant(self.arrays[value].transpose(perm), value.name or "constant")
        if quantisation is None:
            return moved
        type_ = TensorType(value.type.dtype, tuple(value.type.shape[axis] for axis in perm))
        axis = None if quantisation.axis is None else tuple(perm).index(quantisation.axis)
        return self.dequantise(
            moved,
            Quantisation(quantisation.scales, quantisation.zeros, axis, quantisation.low, quantisation.high),
            type_,
        )

    def dequantise(self, name: str, quantisation: Quantisation, type_: TensorType) -> str:
        """What a stored value stands for."""
        parameters = self.emit_parameters(quantisation, type_.dtype)
        return self.emit("DequantizeLinear", (name, *parameters), "dequantise", axis=quantisation.axis)

    def quantise(self, name: str, quantisation: Quantisation, dtype: str) -> str:
        """Real numbers as they are stored: clipped if that is to fewer numbers than the type has."""
        limits = np.iinfo(dtype)
        if (quantisation.low, quantisation.high) != (limits.min, limits.max):
            scale, zero = np.float32(quantisation.scales[0]), int(quantisation.zeros[0])
            bounds = [
                np.float32((level - zero) * np.float64(scale))
                for level in (quantisation.low, quantisation.high)
            ]
            low, high = (self.constant(np.asarray(bound, np.float32), "bound") for bound in bounds)
            name = self.emit("Clip", (name, low, high), "clip")
        parameters = self.emit_parameters(quantisation, dtype)
        return self.emit("QuantizeLinear", (name, *parameters), "quantise", axis=quantisation.axis)

    def emit_parameters(self, quantisation: Quantisation, dtype: str) -> tuple[str, str]:
        """Constants for scales and zero points."""
        shape = () if quantisation.axis is None else quantisation.scales.shape
        scale = self.constant(quantisation.scales.reshape(shape).astype(np.float32), "scale")
        return scale, self.constant(quantisation.zeros.reshape(shape).astype(dtype), "zero")

    def _refuse(self, why: str) -> CompileError:
        return self.op.refuse(why) if self.op is not None else CompileError(f"the function {why}")

    # The network

    def network(
        self, inputs: Sequence[str], types: dict[str, Type], results: Sequence[tuple[str, str]]
    ) -> Network:
        """The network, whose outputs are `results`: their values here, and the names that they are to have.

        Raises
        ------
        CompileError
            If what the operations make is not of the types that the text says.
        """
        outputs = []
        names: dict[str, str] = {}
        for value, name in results:
            if value in self.constants or value in inputs or value in names:
                self.op = Op("func.return", 0, (), ())
                value = self.emit("Identity", (value,))
            names[value] = self.unique(name)
            outputs.append(value)
        alive, wanted = [], set(outputs)
        for node in reversed(self.nodes):
            if wanted & set(node.outputs):
                wanted.update(node.inputs)
                alive.append(node)
        nodes = tuple(_renamed(node, names, at) for at, node in enumerate(reversed(alive)))
        constants = {name: values for name, values in self.constants.items() if name in wanted}
        opsets = {
            domain: version
            for domain, version in OPSETS.items()
            if not domain or any(node.domain == domain for node in nodes)
        }
        network = Network(
            nodes, tuple(inputs), tuple(names[value] for value in outputs), types, constants, opsets
        )
        self._check(network, names)
        return network

    def _check(self, network: Network, names: dict[str, str]) -> None:
        """Compare the types of values with what the text says."""
        producers = {
            name: self._labels.get(node.name, node.name) for node in network.nodes for name in node.outputs
        }
        try:
            found = inferred(network)
        except NetworkError as error:
            raise CompileError(f"the operations contradict each other: {error}") from None
        for value, declared in self._declared.items():
            type_ = found.get(names.get(value, value))
            if (
                type_ is not None
                and type_.sizes is not None
                and type_ != declared
                and names.get(value, value) in producers
            ):
                raise CompileError(
                    f"{producers[names.get(value, value)]} makes {describe_type(type_)} for what the text says is {describe_type(declared)}"
                )


def _renamed(node: Node, names: dict[str, str], index: int) -> Node:
    inputs = tuple(names.get(name, name) for name in node.inputs)
    outputs = tuple(names.get(name, name) for name in node.outputs)
    return Node(node.operator, inputs, outputs, node.attributes, node.domain, node.name, index)


def describe_type(type_: Type) -> str:
    """A type in a message."""
    return f"{type_.dtype} of shape {'x'.join(map(str, type_.shape or ())) or '()'}"


def compact(values: np.ndarray) -> np.ndarray:
    """An array with axes of one element where one number is repeated along them."""
    places = tuple(
        slice(0, 1) if step == 0 and size > 1 else slice(None)
        for step, size in zip(values.strides, values.shape, strict=True)
    )
    return values[places]


def compact_equal(values: np.ndarray) -> np.ndarray:
    """The same, also where equal numbers follow each other."""
    values = compact(values)
    for axis in range(values.ndim):
        first = values[(slice(None),) * axis + (slice(0, 1),)]
        if values.shape[axis] > 1 and (values == first).all():
            values = first
    return values
