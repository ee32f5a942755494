"""What meanings of operators are written with: a node whose inputs are expressions, and how axes are matched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.ir.network import Network, Node
from weft.extras.training.gradient.derivative import GradientError
from weft.extras.training.gradient.expression import (
    Axis,
    Constant,
    Expression,
    Place,
    Reindex,
    Reshape,
    apply,
    spread,
)

FLOATS = ("float16", "float32", "float64", "bfloat16")
"""Types of real numbers."""
Handler = Callable[["Context"], "Expression | Sequence[Expression]"]
HANDLERS: dict[str, Handler] = {}
"""By the name of an operator, with the domain in front if it is not ONNX's own."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register the meaning of operators."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


@dataclass(frozen=True)
class Context:
    """A node and what its inputs are."""

    node: Node
    inputs: tuple[Expression | None, ...]
    network: Network

    @property
    def x(self) -> Expression:
        return self.operand(0)

    def operand(self, index: int) -> Expression:
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise GradientError(f"{self.node.label} has no input {index}")
        return found

    def optional(self, index: int) -> Expression | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.node.attributes.get(name, default)

    def known(self, index: int, attribute: str = "") -> np.ndarray | None:
        """A constant that is an attribute or an input; None if it is left out.

        Raises
        ------
        GradientError
            If it is computed.
        """
        if attribute and attribute in self.node.attributes:
            return np.asarray(self.node.attributes[attribute])
        found = self.optional(index)
        if found is not None and not isinstance(found, Constant):
            raise GradientError(f"{self.node.label} has no gradient where its input {index} is computed")
        return None if found is None else np.asarray(found.value)

    def whole(self, index: int, attribute: str = "") -> list[int]:
        """Integers that are an attribute or an input."""
        found = self.known(index, attribute)
        return [] if found is None else [int(item) for item in np.atleast_1d(found)]

    def refuse(self, why: str) -> GradientError:
        return GradientError(f"{self.node.label} has no gradient {why}")


def axes_of(shape: Iterable[int], labels: str = "") -> tuple[Axis, ...]:
    """New axes of these sizes."""
    return tuple(Axis(size, labels[at] if at < len(labels) else "i") for at, size in enumerate(shape))


def constant(value: np.ndarray) -> Constant:
    """An array as an expression with axes of its own."""
    return Constant(value, axes_of(value.shape))


def renamed(expression: Expression, axes: Sequence[Axis]) -> Expression:
    """An expression with other axes of the same sizes in the place of its own."""
    if expression.axes == tuple(axes):
        return expression
    if isinstance(expression, Constant):
        return Constant(expression.value, tuple(axes))
    places = {own: Place.of(axis) for own, axis in zip(expression.axes, axes, strict=True)}
    return Reindex(expression, tuple(axes), places)


def permuted(expression: Expression, order: Sequence[int]) -> Expression:
    """The same with axes in another order."""
    axes = tuple(expression.axes[at] for at in order)
    if axes == expression.axes:
        return expression
    return Reindex(expression, axes, {axis: Place.of(axis) for axis in expression.axes})


def broadcast(*operands: Expression) -> tuple[list[Expression], tuple[Axis, ...]]:
    """Operands whose axes are matched from the last one, as numpy does it, and the axes of the result.

    Axes of one element that repeat are gone from the operands.
    """
    rank = max(len(item.axes) for item in operands)
    result: list[Axis | None] = [None] * rank
    for item in sorted(operands, key=lambda item: -len(item.axes)):
        for at, axis in zip(range(rank - len(item.axes), rank), item.axes, strict=True):
            known = result[at]
            if known is None or known.size == 1:
                result[at] = axis
    axes = tuple(axis for axis in result if axis is not None)
    return [matched(item, axes[rank - len(item.axes) :]) for item in operands], axes


def matched(item: Expression, axes: tuple[Axis, ...]) -> Expression:
    """An operand with these axes in the place of its own; those of one element that repeat are gone."""
    pairs = list(zip(item.axes, axes, strict=True))
    if all(own is axis for own, axis in pairs):
        return item
    kept = tuple(axis for own, axis in pairs if own.size == axis.size)
    if isinstance(item, Constant):
        value = item.value.reshape([axis.size for axis in kept])
        return Constant(value, kept)
    places = {own: Place.of(axis) if own.size == axis.size else Place() for own, axis in pairs}
    return Reindex(item, kept, places)


def elementwise(function: str, *operands: Expression) -> Expression:
    """A function of operands that are broadcast as numpy does it, with all axes of the result."""
    given, axes = broadcast(*operands)
    return spread(apply(function, *given), axes)


def reshaped(expression: Expression, sizes: Iterable[int]) -> Expression:
    """Row-major reshape. Axes of one element come and go by themselves, which moves nothing."""
    sizes = list(sizes)
    if list(expression.shape) == sizes:
        return expression
    if isinstance(expression, Constant):
        return constant(expression.value.reshape(sizes))
    return Reshape(expression, axes_of(sizes))
