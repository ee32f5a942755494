"""Whether it pays to do in one operator what could be two."""

from __future__ import annotations

from weft.compiler.ir.graph import DeviceOp
from weft.compiler.planner import Planner


def fused_or_apart(
    fused: DeviceOp, first: DeviceOp, second: DeviceOp, planner: Planner, *, traffic: bool
) -> tuple[DeviceOp, ...]:
    """`fused` if it takes no longer, by estimate, than `first` and `second` behind it, or if one of these cannot be
    planned; else these two.

    With `traffic` it must not move more data either: a second operand on chip may cost weights their place.
    """
    one, *apart = (planner.cost(op) for op in (fused, first, second))
    before, behind = apart
    if before is None or behind is None:
        return (fused,)
    if one is None or one.cycles > before.cycles + behind.cycles:
        return first, second
    return (first, second) if traffic and one.traffic > before.traffic + behind.traffic else (fused,)
