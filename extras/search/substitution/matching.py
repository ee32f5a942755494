"""Matching of one side of a rule in a segment."""

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
    is_monotone,
    kind_of,
    weights_of,
    window_of,
)
from weft.extras.search.substitution.meaning import HALF
from weft.extras.search.substitution.places import Places
from weft.extras.search.substitution.term import IMAGES, POINT_CHANNELS, POINTS, Term

_FIXED_WINDOWS = {"1": ONE, "s": HALF}


@dataclass(frozen=True)
class Match:
    """Binding of a rule's names to views, weights, functions and windows, and which functions are non-decreasing."""

    views: dict[str, View] = field(default_factory=dict)
    weights: dict[str, Weights] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    monotone: dict[str, bool] = field(default_factory=dict)

    def with_view(self, name: str, view: View) -> Match | None:
        """Return the match with one more view; None if the name is bound to another view."""
        return self._bind("views", name, view)

    def with_weights(self, name: str, weights: Weights) -> Match | None:
        return self._bind("weights", name, weights)

    def with_function(self, name: str, function: Function, monotone: bool) -> Match | None:
        """Return the match with one more function; `monotone` tells whether it is non-decreasing."""
        extended = self._bind("functions", name, function)
        if extended is None:
            return None
        monotone = monotone and self.monotone.get(name, True)
        return dataclasses.replace(extended, monotone={**self.monotone, name: monotone})

    def with_window(self, name: str, window: Window) -> Match | None:
        if name in _FIXED_WINDOWS:
            return self if window == _FIXED_WINDOWS[name] else None
        return self._bind("windows", name, window)

    def _bind(self, field_name: str, name: str, value: object) -> Match | None:
        bindings = getattr(self, field_name)
        if name in bindings:
            return self if bindings[name] == value else None
        return dataclasses.replace(self, **{field_name: {**bindings, name: value}})


def find_matches(pattern: Term, view: View, places: Places, match: Match | None = None) -> Iterator[Match]:
    """Yield all matches of a side of a rule whose value is a view."""
    match = match or Match()
    view = places.resolve(view)  # look through copies
    if pattern.operator in IMAGES:
        extended = match.with_view(pattern.operator, view)
        if extended is not None:
            yield extended
        return
    if pattern.operator == "cat":
        yield from _match_concatenation(pattern, view, places, match)
    elif (op := places.writer(view)) is not None and kind_of(op) == pattern.operator:
        yield from _match_operator(pattern, op, places, match)


def _match_concatenation(pattern: Term, view: View, places: Places, match: Match) -> Iterator[Match]:
    parts = places.parts(view)
    for count in range(1, len(parts)):
        size = sum(part.shape[3] for part in parts[:count])
        first_part, second_part = channels(view, 0, size), channels(view, size, view.shape[3] - size)
        for first in find_matches(pattern.operands[0], first_part, places, match):
            yield from find_matches(pattern.operands[1], second_part, places, first)


def _match_operator(pattern: Term, op: DeviceOp, places: Places, match: Match) -> Iterator[Match]:
    extended: Match | None = match
    weights = weights_of(op) if isinstance(op, Conv) else None
    window = window_of(op)
    if pattern.window and (window is None or "*" in pattern.window):
        return
    if pattern.window and window is not None and extended is not None:
        extended = extended.with_window(pattern.window, window)
    if pattern.function and extended is not None:
        extended = _match_function(pattern.function, op, weights, extended)
    if extended is None:
        return
    images = op.sources[: len(pattern.operands) - (weights is not None)]
    for operand_match in _match_operands(pattern, images, places, extended):
        if weights is None:
            yield operand_match
        else:
            yield from _match_weights(pattern, weights, op, operand_match)


def _match_operands(
    pattern: Term, images: tuple[View, ...], places: Places, match: Match, at: int = 0
) -> Iterator[Match]:
    if at == len(images):
        yield match
        return
    if images[at].buffer.kind not in ("temp", "input") or 0 in images[at].step:
        return
    for next_match in find_matches(pattern.operands[at], images[at], places, match):
        yield from _match_operands(pattern, images, places, next_match, at + 1)


def _match_function(name: str, op: DeviceOp, weights: Weights | None, match: Match) -> Match | None:
    """Return the match with an operator's function; both halves of ``f|g`` have the same function."""
    function = function_of(op)
    monotone = is_monotone(function, weights)
    if name.startswith("~"):
        if dict(function.values)["b_scale"] < 0:
            return None  # the device can negate only the second operand
        name, function = name[1:], function.swapped
    extended: Match | None = match
    for part in name.split("|"):
        if part == "e" or "." in part or extended is None:
            return None
        extended = extended.with_function(part, function, monotone)
    return extended


def _match_weights(pattern: Term, weights: Weights, op: DeviceOp, match: Match) -> Iterator[Match]:
    term = pattern.operands[-1]
    if not term.operands:
        is_point = term.operator in POINTS + POINT_CHANNELS
        extended = match.with_weights(term.operator, weights)
        if extended is not None and (not is_point or weights.weight.shape[1:3] == (1, 1)):
            yield extended
    elif term.operator == "outs" and kind_of(op) == "depth" and pattern.operands[0].operator == "cat":
        # Each channel has its own weights; those of the first image come first.
        inner = pattern.operands[0].operands[0]
        image = match.views.get(inner.operator)
        if image is None or any(item.operands for item in term.operands):
            return
        size = image.shape[3]
        first_half = match.with_weights(term.operands[0].operator, weights.select(0, size))
        if first_half is not None:
            combined = first_half.with_weights(
                term.operands[1].operator, weights.select(size, len(weights.weight) - size)
            )
            if combined is not None:
                yield combined
