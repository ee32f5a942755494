"""The kernel engine's lanes: from a micro-operation that is issued to its result, and where that goes."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Module

from weft.extras.proof.hardware.kernel.arithmetic import (
    KERNEL_SMALLEST,
    LanesBench,
    PlainBench,
    ProductBench,
    ResultBench,
    RoundingBench,
)
from weft.extras.proof.hardware.kernel.operands import OperandsBench
from weft.extras.proof.hardware.property import Induction, Property
from weft.hdl.isa.operands import KERNEL_LATENCY

_PARTS: dict[type[LanesBench], str] = {
    OperandsBench: "operands",
    PlainBench: "results without a product",
    ProductBench: "products",
    RoundingBench: "rounding",
    ResultBench: "where results go",
}


class WholeBench(OperandsBench, PlainBench, ProductBench, RoundingBench, ResultBench):
    """Operands, results and where these go follow from the micro-operation that is issued, by its definition, in the
    documented cycle and for all values; a product is multiplied exactly, in two parts.

    All that is claimed of the lanes, in one bench: what one part does not see of a fault another one does.
    """

    def _watch(self, m: Module) -> None:
        for part in _PARTS:
            part._watch(self, m)


def properties() -> Iterator[Property]:
    unit, method = "vector/kernel_lanes", Induction(KERNEL_LATENCY + 2)
    for kind, name in _PARTS.items():
        yield kind.proves(unit, f"{name}, 2 lanes", method, KERNEL_SMALLEST, part=True)
    yield WholeBench.proves(
        "vector/kernel_lanes",
        "micro-operations, 2 lane groups",
        Induction(KERNEL_LATENCY + 2),
        KERNEL_SMALLEST.replace(lanes=1),
        proven=("divide",),
    )
