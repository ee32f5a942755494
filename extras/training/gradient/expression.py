"""Operators in real numbers, as expressions of three micro-operations: reindex, elementwise map and reduce.

These are the real counterpart of `weft.compiler.ir.microops`, as data: Jittor's meta-operators (Hu et al., "Jittor: a
novel deep learning framework with meta-operators and unified graph execution", 2020). An expression is an array whose
axes are objects, matched by identity. It repeats along axes that it lacks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

Partials = Callable[..., tuple["Expression | None", ...]]
_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class Function:
    """A function of one or two elements.

    Attributes
    ----------
    evaluate : function
        Computes the function of float64 arrays.
    operators : tuple of str
        ONNX operators that compute it, in sequence; a number after the name is the second operand.
    partials : function
        Returns the derivatives by each operand from the result and the operands, as expressions; None for 0.
    """

    evaluate: Callable[..., np.ndarray]
    operators: tuple[str, ...]
    partials: Partials


def _no_gradient(out: Expression, *operands: Expression) -> tuple[None, ...]:
    return (None,) * len(operands)


def _one() -> Expression:
    return apply("mul", 1.0)


def _of_extremum(out: Expression, a: Expression, b: Expression) -> tuple[Expression, Expression]:
    """Return the derivatives of a maximum or minimum: 1 for operands equal to the result."""
    return apply("is_zero", apply("sub", out, a)), apply("is_zero", apply("sub", out, b))


def _softsign(out: Expression, x: Expression) -> tuple[Expression]:
    below = apply("add", apply("abs", x), 1.0)
    return (apply("reciprocal", apply("mul", below, below)),)


FUNCTIONS: dict[str, Function] = {
    "add": Function(np.add, ("Add",), lambda out, a, b: (_one(), _one())),
    "sub": Function(np.subtract, ("Sub",), lambda out, a, b: (_one(), apply("neg", _one()))),
    "mul": Function(np.multiply, ("Mul",), lambda out, a, b: (b, a)),
    "div": Function(
        np.divide, ("Div",),
        lambda out, a, b: (apply("reciprocal", b), apply("neg", apply("div", out, b))),
    ),
    "maximum": Function(np.maximum, ("Max",), _of_extremum),
    "minimum": Function(np.minimum, ("Min",), _of_extremum),
    # 1 - sign(|x|): a chain of functions of one value becomes one look-up table.
    "is_zero": Function(lambda x: (x == 0).astype(np.float64), ("Abs", "Sign", "Neg", "Add 1"), _no_gradient),
    "neg": Function(np.negative, ("Neg",), lambda out, x: (apply("neg", _one()),)),
    "abs": Function(np.abs, ("Abs",), lambda out, x: (apply("sign", x),)),
    "sign": Function(np.sign, ("Sign",), _no_gradient),
    "step": Function(lambda x: (x > 0).astype(np.float64), ("Relu", "Sign"), _no_gradient),
    "exp": Function(np.exp, ("Exp",), lambda out, x: (out,)),
    "log": Function(np.log, ("Log",), lambda out, x: (apply("reciprocal", x),)),
    "sqrt": Function(np.sqrt, ("Sqrt",), lambda out, x: (apply("mul", apply("reciprocal", out), 0.5),)),
    "reciprocal": Function(
        np.reciprocal, ("Reciprocal",), lambda out, x: (apply("neg", apply("mul", out, out)),)
    ),
    "relu": Function(lambda x: np.maximum(x, 0.0), ("Relu",), lambda out, x: (apply("step", out),)),
    # The tanh does not overflow, as the exponential of a large number would.
    "sigmoid": Function(
        lambda x: 0.5 * (1 + np.tanh(0.5 * x)), ("Sigmoid",),
        lambda out, x: (apply("mul", out, apply("sub", 1.0, out)),),
    ),
    "tanh": Function(
        np.tanh, ("Tanh",), lambda out, x: (apply("sub", 1.0, apply("mul", out, out)),)
    ),
    "erf": Function(
        _erf, ("Erf",),
        lambda out, x: (
            apply("mul", apply("exp", apply("neg", apply("mul", x, x))), 2 / math.sqrt(math.pi)),
        ),
    ),
    "softplus": Function(
        lambda x: np.logaddexp(x, 0.0), ("Softplus",), lambda out, x: (apply("sigmoid", x),)
    ),
    "softsign": Function(lambda x: x / (1 + np.abs(x)), ("Softsign",), _softsign),
    "sin": Function(np.sin, ("Sin",), lambda out, x: (apply("cos", x),)),
    "cos": Function(np.cos, ("Cos",), lambda out, x: (apply("neg", apply("sin", x)),)),
}  # fmt: skip
"""Functions of expressions, by name."""


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of an array, with its size and a letter for messages."""

    size: int
    label: str = "i"

    def __repr__(self) -> str:
        return f"{self.label}:{self.size}"


@dataclass(frozen=True)
class Place:
    """A coordinate: ``(constant + sum of terms) / divisor``.

    A fraction is outside the operand, unless `floor` rounds it down.
    """

    terms: tuple[tuple[Axis, int], ...] = ()
    constant: int = 0
    divisor: int = 1
    floor: bool = False

    @classmethod
    def of(cls, axis: Axis) -> Place:
        """Return the coordinate that equals the axis."""
        return cls(((axis, 1),))

    def always(self, size: int) -> bool:
        """Return whether the coordinate is in [0, size) for every index of its axes."""
        if self.divisor != 1 and not self.floor:
            return False
        ends = [sorted((0, factor * (axis.size - 1))) for axis, factor in self.terms]
        low, high = (self.constant + sum(end[side] for end in ends) for side in (0, 1))
        return low // self.divisor >= 0 and high // self.divisor < size

    def is_axis(self, size: int) -> Axis | None:
        """Return the axis of `size` elements that the coordinate equals, or None."""
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
    """An input array, by name."""

    name: str
    axes: tuple[Axis, ...]


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """A constant array; `value` has the shape of `axes`."""

    value: np.ndarray
    axes: tuple[Axis, ...] = ()


@dataclass(frozen=True, eq=False)
class Map(Expression):
    """A function of `FUNCTIONS` applied elementwise to operands, which are matched by axis."""

    function: str
    operands: tuple[Expression, ...]
    axes: tuple[Axis, ...] = field(init=False)

    def __post_init__(self) -> None:
        axes = dict.fromkeys(axis for operand in self.operands for axis in operand.axes)
        object.__setattr__(self, "axes", tuple(axes))


@dataclass(frozen=True, eq=False)
class Reduce(Expression):
    """Sum ("add") or maximum ("maximum") over axes of the operand."""

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
    """``result[axes] = operand[places]``, or `fill` where a place is outside the operand.

    `places` has a coordinate for each axis of the operand.
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
    """The elements of the operand in row-major order, with other axes."""

    operand: Expression
    axes: tuple[Axis, ...]

    @property
    def operands(self) -> tuple[Expression, ...]:  # type: ignore[override]
        return (self.operand,)


@dataclass(frozen=True, eq=False)
class Stop(Expression):
    """The operand without gradient, for example the maximum in a softmax."""

    operand: Expression

    @property
    def axes(self) -> tuple[Axis, ...]:  # type: ignore[override]
        return self.operand.axes

    @property
    def operands(self) -> tuple[Expression, ...]:  # type: ignore[override]
        return (self.operand,)


def number(value: float) -> Constant:
    """Return a constant without axes."""
    return Constant(np.asarray(value, np.float64))


def is_number(expression: Expression, value: float) -> bool:
    """Return whether an expression is this constant."""
    return isinstance(expression, Constant) and not expression.axes and float(expression.value) == value


def apply(function: str, *operands: Expression | float) -> Expression:
    """Return a function applied elementwise; factors 1 and summands 0 are dropped."""
    items = tuple(item if isinstance(item, Expression) else number(item) for item in operands)
    if function == "mul":
        items = tuple(item for item in items if not is_number(item, 1.0))
        if len(items) <= 1:
            return items[0] if items else number(1.0)
    if function == "add":
        items = tuple(item for item in items if not is_number(item, 0.0))
        if len(items) <= 1:
            return items[0] if items else number(0.0)
    return Map(function, items)


def sum_over(expression: Expression, over: Iterable[Axis]) -> Expression:
    """Return the sum over axes; along axes that the expression lacks, it is multiplied by their size."""
    over = tuple(over)
    expression = _without(expression, [axis for axis in over if axis.size == 1])
    inside = tuple(axis for axis in over if axis in expression.axes)
    repeats = math.prod(axis.size for axis in over if axis not in inside)
    total = expression
    if inside and isinstance(expression, Reduce) and expression.kind == "add":
        # Nested sums merge, so that a sum of products stays one contraction.
        total = Reduce("add", expression.operand, (*expression.over, *inside))
    elif inside:
        total = Reduce("add", expression, inside)
    return apply("mul", total, float(repeats))


def _without(expression: Expression, single: Iterable[Axis]) -> Expression:
    """Return the expression without axes of one element."""
    gone = {axis for axis in single if axis in expression.axes}
    if not gone:
        return expression
    if isinstance(expression, Map):
        return Map(expression.function, tuple(_without(operand, gone) for operand in expression.operands))
    if isinstance(expression, Reduce):
        return Reduce(expression.kind, _without(expression.operand, gone), expression.over)
    axes = tuple(axis for axis in expression.axes if axis not in gone)
    places = {axis: Place() if axis in gone else Place.of(axis) for axis in expression.axes}
    return Reindex(expression, axes, places)


def broadcast_to(expression: Expression, axes: tuple[Axis, ...]) -> Expression:
    """Return the expression with exactly these axes, repeated along those that it lacks."""
    if expression.axes == axes:
        return expression
    return Reindex(expression, axes, {axis: Place.of(axis) for axis in expression.axes})


def topological_order(expressions: Iterable[Expression]) -> list[Expression]:
    """Return expressions and all their operands, each once, operands before their readers."""
    order: dict[int, Expression] = {}
    done: set[int] = set()
    # A stack instead of recursion: deep networks exceed Python's recursion limit.
    stack = [(item, False) for item in reversed(list(expressions))]
    while stack:
        item, visited = stack.pop()
        if visited:  # all operands are done
            order[id(item)] = item
        elif id(item) not in done:
            done.add(id(item))
            stack.append((item, True))
            stack.extend((operand, False) for operand in item.operands)
    return list(order.values())


def evaluate(expressions: Iterable[Expression], arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the float64 arrays of expressions, axes in order, for source arrays by name."""
    wanted = list(expressions)
    values: dict[int, np.ndarray] = {}
    for item in topological_order(wanted):
        values[id(item)] = _value(item, [values[id(operand)] for operand in item.operands], arrays)
    return [values[id(item)] for item in wanted]


def _value(item: Expression, operands: list[np.ndarray], sources: Mapping[str, np.ndarray]) -> np.ndarray:
    match item:
        case Source():
            return np.asarray(sources[item.name], np.float64).reshape(item.shape)
        case Constant():
            return np.asarray(item.value, np.float64)
        case Map():
            arrays = [
                _align(array, operand.axes, item.axes)
                for array, operand in zip(operands, item.operands, strict=True)
            ]
            return np.broadcast_to(FUNCTIONS[item.function].evaluate(*arrays), item.shape)
        case Reduce():
            at = tuple(item.operand.axes.index(axis) for axis in item.over)
            return np.asarray({"add": np.add, "maximum": np.maximum}[item.kind].reduce(operands[0], axis=at))
        case Reindex():
            return _read(item, operands[0])
        case Reshape():
            return operands[0].reshape(item.shape)
    return operands[0]


def _align(array: np.ndarray, own: tuple[Axis, ...], axes: tuple[Axis, ...]) -> np.ndarray:
    """Return an array with axes `own` in the order of `axes`; missing axes have size 1."""
    present = [axis for axis in axes if axis in own]
    moved = array.transpose([own.index(axis) for axis in present])
    return moved[tuple(slice(None) if axis in own else None for axis in axes)]


def _read(item: Reindex, array: np.ndarray) -> np.ndarray:
    valid = np.ones((1,) * len(item.axes), bool)
    grids = []
    for axis in item.operand.axes:
        place = item.places[axis]
        numerator = np.full((1,) * len(item.axes), place.constant)
        for term, factor in place.terms:
            numerator = numerator + factor * _align(np.arange(term.size), (term,), item.axes)
        index = numerator // place.divisor
        valid = (
            valid & (index >= 0) & (index < axis.size) & (place.floor | (index * place.divisor == numerator))
        )
        # Places outside read some element, which `fill` replaces below.
        grids.append(np.clip(index, 0, axis.size - 1))
    read = array[tuple(grids)] if grids else array
    return np.broadcast_to(np.where(valid, read, item.fill), item.shape)


def taps(axes: Iterable[Axis]) -> Iterable[dict[Axis, int]]:
    """Yield every choice of indices for some axes, in row-major order."""
    axes = tuple(axes)
    for chosen in itertools.product(*(range(axis.size) for axis in axes)):
        yield dict(zip(axes, chosen, strict=True))
