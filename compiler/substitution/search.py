"""The search for uses of rules that make a segment quicker.

Around each operator, chains of uses are tried, also through forms that are slower (Z. Jia et al., TASO, SOSP 2019: by
backtracking). What each costs is what a part of the segment takes: the operators that are other ones, and their
neighbours, compiled by all passes, layouts, fusion and residency included. What is quickest stays if the part computes
the same bytes on random inputs, too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.interpret import run_ops
from weft.compiler.ir.graph import CompileError, DeviceOp, DeviceSegment, IrError, View
from weft.compiler.passes.trial import part_of
from weft.compiler.substitution.moves import Move, Moves
from weft.compiler.substitution.places import touched
from weft.compiler.substitution.rule import Rule
from weft.compiler.verify import verify_segment

_DEPTH, _WIDTH, _REPEATS = 3, 3, 16
"""Uses of rules in a chain, chains that are followed after each, and uses of a rule at once on what it made."""
_AROUND = 2
"""Operators before and behind those that change that are looked at, too."""
_SHARED = 12
"""Operators of both segments that write or read a buffer: those of one with more are not all looked at."""
_MOST = 30
"""Operators of a part, at most: what reaches further is not tried."""
_SLOWER = 1.05
"""Share of the cycles of a part up to which a chain is followed."""
_GAIN = 0.995
"""Share of the cycles of a part at which a chain of uses stays."""

_OF_THE_HOST = ("pages", "table")
"""Kinds of buffers of which the host says what lies there: no part can have them."""

Cost = Callable[[DeviceSegment], int]
"""The cycles of a segment: those of the cycle model for its program."""


@dataclass(frozen=True)
class Used:
    """A chain of uses that stayed: the rules, the operator where it began, and the cycles of the part before and
    behind."""

    rules: tuple[str, ...]
    operator: str
    before: int
    behind: int

    @property
    def saved(self) -> int:
        """Cycles."""
        return self.before - self.behind


@dataclass
class Searched:
    """What a search found: the segment, the chains of uses, parts whose cost it asked for, and whether it came to its
    end."""

    segment: DeviceSegment
    used: list[Used] = field(default_factory=list)
    costs: int = 0
    whole: bool = True


class Search:
    """One search.

    Parameters
    ----------
    rules : sequence of Rule
    cost : Cost
    bits : int
        Width of requantisation mantissas.
    rate : int
        Multiplications a cycle of the array.
    most : int
        Parts whose cost is asked for: after these no other operator is begun.
    """

    def __init__(self, rules: Sequence[Rule], cost: Cost, bits: int, rate: int, most: int) -> None:
        self._moves, self._cost, self._bits, self._most = Moves(rules, bits), cost, bits, most
        self._rate = rate
        self._known: dict[str, int | None] = {}
        self._rng = np.random.default_rng(1)
        self._costs = 0

    def run(self, segment: DeviceSegment, progress: Callable[[str], None] = lambda text: None) -> Searched:
        """The quickest segment that was found."""
        found = Searched(segment)
        waiting: dict[str, float] = dict.fromkeys((op.name for op in segment.ops), -math.inf)
        idle = self._idle(segment)
        self._costs = 0  # operators by themselves are no parts that are tried
        while waiting and found.whole:
            # What saved most when it was last looked at is looked at again, and stays if it still does.
            name = min(waiting, key=lambda item: (waiting[item], -idle.get(item, 0)))
            op = next((item for item in found.segment.ops if item.name == name), None)
            better = None if op is None else self._better(found.segment, op)
            if better is None:
                del waiting[name]
            elif waiting[name] != -better[1].saved:
                waiting[name] = -better[1].saved
            else:
                before = found.segment
                found.segment, used = better
                self._check(before, found.segment, used.rules)
                found.used.append(used)
                progress(f"{name}: {', '.join(used.rules)}: {used.before:,} to {used.behind:,} cycles")
                for near in self._around(before, found.segment):
                    waiting[near] = -math.inf
            found.whole = self._costs < self._most
        found.costs = self._costs
        return found

    def _idle(self, segment: DeviceSegment) -> dict[str, float]:
        """By operator the cycles for which the array waits while it runs by itself: where these are most, most can be
        saved, so the search begins there."""
        found: dict[str, float] = {}
        for op in segment.ops:
            if any(view.buffer.kind in _OF_THE_HOST for view in op.sources):
                continue
            found[op.name] = (self._of(_part(segment, [op])) or 0) - op.macs / self._rate
        return found

    def _around(self, before: DeviceSegment, behind: DeviceSegment) -> set[str]:
        """The operators for which another form of a part may change what is best."""
        parts = parts_of(before, behind)
        assert parts is not None
        return {op.name for op in parts[1].ops}

    def _better(self, segment: DeviceSegment, op: DeviceOp) -> tuple[DeviceSegment, Used] | None:
        """The segment with the best chain of uses around an operator; None if none is worth it."""
        chains: list[tuple[DeviceSegment, tuple[str, ...]]] = [(segment, ())]
        seen = {_difference(segment, segment)}
        best: tuple[float, DeviceSegment, tuple[str, ...], int, int] | None = None
        for _ in range(_DEPTH):
            ranked: list[tuple[float, DeviceSegment, tuple[str, ...]]] = []
            for start, rules in chains:
                for move in self._near(segment, start, op):
                    digest = _difference(segment, move.segment)
                    if digest in seen:
                        continue
                    seen.add(digest)
                    told = (*rules, move.rule)
                    costs = self._compared(segment, move.segment)
                    if costs is None:
                        continue
                    before, behind = costs
                    if behind <= _SLOWER * before:
                        ranked.append((behind - before, move.segment, told))
                    if behind < _GAIN * before and (best is None or behind - before < best[0]):
                        best = behind - before, move.segment, told, before, behind
            ranked.sort(key=lambda item: item[0])
            chains = [(made, told) for _, made, told in ranked[:_WIDTH]]
        if best is None:
            return None
        _, made, told, before, behind = best
        return made, Used(told, op.name, before, behind)

    def _near(self, segment: DeviceSegment, start: DeviceSegment, op: DeviceOp) -> Iterator[Move]:
        """Uses for an operator, for those that uses before made of it, and for those that read what these make; a rule
        that has more to do on what it makes, such as a concatenation of many parts, does that, too."""
        old = set(map(id, segment.ops))
        made = {item.dst.buffer.name for item in start.ops if id(item) not in old}
        roots = [
            item
            for item in start.ops
            if item.name == op.name
            or id(item) not in old
            or any(view.buffer.name in made for view in item.sources)
        ]
        for root in roots:
            for move in self._moves.of(start, root):
                yield move
                again = self._repeated(start, move)
                if again is not move:
                    yield again

    def _repeated(self, start: DeviceSegment, move: Move) -> Move:
        """A use, and the same rule on what is new, as long as there is something."""
        old = set(map(id, start.ops))
        for _ in range(_REPEATS):
            new = [op for op in move.segment.ops if id(op) not in old]
            more = (item for op in new for item in self._moves.of(move.segment, op) if item.rule == move.rule)
            found = next(more, None)
            if found is None:
                break
            move = found
        return move

    def _compared(self, before: DeviceSegment, behind: DeviceSegment) -> tuple[int, int] | None:
        """The cycles of the part in which two segments differ; None if one cannot be compiled."""
        parts = parts_of(before, behind)
        if parts is None:
            return None
        costs = [self._of(part) for part in parts]
        return None if costs[0] is None or costs[1] is None else (costs[0], costs[1])

    def _of(self, part: DeviceSegment) -> int | None:
        key = shape_digest(part)
        if key not in self._known:
            self._costs += 1
            try:
                self._known[key] = self._cost(part)
            except (CompileError, IrError):
                self._known[key] = None
        return self._known[key]

    def _check(self, before: DeviceSegment, behind: DeviceSegment, rules: Sequence[str]) -> None:
        """Both parts compute the same bytes on random inputs.

        Raises
        ------
        IrError
            If they do not: a bug, never the user's mistake.
        """
        parts = parts_of(before, behind)
        assert parts is not None
        views = [
            view for part in parts for op in part.ops for view in op.sources if view.buffer.kind == "input"
        ]
        inputs = {
            view.buffer.name: self._rng.integers(-128, 128, view.buffer.size).astype(np.int8)
            for view in views
        }
        one, other = (run_ops(part, inputs, self._bits) for part in parts)
        outputs = {op.dst.buffer.name for op in parts[0].ops if op.dst.buffer.kind == "output"}
        for name in outputs:
            if not np.array_equal(one[name], other[name]):
                raise IrError(f"{', '.join(rules)} changed bytes of {name}")


def parts_of(before: DeviceSegment, behind: DeviceSegment) -> tuple[DeviceSegment, DeviceSegment] | None:
    """The operators in which two segments differ, with their neighbours, as segments of their own, with the same inputs
    and outputs; None if they are too many.

    Buffers that are written outside are inputs, and those that are read outside outputs. With a buffer that only one of
    both has, all that write and read it are in the part, and so they are with what operators that differ write, unless
    many others do: of such a concatenation the part makes what it makes.
    """
    both = before, behind
    same = set(map(id, before.ops)) & set(map(id, behind.ops))
    changed = [[index for index, op in enumerate(item.ops) if id(op) not in same] for item in both]
    written = {
        op.dst.buffer.name
        for item in both
        for op in item.ops
        if id(op) not in same and op.dst.buffer.kind == "temp"
    }
    uses = Counter(name for item in both for op in item.ops for name in touched((op,)) & written)
    own = touched(before.ops) ^ touched(behind.ops) | {name for name in written if uses[name] <= _SHARED}
    wanted: set[int] = set()
    for item, indices in zip(both, changed, strict=True):
        inside = [at for at, op in enumerate(item.ops) if own & touched((op,))] + indices
        if inside:
            near = range(max(min(inside) - _AROUND, 0), min(max(inside) + 1 + _AROUND, len(item.ops)))
            wanted |= {id(item.ops[at]) for at in near}
    chosen = [[op for op in item.ops if id(op) in wanted or id(op) not in same] for item in both]
    if max(map(len, chosen)) > _MOST:
        return None
    if any(view.buffer.kind in _OF_THE_HOST for ops in chosen for op in ops for view in op.sources):
        return None
    made = [_part(item, ops) for item, ops in zip(both, chosen, strict=True)]
    try:
        for item in made:
            verify_segment(item)
    except IrError:
        return None  # it reads what only others write
    return made[0], made[1]


def _part(segment: DeviceSegment, ops: Sequence[DeviceOp]) -> DeviceSegment:
    """Operators as a segment of their own, for which the host writes what they do not."""
    part = part_of(ops, segment)
    written = {op.dst.buffer.name for op in ops}

    def given(view: View) -> View:
        if view.buffer.name in written:
            return view
        return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, kind="input"))

    return dataclasses.replace(part, ops=tuple(op.on(given) for op in part.ops))


def _difference(before: DeviceSegment, behind: DeviceSegment) -> tuple[object, ...]:
    """What tells apart segments that one search makes of another one: the operators that are gone, and the new ones,
    without the names of their buffers where these are new, too."""
    old, new = set(map(id, before.ops)), set(map(id, behind.ops))
    known = touched(before.ops)
    added = [op for op in behind.ops if id(op) not in old]
    own: dict[str, object] = {}

    def seen(view: View) -> tuple[object, ...]:
        name = view.buffer.name
        return (
            own.get(name, name) if name not in known else name,
            view.shape,
            view.y,
            view.x,
            view.c,
            view.step,
        )

    texts = []
    for op in added:
        text = hash(
            (type(op).__name__, tuple(map(seen, op.sources)), op.dst.shape, op.dst.c, str(_told(op, True)))
        )
        own[op.dst.buffer.name] = hash((own.get(op.dst.buffer.name), text))
        texts.append(hash((text, seen(op.dst)[0] if op.dst.buffer.name in known else None)))
    return frozenset(old - new), tuple(sorted(texts))


def shape_digest(segment: DeviceSegment) -> str:
    """What the cost of a segment depends on: everything but names and the values of weights."""
    names: dict[str, int] = {}
    text = [
        repr((type(op).__name__, [_seen(view, names) for view in (*op.sources, op.dst)], _told(op, False)))
        for op in segment.ops
    ]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _seen(view: View, names: dict[str, int]) -> tuple[object, ...]:
    number = names.setdefault(view.buffer.name, len(names))
    return (
        number,
        view.buffer.kind,
        view.buffer.shape,
        view.shape,
        view.y,
        view.x,
        view.c,
        view.step,
        view.image,
    )


def _told(op: DeviceOp, values: bool) -> list[tuple[str, str]]:
    """The parameters of an operator by their names; arrays by their shapes and, if they are no weights or `values` are
    wanted, a hash of what is in them, weights also by whether they fit int8."""
    found = []
    for item in dataclasses.fields(op):
        value = getattr(op, item.name)
        if item.name == "name" or isinstance(value, View):
            continue
        if isinstance(value, np.ndarray):
            weights = item.name in ("weight", "bias", "scale")
            known = hash(value.tobytes()) if values or not weights else None
            value = value.shape, known, item.name == "weight" and bool(np.abs(value).max(initial=0) <= 127)
        found.append((item.name, str(value)))
    return found
