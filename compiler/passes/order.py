"""Order of operators: reorder branches and vector-unit operators, and assign plans.

Buffers determine which operators may pass each other. Estimates of a part of the segment, after the later passes
(residency, overlap), determine whether that is worthwhile.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import NamedTuple

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pool, Region
from weft.compiler.ir.views import may_overlap
from weft.compiler.machine.emit import ceil_div
from weft.compiler.operators.record import operator_of
from weft.compiler.passes.fuse import fuse_epilogue
from weft.compiler.passes.groups import Groups, best_disjoint, can_run_beside, is_dependent, vector_cycles
from weft.compiler.passes.keep_resident import cost_of, keep_resident
from weft.compiler.passes.split_pool import are_split_pool
from weft.compiler.planner import Planner, part_of
from weft.hdl.isa.config import Config

_ORDER_BRANCHES_AROUND = 2
"""Operators before and after to include in estimates: whether results stay on chip depends on neighbours."""
_GAIN = 0.98
"""Most cycles of the new order, as a fraction of the old order's."""
_ORDER_BRANCHES_MOST = 40
"""Most operators between two convolutions and their sum."""


def order_branches(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Move the first of two convolutions whose results meet in a sum or product after the second, where that is faster.

    Estimates are of these operators and their neighbours, with epilogues fused and results on chip.
    """
    ops = list(segment.ops)
    for at, joint in enumerate(segment.ops):  # all that moves stays before the joint
        move = _move_first_conv(ops, at) if isinstance(joint, Add | Multiply) else None
        if move is None:
            continue
        first, other = move
        preceding, following = (
            ops[max(first - _ORDER_BRANCHES_AROUND, 0) : first],
            ops[at : at + 1 + _ORDER_BRANCHES_AROUND],
        )
        before, after = (
            _cost([*preceding, *part, *following], segment, planner) for part in (ops[first:at], other)
        )
        if before is not None and after is not None and after < _GAIN * before:
            ops[first:at] = other
    return dataclasses.replace(segment, ops=tuple(ops))


def _move_first_conv(ops: Sequence[DeviceOp], at: int) -> tuple[int, list[DeviceOp]] | None:
    """Return the index of the earlier convolution that operator `at` reads, and the operators up to `at` with it
    moved last.

    None if there are not two convolutions, or if it must stay.
    """
    names = [view.buffer.name for view in ops[at].sources]
    producers = [
        index for index in range(max(at - _ORDER_BRANCHES_MOST, 0), at) if ops[index].dst.buffer.name in names
    ]
    if (
        len(set(names)) < 2
        or len(producers) != 2
        or not all(isinstance(ops[index], Conv) for index in producers)
    ):
        return None
    first, moving = producers[0], ops[producers[0]]
    touched = {view.buffer.name for view in (*moving.sources, moving.dst)}
    between = ops[first + 1 : at]
    # The operators that it passes must not write what it reads, nor touch its result.
    reads = {view.buffer.name for op in between for view in op.sources}
    if moving.dst.buffer.name in reads or any(op.dst.buffer.name in touched for op in between):
        return None
    return first, [*between, moving]


def _cost(ops: Sequence[DeviceOp], segment: DeviceSegment, planner: Planner) -> float | None:
    """Return the estimated cycles of some operators after the later passes; None if one cannot be planned."""
    # Trial of the passes that follow: an epilogue or residency can reverse the gain.
    trial = fuse_epilogue(part_of(ops, segment), planner)
    trial = keep_resident(trial, planner)
    cost = cost_of(trial, range(len(trial.ops)), planner)
    return None if cost is None else cost.cycles


def choose_plans(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Assign every operator the plan by which it is lowered.

    Raises
    ------
    CompileError
        If the configuration lacks a unit for an operator, or an operator cannot be tiled for its memories.
    """
    regions = segment.regions or (None,) * len(segment.ops)
    ops = (_with_plan(op, segment, planner, region) for op, region in zip(segment.ops, regions, strict=True))
    return dataclasses.replace(segment, ops=tuple(ops))


def _with_plan(op: DeviceOp, segment: DeviceSegment, planner: Planner, region: Region | None) -> DeviceOp:
    unsupported = operator_of(op).unsupported(op, planner.config)
    if op.lookup is not None and not planner.config.lookup_tables:
        unsupported = "this configuration has no look-up tables; set 'lookup_tables' to 1, 2, 4 or 8"
    if unsupported is not None:
        raise CompileError(f"{op.name}: {unsupported}")
    plan = planner.plan(op, segment.resident, region)
    if plan is None:
        raise CompileError(_too_large_message(op, planner.config))
    return op.replace(plan=plan)


def _too_large_message(op: DeviceOp, config: Config) -> str:
    return (
        f"{op.name}: not even one output of this {type(op).__name__.lower()} fits on chip "
        f"(scratchpad {config.scratchpad_size} vectors of {config.n} bytes); "
        "use a configuration with a larger scratchpad"
    )


_AROUND = 1
"""Operators before and after to include in estimates: whether results stay on chip depends on neighbours."""
_MOST = 12
"""Most operators that an operator may pass."""
_TRIED = 2
"""Positions to try for an operator."""
_SHARE = 0.3
"""Least fraction of an operator's cycles that must be saved, and that a convolution must have idle in the vector
unit."""


def order_beside(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Move vector-unit operators next to convolutions that they can run beside, where that is faster.

    Estimates are of these operators and their neighbours, with results on chip.
    """
    if planner.target.sequential:
        return segment
    order = _Order(segment, planner)
    for op in segment.ops:
        if can_run_beside(op, planner):
            order.place(op)
    return dataclasses.replace(segment, ops=tuple(order.ops))


class _Part(NamedTuple):
    """Another order of the operators from index `start` on."""

    start: int
    ops: list[DeviceOp]


class _Order:
    """Operators in an order that changes step by step."""

    def __init__(self, segment: DeviceSegment, planner: Planner) -> None:
        self.segment, self.planner = segment, planner
        self.ops = list(segment.ops)
        self.places = {op: at for at, op in enumerate(self.ops)}
        self.taken: Counter[str] = Counter()  # vector cycles of operators placed beside each convolution

    def place(self, op: DeviceOp) -> None:
        """Move an operator next to a convolution, or a convolution to it, if that is worthwhile."""
        at = self.places[op]
        block = range(at, at + 1)
        if at and _are_one_pool(self.ops[at - 1], op):
            return  # it moved with its first half
        if at + 1 < len(self.ops) and _are_one_pool(op, self.ops[at + 1]):
            block = range(at, at + 2)
        if not any(isinstance(self.ops[index], Conv) for index in self._around(block)):
            return
        work = sum(self._cycles(self.ops[index]) for index in block)
        # An operator without a plan has no work; `choose_plans` rejects it.
        beside = (index for index in (block.start - 1, block.stop) if 0 <= index < len(self.ops))
        # A neighbouring convolution with enough idle time needs no move.
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
        """Return the cycles of a vector-unit operator that runs alone; 0 if it cannot be planned."""
        if isinstance(op, Conv):
            return vector_cycles(op, self.planner)
        cost = self.planner.cost(op)
        return 0.0 if cost is None else cost.cycles

    def _idle(self, index: int) -> float:
        """Return the approximate cycles for which the vector unit is idle during a convolution; 0 for other
        operators."""
        op = self.ops[index] if 0 <= index < len(self.ops) else None
        if not isinstance(op, Conv) or op.groups > 1:
            return 0.0
        n, (out, height, width, cin) = self.planner.config.n, op.weight.shape
        pixels = op.src.shape[0] * prod(op.window.output(*op.src.shape[1:3]))
        array = pixels * height * width * ceil_div(cin, n) * ceil_div(out, n)
        return array - vector_cycles(op, self.planner) - self.taken[op.name]

    def _around(self, block: range) -> range:
        """Return the positions that operators may move to, their own included."""
        return range(max(0, block.start - _MOST), min(len(self.ops), block.stop + _MOST))

    def _orders(self, block: range, work: float) -> Iterator[tuple[Conv, _Part]]:
        """Yield orders with some operators next to a convolution, most promising first."""
        convs = [at for at in self._around(block) if at not in block and isinstance(self.ops[at], Conv)]
        idle = {index: self._idle(index) for index in convs}
        wanted = [index for index in idle if idle[index] > _SHARE * work]
        for index in sorted(wanted, key=lambda at: (-min(idle[at], work), abs(at - block.start))):
            conv = self.ops[index]
            assert isinstance(conv, Conv)
            if any(is_dependent(conv, self.ops[other]) for other in block):
                continue
            order = next(filter(None, self._moves(block, index)), None)
            if order is not None:
                yield conv, order

    def _moves(self, block: range, conv: int) -> Iterator[_Part | None]:
        """Yield orders with the block just after or before a convolution, or the convolution moved to it.

        None stands for an order that violates a dependency.
        """
        own, one = (list(block), [conv])
        between = list(range(block.stop, conv) if conv >= block.stop else range(conv + 1, block.start))
        later = conv >= block.stop
        if later:
            yield self._swap(own, [*between, conv])
            yield self._swap(own, between)
            yield self._swap(between, one)
        else:
            yield self._swap(between, own)
            yield self._swap([conv, *between], own)
            yield self._swap(one, between)

    def _swap(self, first: Sequence[int], second: Sequence[int]) -> _Part | None:
        """Return the order with operators `second` moved before `first`; None if that violates a dependency."""
        ops = self.ops
        if not first or not second or any(must_keep_order(ops[a], ops[b]) for a in first for b in second):
            return None
        return _Part(first[0], [ops[at] for at in (*second, *first)])

    def _saves(self, order: _Part, work: float, names: Sequence[str]) -> bool:
        """Return whether another order saves enough cycles, relative to the moved operators' `work`."""
        start, stop = order.start, order.start + len(order.ops)
        preceding, after = self.ops[max(start - _AROUND, 0) : start], self.ops[stop : stop + _AROUND]
        before, changed = (
            self._alone([*preceding, *part, *after]) for part in (self.ops[start:stop], order.ops)
        )
        if before is None or changed is None:
            return False
        groups = [Groups(trial, self.planner, names) for trial, _ in (before, changed)]
        # Cycles that the new order's groups must save to pay for the longer sequence and the effort.
        least = changed[1] + _SHARE * work - before[1]
        saved = _total_savings(groups[1])
        if (
            not least < saved <= least + groups[0].bound()
        ):  # else it does not matter what exactly is saved before
            return saved > least
        return saved > least + _total_savings(groups[0])

    def _alone(self, ops: Sequence[DeviceOp]) -> tuple[DeviceSegment, float] | None:
        """Return operators after the later passes but without overlap, and their estimated cycles; None if one has no
        plan.

        If memory is slower than the bus, bus cycles are added.
        """
        trial = keep_resident(part_of(ops, self.segment), self.planner)
        cost = cost_of(trial, range(len(trial.ops)), self.planner)
        if cost is None:
            return None
        slow = self.planner.target.beat > 1.0
        return choose_plans(trial, self.planner), cost.cycles + slow * cost.traffic


def _total_savings(groups: Groups) -> float:
    """Return the cycles that the best disjoint groups save."""
    return sum(group.saved for group in best_disjoint(groups.list_groups(), len(groups.segment.ops)))


def _are_one_pool(first: DeviceOp, second: DeviceOp) -> bool:
    """Return whether two operators are the two parts of one pool."""
    return isinstance(first, Pool) and isinstance(second, Pool) and are_split_pool(first, second)


def must_keep_order(first: DeviceOp, second: DeviceOp) -> bool:
    """Return whether two operators must stay in order."""
    return is_dependent(first, second) or may_overlap(first.dst, second.dst)
