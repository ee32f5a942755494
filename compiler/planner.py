"""Plans and costs of operators, for passes: what is known of them before they are lowered."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any

from weft.compiler.ir.graph import DeviceOp, Region
from weft.compiler.machine.memory import Allocation
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import Cost, operator_of
from weft.compiler.plan.conv_plan import Chooser, ConvPlan, plan
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.plan.site import Site, held

NOTHING: Mapping[str, int] = MappingProxyType({})
_KEPT = 1 << 12
"""Plans that a planner remembers: the steps of a network have few that differ."""


class Planner:
    """Plans operators for one configuration and memory. Every decision of a compilation asks the same planner.

    Parameters
    ----------
    target : Target
    choose : Chooser
        Plans convolutions: by default as is best by estimate. It is asked once for those that are alike.
    tight : bool
        Whether memory is short, so that what saves some of it comes before what saves time.

    Members
    -------
    config : Config
        That of the target.
    """

    def __init__(self, target: Target, choose: Chooser = plan, *, tight: bool = False) -> None:
        self.tight = tight
        self.target, self.config, self._choose = target, target.config, choose
        self._convolutions: dict[Hashable, ConvPlan | None] = {}
        self._plans: dict[Hashable, Any] = {}

    def plan(
        self, op: DeviceOp, resident: Mapping[str, int] = NOTHING, region: Region | None = None
    ) -> Any | None:
        """The plan of an operator; None if not even its smallest part fits.

        `resident` has the buffers that are on chip, with their addresses, and `region` is what is left of the
        scratchpad for the operator (all of it if None).
        """
        key = op.signature, held(op, resident), region
        if key not in self._plans:
            if len(self._plans) >= _KEPT:
                self._plans.clear()
            self._plans[key] = operator_of(op).plan(op, self.site(op, resident, region), self.convolution)
        return self._plans[key]

    def cost(
        self, op: DeviceOp, resident: Mapping[str, int] = NOTHING, region: Region | None = None
    ) -> Cost | None:
        """Estimates for an operator by itself, planned as by `plan`; None if it cannot be planned."""
        found = self.plan(op, resident, region)
        return None if found is None else operator_of(op).cost(op, found, self.target)

    def site(self, op: DeviceOp, resident: Mapping[str, int] = NOTHING, region: Region | None = None) -> Site:
        """The same operands as those of `plan`; their offsets in DRAM are not the program's, and decide nothing."""
        return Site.of(op, Allocation((op,), reuse=False, resident=resident), self.target, region)

    def convolution(self, shape: ConvShape) -> ConvPlan | None:
        """The plan of a convolution; None if not even its smallest part fits."""
        if shape.kind not in self._convolutions:
            self._convolutions[shape.kind] = self._choose(shape)
        return self._convolutions[shape.kind]
