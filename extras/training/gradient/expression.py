"""What operators compute in real numbers, as expressions of micro-operations: reindex, elementwise and reduce.

It is the real counterpart of `weft.compiler.ir.microops`, as data: Jittor's meta-operators (Hu et al., "Jittor: a
novel deep learning framework with meta-operators and unified graph execution", 2020). An expression is an array whose
axes are objects, matched by identity. An axis that an operand does not have is one along which it repeats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from weft.extras.training.gradient.functions import FUNCTIONS


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of an array: how many elements it has, and a letter for messages."""

    size: int
    label: str = "i"

    def __repr__(self) -> str:
        return f"{self.label}:{self.size}"


@dataclass(frozen=True)
class Place:
    """A coordinate: ``(constant + sum of terms) / divisor``.

    A place that is no whole number is none, unless with `floor`, which rounds down.
    """

    terms: tuple[tuple[Axis, int], ...] = ()
    constant: int = 0
    divisor: int = 1
    floor: bool = False

    @classmethod
    def of(cls, axis: Axis) -> Place:
        """The coordinate that is the axis itself."""
        return cls(((axis, 1),))

    def always(self, size: int) -> bool:
        """Whether this is one of `size` places for every index of its axes."""
        if self.divisor != 1 and not self.floor:
            return False
        ends = [sorted((0, factor * (axis.size - 1))) for axis, factor in self.terms]
        low, high = (self.constant + sum(end[side] for end in ends) for side in (0, 1))
        return low // self.divisor >= 0 and high // self.divisor < size

    def is_axis(self, size: int) -> Axis | None:
        """The axis of `size` elements that this is, if it is one."""
        if len(self.terms) != 1 or self.constant or self.divisor != 1:
            return None
        ((axis, factor),) = self.terms
        return axis if factor == 1 and axis.size == size else None


class Expression:
    """An array of real numbers. Operands are expressions; there are no cycles."""

    axes: tuple[Axis, ...]
    operands: tuple[Expression, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)


@dataclass(frozen=True, eq=False)
class Source(Expression):
    """An array that is given, by name."""

    name: str
    axes: tuple[Axis, ...]


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """An array that is known; `value` has the shape of `axes`."""

    value: np.ndarray
    axes: tuple[Axis, ...] = ()


@dataclass(frozen=True, eq=False)
class Map(Expression):
    """A function of `FUNCTIONS`, element by element, of operands that are matched by axis."""

    function: str
    operands: tuple[Expression, ...]
    axes: tuple[Axis, ...] = field(init=False)

    def __post_init__(self) -> None:
        axes = dict.fromkeys(axis for operand in self.operands for axis in operand.axes)
        object.__setattr__(self, "axes", tuple(axes))


@dataclass(frozen=True, eq=False)
class Reduce(Expression):
    """The sum ("add") or the maximum ("maximum") over axes of the operand."""

    kind: str
    operand: Expression
    over: tuple[Axis, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:  # type: ignore[override]
        return tuple(axis for axis in self.operand.axes if axis not in self.over)

    @property
    def operands(self) -> tuple[Expression, ...]:  # type: ignore[override]
        return (self.operand,)


@dataclass(frozen=True, eq=False)
class Reindex(Expression):
    """``result[axes] = operand[places]``, `fill` where a place is none of the operand.

    `places` has one for each axis of the operand.
    """

    operand: Expression
    axes: tuple[Axis, ...]
    places: Mapping[Axis, Place]
    fill: float = 0.0

    @property
    def operands(self) -> tuple[Expression, ...]:  # type: ignore[override]
        return (self.operand,)


@dataclass(frozen=True, eq=False)
class Reshape(Expression):
    """The same elements in row-major order with other axes."""

    operand: Expression
    axes: tuple[Axis, ...]

    @property
    def operands(self) -> tuple[Expression, ...]:  # type: ignore[override]
        return (self.operand,)


@dataclass(frozen=True, eq=False)
class Stop(Expression):
    """The operand, of which no gradient is asked: the maximum in a softmax, for example."""

    operand: Expression

    @property
    def axes(self) -> tuple[Axis, ...]:  # type: ignore[override]
        return self.operand.axes

    @property
    def operands(self) -> tuple[Expression, ...]:  # type: ignore[override]
        return (self.operand,)


def number(value: float) -> Constant:
    """A constant without axes."""
    return Constant(np.asarray(value, np.float64))


def is_number(expression: Expression, value: float) -> bool:
    """Whether an expression is this constant."""
    return isinstance(expression, Constant) and not expression.axes and float(expression.value) == value


def apply(function: str, *operands: Expression | float) -> Expression:
    """A function, element by element; products with 1 and sums with 0 are left out."""
    given = tuple(item if isinstance(item, Expression) else number(item) for item in operands)
    if function == "mul":
        rest = tuple(item for item in given if not is_number(item, 1.0))
        given = rest if len(rest) > 1 else given
        if len(rest) <= 1:
            return rest[0] if rest else number(1.0)
    if function == "add":
        rest = tuple(item for item in given if not is_number(item, 0.0))
        if len(rest) <= 1:
            return rest[0] if rest else number(0.0)
        given = rest
    return Map(function, given)


def add_up(expression: Expression, over: Iterable[Axis]) -> Expression:
    """The sum over axes, of which some may be such that the expression repeats along them."""
    over = tuple(over)
    expression = _without(expression, [axis for axis in over if axis.size == 1])
    inside = tuple(axis for axis in over if axis in expression.axes)
    repeats = math.prod(axis.size for axis in over if axis not in inside)
    total = expression
    if inside and isinstance(expression, Reduce) and expression.kind == "add":
        total = Reduce("add", expression.operand, (*expression.over, *inside))
    elif inside:
        total = Reduce("add", expression, inside)
    return apply("mul", total, float(repeats))


def _without(expression: Expression, single: Iterable[Axis]) -> Expression:
    """The expression without axes of one element."""
    gone = {axis for axis in single if axis in expression.axes}
    if not gone:
        return expression
    if isinstance(expression, Map):
        return Map(expression.function, tuple(_without(operand, gone) for operand in expression.operands))
    if isinstance(expression, Reduce):
        return Reduce(expression.kind, _without(expression.operand, gone), expression.over)
    kept = tuple(axis for axis in expression.axes if axis not in gone)
    places = {axis: Place() if axis in gone else Place.of(axis) for axis in expression.axes}
    return Reindex(expression, kept, places)


def spread(expression: Expression, axes: tuple[Axis, ...]) -> Expression:
    """The expression with exactly these axes, repeated along those that it lacks."""
    if expression.axes == axes:
        return expression
    return Reindex(expression, axes, {axis: Place.of(axis) for axis in expression.axes})


def ordered(expressions: Iterable[Expression]) -> list[Expression]:
    """All that expressions are made of, operands ahead of what reads them, each once."""
    found: dict[int, Expression] = {}
    done: set[int] = set()
    stack = [(item, False) for item in reversed(list(expressions))]
    while stack:
        item, visited = stack.pop()
        if visited:
            found[id(item)] = item
        elif id(item) not in done:
            done.add(id(item))
            stack.append((item, True))
            stack.extend((operand, False) for operand in item.operands)
    return list(found.values())


def evaluate(expressions: Iterable[Expression], given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The arrays of expressions, float64, with their axes in order, for arrays of sources by name."""
    wanted = list(expressions)
    values: dict[int, np.ndarray] = {}
    for item in ordered(wanted):
        values[id(item)] = _value(item, [values[id(operand)] for operand in item.operands], given)
    return [values[id(item)] for item in wanted]


def _value(item: Expression, operands: list[np.ndarray], given: Mapping[str, np.ndarray]) -> np.ndarray:
    match item:
        case Source():
            return np.asarray(given[item.name], np.float64).reshape(item.shape)
        case Constant():
            return np.asarray(item.value, np.float64)
        case Map():
            spread = [
                _spread(array, operand.axes, item.axes)
                for array, operand in zip(operands, item.operands, strict=True)
            ]
            return np.broadcast_to(FUNCTIONS[item.function].evaluate(*spread), item.shape)
        case Reduce():
            at = tuple(item.operand.axes.index(axis) for axis in item.over)
            return np.asarray({"add": np.add, "maximum": np.maximum}[item.kind].reduce(operands[0], axis=at))
        case Reindex():
            return _read(item, operands[0])
        case Reshape():
            return operands[0].reshape(item.shape)
    return operands[0]


def _spread(array: np.ndarray, own: tuple[Axis, ...], axes: tuple[Axis, ...]) -> np.ndarray:
    """An array with the axes `own` in the order of `axes`, missing ones of size 1."""
    present = [axis for axis in axes if axis in own]
    moved = array.transpose([own.index(axis) for axis in present])
    return moved[tuple(slice(None) if axis in own else None for axis in axes)]


def _read(item: Reindex, array: np.ndarray) -> np.ndarray:
    valid = np.ones((1,) * len(item.axes), bool)
    grids = []
    for axis in item.operand.axes:
        place = item.places[axis]
        total = np.full((1,) * len(item.axes), place.constant)
        for term, factor in place.terms:
            total = total + factor * _spread(np.arange(term.size), (term,), item.axes)
        index = total // place.divisor
        valid = valid & (index >= 0) & (index < axis.size) & (place.floor | (index * place.divisor == total))
        grids.append(np.clip(index, 0, axis.size - 1))
    read = array[tuple(grids)] if grids else array
    return np.broadcast_to(np.where(valid, read, item.fill), item.shape)


def taps(axes: Iterable[Axis]) -> Iterable[dict[Axis, int]]:
    """Every choice of an index for each of some axes, in row-major order."""
    axes = tuple(axes)
    for chosen in itertools.product(*(range(axis.size) for axis in axes)):
        yield dict(zip(axes, chosen, strict=True))
