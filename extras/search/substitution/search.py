"""The search for uses of rules that make a segment quicker.

Around each operator, chains of uses are tried, also through forms that are slower (Z. Jia et al., TASO, SOSP 2019: by
backtracking). What each costs is what a part of the segment takes: the operators that are other ones, and their
neighbours, compiled by all passes, layouts, fusion and residency included. What is quickest stays if the part computes
the same bytes on random inputs, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, IrError, View
from weft.compiler.verify import run_ops
from weft.extras.search.substitution.borders import useful
from weft.extras.search.substitution.moves import Move, Moves
from weft.extras.search.substitution.part_costs import (
    OF_THE_HOST,
    Cost,
    PartCosts,
    parameters_of,
    part_with,
    parts_of,
)
from weft.extras.search.substitution.places import touched
from weft.extras.search.substitution.rule import Rule

_DEPTH, _WIDTH, _REPEATS = 3, 3, 16
"""Uses of rules in a chain, chains that are followed after each, and uses of a rule at once on what it made."""
_SLOWER = 1.05
"""Share of the cycles of a part up to which a chain is followed."""
_GAIN = 0.995
"""Share of the cycles of a part at which a chain of uses stays."""


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

    @property
    def told(self) -> str:
        """In a line."""
        return f"{self.operator}: {'; '.join(self.rules)}: {self.saved:,} cycles fewer"


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
        self._moves, self._parts, self._bits, self._most = Moves(rules, bits), PartCosts(cost), bits, most
        self._rate = rate
        self._rng = np.random.default_rng(1)

    def run(self, segment: DeviceSegment, progress: Callable[[str], None] = lambda text: None) -> Searched:
        """The quickest segment that was found."""
        found = Searched(segment)
        waiting: dict[str, float] = dict.fromkeys((op.name for op in segment.ops), -math.inf)
        self._parts.closed = False
        idle = self._idle(segment)
        self._parts.asked = 0  # operators by themselves are no parts that are tried
        while waiting and found.whole:
            # What saved most when it was last looked at is looked at again, and stays if it still does.
            name = min(waiting, key=lambda item: (waiting[item], -idle.get(item, 0)))
            better = self._named(found.segment, name)
            if better is None:
                del waiting[name]
            elif waiting[name] != -better[1].saved:
                waiting[name] = -better[1].saved
            else:
                for near in self._around(found.segment, better[0]):
                    waiting[near] = -math.inf
                self._stays(found, better, progress)
            found.whole = self._parts.asked < self._most
        # What saves something though the search did not come to its end, as far as costs are known.
        self._parts.closed = True
        for name in sorted(
            (item for item in waiting if waiting[item] > -math.inf), key=lambda item: waiting[item]
        ):
            if (better := self._named(found.segment, name)) is not None:
                self._stays(found, better, progress)
        found.costs = self._parts.asked
        return found

    def _named(self, segment: DeviceSegment, name: str) -> tuple[DeviceSegment, Used] | None:
        """`_better` for the operator of a name, if it is still there."""
        op = next((item for item in segment.ops if item.name == name), None)
        return None if op is None else self._better(segment, op)

    def _stays(
        self, found: Searched, better: tuple[DeviceSegment, Used], progress: Callable[[str], None]
    ) -> None:
        """A chain of uses stays, and its part computes what it did."""
        made, used = better
        self._check(found.segment, made, used.rules)
        found.segment = made
        found.used.append(used)
        progress(f"{used.operator}: {', '.join(used.rules)}: {used.before:,} to {used.behind:,} cycles")

    def _idle(self, segment: DeviceSegment) -> dict[str, float]:
        """By operator the cycles for which the array waits, or multiplies padding, while it runs by itself: where these
        are most, most can be saved, so the search begins there."""
        found: dict[str, float] = {}
        for op in segment.ops:
            if any(view.buffer.kind in OF_THE_HOST for view in op.sources):
                continue
            products = useful(op) if isinstance(op, Conv) else op.macs
            found[op.name] = (self._parts.of(part_with(segment, [op])) or 0) - products / self._rate
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
                    costs = self._parts.compared(segment, move.segment)
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
            (
                type(op).__name__,
                tuple(map(seen, op.sources)),
                op.dst.shape,
                op.dst.c,
                str(parameters_of(op, True)),
            )
        )
        own[op.dst.buffer.name] = hash((own.get(op.dst.buffer.name), text))
        texts.append(hash((text, seen(op.dst)[0] if op.dst.buffer.name in known else None)))
    return frozenset(old - new), tuple(sorted(texts))
