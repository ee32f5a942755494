"""Whether it pays to do in one operator what could be two."""

from __future__ import annotations

from weft.compiler.ir.graph import DeviceOp
from weft.compiler.passes.split_pool import fits
from weft.compiler.planner import Planner


def keeps_fitting(op: DeviceOp, changed: DeviceOp, planner: Planner) -> bool:
    """Whether an operator that takes on the work of another still fits on chip, if it did before."""
    return fits(changed, planner) or not fits(op, planner)


def fused_or_apart(
    fused: DeviceOp, first: DeviceOp, second: DeviceOp, planner: Planner, *, traffic: bool
) -> tuple[DeviceOp, ...]:
    """`fused` if it has a plan and takes no longer, by estimate, than `first` and `second` after it, or if one of these
    has no plan. Else these two: a later pass may split an operator that does not fit.

    With `traffic` it must not move more data either: a second operand on chip may cost weights their place.
    """
    one, *apart = (planner.cost(op) for op in (fused, first, second))
    before, behind = apart
    if one is None:
        return first, second
    if before is None or behind is None:
        return (fused,)
    if one.cycles > before.cycles + behind.cycles:
        return first, second
    return (first, second) if traffic and one.traffic > before.traffic + behind.traffic else (fused,)
