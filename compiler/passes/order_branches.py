"""The order of two branches that meet: which of two convolutions comes last, and has the sum in its epilogue."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply
from weft.compiler.passes.fuse_epilogue import fuse_epilogue
from weft.compiler.passes.keep_resident import cost_of, keep_resident
from weft.compiler.passes.trial import part_of
from weft.compiler.planner import Planner

_AROUND = 2
"""Operators before and behind that are looked at: whether results stay on chip depends on the neighbours."""
_GAIN = 0.98
"""Share of the cycles at which it is done."""
_MOST = 40
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
        ahead, behind = ops[max(first - _AROUND, 0) : first], ops[at : at + 1 + _AROUND]
        before, after = (_cost([*ahead, *part, *behind], segment, planner) for part in (ops[first:at], other))
        if before is not None and after is not None and after < _GAIN * before:
            ops[first:at] = other
    return dataclasses.replace(segment, ops=tuple(ops))


def _moved(ops: Sequence[DeviceOp], at: int) -> tuple[int, list[DeviceOp]] | None:
    """The place of the earlier of two convolutions that operator `at` reads, and all from there to `at` with that one
    last; None if there are none, or it has to stay."""
    names = [view.buffer.name for view in ops[at].sources]
    found = [index for index in range(max(at - _MOST, 0), at) if ops[index].dst.buffer.name in names]
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
