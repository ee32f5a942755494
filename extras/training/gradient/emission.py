"""Expressions as operators of a network, in forms that the device has.

Sums of products are matrix products, windows are slices of the padded image side by side (im2col), and repetition is
that of nearest elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from weft.compiler.ir.graph import IrError
from weft.extras.training.gradient.expression import (
    Axis,
    Constant,
    Expression,
    Map,
    Reduce,
    Reindex,
    Reshape,
    Stop,
)
from weft.extras.training.gradient.functions import FUNCTIONS
from weft.extras.training.gradient.held import Graph, Held, apart, singles
from weft.extras.training.gradient.reads import read

_PAIR = 2


class Emission:
    """Makes nodes of expressions. What is in the network already is told by `place`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._made: dict[int, tuple[Expression, Held]] = {}

    def place(self, expression: Expression, held: Held) -> None:
        """Say which value of the network an expression is."""
        self._made[id(expression)] = expression, held

    def value(self, expression: Expression) -> Held:
        """The value that an expression is, made if it is not there yet; it may lack axes along which it repeats."""
        stack = [expression]
        while stack:
            item = stack[-1]
            if id(item) in self._made:
                stack.pop()
                continue
            missing = [operand for operand in self._read(item) if id(operand) not in self._made]
            if missing:
                stack.extend(missing)
                continue
            self.place(item, self._make(item))
            stack.pop()
        return self._made[id(expression)][1]

    def whole(self, expression: Expression) -> str:
        """The name of the value with all axes of an expression, a dimension for each."""
        held = self.value(expression)
        present = [axis for axis in expression.axes if axis in held.axes]
        arranged = self.graph.arrange(held, singles(present))
        if len(present) == len(expression.axes):
            return arranged.name
        dims = tuple((axis,) if axis in present else () for axis in expression.axes)
        arranged = self.graph.reshape(arranged, dims)
        return self.graph.node("Expand", [arranged.name, self.graph.integers(expression.shape)])

    def _read(self, item: Expression) -> tuple[Expression, ...]:
        product = _product_of(item)
        return product.operands if product is not None else item.operands

    def _made_of(self, item: Expression) -> list[Held]:
        return [self._made[id(operand)][1] for operand in self._read(item)]

    def _make(self, item: Expression) -> Held:
        operands = self._made_of(item)
        if _product_of(item) is not None:
            assert isinstance(item, Reduce)
            return self._contraction(operands[0], operands[1], item.over)
        match item:
            case Constant():
                return Held(self.graph.constant(item.value.astype(np.float32)), singles(item.axes))
            case Map():
                return self._map(item, operands)
            case Reduce(kind="add"):
                return self._sum(operands[0], item.over)
            case Reduce():
                return self._maximum(operands[0], item.over)
            case Reindex():
                return read(self.graph, item, operands[0])
            case Reshape():
                name = self.whole(item.operand)
                return self.graph.reshape(Held(name, singles(item.operand.axes)), singles(item.axes))
            case Stop():
                return operands[0]
        raise IrError(f"{type(item).__name__} is no value of the network")

    def _map(self, item: Map, operands: list[Held]) -> Held:
        axes = list(dict.fromkeys(axis for held in operands for axis in held.axes))
        largest = max(operands, key=lambda held: len(held.axes))
        dims = largest.dims if len(largest.axes) == len(axes) else singles(axes)
        if any(_cuts(held, dims) for held in operands):
            dims = apart(largest.memory if len(largest.axes) == len(axes) else axes)
        names = [self._spread(held, dims) for held in operands]
        first, *rest = FUNCTIONS[item.function].operators
        name = self.graph.node(first, names)
        for step in rest:
            operator, *numbers = step.split()
            constants = [self.graph.constant(np.asarray(float(item), np.float32)) for item in numbers]
            name = self.graph.node(operator, [name, *constants])
        return Held(name, dims)

    def _spread(self, held: Held, dims: tuple[tuple[Axis, ...], ...]) -> str:
        """A value with a dimension of one element for each of `dims` whose axes it lacks."""
        if not held.axes and not held.dims:
            return held.name
        present = tuple(dim for dim in dims if dim and dim[0] in held.axes)
        arranged = self.graph.arrange(held, present)
        return self.graph.reshape(arranged, tuple(dim if dim in present else () for dim in dims)).name

    def _sum(self, held: Held, over: Iterable[Axis]) -> Held:
        """The sum over axes as a product with ones."""
        inside = tuple(axis for axis in held.memory if axis in set(over))
        repeats = math.prod(axis.size for axis in over if axis not in inside)
        if inside:
            size = math.prod(axis.size for axis in inside)
            rest = tuple(axis for axis in held.memory if axis not in inside)
            if held.memory[-len(inside) :] == inside:
                ones = self.graph.constant(np.ones((size, 1), np.float32))
                held = self.graph.arrange(held, (rest, inside))
                held = Held(self.graph.node("MatMul", [held.name, ones]), (rest, ()))
            else:
                ones = self.graph.constant(np.ones((1, size), np.float32))
                held = self.graph.arrange(held, (inside, rest))
                held = Held(self.graph.node("MatMul", [ones, held.name]), ((), rest))
        return self._times(held, repeats)

    def _times(self, held: Held, factor: float) -> Held:
        if factor == 1:
            return held
        constant = self.graph.constant(np.asarray(factor, np.float32))
        return Held(self.graph.node("Mul", [held.name, constant]), held.dims)

    def _maximum(self, held: Held, over: Iterable[Axis]) -> Held:
        inside = tuple(axis for axis in held.memory if axis in set(over))
        if not inside:
            return held
        rest = tuple(axis for axis in held.memory if axis not in inside)
        held = self.graph.arrange(held, (rest, inside))
        return Held(self.graph.node("ReduceMax", [held.name, self.graph.integers([1])]), (rest, ()))

    def _contraction(self, a: Held, b: Held, over: tuple[Axis, ...]) -> Held:
        """The sum of products over axes, as a matrix product for each index of the axes that all have."""
        shared = [axis for axis in over if axis in a.axes and axis in b.axes]
        repeats = math.prod(axis.size for axis in over if axis not in a.axes and axis not in b.axes)
        a, b = (
            self._sum(held, [axis for axis in over if axis in held.axes and axis not in shared])
            for held in (a, b)
        )
        if _inner(b, shared) and not _inner(a, shared):
            a, b = b, a
        order = tuple(axis for axis in max((a, b), key=_size).memory if axis in shared)
        batch = tuple(axis for axis in a.memory if axis in b.axes and axis not in shared)
        left, right = (
            tuple(axis for axis in held.memory if axis not in shared and axis not in batch) for held in (a, b)
        )
        lead = (batch,) if batch else ()
        first = self.graph.arrange(a, (*lead, left, order))
        second = self.graph.arrange(b, (*lead, order, right))
        name = self.graph.node("MatMul", [first.name, second.name])
        return self._times(Held(name, (*lead, left, right)), repeats)


def _product_of(item: Expression) -> Map | None:
    """The product of two arrays that an expression sums up, if one of them repeats along an axis of the result."""
    if not isinstance(item, Reduce) or item.kind != "add" or not isinstance(item.operand, Map):
        return None
    found = item.operand
    if found.function != "mul" or len(found.operands) != _PAIR:
        return None
    a, b = (set(operand.axes) for operand in found.operands)
    return found if (a ^ b) - set(item.over) else None


def _size(held: Held) -> int:
    return math.prod(held.sizes)


def _inner(held: Held, shared: list[Axis]) -> bool:
    """Whether elements that are summed up lie together, so that a value is the first matrix as it is."""
    return bool(shared) and held.memory[-1] in shared


def _cuts(held: Held, dims: tuple[tuple[Axis, ...], ...]) -> bool:
    """Whether a value has some axes of a dimension and lacks others."""
    return any(len({axis in held.axes for axis in dim}) > 1 for dim in dims)
