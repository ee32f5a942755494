"""Search for uses of rules that make a segment faster.

Around each operator, the search tries chains of uses, also through slower forms (backtracking as in Z. Jia et al.,
TASO, SOSP 2019). The cost of a chain is that of the changed operators and their neighbours, compiled by all passes,
including layouts, fusion and residency. The fastest chain is kept if the part also computes the same bytes on random
inputs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.errors import CompileError, IrError
from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment
from weft.compiler.ir.views import View
from weft.compiler.planner import part_of
from weft.compiler.verify import run_ops, verify_segment
from weft.extras.search.substitution.borders import useful_products
from weft.extras.search.substitution.matching import touched_buffers
from weft.extras.search.substitution.moves import Move, Moves
from weft.extras.search.substitution.rule import Rule

_NEIGHBOURS = 2
"""Number of operators before and after the changed ones that belong to a part."""
_MAX_USERS = 12
"""Limit for operators that access a buffer; a part does not include all users of a buffer with more."""
_MAX_OPERATORS = 30
"""Limit for operators of a part; larger parts are not tried."""

HOST_BUFFERS = ("pages", "table")
"""Kinds of buffers whose contents the host determines; parts cannot have them."""

Cost = Callable[[DeviceSegment], int]
"""Returns the cycles of a segment's program by the cycle model."""


class PartCosts:
    """Cache of costs, by the shape of parts.

    Attributes
    ----------
    measured : int
        Number of parts that were measured.
    frozen : bool
        Whether nothing is measured any more; parts with unknown cost then count as not compilable.
    """

    def __init__(self, cost: Cost) -> None:
        self._cost, self.measured, self.frozen = cost, 0, False
        self._costs: dict[str, int | None] = {}

    def cost(self, part: DeviceSegment) -> int | None:
        """Return the cycles of a part; None if it cannot be compiled."""
        key = shape_digest(part)
        if key not in self._costs:
            if self.frozen:
                return None
            self.measured += 1
            try:
                self._costs[key] = self._cost(part)
            except (CompileError, IrError):
                self._costs[key] = None
        return self._costs[key]

    def compare(self, before: DeviceSegment, after: DeviceSegment) -> tuple[int, int] | None:
        """Return the cycles, before and after, of the part in which two segments differ; None if one cannot be
        compiled.
        """
        parts = differing_parts(before, after)
        if parts is None:
            return None
        cost_before, cost_after = map(self.cost, parts)
        return None if cost_before is None or cost_after is None else (cost_before, cost_after)


def differing_parts(
    before: DeviceSegment, after: DeviceSegment
) -> tuple[DeviceSegment, DeviceSegment] | None:
    """Return the operators in which two segments differ, with their neighbours, as segments with the same interface.

    Return None if they are too many. Buffers that are written outside are inputs, and those that are read outside are
    outputs. If only one segment has a buffer, the part includes all its users. The same holds for buffers that changed
    operators write, unless they have too many users, as a concatenation may.
    """
    segments = before, after
    # Both segments share unchanged operators as objects.
    common = set(map(id, before.ops)) & set(map(id, after.ops))
    changed = [[index for index, op in enumerate(item.ops) if id(op) not in common] for item in segments]
    written = {
        op.dst.buffer.name
        for item in segments
        for op in item.ops
        if id(op) not in common and op.dst.buffer.kind == "temp"
    }
    uses = Counter(name for item in segments for op in item.ops for name in touched_buffers((op,)) & written)
    own = touched_buffers(before.ops) ^ touched_buffers(after.ops) | {
        name for name in written if uses[name] <= _MAX_USERS
    }
    near_ids: set[int] = set()
    for item, indices in zip(segments, changed, strict=True):
        inside = [at for at, op in enumerate(item.ops) if own & touched_buffers((op,))] + indices
        if inside:
            near = range(max(min(inside) - _NEIGHBOURS, 0), min(max(inside) + 1 + _NEIGHBOURS, len(item.ops)))
            near_ids |= {id(item.ops[at]) for at in near}
    selected = [[op for op in item.ops if id(op) in near_ids or id(op) not in common] for item in segments]
    if max(map(len, selected)) > _MAX_OPERATORS:
        return None
    if any(view.buffer.kind in HOST_BUFFERS for ops in selected for op in ops for view in op.sources):
        return None
    parts = [part_with(item, ops) for item, ops in zip(segments, selected, strict=True)]
    try:
        for item in parts:
            verify_segment(item)
    except IrError:
        # It reads a value that only operators outside the part write.
        return None
    return parts[0], parts[1]


def part_with(segment: DeviceSegment, ops: Sequence[DeviceOp]) -> DeviceSegment:
    """Return operators as a segment whose missing values are inputs."""
    part = part_of(ops, segment)
    written = {op.dst.buffer.name for op in ops}

    def as_input(view: View) -> View:
        if view.buffer.name in written:
            return view
        return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, kind="input"))

    return dataclasses.replace(part, ops=tuple(op.map_views(as_input) for op in part.ops))


def shape_digest(segment: DeviceSegment) -> str:
    """Return a hash of everything that a segment's cost depends on: all but names and values of weights."""
    names: dict[str, int] = {}
    text = [
        repr(
            (
                type(op).__name__,
                [_view_signature(view, names) for view in (*op.sources, op.dst)],
                operator_parameters(op, False),
            )
        )
        for op in segment.ops
    ]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _view_signature(view: View, names: dict[str, int]) -> tuple[object, ...]:
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


def operator_parameters(op: DeviceOp, values: bool) -> list[tuple[str, str]]:
    """Return an operator's parameters by name.

    Arrays are represented by their shapes. A hash of the contents is added for arrays other than weights, and with
    `values` for all; for weights also whether they fit int8.
    """
    parameters = []
    for item in dataclasses.fields(op):
        value = getattr(op, item.name)
        if item.name == "name" or isinstance(value, View):
            continue
        if isinstance(value, np.ndarray):
            weights = item.name in ("weight", "bias", "scale")
            content = hash(value.tobytes()) if values or not weights else None
            value = value.shape, content, item.name == "weight" and bool(np.abs(value).max(initial=0) <= 127)
        parameters.append((item.name, str(value)))
    return parameters


_MAX_DEPTH, _BEAM_WIDTH, _MAX_REPEATS = 3, 3, 16
"""Limits: uses of rules in a chain, chains that are extended after each use, and repetitions of a rule on its own
result.
"""
_MAX_SLOWDOWN = 1.05
"""Largest ratio of a part's cycles for which a chain is extended."""
_MAX_SHARE = 0.995
"""Largest ratio of a part's cycles for which a chain is kept."""


@dataclass(frozen=True)
class Used:
    """Chain of uses that was kept: the rules, the operator where it began, and the part's cycles before and after."""

    rules: tuple[str, ...]
    operator: str
    before: int
    after: int

    @property
    def saving(self) -> int:
        """Cycles that the chain saves."""
        return self.before - self.after

    @property
    def summary(self) -> str:
        """One line for the user."""
        return f"{self.operator}: {'; '.join(self.rules)}: {self.saving:,} cycles fewer"


@dataclass
class SearchResult:
    """Result of a search: segment, kept chains, number of measured parts, and whether the search was complete."""

    segment: DeviceSegment
    used: list[Used] = field(default_factory=list)
    measured_parts: int = 0
    complete: bool = True


class Search:
    """Search on one segment.

    Parameters
    ----------
    rules : sequence of Rule
    cost : Cost
    bits : int
        Width of requantisation mantissas.
    rate : int
        Multiplications of the array per cycle.
    max_parts : int
        Number of measured parts after which the search examines no further operator.
    """

    def __init__(self, rules: Sequence[Rule], cost: Cost, bits: int, rate: int, max_parts: int) -> None:
        self._moves, self._parts, self._bits, self._max_parts = (
            Moves(rules, bits),
            PartCosts(cost),
            bits,
            max_parts,
        )
        self._rate = rate
        self._rng = np.random.default_rng(1)

    def run(
        self, segment: DeviceSegment, progress: Callable[[str], None] = lambda text: None
    ) -> SearchResult:
        """Return the fastest segment that the search finds."""
        result = SearchResult(segment)
        waiting: dict[str, float] = dict.fromkeys((op.name for op in segment.ops), -math.inf)
        self._parts.frozen = False
        idle = self._idle_cycles(segment)
        # Do not count the operators measured for `idle`.
        self._parts.measured = 0
        while waiting and result.complete:
            # The operator with the largest known saving is examined again, and accepted if the saving is unchanged.
            name = min(waiting, key=lambda item: (waiting[item], -idle.get(item, 0)))
            better = self._improve_named(result.segment, name)
            if better is None:
                del waiting[name]
            elif waiting[name] != -better[1].saving:
                waiting[name] = -better[1].saving
            else:
                for near in self._affected_names(result.segment, better[0]):
                    waiting[near] = -math.inf
                self._accept(result, better, progress)
            result.complete = self._parts.measured < self._max_parts
        # After an incomplete search, accept known savings without further measurements.
        self._parts.frozen = True
        for name in sorted(
            (item for item in waiting if waiting[item] > -math.inf), key=lambda item: waiting[item]
        ):
            if (better := self._improve_named(result.segment, name)) is not None:
                self._accept(result, better, progress)
        result.measured_parts = self._parts.measured
        return result

    def _improve_named(self, segment: DeviceSegment, name: str) -> tuple[DeviceSegment, Used] | None:
        """Return `_improve` for the operator with this name, or None if it no longer exists."""
        op = next((item for item in segment.ops if item.name == name), None)
        return None if op is None else self._improve(segment, op)

    def _accept(
        self, result: SearchResult, better: tuple[DeviceSegment, Used], progress: Callable[[str], None]
    ) -> None:
        """Accept a chain of uses, after a check that its part computes the same bytes."""
        changed_segment, used = better
        self._check_equal(result.segment, changed_segment, used.rules)
        result.segment = changed_segment
        result.used.append(used)
        progress(f"{used.operator}: {', '.join(used.rules)}: {used.before:,} to {used.after:,} cycles")

    def _idle_cycles(self, segment: DeviceSegment) -> dict[str, float]:
        """Return, by operator, the cycles in which the array waits or multiplies padding when the operator runs alone.

        The search starts where these cycles, and thus possible savings, are largest.
        """
        idle_cycles: dict[str, float] = {}
        for op in segment.ops:
            if any(view.buffer.kind in HOST_BUFFERS for view in op.sources):
                continue
            products = useful_products(op) if isinstance(op, Conv) else op.macs
            idle_cycles[op.name] = (self._parts.cost(part_with(segment, [op])) or 0) - products / self._rate
        return idle_cycles

    def _affected_names(self, before: DeviceSegment, after: DeviceSegment) -> set[str]:
        """Return the operators for which a changed part may change the best chain."""
        parts = differing_parts(before, after)
        assert parts is not None
        return {op.name for op in parts[1].ops}

    def _improve(self, segment: DeviceSegment, op: DeviceOp) -> tuple[DeviceSegment, Used] | None:
        """Return the segment with the best chain of uses around an operator; None if no chain pays off."""
        chains: list[tuple[DeviceSegment, tuple[str, ...]]] = [(segment, ())]
        seen = {_difference(segment, segment)}
        best: tuple[float, DeviceSegment, tuple[str, ...], int, int] | None = None
        for _ in range(_MAX_DEPTH):
            ranked: list[tuple[float, DeviceSegment, tuple[str, ...]]] = []
            for start, rules in chains:
                for move in self._nearby_moves(segment, start, op):
                    digest = _difference(segment, move.segment)
                    if digest in seen:
                        continue
                    seen.add(digest)
                    rule_texts = (*rules, move.rule)
                    costs = self._parts.compare(segment, move.segment)
                    if costs is None:
                        continue
                    before, after = costs
                    # Slightly slower forms are extended too, because a later use may pay off.
                    if after <= _MAX_SLOWDOWN * before:
                        ranked.append((after - before, move.segment, rule_texts))
                    if after < _MAX_SHARE * before and (best is None or after - before < best[0]):
                        best = after - before, move.segment, rule_texts, before, after
            # Beam search: only the best forms are extended.
            ranked.sort(key=lambda item: item[0])
            chains = [
                (changed_segment, rule_texts) for _, changed_segment, rule_texts in ranked[:_BEAM_WIDTH]
            ]
        if best is None:
            return None
        _, changed_segment, rule_texts, before, after = best
        return changed_segment, Used(rule_texts, op.name, before, after)

    def _nearby_moves(self, segment: DeviceSegment, start: DeviceSegment, op: DeviceOp) -> Iterator[Move]:
        """Yield uses for an operator, for its replacements from earlier uses, and for readers of their results.

        A rule that applies to its own result, such as one on a concatenation of many parts, is also yielded repeated.
        """
        old = set(map(id, segment.ops))
        new_buffers = {item.dst.buffer.name for item in start.ops if id(item) not in old}
        roots = [
            item
            for item in start.ops
            if item.name == op.name
            or id(item) not in old
            or any(view.buffer.name in new_buffers for view in item.sources)
        ]
        for root in roots:
            for move in self._moves.find(start, root):
                yield move
                repeated = self._repeat(start, move)
                if repeated is not move:
                    yield repeated

    def _repeat(self, start: DeviceSegment, move: Move) -> Move:
        """Repeat a rule on new operators as long as it applies."""
        old = set(map(id, start.ops))
        for _ in range(_MAX_REPEATS):
            new = [op for op in move.segment.ops if id(op) not in old]
            more = (
                item for op in new for item in self._moves.find(move.segment, op) if item.rule == move.rule
            )
            next_move = next(more, None)
            if next_move is None:
                break
            move = next_move
        return move

    def _check_equal(self, before: DeviceSegment, after: DeviceSegment, rules: Sequence[str]) -> None:
        """Check that both parts compute the same bytes on random inputs.

        Raises
        ------
        IrError
            If they do not, which is a bug of weft.
        """
        parts = differing_parts(before, after)
        assert parts is not None
        views = [
            view for part in parts for op in part.ops for view in op.sources if view.buffer.kind == "input"
        ]
        inputs = {
            view.buffer.name: self._rng.integers(-128, 128, view.buffer.size).astype(np.int8)
            for view in views
        }
        result_before, result_after = (run_ops(part, inputs, self._bits) for part in parts)
        outputs = {op.dst.buffer.name for op in parts[0].ops if op.dst.buffer.kind == "output"}
        for name in outputs:
            if not np.array_equal(result_before[name], result_after[name]):
                raise IrError(f"{', '.join(rules)} changed bytes of {name}")


def _difference(before: DeviceSegment, after: DeviceSegment) -> tuple[object, ...]:
    """Return a key for segments that one search derives from another: removed operators, and new operators.

    Names of new buffers are ignored.
    """
    old, new = set(map(id, before.ops)), set(map(id, after.ops))
    known = touched_buffers(before.ops)
    added = [op for op in after.ops if id(op) not in old]
    own: dict[str, object] = {}

    def view_signature(view: View) -> tuple[object, ...]:
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
                tuple(map(view_signature, op.sources)),
                op.dst.shape,
                op.dst.c,
                str(operator_parameters(op, True)),
            )
        )
        own[op.dst.buffer.name] = hash((own.get(op.dst.buffer.name), text))
        texts.append(hash((text, view_signature(op.dst)[0] if op.dst.buffer.name in known else None)))
    return frozenset(old - new), tuple(sorted(texts))
