"""Segments that one use of a rule leads to."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Rescale, View
from weft.compiler.ir.views import channels, may_overlap, whole_view
from weft.extras.search.substitution.borders import find_splits
from weft.extras.search.substitution.building import Builder, NotRealisable, evaluate_on_bytes
from weft.extras.search.substitution.functions import KINDS, function_of, kind_of, weights_of
from weft.extras.search.substitution.matching import Match, find_matches
from weft.extras.search.substitution.places import Places, insert_ops, namer, remove_dead
from weft.extras.search.substitution.rule import Rule
from weft.extras.search.substitution.rule_proof import holds_for
from weft.extras.search.substitution.term import IMAGES, WEIGHTS, Term, parse

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
        if op.dst.c == 0 and len(places.parts(buffer)) > 1:
            roots.append(("cat", buffer))
        for operator, view in roots:
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
        if any(may_overlap(item, view) for item in match.views.values()):
            return None  # a replaced operator would be its own input
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
    if any(may_overlap(view, item.dst) for item in ops for view in item.sources):
        return  # an operator would read the buffer that it writes
    yield Move(_IN_PLACE_RULE.reversed.text, dataclasses.replace(segment, ops=tuple(ops)))


def _join_siblings(segment: DeviceSegment, places: Places, op: DeviceOp) -> Iterator[Move]:
    """Join two convolutions with the same input and window into one; each result is a part of the joint output."""
    if kind_of(op) != "conv" or not isinstance(op, Conv) or not places.is_private(op.dst.buffer.name):
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
