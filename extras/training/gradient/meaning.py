"""Operators of a network as expressions of micro-operations, in real numbers.

Operators are those of ONNX. `weft.extras.training.gradient.real_network` first converts quantised networks.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from weft.compiler.ir.network import Network, Node
from weft.extras.training.gradient import operators
from weft.extras.training.gradient.derivative import GradientError
from weft.extras.training.gradient.expression import (
    Axis,
    Constant,
    Expression,
    Place,
    Reindex,
    Reshape,
    Source,
    apply,
    broadcast_to,
)
from weft.extras.training.gradient.real_network import dependents

FLOATS = ("float16", "float32", "float64", "bfloat16")
"""Types of real numbers."""
Handler = Callable[["Context"], "Expression | Sequence[Expression]"]
HANDLERS: dict[str, Handler] = {}
"""Functions that return an operator's expression, by operator name, with the domain in front if it is not ONNX's."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Return a decorator that registers a handler for operators."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


@dataclass(frozen=True)
class Context:
    """A node, and the expressions of its inputs."""

    node: Node
    inputs: tuple[Expression | None, ...]
    network: Network

    @property
    def x(self) -> Expression:
        return self.operand(0)

    def operand(self, index: int) -> Expression:
        expression = self.inputs[index] if index < len(self.inputs) else None
        if expression is None:
            raise GradientError(f"{self.node.label} has no input {index}")
        return expression

    def optional(self, index: int) -> Expression | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or `default`."""
        return self.node.attributes.get(name, default)

    def constant_input(self, index: int, attribute: str = "") -> np.ndarray | None:
        """Return a constant that is an attribute or an input, or None if it is left out.

        Raises
        ------
        GradientError
            If the input is computed.
        """
        if attribute and attribute in self.node.attributes:
            return np.asarray(self.node.attributes[attribute])
        expression = self.optional(index)
        if expression is not None and not isinstance(expression, Constant):
            raise GradientError(f"{self.node.label} has no gradient where its input {index} is computed")
        return None if expression is None else np.asarray(expression.value)

    def integers(self, index: int, attribute: str = "") -> list[int]:
        """Return integers that are an attribute or an input."""
        array = self.constant_input(index, attribute)
        return [] if array is None else [int(item) for item in np.atleast_1d(array)]

    def refuse(self, why: str) -> GradientError:
        return GradientError(f"{self.node.label} has no gradient {why}")


def axes_of(shape: Iterable[int], labels: str = "") -> tuple[Axis, ...]:
    """Return new axes of these sizes."""
    return tuple(Axis(size, labels[at] if at < len(labels) else "i") for at, size in enumerate(shape))


def constant(value: np.ndarray) -> Constant:
    """Return an array as an expression with axes of its own."""
    return Constant(value, axes_of(value.shape))


def rename_axes(expression: Expression, axes: Sequence[Axis]) -> Expression:
    """Return an expression with its axes replaced by others of the same sizes."""
    if expression.axes == tuple(axes):
        return expression
    if isinstance(expression, Constant):
        return Constant(expression.value, tuple(axes))
    places = {own: Place.of(axis) for own, axis in zip(expression.axes, axes, strict=True)}
    return Reindex(expression, tuple(axes), places)


def permute(expression: Expression, order: Sequence[int]) -> Expression:
    """Return an expression with its axes permuted."""
    axes = tuple(expression.axes[at] for at in order)
    if axes == expression.axes:
        return expression
    return Reindex(expression, axes, {axis: Place.of(axis) for axis in expression.axes})


def broadcast(*operands: Expression) -> tuple[list[Expression], tuple[Axis, ...]]:
    """Match the axes of operands from the last one, as numpy does; return the operands and the result's axes.

    Operands lose axes of one element that repeat.
    """
    rank = max(len(item.axes) for item in operands)
    result: list[Axis | None] = [None] * rank
    for item in sorted(operands, key=lambda item: -len(item.axes)):
        for at, axis in zip(range(rank - len(item.axes), rank), item.axes, strict=True):
            known = result[at]
            # An axis of one element gives way to that of another operand.
            if known is None or known.size == 1:
                result[at] = axis
    axes = tuple(axis for axis in result if axis is not None)
    return [match_axes(item, axes[rank - len(item.axes) :]) for item in operands], axes


def match_axes(item: Expression, axes: tuple[Axis, ...]) -> Expression:
    """Return an operand with its axes replaced by these; it loses axes of one element that repeat."""
    pairs = list(zip(item.axes, axes, strict=True))
    if all(own is axis for own, axis in pairs):
        return item
    matched = tuple(axis for own, axis in pairs if own.size == axis.size)
    if isinstance(item, Constant):
        value = item.value.reshape([axis.size for axis in matched])
        return Constant(value, matched)
    places = {own: Place.of(axis) if own.size == axis.size else Place() for own, axis in pairs}
    return Reindex(item, matched, places)


def elementwise(function: str, *operands: Expression) -> Expression:
    """Return a function of broadcast operands, with all axes of the result."""
    matched, axes = broadcast(*operands)
    return broadcast_to(apply(function, *matched), axes)


def reshape(expression: Expression, sizes: Iterable[int]) -> Expression:
    """Return a row-major reshape. Adding or removing axes of one element moves nothing."""
    sizes = list(sizes)
    if list(expression.shape) == sizes:
        return expression
    if isinstance(expression, Constant):
        return constant(expression.value.reshape(sizes))
    return Reshape(expression, axes_of(sizes))


@dataclass
class Meanings:
    """Expressions of all values of a network, and its sources by name."""

    values: dict[str, Expression] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)


@cache
def handlers() -> Mapping[str, Handler]:
    """Return the handlers of all operators."""
    # Importing a module registers its handlers.
    for item in pkgutil.iter_modules(operators.__path__):
        import_module(f"{operators.__name__}.{item.name}")
    return HANDLERS


def meanings(network: Network, names: Iterable[str]) -> Meanings:
    """Return the expressions of values that depend on the inputs or constants `names`.

    Raises
    ------
    GradientError
        For an operator without a gradient that depends on them, or a value whose shape is not known.
    """
    result = Meanings()
    for name in network.inputs:
        result.sources[name] = result.values[name] = _source(network, name)
    for name, value in network.constants.items():
        result.values[name] = constant(value)
    moving = dependents(network.nodes, names)
    for node in network.nodes:
        if not moving.intersection(node.outputs):
            # No gradient passes through a value that depends on none of `names`: its operator needs no handler.
            result.values.update({name: _source(network, name) for name in node.outputs if name})
            continue
        handler = handlers().get(node.op)
        if handler is None:
            raise GradientError(f"{node.label} is an operator that has no gradient here")
        inputs = tuple(result.values[name] if name else None for name in node.inputs)
        expression = handler(Context(node, inputs, network))
        results = [expression] if isinstance(expression, Expression) else list(expression)
        result.values.update(zip(node.outputs, results, strict=False))
    return result


def _source(network: Network, name: str) -> Source:
    kind = network.type_of(name)
    if kind is None or kind.sizes is None:
        raise GradientError(f"the shape of {name!r} is not known: give sizes for what the model leaves open")
    return Source(name, axes_of(kind.sizes))
