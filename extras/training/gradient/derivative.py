"""Gradients of expressions: one rule for each kind of micro-operation, applied backwards from what is given.

A read at computed places becomes another read: a place ``(c + a x + b y) / q`` that an index s of the operand has is
solved for one of its axes, ``x = (q s - c - b y) / a``, and what several y give is added up. So the gradient of a
convolution by its input is again a sum of products over windows, and that of a read is never a scatter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.compiler.ir.graph import CompileError
from weft.extras.training.gradient.expression import (
    Axis,
    Expression,
    Map,
    Place,
    Reduce,
    Reindex,
    Reshape,
    Source,
    add_up,
    apply,
    ordered,
    spread,
)
from weft.extras.training.gradient.functions import FUNCTIONS
from weft.extras.training.gradient.reindexing import reindexed


class GradientError(CompileError):
    """An operator without a gradient: which one, and why."""


def gradients(
    given: Iterable[tuple[Expression, Expression]], wanted: Iterable[Source]
) -> list[Expression | None]:
    """The gradients by sources of the sum of products of expressions with given gradients of the same axes.

    None for a source that nothing depends on. Where a maximum is reached by several elements, each has the gradient.
    A gradient may lack axes of its source: it is the same along them.

    Raises
    ------
    GradientError
        If an expression reads two axes of an operand at one place.
    """
    wanted, pairs = list(wanted), list(given)
    needed = _depending([item for item, _ in pairs], wanted)
    found: dict[int, Expression] = {}
    for item, gradient in pairs:
        _add(found, item, gradient)
    for item in reversed(ordered(item for item, _ in pairs)):
        whole = found.get(id(item))
        if whole is None or id(item) not in needed:
            continue
        for operand, part in _parts(item, whole, needed):
            _add(found, operand, part)
    return [found.get(id(item)) for item in wanted]


def _add(found: dict[int, Expression], item: Expression, gradient: Expression) -> None:
    known = found.get(id(item))
    found[id(item)] = gradient if known is None else apply("add", known, gradient)


def _depending(outputs: list[Expression], wanted: list[Source]) -> set[int]:
    """Which expressions depend on what is wanted."""
    needed = {id(item) for item in wanted}
    for item in ordered(outputs):
        if any(id(operand) in needed for operand in item.operands):
            needed.add(id(item))
    return needed


def _parts(
    item: Expression, gradient: Expression, needed: set[int]
) -> Iterable[tuple[Expression, Expression]]:
    """Operands of an expression and what each has of the expression's gradient."""
    match item:
        case Map():
            partials = FUNCTIONS[item.function].partials(item, *item.operands)
            for operand, partial in zip(item.operands, partials, strict=True):
                if partial is not None and id(operand) in needed:
                    part = _product(gradient, partial)
                    yield operand, add_up(part, (axis for axis in item.axes if axis not in operand.axes))
        case Reduce(kind="add"):
            yield item.operand, gradient
        case Reduce() if isinstance(item.operand, Reindex) and _tiles(item.operand, item.over):
            yield item.operand.operand, _of_tiles(item, item.operand, gradient)
        case Reduce():
            yield item.operand, apply("mul", gradient, apply("is_zero", apply("sub", item, item.operand)))
        case Reindex():
            yield item.operand, read_back(item, gradient)
        case Reshape():
            whole = spread(gradient, item.axes)
            yield item.operand, Reshape(whole, item.operand.axes)


def _product(gradient: Expression, partial: Expression) -> Expression:
    if isinstance(partial, Map) and partial.function == "neg":
        return apply("neg", apply("mul", gradient, partial.operands[0]))
    return apply("mul", gradient, partial)


def _tiles(read: Reindex, over: Iterable[Axis]) -> dict[Axis, tuple[Axis, Axis]] | None:
    """For each axis of the operand that windows without overlap or gap cut: the axis of windows, and that inside one.

    None if some axis of `over` is not inside such windows, or if another axis of the operand is not read as it is.
    """
    found: dict[Axis, tuple[Axis, Axis]] = {}
    for axis, place in read.places.items():
        if place.is_axis(axis.size) is not None:
            continue
        pair = sorted(place.terms, key=lambda term: -term[1])
        if len(pair) != 2 or place.constant or place.divisor != 1:
            return None
        (outer, step), (inner, one) = pair
        if one != 1 or step != inner.size or step * outer.size != axis.size or inner not in over:
            return None
        found[axis] = outer, inner
    return found if {inner for _, inner in found.values()} == set(over) else None


def _of_tiles(item: Reduce, read: Reindex, gradient: Expression) -> Expression:
    """The gradient of a maximum over windows that lie side by side: each element knows its window."""
    tiles = _tiles(read, item.over)
    assert tiles is not None
    back = {
        tiles[axis][0] if axis in tiles else place.terms[0][0]: _tile_place(axis, tiles)
        for axis, place in read.places.items()
    }
    axes = read.operand.axes
    spread = [Reindex(value, axes, {axis: back[axis] for axis in value.axes}) for value in (gradient, item)]
    return apply("mul", spread[0], apply("is_zero", apply("sub", spread[1], read.operand)))


def _tile_place(axis: Axis, tiles: Mapping[Axis, tuple[Axis, Axis]]) -> Place:
    if axis not in tiles:
        return Place.of(axis)
    return Place(((axis, 1),), 0, tiles[axis][1].size, floor=True)


def read_back(item: Reindex, gradient: Expression) -> Expression:
    """What the operand of a read has of the gradient of the result.

    Raises
    ------
    GradientError
        If one axis of the result decides about two places.
    """
    back: dict[Axis, Place] = {}
    rest: dict[Axis, None] = dict.fromkeys(item.axes)
    for axis, place in item.places.items():
        if place.floor:
            gradient, found = _of_floor(axis, place, gradient)
            rest.pop(place.terms[0][0])
        else:
            found = _solved(axis, place, set(back))
        back[found[0]] = found[1]
        rest.pop(found[0], None)
    missing = tuple(
        axis for axis, place in back.items() if axis not in gradient.axes and not place.always(axis.size)
    )
    gradient = spread(gradient, (*gradient.axes, *missing))
    places = {axis: back.get(axis, Place.of(axis)) for axis in gradient.axes}
    axes = (*item.operand.axes, *rest)
    read = reindexed(gradient, axes, places)
    return add_up(read, rest)


def _solved(axis: Axis, place: Place, taken: set[Axis]) -> tuple[Axis, Place]:
    """The axis of the result that a place is solved for, the one with most elements, and its place by `axis`.

    For a constant place it is a new axis of one element.
    """
    if not place.terms:
        return Axis(1, axis.label), Place(((axis, place.divisor),), -place.constant)
    if any(term in taken for term, _ in place.terms):
        raise GradientError(f"one axis of {max(t.size for t, _ in place.terms)} elements is read as two")
    solved, factor = max(place.terms, key=lambda term: term[0].size)
    sign = 1 if factor > 0 else -1
    others = tuple((other, -sign * by) for other, by in place.terms if other is not solved)
    return solved, Place(((axis, sign * place.divisor), *others), -sign * place.constant, abs(factor))


def _of_floor(axis: Axis, place: Place, gradient: Expression) -> tuple[Expression, tuple[Axis, Place]]:
    """The gradient of elements that were repeated side by side, added up for each of them."""
    ((term, _),) = place.terms
    if place.constant or term.size != axis.size * place.divisor:
        raise GradientError(f"{axis.size} elements are repeated as {term.size}")
    outer, inner = Axis(axis.size, axis.label), Axis(place.divisor, axis.label)
    if term not in gradient.axes:
        return apply("mul", gradient, float(place.divisor)), (outer, Place.of(axis))
    axes = tuple(item for other in gradient.axes for item in ((outer, inner) if other is term else (other,)))
    places = {other: Place.of(other) for other in gradient.axes}
    places[term] = Place(((outer, place.divisor), (inner, 1)))
    return Reduce("add", Reindex(gradient, axes, places), (inner,)), (outer, Place.of(axis))
