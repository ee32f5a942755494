"""Matching of one side of a rule in a segment: operators with their functions, weights, producers and consumers."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pool, Rescale
from weft.compiler.ir.network import Names
from weft.compiler.ir.views import View, channels, may_overlap
from weft.compiler.ir.windows import ONE, Window
from weft.compiler.passes.fuse import compose_tables, is_monotonic
from weft.extras.search.substitution.term import HALF, IMAGES, POINT_CHANNELS, POINTS, Term

KINDS = ("conv", "depth", "func", "add", "mul", "max")
"""Operators of rules that are also operators of the device."""


@dataclass(frozen=True)
class Function:
    """Parameters of an operator other than weights, by name, and its table of 256 bytes or None."""

    values: tuple[tuple[str, float | int], ...]
    table: bytes | None = None

    @property
    def lookup(self) -> np.ndarray | None:
        return None if self.table is None else np.frombuffer(self.table, np.int8)

    @property
    def is_monotone(self) -> bool:
        """True if the function is non-decreasing."""
        values_by_name = dict(self.values)
        table = self.lookup
        return values_by_name.get("scale", 1.0) >= 0 and (table is None or is_monotonic(table))

    def followed_by(self, table: np.ndarray) -> Function:
        """Return the function followed by a mapping of all bytes, (256,)."""
        combined = compose_tables(self.lookup, table)
        assert combined is not None
        return Function(self.values, combined.astype(np.int8).tobytes())

    @property
    def swapped(self) -> Function:
        """The function of an addition with exchanged operands."""
        exchanged = {"a_scale": "b_scale", "b_scale": "a_scale", "a_zero": "b_zero", "b_zero": "a_zero"}
        return Function(
            tuple(sorted((exchanged.get(name, name), value) for name, value in self.values)), self.table
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights (o, h, w, i), with bias and scale for each output. They are equal only if they are the same arrays."""

    weight: np.ndarray
    bias: np.ndarray
    scale: np.ndarray

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and self.weight is other.weight and self.scale is other.scale

    def __hash__(self) -> int:
        return hash((id(self.weight), id(self.scale)))

    def concatenate(self, other: Weights) -> Weights:
        """Return the outputs of both, one after the other."""
        weight, bias, scale = (
            np.concatenate([one, two])
            for one, two in ((self.weight, other.weight), (self.bias, other.bias), (self.scale, other.scale))
        )
        return Weights(weight, bias, scale)

    def select(self, first: int, count: int) -> Weights:
        """Return some of the outputs."""
        selected = slice(first, first + count)
        return Weights(self.weight[selected], self.bias[selected], self.scale[selected])


_PARAMETERS = {
    "conv": ("x_zero", "y_zero", "low", "high"),
    "depth": ("x_zero", "y_zero", "low", "high"),
    "func": ("scale", "x_zero", "y_zero", "low", "high"),
    "add": ("a_scale", "b_scale", "a_zero", "b_zero", "y_zero", "low", "high"),
    "mul": ("scale", "a_zero", "b_zero", "y_zero", "low", "high"),
}


def kind_of(op: DeviceOp) -> str | None:
    """Return the operator's name in rules, or None if rules do not know it."""
    if isinstance(op, Conv):
        if op.pool is not None or op.epilogue is not None:
            return None
        if op.groups == 1:
            return "conv"
        return "depth" if op.groups == len(op.weight) == op.src.shape[3] else None
    if isinstance(op, Pool):
        is_plain = op.kind == "max" and op.scale == 1.0 and op.x_zero == op.y_zero and op.lookup is None
        return (
            "max" if is_plain and (op.low, op.high) == (-128, 127) and op.window.dilation == (1, 1) else None
        )
    if isinstance(op, Multiply):
        # Rules exchange the operands of a product, but not their zero points.
        return "mul" if op.a_zero == op.b_zero else None
    return {Rescale: "func", Add: "add"}.get(type(op))


def function_of(op: DeviceOp) -> Function:
    """Return the function of an operator that rules know."""
    parameters = _PARAMETERS[kind_of(op) or ""]
    table = None if op.lookup is None else op.lookup.astype(np.int8).tobytes()
    return Function(tuple(sorted((name, getattr(op, name)) for name in parameters)), table)


def weights_of(op: Conv) -> Weights:
    """Return the weights of a convolution."""
    return Weights(op.weight, op.bias, op.scale)


def is_monotone(function: Function, weights: Weights | None) -> bool:
    """Return whether an operator's function of its sums is non-decreasing."""
    return function.is_monotone and (weights is None or bool((weights.scale >= 0).all()))


def window_of(op: DeviceOp) -> Window | None:
    """Return the window of an operator, or None."""
    return op.window if isinstance(op, Conv | Pool) else None


class Places:
    """Operators of a segment by the buffers that they write and read.

    A buffer is *plain* if all views of it have one shape, all writes cover whole images, rows and columns of disjoint
    channels, and either only operators of the segment write it or none does.
    """

    def __init__(self, segment: DeviceSegment) -> None:
        self.writers: dict[str, list[DeviceOp]] = defaultdict(list)
        self.readers: dict[str, list[DeviceOp]] = defaultdict(list)
        self._views: dict[str, list[View]] = defaultdict(list)
        for op in segment.ops:
            self.writers[op.dst.buffer.name].append(op)
            self._views[op.dst.buffer.name].append(op.dst)
            for view in op.sources:
                self._views[view.buffer.name].append(view)
                self.readers[view.buffer.name].append(op)
        self._states = {*segment.states, *segment.states.values()}
        self._plain: dict[str, bool] = {}
        self._op_by_view = {op.dst: op for op in segment.ops}

    def is_plain(self, name: str) -> bool:
        """Return whether a buffer is plain."""
        if name not in self._plain:
            self._plain[name] = self._check_plain(name)
        return self._plain[name]

    def _check_plain(self, name: str) -> bool:
        views = self._views[name]
        first = views[0].buffer
        if name in self._states or any(view.buffer != first for view in views):
            return False
        if any(view.image or view.shape[0] != first.shape[0] for view in views):
            return False
        outputs = sorted((op.dst for op in self.writers[name]), key=lambda view: view.c)
        if any(
            (view.y, view.x, view.step) != (0, 0, (1, 1)) or view.shape[:3] != first.shape[:3]
            for view in outputs
        ):
            return False
        return all(one.c + one.shape[3] <= other.c for one, other in pairwise(outputs))

    def is_private(self, name: str) -> bool:
        """Return whether a buffer is plain, and local to the segment."""
        return self.is_plain(name) and self._views[name][0].buffer.kind == "temp" and bool(self.writers[name])

    def resolve(self, view: View) -> View:
        """Return the view from which a view's bytes were copied, or the view itself."""
        source = view
        while (
            (writer := self.writer(source)) is not None and isinstance(writer, Rescale) and writer.is_identity
        ):
            source = writer.src
            if not self.is_plain(source.buffer.name):
                break
        return source

    def writer(self, view: View) -> DeviceOp | None:
        """Return the operator whose whole output a view is, else None."""
        op = self._op_by_view.get(view)
        return op if op is not None and self.is_plain(view.buffer.name) else None

    def parts(self, view: View) -> list[View]:
        """Return the outputs that make up a view of whole pixels, in the order of channels; none if they leave gaps."""
        if (
            not self.is_plain(view.buffer.name)
            or view.step != (1, 1)
            or view.shape[:3] != view.buffer.shape[:3]
        ):
            return []
        outputs = sorted((op.dst for op in self.writers[view.buffer.name]), key=lambda item: item.c)
        inside = [
            item for item in outputs if item.c >= view.c and item.c + item.shape[3] <= view.c + view.shape[3]
        ]
        return inside if sum(item.shape[3] for item in inside) == view.shape[3] else []


def touched_buffers(ops: Iterable[DeviceOp]) -> set[str]:
    """Return the names of the buffers that operators read or write."""
    return {view.buffer.name for op in ops for view in (*op.sources, op.dst)}


def namer(segment: DeviceSegment) -> Callable[[str], str]:
    """Return a function for names of operators and buffers that are unused in a segment."""
    names = Names()
    for taken in (*touched_buffers(segment.ops), *(op.name for op in segment.ops)):
        names.unique(taken)
    return names.unique


def remove_dead(ops: Sequence[DeviceOp], states: Mapping[str, str]) -> tuple[DeviceOp, ...]:
    """Return the operators without those whose results are never read."""
    # Repeat: a removed operator may have been the last reader of another's result.
    live, state_names = list(ops), set(states.values())
    while True:
        read: dict[str, list[View]] = defaultdict(list)
        for op in live:
            for view in op.sources:
                read[view.buffer.name].append(view)
        alive = [
            op
            for op in live
            if op.dst.buffer.kind != "temp"
            or op.dst.buffer.name in state_names
            or any(may_overlap(op.dst, view) for view in read[op.dst.buffer.name])
        ]
        if len(alive) == len(live):
            return tuple(live)
        live = alive


def insert_ops(ops: Sequence[DeviceOp], new_ops: Iterable[DeviceOp]) -> tuple[DeviceOp, ...]:
    """Insert operators, each directly after the last producer of its inputs."""
    order = list(ops)
    for op in new_ops:
        read = {view.buffer.name for view in op.sources}
        at = max((index for index, item in enumerate(order) if item.dst.buffer.name in read), default=-1)
        order.insert(at + 1, op)
    return tuple(order)


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
        # A function that occurs with several weights must be non-decreasing with all of them.
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
    # A rule's concatenation has two operands: try each split of the parts.
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
        # The device can negate only the second operand.
        if dict(function.values)["b_scale"] < 0:
            return None
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
