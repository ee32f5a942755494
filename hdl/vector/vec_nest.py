"""The vector unit's loop nest."""

from __future__ import annotations

from weft.hdl.isa import Count, Vec
from weft.hdl.isa.config import Config
from weft.hdl.lib.loopnest import LoopNest
from weft.hdl.lib.walk import Walk
from weft.hdl.vector.vec_kinds import bytewise
from weft.hdl.vector.vec_streams import second_width

WALK = Walk(
    Vec,
    ("ob", "oy", "ox", "g", "ry", "rx"),
    ("src", "dst", "b"),
    own={"g": Count(parameters=("groups",))},
)
"""Loop ``g`` is over lane groups."""


def loop_nest(config: Config) -> LoopNest:
    """The nest of `WALK`; alignments share the tracker of the second operand."""
    second = second_width(config)
    trackers = WALK.trackers(config) | {"b": (second, dict.fromkeys(("ob", "oy", "ox"), second))}
    return LoopNest(counters(config), trackers)


def counters(config: Config) -> dict[str, int]:
    """The loops of the nest, and bits of their counts."""
    most = config.n if bytewise(config) else config.groups
    loops = WALK.counters(config) | {"g": most.bit_length()}
    if most == 1:
        del loops["g"]
    return loops
