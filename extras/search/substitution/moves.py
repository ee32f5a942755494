"""What a segment becomes by one use of a rule."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Rescale, View
from weft.compiler.ir.views import channels, overlapping, whole
from weft.extras.search.substitution.borders import ways
from weft.extras.search.substitution.building import Builder, NotThere, on_bytes
from weft.extras.search.substitution.functions import KINDS, function_of, kind_of, weights_of
from weft.extras.search.substitution.matching import Match, matches
from weft.extras.search.substitution.places import Places, namer, placed, without_dead
from weft.extras.search.substitution.rule import Rule
from weft.extras.search.substitution.rule_proof import holds_for
from weft.extras.search.substitution.term import IMAGES, WEIGHTS, Term, parsed

_KNOWN = {*KINDS, "cat", "outs"}
_LARGEST = 3
"""Operators of a side: larger ones are reached by several uses."""
_TAKES_PLACE = Rule(parsed("first(cat(x, y))"), parsed("x"))
_SIBLINGS = Rule(parsed("first(conv[a,f|g](x, outs(k, l)))"), parsed("conv[a,f](x, k)"))
WITHOUT_PADDING = "conv[a,f](x, k) = parts of it without what is padding"
"""What `weft.extras.search.substitution.borders` does. It is no rule of terms: how many parts there are, and which
elements of the kernel each has, is a matter of sizes."""
_PARTS = 9
"""Into which a convolution is split, at most: three rows of three."""


class Move(NamedTuple):
    """A use of a rule: its text, and the segment behind it."""

    rule: str
    segment: DeviceSegment


def usable(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    """The rules that say something of operators of the device, in both directions, by the operator that they replace.

    Left out are sides that the device has no operators for, those that need what the other side does not name, and
    those that only say where values lie, or compute them to leave some out: what is of use of these `Moves` does by
    itself.
    """
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        if not all(_realisable(side) for side in (rule.left, rule.right)):
            continue
        for one in (rule, rule.turned):
            told = {part.operator for part in one.right.parts}
            if one.left.operator not in (*KINDS, "cat") or not told & {*KINDS}:
                continue
            if _names(one.right) <= _names(one.left) and max(one.left.size, one.right.size) <= _LARGEST:
                found.setdefault(one.left.operator, []).append(one)
    return found


def _realisable(term: Term) -> bool:
    told = {part.operator for part in term.parts if part.operands}
    exact = any("e" in part.function.lstrip("~").replace("|", ".").split(".") for part in term.parts)
    return told <= _KNOWN and not exact


def _names(term: Term) -> set[str]:
    found = {part.operator for part in term.parts if part.operator in (*IMAGES, *WEIGHTS)}
    found |= {f"f{char}" for part in term.parts for char in part.function if char.isalpha()}
    return found | {
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
        self._rules, self._bits = usable(rules), bits
        self._places: weakref.WeakKeyDictionary[DeviceSegment, Places] = weakref.WeakKeyDictionary()

    def of(self, segment: DeviceSegment, op: DeviceOp) -> Iterator[Move]:
        """The uses of rules for the output of an operator."""
        places = self._places.get(segment)
        if places is None:
            places = self._places[segment] = Places(segment)
        yield from self._by_rules(segment, places, op)
        yield from _taking_place(segment, places, op)
        yield from _siblings(segment, places, op)
        yield from _without_padding(segment, op)

    def _by_rules(self, segment: DeviceSegment, places: Places, op: DeviceOp) -> Iterator[Move]:
        roots: list[tuple[str, View]] = []
        if (kind := kind_of(op)) is not None and places.plain(op.dst.buffer.name):
            roots.append((kind, op.dst))
        buffer = whole(op.dst.buffer)
        if op.dst.c == 0 and len(places.parts(buffer)) > 1:
            roots.append(("cat", buffer))
        for operator, view in roots:
            if places.resolved(view) != view:
                continue
            for rule in self._rules.get(operator, ()):
                for match in matches(rule.left, view, places):
                    made = self._replaced(segment, rule, match, view)
                    if made is not None:
                        yield Move(rule.text, made)

    def _replaced(self, segment: DeviceSegment, rule: Rule, match: Match, view: View) -> DeviceSegment | None:
        """The segment with the other side of a rule in place of what makes a view; None if that cannot be."""
        if not all(match.steady.get(name, True) for name in rule.rising):
            return None
        if rule.bound:
            sizes = (
                max(item.shape[1] for item in match.views.values()),
                max(item.shape[2] for item in match.views.values()),
            )
            if not holds_for(rule.left, rule.right, match.windows, sizes):
                return None
        if any(overlapping(item, view) for item in match.views.values()):
            return None  # of what is replaced nothing is left
        root = [op for op in segment.ops if op.dst.buffer.name == view.buffer.name and _inside(op.dst, view)]
        builder = Builder(
            match, namer(segment), root[0].name, lambda function: on_bytes(function, self._bits)
        )
        try:
            builder.built(rule.right, dst=view)
        except NotThere:
            return None
        # What is new comes as early as may be, so never behind what was there, whose readers come later.
        ops = placed([op for op in segment.ops if op not in root], builder.ops)
        return dataclasses.replace(segment, ops=without_dead(ops, segment.states))


def _inside(dst: View, view: View) -> bool:
    return dst.c >= view.c and dst.c + dst.shape[3] <= view.c + view.shape[3]


def _taking_place(segment: DeviceSegment, places: Places, op: DeviceOp) -> Iterator[Move]:
    """A value that is copied into a concatenation lies there from the start: all read it there."""
    if not isinstance(op, Rescale) or not op.unchanged:
        return
    source, dst = op.src, op.dst
    names = source.buffer.name, dst.buffer.name
    if (
        not source.contiguous
        or names[0] == names[1]
        or not places.free(names[0])
        or not places.plain(names[1])
    ):
        return
    if dst.buffer.kind != "temp" or dst.shape[:3] != dst.buffer.shape[:3]:
        return

    def moved(view: View) -> View:
        if view.buffer.name != names[0]:
            return view
        return dataclasses.replace(view, buffer=dst.buffer, c=view.c + dst.c)

    ops = [item.on(moved) for item in segment.ops if item is not op]
    if any(overlapping(view, item.dst) for item in ops for view in item.sources):
        return  # it would read what it writes
    yield Move(_TAKES_PLACE.turned.text, dataclasses.replace(segment, ops=tuple(ops)))


def _siblings(segment: DeviceSegment, places: Places, op: DeviceOp) -> Iterator[Move]:
    """Two convolutions of one image, over one window, become one, of which each has a part."""
    if kind_of(op) != "conv" or not isinstance(op, Conv) or not places.free(op.dst.buffer.name):
        return
    for other in places.readers[op.src.buffer.name]:
        if other is op or not isinstance(other, Conv) or kind_of(other) != "conv":
            continue
        if (
            segment.ops.index(other) < segment.ops.index(op)
            or other.src != op.src
            or other.window != op.window
        ):
            continue
        both = places.free(other.dst.buffer.name) and op.dst.contiguous and other.dst.contiguous
        if both and function_of(op) == function_of(other) and op.dst.buffer.name != other.dst.buffer.name:
            yield Move(_SIBLINGS.turned.text, _joined(segment, op, other))


def _joined(segment: DeviceSegment, op: Conv, other: Conv) -> DeviceSegment:
    n, h, w, c = op.dst.shape
    name = namer(segment)(f"{op.name}&{other.name}")
    buffer = dataclasses.replace(op.dst.buffer, name=name, shape=(n, h, w, c + other.dst.shape[3]))
    weights = weights_of(op).behind(weights_of(other))
    one = op.replace(
        name=name, dst=whole(buffer), weight=weights.weight, bias=weights.bias, scale=weights.scale
    )
    first = {op.dst.buffer.name: 0, other.dst.buffer.name: c}

    def moved(view: View) -> View:
        at = first.get(view.buffer.name)
        return view if at is None else channels(dataclasses.replace(view, buffer=buffer), at, view.shape[3])

    ops = [(one if item is op else item).on(moved) for item in segment.ops if item is not other]
    return dataclasses.replace(segment, ops=tuple(ops))


def _without_padding(segment: DeviceSegment, op: DeviceOp) -> Iterator[Move]:
    """A convolution in parts of which each leaves out what is padding to it."""
    if not isinstance(op, Conv) or kind_of(op) not in ("conv", "depth"):
        return
    at, name = segment.ops.index(op), namer(segment)
    for parts in ways(op):
        if len(parts) <= _PARTS:
            named = [part.replace(name=name(part.name)) for part in parts]
            ops = (*segment.ops[:at], *named, *segment.ops[at + 1 :])
            yield Move(WITHOUT_PADDING, dataclasses.replace(segment, ops=ops))
