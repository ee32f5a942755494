"""Reads of expressions at computed places, moved ahead of sums and products, and their gradients.

``sum_o (a[h, o] * b[o, y])`` read at ``h = s - y`` is ``sum_o (a[s - y, o] * b[o, y])``: a sum of products of windows.
What is read would be a product of everything with everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.extras.training.gradient.expression import Axis, Expression, Map, Place, Reduce, Reindex

Places = Mapping[Axis, Place]


def reindexed(item: Expression, axes: Iterable[Axis], places: Places, *, free: bool = False) -> Expression:
    """An expression read at `places` of its axes: an expression with those of `axes` that it depends on.

    Where a place is none of the axis it is 0; with `free` it does not matter what it is there. What no axis reads
    twice is read as it is.
    """
    axes = tuple(dict.fromkeys(axes))
    if all(places[axis] == Place.of(axis) for axis in item.axes):
        return item
    twice = _twice(item, places)
    if twice and isinstance(item, Reduce) and item.kind == "add":
        inner = {**places, **{axis: Place.of(axis) for axis in item.over}}
        return Reduce("add", reindexed(item.operand, (*axes, *item.over), inner, free=free), item.over)
    if twice and isinstance(item, Map) and (free or item.function == "mul"):
        return _of_map(item, axes, places, free=free)
    if twice and free and isinstance(item, Reindex):
        inside = {axis: _composed(place, places) for axis, place in item.places.items()}
        found = {axis: place for axis, place in inside.items() if place is not None}
        if len(found) == len(inside):
            return reindexed(item.operand, axes, found, free=True)
    own = {axis: places[axis] for axis in item.axes}
    terms = {axis for place in own.values() for axis, _ in place.terms}
    return Reindex(item, tuple(axis for axis in axes if axis in terms), own)


def _twice(item: Expression, places: Places) -> bool:
    """Whether one axis would decide about two places of an expression."""
    used = [axis for own in item.axes for axis, _ in places[own].terms]
    return len(set(used)) < len(used)


def _of_map(item: Map, axes: tuple[Axis, ...], places: Places, *, free: bool) -> Expression:
    """A product is 0 where one factor is, so that it does not matter what the others are there."""
    partial = {axis for axis in item.axes if not places[axis].always(axis.size)}
    strict = (
        None
        if free
        else next((at for at, operand in enumerate(item.operands) if partial <= {*operand.axes}), None)
    )
    operands = [
        reindexed(operand, axes, places, free=free or (strict is not None and at != strict))
        for at, operand in enumerate(item.operands)
    ]
    return Map(item.function, tuple(operands))


def _composed(place: Place, places: Places) -> Place | None:
    """A place whose axes are places themselves; None if it is not of this form."""
    if place.floor or place.divisor != 1:
        return None
    terms: dict[Axis, int] = {}
    constant = place.constant
    for axis, factor in place.terms:
        inner = places.get(axis, Place.of(axis))
        if inner.floor or factor % inner.divisor:
            return None
        by = factor // inner.divisor
        constant += by * inner.constant
        for term, own in inner.terms:
            terms[term] = terms.get(term, 0) + by * own
    return Place(tuple((axis, factor) for axis, factor in terms.items() if factor), constant)
