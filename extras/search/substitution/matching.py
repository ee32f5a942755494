"""Where a side of a rule lies in a segment: variables as views, weights, functions and windows that it stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.compiler.ir.graph import ONE, Conv, DeviceOp, View, Window
from weft.compiler.ir.views import channels
from weft.extras.search.substitution.functions import (
    Function,
    Weights,
    function_of,
    kind_of,
    rises,
    weights_of,
    window_of,
)
from weft.extras.search.substitution.meaning import HALF
from weft.extras.search.substitution.places import Places
from weft.extras.search.substitution.term import IMAGES, POINT_CHANNELS, POINTS, Term

_FIXED = {"1": ONE, "s": HALF}


@dataclass(frozen=True)
class Match:
    """What the names of a rule stand for, and which of its functions never fall."""

    views: dict[str, View] = field(default_factory=dict)
    weights: dict[str, Weights] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    steady: dict[str, bool] = field(default_factory=dict)

    def with_view(self, name: str, view: View) -> Match | None:
        """The same with one more view; None if the name stands for another one."""
        return self._with("views", name, view)

    def with_weights(self, name: str, weights: Weights) -> Match | None:
        return self._with("weights", name, weights)

    def with_function(self, name: str, function: Function, steady: bool) -> Match | None:
        """The same with one more function; `steady` says whether it never falls."""
        found = self._with("functions", name, function)
        if found is None:
            return None
        steady = steady and self.steady.get(name, True)
        return dataclasses.replace(found, steady={**self.steady, name: steady})

    def with_window(self, name: str, window: Window) -> Match | None:
        if name in _FIXED:
            return self if window == _FIXED[name] else None
        return self._with("windows", name, window)

    def _with(self, what: str, name: str, value: object) -> Match | None:
        known = getattr(self, what)
        if name in known:
            return self if known[name] == value else None
        return dataclasses.replace(self, **{what: {**known, name: value}})


def matches(pattern: Term, view: View, places: Places, match: Match | None = None) -> Iterator[Match]:
    """All that a side of a rule can stand for if its value is a view."""
    match = match or Match()
    view = places.resolved(view)  # what is copied first is read where it was
    if pattern.operator in IMAGES:
        found = match.with_view(pattern.operator, view)
        if found is not None:
            yield found
        return
    if pattern.operator == "cat":
        yield from _cat(pattern, view, places, match)
    elif (op := places.writer(view)) is not None and kind_of(op) == pattern.operator:
        yield from _operator(pattern, op, places, match)


def _cat(pattern: Term, view: View, places: Places, match: Match) -> Iterator[Match]:
    parts = places.parts(view)
    for count in range(1, len(parts)):
        size = sum(part.shape[3] for part in parts[:count])
        one, other = channels(view, 0, size), channels(view, size, view.shape[3] - size)
        for first in matches(pattern.operands[0], one, places, match):
            yield from matches(pattern.operands[1], other, places, first)


def _operator(pattern: Term, op: DeviceOp, places: Places, match: Match) -> Iterator[Match]:
    found: Match | None = match
    weights = weights_of(op) if isinstance(op, Conv) else None
    window = window_of(op)
    if pattern.window and (window is None or "*" in pattern.window):
        return
    if pattern.window and window is not None and found is not None:
        found = found.with_window(pattern.window, window)
    if pattern.function and found is not None:
        found = _function(pattern.function, op, weights, found)
    if found is None:
        return
    images = op.sources[: len(pattern.operands) - (weights is not None)]
    for some in _operands(pattern, images, places, found):
        if weights is None:
            yield some
        else:
            yield from _weights(pattern, weights, op, some)


def _operands(
    pattern: Term, images: tuple[View, ...], places: Places, match: Match, at: int = 0
) -> Iterator[Match]:
    if at == len(images):
        yield match
        return
    if images[at].buffer.kind not in ("temp", "input") or 0 in images[at].step:
        return
    for found in matches(pattern.operands[at], images[at], places, match):
        yield from _operands(pattern, images, places, found, at + 1)


def _function(name: str, op: DeviceOp, weights: Weights | None, match: Match) -> Match | None:
    """With the function of an operator; one of halves is the same for both."""
    function = function_of(op)
    steady = rises(function, weights)
    if name.startswith("~"):
        if dict(function.values)["b_scale"] < 0:
            return None  # the device takes only the second operand from the first
        name, function = name[1:], function.swapped
    found: Match | None = match
    for part in name.split("|"):
        if part == "e" or "." in part or found is None:
            return None
        found = found.with_function(part, function, steady)
    return found


def _weights(pattern: Term, weights: Weights, op: DeviceOp, match: Match) -> Iterator[Match]:
    term = pattern.operands[-1]
    if not term.operands:
        small = term.operator in POINTS + POINT_CHANNELS
        found = match.with_weights(term.operator, weights)
        if found is not None and (not small or weights.weight.shape[1:3] == (1, 1)):
            yield found
    elif term.operator == "outs" and kind_of(op) == "depth" and pattern.operands[0].operator == "cat":
        # Each channel has weights of its own: those of the first image come first.
        inner = pattern.operands[0].operands[0]
        image = match.views.get(inner.operator)
        if image is None or any(item.operands for item in term.operands):
            return
        size = image.shape[3]
        one = match.with_weights(term.operands[0].operator, weights.part(0, size))
        if one is not None:
            both = one.with_weights(term.operands[1].operator, weights.part(size, len(weights.weight) - size))
            if both is not None:
                yield both
