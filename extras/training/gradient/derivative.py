"""Gradients of expressions: one rule per kind of micro-operation, applied backwards from given gradients.

A read at computed places becomes another read. The place ``(c + a x + b y) / q`` of an operand's index s is solved
for one axis, ``x = (q s - c - b y) / a``, and the gradient is summed over y. So the gradient of a convolution by its
input is again a sum of products over windows, and no gradient is a scatter.

Reads move through sums and products: ``sum_o (a[h, o] * b[o, y])`` read at ``h = s - y`` becomes ``sum_o (a[s - y, o]
* b[o, y])``, a sum of products of windows. Otherwise the read would need the outer product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.compiler.errors import CompileError
from weft.extras.training.gradient.expression import (
    FUNCTIONS,
    Axis,
    Expression,
    Map,
    Place,
    Reduce,
    Reindex,
    Reshape,
    Source,
    apply,
    broadcast_to,
    sum_over,
    topological_order,
)

Places = Mapping[Axis, Place]


def reindex(item: Expression, axes: Iterable[Axis], places: Places, *, free: bool = False) -> Expression:
    """Return an expression read at `places` of its axes, with the axes of `axes` that it depends on.

    Outside the axis it is 0, or with `free` anything. An expression without an axis that is read twice becomes a plain
    `Reindex`.
    """
    axes = tuple(dict.fromkeys(axes))
    if all(places[axis] == Place.of(axis) for axis in item.axes):
        return item
    twice = _reads_axis_twice(item, places)
    if twice and isinstance(item, Reduce) and item.kind == "add":
        inner = {**places, **{axis: Place.of(axis) for axis in item.over}}
        return Reduce("add", reindex(item.operand, (*axes, *item.over), inner, free=free), item.over)
    if twice and isinstance(item, Map) and (free or item.function == "mul"):
        return _reindex_map(item, axes, places, free=free)
    if twice and free and isinstance(item, Reindex):
        inside = {axis: _compose(place, places) for axis, place in item.places.items()}
        composed = {axis: place for axis, place in inside.items() if place is not None}
        if len(composed) == len(inside):
            return reindex(item.operand, axes, composed, free=True)
    own = {axis: places[axis] for axis in item.axes}
    # The result lacks the axes that no place uses, and repeats along them.
    terms = {axis for place in own.values() for axis, _ in place.terms}
    return Reindex(item, tuple(axis for axis in axes if axis in terms), own)


def _reads_axis_twice(item: Expression, places: Places) -> bool:
    """Return whether one axis would determine two coordinates of an expression."""
    used = [axis for own in item.axes for axis, _ in places[own].terms]
    return len(set(used)) < len(used)


def _reindex_map(item: Map, axes: tuple[Axis, ...], places: Places, *, free: bool) -> Expression:
    """Read the operands of a map. A product is 0 where one factor is, so the other factors are free there."""
    # One factor with all axes that can leave their range makes the product 0 there.
    partial = {axis for axis in item.axes if not places[axis].always(axis.size)}
    strict = (
        None
        if free
        else next((at for at, operand in enumerate(item.operands) if partial <= {*operand.axes}), None)
    )
    operands = [
        reindex(operand, axes, places, free=free or (strict is not None and at != strict))
        for at, operand in enumerate(item.operands)
    ]
    return Map(item.function, tuple(operands))


def _compose(place: Place, places: Places) -> Place | None:
    """Return a place whose axes are places themselves, or None if it has no such form."""
    if place.floor or place.divisor != 1:
        return None
    terms: dict[Axis, int] = {}
    constant = place.constant
    for axis, factor in place.terms:
        inner = places.get(axis, Place.of(axis))
        # Only a factor that the divisor divides leaves a linear place.
        if inner.floor or factor % inner.divisor:
            return None
        by = factor // inner.divisor
        constant += by * inner.constant
        for term, own in inner.terms:
            terms[term] = terms.get(term, 0) + by * own
    return Place(tuple((axis, factor) for axis, factor in terms.items() if factor), constant)


class GradientError(CompileError):
    """Error for an operator without a gradient."""


def gradients(
    seeds: Iterable[tuple[Expression, Expression]], wanted: Iterable[Source]
) -> list[Expression | None]:
    """Return the gradients by `wanted` of the sum of products of expressions and their given gradients.

    The gradient is None if no expression depends on the source. If several elements reach a maximum, each gets the
    gradient. A gradient may lack axes of its source, along which it repeats.

    Raises
    ------
    GradientError
        If an expression reads two axes of an operand at one place.
    """
    wanted, pairs = list(wanted), list(seeds)
    needed = _dependents([item for item, _ in pairs], wanted)
    # Reverse topological order: an expression's gradient is complete before it is passed to its operands.
    by_id: dict[int, Expression] = {}
    for item, gradient in pairs:
        _add(by_id, item, gradient)
    for item in reversed(topological_order(item for item, _ in pairs)):
        total = by_id.get(id(item))
        if total is None or id(item) not in needed:
            continue
        for operand, part in _operand_gradients(item, total, needed):
            _add(by_id, operand, part)
    return [by_id.get(id(item)) for item in wanted]


def _add(gradients_by_id: dict[int, Expression], item: Expression, gradient: Expression) -> None:
    known = gradients_by_id.get(id(item))
    gradients_by_id[id(item)] = gradient if known is None else apply("add", known, gradient)


def _dependents(outputs: list[Expression], wanted: list[Source]) -> set[int]:
    """Return the ids of expressions that depend on `wanted`."""
    needed = {id(item) for item in wanted}
    for item in topological_order(outputs):
        if any(id(operand) in needed for operand in item.operands):
            needed.add(id(item))
    return needed


def _operand_gradients(
    item: Expression, gradient: Expression, needed: set[int]
) -> Iterable[tuple[Expression, Expression]]:
    """Yield the operands of an expression with their parts of its gradient."""
    match item:
        case Map():
            partials = FUNCTIONS[item.function].partials(item, *item.operands)
            for operand, partial in zip(item.operands, partials, strict=True):
                if partial is not None and id(operand) in needed:
                    part = _product(gradient, partial)
                    yield operand, sum_over(part, (axis for axis in item.axes if axis not in operand.axes))
        case Reduce(kind="add"):
            yield item.operand, gradient
        case Reduce() if isinstance(item.operand, Reindex) and _find_tiles(item.operand, item.over):
            yield item.operand.operand, _gradient_of_tiles(item, item.operand, gradient)
        case Reduce():
            yield item.operand, apply("mul", gradient, apply("is_zero", apply("sub", item, item.operand)))
        case Reindex():
            yield item.operand, gradient_of_read(item, gradient)
        case Reshape():
            wide = broadcast_to(gradient, item.axes)
            yield item.operand, Reshape(wide, item.operand.axes)


def _product(gradient: Expression, partial: Expression) -> Expression:
    if isinstance(partial, Map) and partial.function == "neg":
        return apply("neg", apply("mul", gradient, partial.operands[0]))
    return apply("mul", gradient, partial)


def _find_tiles(read: Reindex, over: Iterable[Axis]) -> dict[Axis, tuple[Axis, Axis]] | None:
    """Return, for each axis of the operand that is split into adjacent windows, the axis of windows and the axis
    inside.

    None if an axis of `over` is not inside such windows, or if another axis of the operand is read at computed places.
    """
    tiles: dict[Axis, tuple[Axis, Axis]] = {}
    for axis, place in read.places.items():
        if place.is_axis(axis.size) is not None:
            continue
        pair = sorted(place.terms, key=lambda term: -term[1])
        if len(pair) != 2 or place.constant or place.divisor != 1:
            return None
        (outer, step), (inner, one) = pair
        # Adjacent windows: ``step * outer + inner``, without gaps, overlap or elements left over.
        if one != 1 or step != inner.size or step * outer.size != axis.size or inner not in over:
            return None
        tiles[axis] = outer, inner
    return tiles if {inner for _, inner in tiles.values()} == set(over) else None


def _gradient_of_tiles(item: Reduce, read: Reindex, gradient: Expression) -> Expression:
    """Return the gradient of a maximum over adjacent windows: each element lies in exactly one window."""
    tiles = _find_tiles(read, item.over)
    assert tiles is not None
    back = {
        tiles[axis][0] if axis in tiles else place.terms[0][0]: _tile_place(axis, tiles)
        for axis, place in read.places.items()
    }
    axes = read.operand.axes
    values = [Reindex(value, axes, {axis: back[axis] for axis in value.axes}) for value in (gradient, item)]
    return apply("mul", values[0], apply("is_zero", apply("sub", values[1], read.operand)))


def _tile_place(axis: Axis, tiles: Mapping[Axis, tuple[Axis, Axis]]) -> Place:
    if axis not in tiles:
        return Place.of(axis)
    return Place(((axis, 1),), 0, tiles[axis][1].size, floor=True)


def gradient_of_read(item: Reindex, gradient: Expression) -> Expression:
    """Return the gradient of a read's operand.

    Raises
    ------
    GradientError
        If one axis of the result determines two coordinates.
    """
    back: dict[Axis, Place] = {}
    summed: dict[Axis, None] = dict.fromkeys(item.axes)
    for axis, place in item.places.items():
        if place.floor:
            gradient, solved = _gradient_of_repeat(axis, place, gradient)
            summed.pop(place.terms[0][0])
        else:
            solved = _solve(axis, place, set(back))
        back[solved[0]] = solved[1]
        summed.pop(solved[0], None)
    # A gradient that repeats along an axis is still 0 outside the elements that were read.
    missing = tuple(
        axis for axis, place in back.items() if axis not in gradient.axes and not place.always(axis.size)
    )
    gradient = broadcast_to(gradient, (*gradient.axes, *missing))
    places = {axis: back.get(axis, Place.of(axis)) for axis in gradient.axes}
    axes = (*item.operand.axes, *summed)
    read = reindex(gradient, axes, places)
    return sum_over(read, summed)


def _solve(axis: Axis, place: Place, taken: set[Axis]) -> tuple[Axis, Place]:
    """Solve a place for the largest axis of the result; return that axis, and its place by `axis`.

    A constant place gets a new axis of one element.
    """
    if not place.terms:
        return Axis(1, axis.label), Place(((axis, place.divisor),), -place.constant)
    if any(term in taken for term, _ in place.terms):
        raise GradientError(f"one axis of {max(t.size for t, _ in place.terms)} elements is read as two")
    # The largest axis stays an axis of the image; the sum runs over the smaller ones, as taps.
    solved, factor = max(place.terms, key=lambda term: term[0].size)
    # Divisors are positive: a negative factor moves its sign into the terms.
    sign = 1 if factor > 0 else -1
    others = tuple((other, -sign * by) for other, by in place.terms if other is not solved)
    return solved, Place(((axis, sign * place.divisor), *others), -sign * place.constant, abs(factor))


def _gradient_of_repeat(
    axis: Axis, place: Place, gradient: Expression
) -> tuple[Expression, tuple[Axis, Place]]:
    """Return the gradient of repeated elements, summed over the repetitions."""
    ((term, _),) = place.terms
    if place.constant or term.size != axis.size * place.divisor:
        raise GradientError(f"{axis.size} elements are repeated as {term.size}")
    outer, inner = Axis(axis.size, axis.label), Axis(place.divisor, axis.label)
    # A gradient that repeats along the axis is the same for each repetition.
    if term not in gradient.axes:
        return apply("mul", gradient, float(place.divisor)), (outer, Place.of(axis))
    axes = tuple(item for other in gradient.axes for item in ((outer, inner) if other is term else (other,)))
    places = {other: Place.of(other) for other in gradient.axes}
    places[term] = Place(((outer, place.divisor), (inner, 1)))
    return Reduce("add", Reindex(gradient, axes, places), (inner,)), (outer, Place.of(axis))
