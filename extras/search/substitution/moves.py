"""Segments that one use of a rule leads to, with operators built for one side from a match of the other side."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pool, Rescale
from weft.compiler.ir.views import Buffer, View, channels, may_overlap, whole_view
from weft.compiler.ir.windows import ONE, Window
from weft.compiler.passes.fuse import table_of
from weft.compiler.verify import verify_op
from weft.extras.search.substitution.borders import find_splits
from weft.extras.search.substitution.matching import (
    KINDS,
    Function,
    Match,
    Places,
    Weights,
    find_matches,
    function_of,
    insert_ops,
    kind_of,
    namer,
    remove_dead,
    weights_of,
)
from weft.extras.search.substitution.rule import Rule
from weft.extras.search.substitution.rule_proof import holds_for
from weft.extras.search.substitution.term import (
    HALF,
    IMAGES,
    WEIGHTS,
    InvalidOperands,
    Term,
    compose_windows,
    is_weights,
    parse,
)
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
                # The device can negate only the second operand.
                raise NotRealisable
            return function.swapped
        if "|" in name:
            # The device has one function for all channels.
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


_KNOWN = {*KINDS, "cat", "outs"}
_MAX_SIZE = 3
"""Limit for operators on a side; larger sides are reached by several uses."""
_IN_PLACE_RULE = Rule(parse("first(cat(x, y))"), parse("x"))
_SIBLINGS_RULE = Rule(parse("first(conv[a,f|g](x, outs(k, l)))"), parse("conv[a,f](x, k)"))
WITHOUT_PADDING = "conv[a,f](x, k) = parts of it without what is padding"
"""Text for `weft.extras.search.substitution.borders`, which is not a rule of terms: parts depend on sizes."""
_MAX_PARTS = 9
"""Limit for parts of a convolution: three rows of three."""


class Move(NamedTuple):
    """Use of a rule: the rule's text, and the resulting segment."""

    rule: str
    segment: DeviceSegment


def select_usable(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    """Return the rules about operators of the device, in both directions, by the operator that they replace.

    Excluded are rules with sides that the device cannot realise, rules that introduce names, and rules that only
    rearrange values. `Moves` itself performs the useful rearrangements.
    """
    rules_by_operator: dict[str, list[Rule]] = {}
    for rule in rules:
        if not all(_is_realisable(side) for side in (rule.left, rule.right)):
            continue
        for one in (rule, rule.reversed):
            operators = {part.operator for part in one.right.parts}
            if one.left.operator not in (*KINDS, "cat") or not operators & {*KINDS}:
                continue
            if _names(one.right) <= _names(one.left) and max(one.left.size, one.right.size) <= _MAX_SIZE:
                rules_by_operator.setdefault(one.left.operator, []).append(one)
    return rules_by_operator


def _is_realisable(term: Term) -> bool:
    operators = {part.operator for part in term.parts if part.operands}
    exact = any("e" in part.function.lstrip("~").replace("|", ".").split(".") for part in term.parts)
    return operators <= _KNOWN and not exact


def _names(term: Term) -> set[str]:
    names = {part.operator for part in term.parts if part.operator in (*IMAGES, *WEIGHTS)}
    names |= {f"f{char}" for part in term.parts for char in part.function if char.isalpha()}
    return names | {
        f"a{char}" for part in term.parts for char in part.window if char.isalpha() and char != "s"
    }


class Moves:
    """Uses of rules on segments.

    Parameters
    ----------
    rules : sequence of Rule
    bits : int
        Width of requantisation mantissas.
    """

    def __init__(self, rules: Sequence[Rule], bits: int) -> None:
        self._rules, self._bits = select_usable(rules), bits
        # Segments do not change: an index stays valid as long as its segment lives.
        self._places: weakref.WeakKeyDictionary[DeviceSegment, Places] = weakref.WeakKeyDictionary()

    def find(self, segment: DeviceSegment, op: DeviceOp) -> Iterator[Move]:
        """Yield the uses of rules for the output of an operator."""
        places = self._places.get(segment)
        if places is None:
            places = self._places[segment] = Places(segment)
        yield from self._apply_rules(segment, places, op)
        yield from _write_in_place(segment, places, op)
        yield from _join_siblings(segment, places, op)
        yield from _split_without_padding(segment, op)

    def _apply_rules(self, segment: DeviceSegment, places: Places, op: DeviceOp) -> Iterator[Move]:
        roots: list[tuple[str, View]] = []
        if (kind := kind_of(op)) is not None and places.is_plain(op.dst.buffer.name):
            roots.append((kind, op.dst))
        buffer = whole_view(op.dst.buffer)
        # The writer of a buffer's first channels stands for the whole concatenation.
        if op.dst.c == 0 and len(places.parts(buffer)) > 1:
            roots.append(("cat", buffer))
        for operator, view in roots:
            # A copy is no root of its own: rules apply to its source.
            if places.resolve(view) != view:
                continue
            for rule in self._rules.get(operator, ()):
                for match in find_matches(rule.left, view, places):
                    replaced = self._replace(segment, rule, match, view)
                    if replaced is not None:
                        yield Move(rule.text, replaced)

    def _replace(self, segment: DeviceSegment, rule: Rule, match: Match, view: View) -> DeviceSegment | None:
        """Replace the operators that compute a view by the other side of a rule; return None if that is impossible."""
        if not all(match.monotone.get(name, True) for name in rule.rising):
            return None
        if rule.bound:
            sizes = (
                max(item.shape[1] for item in match.views.values()),
                max(item.shape[2] for item in match.views.values()),
            )
            if not holds_for(rule.left, rule.right, match.windows, sizes):
                return None
        # A replaced operator would be its own input.
        if any(may_overlap(item, view) for item in match.views.values()):
            return None
        root = [op for op in segment.ops if op.dst.buffer.name == view.buffer.name and _inside(op.dst, view)]
        builder = Builder(
            match, namer(segment), root[0].name, lambda function: evaluate_on_bytes(function, self._bits)
        )
        try:
            builder.build(rule.right, dst=view)
        except NotRealisable:
            return None
        # New operators are inserted as early as possible, so that they precede all readers.
        ops = insert_ops([op for op in segment.ops if op not in root], builder.ops)
        return dataclasses.replace(segment, ops=remove_dead(ops, segment.states))


def _inside(dst: View, view: View) -> bool:
    return dst.c >= view.c and dst.c + dst.shape[3] <= view.c + view.shape[3]


def _write_in_place(segment: DeviceSegment, places: Places, op: DeviceOp) -> Iterator[Move]:
    """Write a value directly to its place in a concatenation, instead of copying it there."""
    if not isinstance(op, Rescale) or not op.is_identity:
        return
    source, dst = op.src, op.dst
    names = source.buffer.name, dst.buffer.name
    if (
        not source.contiguous
        or names[0] == names[1]
        or not places.is_private(names[0])
        or not places.is_plain(names[1])
    ):
        return
    if dst.buffer.kind != "temp" or dst.shape[:3] != dst.buffer.shape[:3]:
        return

    def redirect(view: View) -> View:
        if view.buffer.name != names[0]:
            return view
        return dataclasses.replace(view, buffer=dst.buffer, c=view.c + dst.c)

    ops = [item.map_views(redirect) for item in segment.ops if item is not op]
    # An operator would read the buffer that it writes.
    if any(may_overlap(view, item.dst) for item in ops for view in item.sources):
        return
    yield Move(_IN_PLACE_RULE.reversed.text, dataclasses.replace(segment, ops=tuple(ops)))


def _join_siblings(segment: DeviceSegment, places: Places, op: DeviceOp) -> Iterator[Move]:
    """Join two convolutions with the same input and window into one; each result is a part of the joint output."""
    if kind_of(op) != "conv" or not isinstance(op, Conv) or not places.is_private(op.dst.buffer.name):
        return
    for other in places.readers[op.src.buffer.name]:
        if other is op or not isinstance(other, Conv) or kind_of(other) != "conv":
            continue
        # Only the earlier one of two siblings yields their move.
        if (
            segment.ops.index(other) < segment.ops.index(op)
            or other.src != op.src
            or other.window != op.window
        ):
            continue
        joinable = places.is_private(other.dst.buffer.name) and op.dst.contiguous and other.dst.contiguous
        if joinable and function_of(op) == function_of(other) and op.dst.buffer.name != other.dst.buffer.name:
            yield Move(_SIBLINGS_RULE.reversed.text, _join(segment, op, other))


def _join(segment: DeviceSegment, op: Conv, other: Conv) -> DeviceSegment:
    n, h, w, c = op.dst.shape
    name = namer(segment)(f"{op.name}&{other.name}")
    buffer = dataclasses.replace(op.dst.buffer, name=name, shape=(n, h, w, c + other.dst.shape[3]))
    weights = weights_of(op).concatenate(weights_of(other))
    joined = op.replace(
        name=name, dst=whole_view(buffer), weight=weights.weight, bias=weights.bias, scale=weights.scale
    )
    offsets = {op.dst.buffer.name: 0, other.dst.buffer.name: c}

    def redirect(view: View) -> View:
        at = offsets.get(view.buffer.name)
        return view if at is None else channels(dataclasses.replace(view, buffer=buffer), at, view.shape[3])

    ops = [(joined if item is op else item).map_views(redirect) for item in segment.ops if item is not other]
    return dataclasses.replace(segment, ops=tuple(ops))


def _split_without_padding(segment: DeviceSegment, op: DeviceOp) -> Iterator[Move]:
    """Split a convolution into parts that skip padding."""
    if not isinstance(op, Conv) or kind_of(op) not in ("conv", "depth"):
        return
    at, name = segment.ops.index(op), namer(segment)
    for parts in find_splits(op):
        if len(parts) <= _MAX_PARTS:
            renamed_parts = [part.replace(name=name(part.name)) for part in parts]
            ops = (*segment.ops[:at], *renamed_parts, *segment.ops[at + 1 :])
            yield Move(WITHOUT_PADDING, dataclasses.replace(segment, ops=ops))
