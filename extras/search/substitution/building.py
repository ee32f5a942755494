"""A side of a rule as operators, on what the other side stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.compiler.ir.graph import (
    ONE,
    Add,
    Buffer,
    Conv,
    DeviceOp,
    IrError,
    Multiply,
    Pool,
    Rescale,
    View,
    Window,
)
from weft.compiler.ir.views import channels, whole
from weft.compiler.passes.fuse import table_of
from weft.compiler.verify import verify_op
from weft.extras.search.substitution.functions import Function, Weights
from weft.extras.search.substitution.matching import Match
from weft.extras.search.substitution.meaning import HALF, NoMeaning, composed
from weft.extras.search.substitution.term import IMAGES, Term, is_weights
from weft.hdl.errors import WeftError


class NotThere(WeftError, ValueError):
    """The device has no operator for a side of a rule, with what it stands for here."""


class Builder:
    """Makes operators.

    Parameters
    ----------
    match : Match
        What the names of the rule stand for.
    name : callable
        Gives names of operators and buffers that are not taken.
    title : str
        What names of operators begin with.
    evaluate : callable
        The bytes, (256,), that a requantisation makes of all bytes: of its function.

    Attributes
    ----------
    ops : list of DeviceOp
        In the order of computing.
    """

    def __init__(
        self, match: Match, name: Callable[[str], str], title: str, evaluate: Callable[[Function], np.ndarray]
    ) -> None:
        self.match, self._name, self._title, self._evaluate = match, name, title, evaluate
        self.ops: list[DeviceOp] = []
        self._made: dict[Term, View] = {}

    def built(self, term: Term, dst: View | None = None) -> View:
        """Where the value of a term is: in `dst`, if it is given.

        Raises
        ------
        NotThere
            If the device has no such operator.
        """
        if dst is None and term in self._made:
            return self._made[term]
        found = self._built(term, dst)
        if dst is None:
            self._made[term] = found
        return found

    def _built(self, term: Term, dst: View | None) -> View:
        if term.operator in IMAGES:
            return self._copied(self.match.views[term.operator], dst)
        if term.operator == "cat":
            return self._cat(term, dst)
        return self._operator(term, dst)

    def _copied(self, view: View, dst: View | None) -> View:
        if dst is None or view == dst:
            return view
        if view.shape != dst.shape:
            raise NotThere
        self._add(Rescale(self._name(f"{self._title}/copy"), view, dst))
        return dst

    def _cat(self, term: Term, dst: View | None) -> View:
        shapes = [self._shape(item) for item in term.operands]
        if shapes[0][:3] != shapes[1][:3]:
            raise NotThere
        both = (*shapes[0][:3], shapes[0][3] + shapes[1][3])
        if dst is None:
            beside = self._beside(term)
            if beside is not None:
                return beside
            dst = whole(Buffer(self._name(f"{self._title}/cat"), both))
        if dst.shape != both:
            raise NotThere
        self.built(term.operands[0], channels(dst, 0, shapes[0][3]))
        self.built(term.operands[1], channels(dst, shapes[0][3], shapes[1][3]))
        return dst

    def _beside(self, term: Term) -> View | None:
        """Two variables that lie beside each other already."""
        if any(item.operator not in IMAGES for item in term.operands):
            return None
        one, other = (self.match.views[item.operator] for item in term.operands)
        joined = channels(one, 0, one.shape[3] + other.shape[3])
        fits = joined.ends[3] <= one.buffer.shape[3]
        return joined if fits and other == channels(joined, one.shape[3], other.shape[3]) else None

    def _operator(self, term: Term, dst: View | None) -> View:
        shape = self._shape(term)
        images = [self.built(item) for item in term.operands if not is_weights(item)]
        made = dst or whole(Buffer(self._name(f"{self._title}/{term.operator}"), shape))
        if made.shape != shape:
            raise NotThere
        name = self._name(f"{self._title}/{term.operator}")
        if term.operator == "max":
            self._add(Pool(name, images[0], made, "max", self._window(term)))
            return made
        function = self._function(term.function)
        told: dict[str, Any] = {**dict(function.values), "lookup": function.lookup}
        if term.operator in ("conv", "depth"):
            weights = self._weights(term.operands[1])
            groups = 1 if term.operator == "conv" else len(weights.weight)
            shaped = {"window": self._window(term), "groups": groups, **told}
            self._add(Conv(name, images[0], made, weights.weight, weights.bias, weights.scale, **shaped))
        elif term.operator in ("add", "mul"):
            kind = Add if term.operator == "add" else Multiply
            self._add(kind(name, images[0], images[1], made, **told))
        elif term.operator == "func":
            self._add(Rescale(name, images[0], made, **told))
        else:
            raise NotThere
        return made

    def _add(self, op: DeviceOp) -> None:
        try:
            verify_op(op)
        except IrError as error:
            raise NotThere from error
        self.ops.append(op)

    def _window(self, term: Term) -> Window:
        known = {**self.match.windows, "1": ONE, "s": HALF}
        parts = [known[name] for name in term.window.split("*")]
        found = parts[0]
        try:
            for part in parts[1:]:
                found = composed(found, part)
        except NoMeaning as error:
            raise NotThere from error
        return found

    def _function(self, name: str) -> Function:
        """A function, or several as one, where the device has that."""
        if name.startswith("~"):
            function = self._function(name[1:])
            if dict(function.values)["b_scale"] < 0:
                raise NotThere  # the device takes only the second operand from the first
            return function.swapped
        if "|" in name:
            one, other = (self._function(part) for part in name.split("|"))
            if one != other:
                raise NotThere
            return one
        if "." in name:
            then, first = name.split(".")
            return self._function(first).then(self._evaluate(self._function(then)))
        if name not in self.match.functions:
            raise NotThere
        return self.match.functions[name]

    def _weights(self, term: Term) -> Weights:
        if not term.operands:
            if term.operator not in self.match.weights:
                raise NotThere
            return self.match.weights[term.operator]
        if term.operator != "outs":
            raise NotThere
        one, other = (self._weights(item) for item in term.operands)
        if one.weight.shape[1:] != other.weight.shape[1:]:
            raise NotThere
        return one.behind(other)

    def _shape(self, term: Term) -> tuple[int, int, int, int]:
        if term.operator in IMAGES:
            if term.operator not in self.match.views:
                raise NotThere
            return self.match.views[term.operator].shape
        n, h, w, c = self._shape(term.operands[0])
        if term.operator == "cat":
            return n, h, w, c + self._shape(term.operands[1])[3]
        if term.window:
            h, w = self._window(term).output(h, w)
        if term.operator == "conv":
            c = len(self._weights(term.operands[1]).weight)
        if min(h, w) < 1:
            raise NotThere
        return n, h, w, c


def on_bytes(function: Function, bits: int) -> np.ndarray:
    """What a requantisation makes of all bytes: int8 (256,)."""
    view = whole(Buffer("bytes", (1, 1, 1, 1)))
    values: dict[str, Any] = dict(function.values)
    if set(values) != {"scale", "x_zero", "y_zero", "low", "high"}:
        raise NotThere
    return table_of(Rescale("bytes", view, view, lookup=function.lookup, **values), bits)
