"""Pass pipeline between front end and lowering."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.passes.depth_first import depth_first
from weft.compiler.passes.drop_channels import drop_channels
from weft.compiler.passes.fuse import fuse_epilogue, fuse_lookup, fuse_pad, fuse_pool
from weft.compiler.passes.gather_rows import gather_rows
from weft.compiler.passes.groups import overlap_rows
from weft.compiler.passes.keep_resident import keep_resident
from weft.compiler.passes.order import choose_plans, order_beside, order_branches
from weft.compiler.passes.split_pool import split_pool
from weft.compiler.passes.views import read_views, store_states, write_views
from weft.compiler.planner import Planner
from weft.compiler.verify import verify_segment

Watch = Callable[[str, DeviceSegment], None]
"""Callback with the name of each pass and the segment after it."""


@dataclass(frozen=True)
class Pass:
    """Graph pass on device segments; the planner knows the configuration, and plans' costs."""

    run: Callable[[DeviceSegment, Planner], DeviceSegment]

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def doc(self) -> str:
        """First sentence of the pass's description."""
        return (self.run.__doc__ or "").partition("\n\n")[0]


PIPELINE = (
    Pass(drop_channels),
    Pass(fuse_pad),
    Pass(fuse_lookup),
    Pass(fuse_pool),
    Pass(write_views),
    Pass(read_views),
    Pass(order_branches),
    Pass(fuse_epilogue),
    Pass(gather_rows),
    Pass(split_pool),
    Pass(order_beside),
    Pass(depth_first),
    Pass(keep_resident),
    Pass(store_states),
    Pass(choose_plans),
    Pass(overlap_rows),
)


def run_passes(
    passes: Iterable[Pass], segment: DeviceSegment, planner: Planner, watch: Watch | None = None
) -> DeviceSegment:
    """Return the segment after all `passes`, verified after each pass that changes an operator."""
    known: set[Hashable] = set()
    verify_segment(segment, known)
    for item in passes:
        result = item.run(segment, planner)
        if result.ops == segment.ops:  # operators are equal if they are the same objects
            result = dataclasses.replace(result, ops=segment.ops)
        # Other changes (plans, residency) cannot break the rules.
        if result.ops is not segment.ops or result.states is not segment.states:
            verify_segment(result, known)
        segment = result
        if watch is not None:
            watch(item.name, segment)
    return segment
