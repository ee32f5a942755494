"""Plans and cost estimates of operators, for passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Region, readers
from weft.compiler.ir.views import View
from weft.compiler.machine.memory import Allocation
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import Cost, operator_of
from weft.compiler.plan.conv_plan import Chooser, ConvPlan, plan
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.plan.site import Site, resident_positions

NO_RESIDENTS: Mapping[str, int] = MappingProxyType({})
# Plans to remember: a network's steps have few distinct ones.
_CACHE_SIZE = 1 << 12


class Planner:
    """Plans operators for one configuration and memory. All decisions of a compilation use one planner.

    Parameters
    ----------
    target : Target
    choose : Chooser
        Plans convolutions (default: the best plan by estimate). It is called once for equal convolutions.
    tight : bool
        Whether memory is short, so that saving memory takes precedence over time.

    Members
    -------
    config : Config
        The target's configuration.
    """

    def __init__(self, target: Target, choose: Chooser = plan, *, tight: bool = False) -> None:
        self.tight = tight
        self.target, self.config, self._choose = target, target.config, choose
        self._convolutions: dict[Hashable, ConvPlan | None] = {}
        self._plans: dict[Hashable, Any] = {}

    def plan(
        self, op: DeviceOp, resident: Mapping[str, int] = NO_RESIDENTS, region: Region | None = None
    ) -> Any | None:
        """Return the plan of an operator; None if not even its smallest tile fits.

        `resident` are the addresses of resident buffers. `region` is the part of the scratchpad that is free for the
        operator (None: all).
        """
        key = op.signature, resident_positions(op, resident), region
        if key not in self._plans:
            # A bound on memory; recurrent networks would fill it with near duplicates.
            if len(self._plans) >= _CACHE_SIZE:
                self._plans.clear()
            self._plans[key] = operator_of(op).plan(op, self.site(op, resident, region), self.convolution)
        return self._plans[key]

    def cost(
        self, op: DeviceOp, resident: Mapping[str, int] = NO_RESIDENTS, region: Region | None = None
    ) -> Cost | None:
        """Return the estimate for an operator that runs alone with its `plan`; None if it has none."""
        chosen = self.plan(op, resident, region)
        return None if chosen is None else operator_of(op).cost(op, chosen, self.target)

    def site(
        self, op: DeviceOp, resident: Mapping[str, int] = NO_RESIDENTS, region: Region | None = None
    ) -> Site:
        """Return the site that `plan` uses; its offsets in DRAM are arbitrary, and affect no decision."""
        return Site.of(op, Allocation((op,), reuse=False, resident=resident), self.target, region)

    def convolution(self, shape: ConvShape) -> ConvPlan | None:
        """Return the plan of a convolution; None if not even its smallest tile fits."""
        if shape.kind not in self._convolutions:
            self._convolutions[shape.kind] = self._choose(shape)
        return self._convolutions[shape.kind]


def part_of(inside: Sequence[DeviceOp], segment: DeviceSegment) -> DeviceSegment:
    """Return some operators of a segment, in an order of their own, as a segment.

    Results that other operators read become outputs: they then cannot be fused, nor stay on chip.
    """
    reads, own = segment.index.reads, readers(inside)

    def outside_as_output(view: View) -> View:
        buffer = view.buffer
        outside = buffer.kind == "temp" and len(reads.get(buffer.name, ())) > own[buffer.name]
        return (
            dataclasses.replace(view, buffer=dataclasses.replace(buffer, kind="output")) if outside else view
        )

    ops = []
    for op in inside:
        epilogue = getattr(op, "epilogue", None)
        ops.append(
            op.map_views(outside_as_output)
            if epilogue is None
            else op.map_views(outside_as_output).replace(epilogue=epilogue.map_views(outside_as_output))
        )
    return DeviceSegment(segment.name, tuple(ops))
