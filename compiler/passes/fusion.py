"""Whether it pays to do in one operator what could be two."""

from __future__ import annotations

from weft.compiler.ir.graph import Conv, DeviceOp
from weft.compiler.planner import Planner


def fused_or_apart(
    fused: Conv, conv: Conv, behind: DeviceOp, planner: Planner, *, traffic: bool
) -> tuple[DeviceOp, ...]:
    """`fused` if it takes no longer, by estimate, than `conv` and the operator behind it, or if one of these cannot be
    planned; else these two.

    With `traffic` it must not move more data either: a second operand on chip may cost weights their place.
    """
    one, first, second = planner.cost(fused), planner.cost(conv), planner.cost(behind)
    if first is None or second is None:
        return (fused,)
    if one is None or one.cycles > first.cycles + second.cycles:
        return conv, behind
    return (conv, behind) if traffic and one.traffic > first.traffic + second.traffic else (fused,)
