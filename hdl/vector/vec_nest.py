"""The vector unit's loop nest, and what travels from there to requantisation."""

from __future__ import annotations

from amaranth.lib import data

from weft.hdl.isa import Count, Vec
from weft.hdl.isa.config import Config
from weft.hdl.lib.loopnest import LoopNest
from weft.hdl.lib.walk import Walk
from weft.hdl.vector.vec_softmax import note_layout


def _second_width(config: Config) -> int:
    """Width of addresses of the second operand, and of alignments."""
    alignment = (config.alignments - 1).bit_length() if config.softmax else 0
    return max(config.widths.scratchpad_address, alignment)


WALK = Walk(
    Vec,
    ("ob", "oy", "ox", "g", "ry", "rx"),
    ("src", "dst", "b"),
    own={"g": Count(parameters=("groups",))},
)
"""Loop ``g`` is over lane groups."""


def loop_nest(config: Config) -> LoopNest:
    """The nest of `WALK`; alignments share the tracker of the second operand."""
    second = _second_width(config)
    most = config.n if config.softmax else config.groups  # a table is read byte by byte
    loops = WALK.counters(config) | {"g": most.bit_length()}
    if most == 1:
        del loops["g"]
    return LoopNest(loops, WALK.trackers(config) | {"b": (second, dict.fromkeys(("ob", "oy", "ox"), second))})


def layouts(
    config: Config,
) -> tuple[data.StructLayout, data.StructLayout, data.StructLayout, data.StructLayout]:
    """Layouts of the tag of a lane group, of an element, of a granted request, and of the element to read next."""
    tag = data.StructLayout(
        {"index": range(max(config.groups, 2)), "last": 1, "end": 1}
        | {"dst": config.widths.scratchpad_address}
    )
    own = {"row": 1, "lane": range(max(config.lanes, 2))} if config.softmax else {}
    element = data.StructLayout({"in_range": 1, "first": 1, "last": 1, "tag": tag} | own)
    request = data.StructLayout({"parameter": 1, "second": 1, "valid": 1, "element": element})
    source = max(config.widths.scratchpad_address, config.widths.accumulator_address)
    queue = data.StructLayout(
        {
            "valid": 1,
            "ask_second": 1,
            "ask_source": 1,
            "second": _second_width(config),
            "source": source,
            "element": element,
        }
        | ({"note": note_layout(config)} if config.softmax else {})
    )
    return tag, element, request, queue
