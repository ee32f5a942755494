"""Where operators of the vector unit come: next to convolutions that need nothing of them, and run beside them.

What an operator may pass is told by buffers, and whether it is worth it by estimates of a part of the segment, as the
later passes make it: with results that stay on chip, and with all that runs at the same time.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import NamedTuple

from weft.compiler.ir.graph import Add, CompileError, Conv, DeviceOp, DeviceSegment, Multiply, Pool, Region
from weft.compiler.ir.views import overlapping
from weft.compiler.machine.emit import ceil_div
from weft.compiler.operators.record import operator_of
from weft.compiler.passes.fuse import fuse_epilogue
from weft.compiler.passes.groups import Groups, halves, linked, partner, vector_cycles
from weft.compiler.passes.keep_resident import cost_of, keep_resident
from weft.compiler.passes.rows import best
from weft.compiler.passes.trial import part_of
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config

_ORDER_BRANCHES_AROUND = 2
"""Operators before and behind that are looked at: whether results stay on chip depends on the neighbours."""
_GAIN = 0.98
"""Share of the cycles at which it is done."""
_ORDER_BRANCHES_MOST = 40
"""Operators that may lie between two convolutions and their sum."""


def order_branches(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Of two convolutions whose results meet in a sum or product, the first moves behind the second where that is
    quicker.

    That is by estimate, of these operators and their neighbours, once epilogues are fused and results stay on chip.
    """
    ops = list(segment.ops)
    for at, joint in enumerate(segment.ops):  # all that moves stays ahead of the operator at which it meets
        found = _moved(ops, at) if isinstance(joint, Add | Multiply) else None
        if found is None:
            continue
        first, other = found
        ahead, behind = (
            ops[max(first - _ORDER_BRANCHES_AROUND, 0) : first],
            ops[at : at + 1 + _ORDER_BRANCHES_AROUND],
        )
        before, after = (_cost([*ahead, *part, *behind], segment, planner) for part in (ops[first:at], other))
        if before is not None and after is not None and after < _GAIN * before:
            ops[first:at] = other
    return dataclasses.replace(segment, ops=tuple(ops))


def _moved(ops: Sequence[DeviceOp], at: int) -> tuple[int, list[DeviceOp]] | None:
    """The place of the earlier of two convolutions that operator `at` reads, and all from there to `at` with that one
    last; None if there are none, or it has to stay."""
    names = [view.buffer.name for view in ops[at].sources]
    found = [
        index for index in range(max(at - _ORDER_BRANCHES_MOST, 0), at) if ops[index].dst.buffer.name in names
    ]
    if len(set(names)) < 2 or len(found) != 2 or not all(isinstance(ops[index], Conv) for index in found):
        return None
    first, moving = found[0], ops[found[0]]
    touched = {view.buffer.name for view in (*moving.sources, moving.dst)}
    between = ops[first + 1 : at]
    # What it reads must not be written, and its result not be touched, by those that it passes.
    reads = {view.buffer.name for op in between for view in op.sources}
    if moving.dst.buffer.name in reads or any(op.dst.buffer.name in touched for op in between):
        return None
    return first, [*between, moving]


def _cost(ops: Sequence[DeviceOp], segment: DeviceSegment, planner: Planner) -> float | None:
    """Cycles of some operators by estimate, as the later passes make them; None if one cannot be planned."""
    trial = fuse_epilogue(part_of(ops, segment), planner)
    trial = keep_resident(trial, planner)
    found = cost_of(trial, range(len(trial.ops)), planner)
    return None if found is None else found.cycles


def choose_plans(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Every operator gets the plan by which it is lowered.

    Raises
    ------
    CompileError
        If the configuration lacks a unit for an operator, or an operator cannot be cut small enough for its memories.
    """
    regions = segment.regions or (None,) * len(segment.ops)
    ops = (_planned(op, segment, planner, region) for op, region in zip(segment.ops, regions, strict=True))
    return dataclasses.replace(segment, ops=tuple(ops))


def _planned(op: DeviceOp, segment: DeviceSegment, planner: Planner, region: Region | None) -> DeviceOp:
    unsupported = operator_of(op).unsupported(op, planner.config)
    if op.lookup is not None and not planner.config.lookup_tables:
        unsupported = "this configuration has no look-up tables; set 'lookup_tables' to 1, 2, 4 or 8"
    if unsupported is not None:
        raise CompileError(f"{op.name}: {unsupported}")
    plan = planner.plan(op, segment.resident, region)
    if plan is None:
        raise CompileError(_too_large(op, planner.config))
    return op.replace(plan=plan)


def _too_large(op: DeviceOp, config: Config) -> str:
    return (
        f"{op.name}: not even one output of this {type(op).__name__.lower()} fits on chip "
        f"(scratchpad {config.scratchpad_size} vectors of {config.n} bytes); "
        "use a configuration with a larger scratchpad"
    )


_AROUND = 1
"""Operators before and behind that are looked at: whether results stay on chip depends on the neighbours."""
_MOST = 12
"""Operators that one passes at most."""
_TRIED = 2
"""Places that are tried for an operator."""
_SHARE = 0.3
"""Of an operator's cycles so many must be saved, and that many of a convolution's array be idle otherwise."""


def order_beside(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Operators of the vector unit move next to convolutions that they can run beside where that is quicker.

    That is by estimate, of these operators and their neighbours, once results stay on chip.
    """
    if planner.target.sequential:
        return segment
    order = _Order(segment, planner)
    for op in segment.ops:
        if partner(op, planner):
            order.place(op)
    return dataclasses.replace(segment, ops=tuple(order.ops))


class _Part(NamedTuple):
    """Another order of the operators from place `start` on."""

    start: int
    ops: list[DeviceOp]


class _Order:
    """Operators in an order that is changed step by step."""

    def __init__(self, segment: DeviceSegment, planner: Planner) -> None:
        self.segment, self.planner = segment, planner
        self.ops = list(segment.ops)
        self.places = {op: at for at, op in enumerate(self.ops)}
        self.taken: Counter[str] = Counter()
        """Of convolutions what others take the vector unit meanwhile."""

    def place(self, op: DeviceOp) -> None:
        """Move an operator, or a convolution to it, if that is worth it."""
        at = self.places[op]
        block = range(at, at + 1)
        if at and _halved(self.ops[at - 1], op):
            return  # it went with the first half
        if at + 1 < len(self.ops) and _halved(op, self.ops[at + 1]):
            block = range(at, at + 2)
        if not any(isinstance(self.ops[index], Conv) for index in self._around(block)):
            return
        work = sum(self._cycles(self.ops[index]) for index in block)
        # An operator without a plan has no work; it is refused later.
        beside = (index for index in (block.start - 1, block.stop) if 0 <= index < len(self.ops))
        near = [index for index in beside if self._idle(index) >= work]
        if near:
            self.taken[self.ops[near[0]].name] += round(work)
            return
        for conv, order in islice(self._orders(block, work), _TRIED):
            if self._saves(order, work, [self.ops[index].name for index in block]):
                stop = order.start + len(order.ops)
                self.ops[order.start : stop] = order.ops
                self.places |= zip(order.ops, range(order.start, stop), strict=True)
                self.taken[conv.name] += round(work)
                return

    def _cycles(self, op: DeviceOp) -> float:
        """Of an operator of the vector unit by itself; none if it cannot be planned."""
        if isinstance(op, Conv):
            return vector_cycles(op, self.planner)
        cost = self.planner.cost(op)
        return 0.0 if cost is None else cost.cycles

    def _idle(self, index: int) -> float:
        """Cycles, about, in which the vector unit is idle while a convolution runs; 0 for other operators."""
        op = self.ops[index] if 0 <= index < len(self.ops) else None
        if not isinstance(op, Conv) or op.groups > 1:
            return 0.0
        n, (out, height, width, cin) = self.planner.config.n, op.weight.shape
        pixels = op.src.shape[0] * prod(op.window.output(*op.src.shape[1:3]))
        array = pixels * height * width * ceil_div(cin, n) * ceil_div(out, n)
        return array - vector_cycles(op, self.planner) - self.taken[op.name]

    def _around(self, block: range) -> range:
        """The places that some operators may move to, and their own."""
        return range(max(0, block.start - _MOST), min(len(self.ops), block.stop + _MOST))

    def _orders(self, block: range, work: float) -> Iterator[tuple[Conv, _Part]]:
        """Orders with some operators next to a convolution, those first that promise most."""
        convs = [at for at in self._around(block) if at not in block and isinstance(self.ops[at], Conv)]
        idle = {index: self._idle(index) for index in convs}
        wanted = [index for index in idle if idle[index] > _SHARE * work]
        for index in sorted(wanted, key=lambda at: (-min(idle[at], work), abs(at - block.start))):
            conv = self.ops[index]
            assert isinstance(conv, Conv)
            if any(linked(conv, self.ops[other]) for other in block):
                continue
            order = next(filter(None, self._moves(block, index)), None)
            if order is not None:
                yield conv, order

    def _moves(self, block: range, conv: int) -> Iterator[_Part | None]:
        """Orders with a block right behind a convolution, right ahead of it, or with the convolution next to it; None
        where that passes what it depends on."""
        own, one = (list(block), [conv])
        between = list(range(block.stop, conv) if conv >= block.stop else range(conv + 1, block.start))
        later = conv >= block.stop
        if later:
            yield self._moved(own, [*between, conv])
            yield self._moved(own, between)
            yield self._moved(between, one)
        else:
            yield self._moved(between, own)
            yield self._moved([conv, *between], own)
            yield self._moved(one, between)

    def _moved(self, first: Sequence[int], second: Sequence[int]) -> _Part | None:
        """The order with operators `second`, which follow `first`, ahead of these; None if one of them depends on one
        of these, or the other way round."""
        ops = self.ops
        if not first or not second or any(bound(ops[a], ops[b]) for a in first for b in second):
            return None
        return _Part(first[0], [ops[at] for at in (*second, *first)])

    def _saves(self, order: _Part, work: float, names: Sequence[str]) -> bool:
        """Whether another order saves enough of the cycles of operators that take so much."""
        start, stop = order.start, order.start + len(order.ops)
        ahead, after = self.ops[max(start - _AROUND, 0) : start], self.ops[stop : stop + _AROUND]
        before, behind = (self._alone([*ahead, *part, *after]) for part in (self.ops[start:stop], order.ops))
        if before is None or behind is None:
            return False
        found = [Groups(trial, self.planner, names) for trial, _ in (before, behind)]
        least = behind[1] + _SHARE * work - before[1]
        saved = _saved(found[1])
        if (
            not least < saved <= least + found[0].bound()
        ):  # else it does not matter what exactly is saved before
            return saved > least
        return saved > least + _saved(found[0])

    def _alone(self, ops: Sequence[DeviceOp]) -> tuple[DeviceSegment, float] | None:
        """Some operators as the later passes make them, but one after the other, and their cycles by estimate; those of
        the bus as well if memory is slower than that. None if one cannot be planned."""
        trial = keep_resident(part_of(ops, self.segment), self.planner)
        cost = cost_of(trial, range(len(trial.ops)), self.planner)
        if cost is None:
            return None
        slow = self.planner.target.beat > 1.0
        return choose_plans(trial, self.planner), cost.cycles + slow * cost.traffic


def _saved(groups: Groups) -> float:
    """What those of the groups save that save most together."""
    return sum(group.saved for group in best(groups.found(), len(groups.segment.ops)))


def _halved(first: DeviceOp, second: DeviceOp) -> bool:
    """Whether two operators are one pool."""
    return isinstance(first, Pool) and isinstance(second, Pool) and halves(first, second)


def bound(first: DeviceOp, second: DeviceOp) -> bool:
    """Whether two operators must stay in order."""
    return linked(first, second) or overlapping(first.dst, second.dst)
