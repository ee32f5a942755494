"""Construction of operators for one side of a rule, from a match of the other side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.ir.graph import ONE, Add, Buffer, Conv, DeviceOp, Multiply, Pool, Rescale, View, Window
from weft.compiler.ir.views import channels, whole_view
from weft.compiler.passes.fuse import table_of
from weft.compiler.verify import verify_op
from weft.extras.search.substitution.functions import Function, Weights
from weft.extras.search.substitution.matching import Match
from weft.extras.search.substitution.meaning import HALF, InvalidOperands, compose_windows
from weft.extras.search.substitution.term import IMAGES, Term, is_weights
from weft.hdl.errors import WeftError


class NotRealisable(WeftError, ValueError):
    """The device has no operator for a side of a rule with these operands."""


class Builder:
    """Builder of operators.

    Parameters
    ----------
    match : Match
        Values of the rule's names.
    name : callable
        Returns unused names for operators and buffers.
    title : str
        Prefix of operators' names.
    evaluate : callable
        Returns the bytes, (256,), that a requantisation maps all bytes to.

    Attributes
    ----------
    ops : list of DeviceOp
        Operators in execution order.
    """

    def __init__(
        self, match: Match, name: Callable[[str], str], title: str, evaluate: Callable[[Function], np.ndarray]
    ) -> None:
        self.match, self._name, self._title, self._evaluate = match, name, title, evaluate
        self.ops: list[DeviceOp] = []
        self._views: dict[Term, View] = {}

    def build(self, term: Term, dst: View | None = None) -> View:
        """Build a term and return the view of its value, which is `dst` if given.

        Raises
        ------
        NotRealisable
            If the device has no such operator.
        """
        if dst is None and term in self._views:
            return self._views[term]
        result = self._build(term, dst)
        if dst is None:
            self._views[term] = result
        return result

    def _build(self, term: Term, dst: View | None) -> View:
        if term.operator in IMAGES:
            return self._copy(self.match.views[term.operator], dst)
        if term.operator == "cat":
            return self._build_concatenation(term, dst)
        return self._build_operator(term, dst)

    def _copy(self, view: View, dst: View | None) -> View:
        if dst is None or view == dst:
            return view
        if view.shape != dst.shape:
            raise NotRealisable
        self._add(Rescale(self._name(f"{self._title}/copy"), view, dst))
        return dst

    def _build_concatenation(self, term: Term, dst: View | None) -> View:
        shapes = [self._shape(item) for item in term.operands]
        if shapes[0][:3] != shapes[1][:3]:
            raise NotRealisable
        joined_shape = (*shapes[0][:3], shapes[0][3] + shapes[1][3])
        # Reuse a buffer in which both operands are adjacent already.
        if dst is None:
            adjacent = self._find_adjacent(term)
            if adjacent is not None:
                return adjacent
            dst = whole_view(Buffer(self._name(f"{self._title}/cat"), joined_shape))
        if dst.shape != joined_shape:
            raise NotRealisable
        self.build(term.operands[0], channels(dst, 0, shapes[0][3]))
        self.build(term.operands[1], channels(dst, shapes[0][3], shapes[1][3]))
        return dst

    def _find_adjacent(self, term: Term) -> View | None:
        """Return the joined view of two variables that are adjacent already, or None."""
        if any(item.operator not in IMAGES for item in term.operands):
            return None
        first_view, second_view = (self.match.views[item.operator] for item in term.operands)
        joined = channels(first_view, 0, first_view.shape[3] + second_view.shape[3])
        fits = joined.ends[3] <= first_view.buffer.shape[3]
        return (
            joined
            if fits and second_view == channels(joined, first_view.shape[3], second_view.shape[3])
            else None
        )

    def _build_operator(self, term: Term, dst: View | None) -> View:
        shape = self._shape(term)
        images = [self.build(item) for item in term.operands if not is_weights(item)]
        result = dst or whole_view(Buffer(self._name(f"{self._title}/{term.operator}"), shape))
        if result.shape != shape:
            raise NotRealisable
        name = self._name(f"{self._title}/{term.operator}")
        if term.operator == "max":
            self._add(Pool(name, images[0], result, "max", self._window(term)))
            return result
        function = self._function(term.function)
        parameters: dict[str, Any] = {**dict(function.values), "lookup": function.lookup}
        if term.operator in ("conv", "depth"):
            weights = self._weights(term.operands[1])
            groups = 1 if term.operator == "conv" else len(weights.weight)
            options = {"window": self._window(term), "groups": groups, **parameters}
            self._add(Conv(name, images[0], result, weights.weight, weights.bias, weights.scale, **options))
        elif term.operator in ("add", "mul"):
            kind = Add if term.operator == "add" else Multiply
            self._add(kind(name, images[0], images[1], result, **parameters))
        elif term.operator == "func":
            self._add(Rescale(name, images[0], result, **parameters))
        else:
            raise NotRealisable
        return result

    def _add(self, op: DeviceOp) -> None:
        try:
            verify_op(op)
        except IrError as error:
            raise NotRealisable from error
        self.ops.append(op)

    def _window(self, term: Term) -> Window:
        windows = {**self.match.windows, "1": ONE, "s": HALF}
        parts = [windows[name] for name in term.window.split("*")]
        window = parts[0]
        try:
            for part in parts[1:]:
                window = compose_windows(window, part)
        except InvalidOperands as error:
            raise NotRealisable from error
        return window

    def _function(self, name: str) -> Function:
        """Return a function, or a combination of functions as one if the device has it."""
        if name.startswith("~"):
            function = self._function(name[1:])
            if dict(function.values)["b_scale"] < 0:
                raise NotRealisable  # the device can negate only the second operand
            return function.swapped
        if "|" in name:
            first, second = (self._function(part) for part in name.split("|"))
            if first != second:
                raise NotRealisable
            return first
        if "." in name:
            second_name, first_name = name.split(".")
            return self._function(first_name).followed_by(self._evaluate(self._function(second_name)))
        if name not in self.match.functions:
            raise NotRealisable
        return self.match.functions[name]

    def _weights(self, term: Term) -> Weights:
        if not term.operands:
            if term.operator not in self.match.weights:
                raise NotRealisable
            return self.match.weights[term.operator]
        if term.operator != "outs":
            raise NotRealisable
        first, second = (self._weights(item) for item in term.operands)
        if first.weight.shape[1:] != second.weight.shape[1:]:
            raise NotRealisable
        return first.concatenate(second)

    def _shape(self, term: Term) -> tuple[int, int, int, int]:
        if term.operator in IMAGES:
            if term.operator not in self.match.views:
                raise NotRealisable
            return self.match.views[term.operator].shape
        n, h, w, c = self._shape(term.operands[0])
        if term.operator == "cat":
            return n, h, w, c + self._shape(term.operands[1])[3]
        if term.window:
            h, w = self._window(term).output(h, w)
        if term.operator == "conv":
            c = len(self._weights(term.operands[1]).weight)
        if min(h, w) < 1:
            raise NotRealisable
        return n, h, w, c


def evaluate_on_bytes(function: Function, bits: int) -> np.ndarray:
    """Return the int8 (256,) that a requantisation maps all bytes to."""
    view = whole_view(Buffer("bytes", (1, 1, 1, 1)))
    values: dict[str, Any] = dict(function.values)
    if set(values) != {"scale", "x_zero", "y_zero", "low", "high"}:
        raise NotRealisable
    return table_of(Rescale("bytes", view, view, lookup=function.lookup, **values), bits)
