"""Builder of the ONNX network that an MLIR program becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError, NetworkError
from weft.compiler.host.onnx_model import infer_types
from weft.compiler.ir.network import Names, Network, Node, Type
from weft.compiler.ir.quantisation import Quantisation as StoredNumbers
from weft.compiler.onnx.links import Link, absorb, as_real, stored_types
from weft.extras.mlir.program import Op, Program, Quantisation, TensorType, Value

OPSETS = {"": 21, "ai.onnx.ml": 4}
"""Versions of ONNX's operator sets: the first with quantised values of 16 bits, and one with LabelEncoder."""
_COPIES = 16
"""Largest total size of constants, in multiples of the size that they have in the text."""
_SMALL = 1 << 26
"""Bytes of constants that are always allowed."""


@dataclass(frozen=True, eq=False)
class Sum:
    """Range and quantised form of an int32 value.

    Channel c of the last axis lies in [low[c], high[c]]; both arrays have one element per channel, or one for all.

    `emit_scaled` adds nodes that compute the value as floats, times one scale per channel or one for all, in a form
    that the device supports. If the value is a function of one 8-bit `source`, `table` has its result for each byte,
    in ascending order.
    """

    low: np.ndarray
    high: np.ndarray
    emit_scaled: Callable[[np.ndarray], str]
    source: Value | None = None
    table: np.ndarray | None = None


class Builder:
    """Builder of a network.

    `arrays` has the values of constants, and `producers` the operation that makes each value. `sums` describes int32
    values of TOSA. `clampable` has functions that emit an 8-bit value clamped to two bounds, which absorb a clamp
    that is the only reader. `use_counts` has the number of reads of each value. `before_broadcast` has the network
    value that a broadcast repeats along axes of one element.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.arrays: dict[Value, np.ndarray] = {}
        self.producers: dict[Value, Op] = {}
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        # A splat counts as one element here: a few bytes of text must not become gigabytes of constants.
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
        self._links: dict[str, Link] = {}
        self.op: Op | None = None

    # Nodes

    def emit(self, operator: str, inputs: Iterable[str], suffix: str = "", **attributes: Any) -> str:
        """Add a node with one result for the current operation; return the result's name."""
        (name,) = self.emit_all(operator, inputs, 1, suffix, **attributes)
        return name

    def emit_all(
        self, operator: str, inputs: Iterable[str], count: int, suffix: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with `count` results for the current operation; return their names."""
        assert self.op is not None
        domain, _, kind = operator.rpartition(":")
        base = self.op.name.rpartition(".")[2]
        name = self.unique(f"{base}_{self.op.line}{'.' + suffix if suffix else ''}")
        outputs = [self.unique(f"{name}:result") for _ in range(count)]
        present = {key: value for key, value in attributes.items() if value is not None}
        node = Node(kind, tuple(inputs), tuple(outputs), present, domain, name=name, index=len(self.nodes))
        self.nodes.append(node)
        self._labels[name] = self.op.label
        return outputs

    def constant(self, values: np.ndarray, name: str = "constant") -> str:
        """Add a constant and return its name."""
        self._room -= values.nbytes
        if self._room < 0:
            raise CompileError(
                f"{self.op.label if self.op else 'the file'} makes constants of more than {_COPIES} times the bytes "
                "that the file has for them; compute them in the model, or print them as they are"
            )
        name = self.unique(name)
        # ascontiguousarray turns a scalar into a list of one: restore the shape.
        self.constants[name] = np.ascontiguousarray(values).reshape(values.shape)
        return name

    # Values

    def set(self, value: Value, name: str) -> None:
        """Set the network value that holds the stored form of `value`."""
        self._stored[value] = name
        self._declared[name] = Type(value.type.dtype, value.type.shape)

    def set_real(self, value: Value, name: str) -> None:
        """Set the network value that holds the real numbers of `value`."""
        self._reals[value] = name

    def set_lazy(self, value: Value, stored: Callable[[], str], real: Callable[[], str]) -> None:
        """Set functions that emit an integer value, and the same numbers as floats, when they are first read."""
        self._lazy[value], self._lazy_reals[value] = stored, real

    def set_sum(self, value: Value, description: Sum, stored: Callable[[], str]) -> None:
        """Set the description of an int32 value, and a function that emits it for the host."""
        self.sums[value] = description
        self.set_lazy(value, stored, lambda: description.emit_scaled(np.ones(1, np.float32)))

    def set_clampable(self, value: Value, make: Callable[[int, int], str]) -> None:
        """Set a function that emits an 8-bit value between two bounds when it is first read."""
        limits = np.iinfo(value.type.dtype)
        self.clampable[value] = make
        self._lazy[value] = lambda: make(int(limits.min), int(limits.max))

    def has_real(self, value: Value) -> bool:
        """Return whether an integer value can be emitted as floats."""
        return value in self._lazy_reals

    def stored_value(self, value: Value) -> str:
        """Return the network value that holds the stored form of `value`; emit it if needed."""
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
        """Run `make` of an earlier operation, then restore the current one."""
        # Nodes are named after the operation that they come from, not after the first that reads them.
        op = self.op
        name = make()
        self.op = op
        return name

    def real_value(self, value: Value) -> str:
        """Return the network value with the real numbers of `value`; emit it if needed.

        Quantised values pass through DequantizeLinear, and integers become floats.
        """
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
        """Emit real numbers with axes permuted. Constants are permuted in stored form."""
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
        """Emit the real numbers of a stored value."""
        return self._convert(name, quantisation, type_.dtype, quantises=False)

    def quantise(self, name: str, quantisation: Quantisation, dtype: str) -> str:
        """Emit the stored form of real numbers, clipped if the range is smaller than that of the type."""
        limits = np.iinfo(dtype)
        # Rounding saturates at the limits of the type only, so a narrower range needs a Clip.
        if (quantisation.low, quantisation.high) != (limits.min, limits.max):
            scale, zero = np.float32(quantisation.scales[0]), int(quantisation.zeros[0])
            bounds = [
                np.float32((level - zero) * np.float64(scale))
                for level in (quantisation.low, quantisation.high)
            ]
            low, high = (self.constant(np.asarray(bound, np.float32), "bound") for bound in bounds)
            name = self.emit("Clip", (name, low, high), "clip")
        return self._convert(name, quantisation, dtype, quantises=True)

    def _convert(self, name: str, quantisation: Quantisation, dtype: str, *, quantises: bool) -> str:
        result = self.emit("Identity", (name,), "quantise" if quantises else "dequantise")
        shape = () if quantisation.axis is None else quantisation.scales.shape
        scales, zeros = quantisation.scales.astype(np.float32), quantisation.zeros.astype(dtype)
        parameters = StoredNumbers(scales.reshape(shape), zeros.reshape(shape), quantisation.axis or 0)
        self._links[self.nodes[-1].name] = Link(parameters, quantises)
        return result

    def _refuse(self, why: str) -> CompileError:
        return self.op.refuse(why) if self.op is not None else CompileError(f"the function {why}")

    # The network

    def network(
        self, inputs: Sequence[str], types: dict[str, Type], results: Sequence[tuple[str, str]]
    ) -> Network:
        """Return the network. `results` are pairs of a network value and the name of the output.

        Raises
        ------
        CompileError
            If the inferred types differ from those in the text.
        """
        outputs = []
        names: dict[str, str] = {}
        for value, name in results:
            # Each output needs a node of its own, also for an input, a constant or a value that is returned twice.
            if value in self.constants or value in inputs or value in names:
                self.op = Op("func.return", 0, (), ())
                value = self.emit("Identity", (value,))
            names[value] = self.unique(name)
            outputs.append(value)
        # Lazy values and absorbed operations leave nodes without readers.
        alive, wanted = [], set(outputs)
        for node in reversed(self.nodes):
            if wanted & set(node.outputs):
                wanted.update(node.inputs)
                alive.append(node)
        nodes = tuple(_rename(node, names, at) for at, node in enumerate(reversed(alive)))
        constants = {name: values for name, values in self.constants.items() if name in wanted}
        opsets = {
            domain: version
            for domain, version in OPSETS.items()
            if not domain or any(node.domain == domain for node in nodes)
        }
        network = absorb(
            Network(nodes, tuple(inputs), tuple(names[value] for value in outputs), types, constants, opsets),
            self._links,
        )
        self._check(network, names)
        return network

    def _check(self, network: Network, names: dict[str, str]) -> None:
        """Compare inferred types with those in the text."""
        producers = {
            name: self._labels.get(node.name, node.name) for node in network.nodes for name in node.outputs
        }
        real, quantised = as_real(network)
        try:
            types = stored_types(infer_types(real), quantised)
        except NetworkError as error:
            raise CompileError(f"the operations contradict each other: {error}") from None
        for value, declared in self._declared.items():
            type_ = types.get(names.get(value, value))
            producer = producers.get(names.get(value, value))
            if type_ is not None and type_.sizes is not None and type_ != declared and producer is not None:
                raise CompileError(
                    f"{producer} has a result of {describe_type(type_)}; the text declares {describe_type(declared)}"
                )


def _rename(node: Node, names: dict[str, str], index: int) -> Node:
    inputs = tuple(names.get(name, name) for name in node.inputs)
    outputs = tuple(names.get(name, name) for name in node.outputs)
    return Node(node.operator, inputs, outputs, node.attributes, node.domain, node.name, index)


def describe_type(type_: Type) -> str:
    return f"{type_.dtype} of shape {'x'.join(map(str, type_.shape or ())) or '()'}"


def compact(values: np.ndarray) -> np.ndarray:
    """Return a view with one element along each axis that only repeats (stride 0)."""
    places = tuple(
        slice(0, 1) if step == 0 and size > 1 else slice(None)
        for step, size in zip(values.strides, values.shape, strict=True)
    )
    return values[places]


def compact_equal(values: np.ndarray) -> np.ndarray:
    """Return a view with one element along each axis whose elements are all equal."""
    values = compact(values)
    # Exporters print splats as full lists, too; broadcasting needs them as one element.
    for axis in range(values.ndim):
        first = values[(slice(None),) * axis + (slice(0, 1),)]
        if values.shape[axis] > 1 and (values == first).all():
            values = first
    return values
