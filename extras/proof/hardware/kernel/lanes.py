"""The kernel engine's lanes: from a micro-operation that is issued to its result, and where that goes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

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
from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import KERNEL_LATENCY

_PARTS: dict[type[LanesBench], tuple[str, str]] = {
    OperandsBench: (
        "operands",
        "A lane's operands are the register, the exchanged element of a register, the number, or what was read, with "
        "its sign or without, or what stands for elements behind the row's end; each of its row and lane group and in "
        "the documented cycle. The divider gets those of its micro-operations.",
    ),
    PlainBench: (
        "results without a product",
        "ADD, SUB, RSUB, MIN, MAX, LT, EQ, SELECT, INDEX and TABLE follow from their operands by their definition, in "
        "the documented cycle and for all values.",
    ),
    ProductBench: (
        "products",
        "The register of MUL's product holds the exact product of its operands, as the sum of the products of parts, "
        "and with it comes by how much it is to be shifted, for all operands.",
    ),
    RoundingBench: (
        "rounding",
        "Any product, shifted by any number, is rounded half to even or down and saturated to 32 bits: that is the "
        "result of MUL, in the documented cycle.",
    ),
    ResultBench: (
        "where results go",
        "Results go to the vector, the register or the predicate that their micro-operation names, saturated or as "
        "they are, and to no other; the end is told with the last one.",
    ),
}


class WholeBench(OperandsBench, PlainBench, ProductBench, RoundingBench, ResultBench):
    """All that is claimed of the lanes, in one bench: what one part does not see of a fault another one does."""

    def _watch(self, m: Module) -> None:
        for part in _PARTS:
            part._watch(self, m)


def _bench(kind: type[LanesBench], config: Config) -> Bench:
    return kind(config)


def properties() -> Iterator[Property]:
    for kind, (name, claim) in _PARTS.items():
        yield Property(
            "vector/kernel_lanes",
            f"{name}, 2 lanes",
            claim,
            partial(_bench, kind, KERNEL_SMALLEST),
            Induction(KERNEL_LATENCY + 2),
            part=True,
        )
    yield Property(
        "vector/kernel_lanes",
        "micro-operations, 2 lane groups",
        "Operands, results and where these go follow from the micro-operation that is issued, by its definition, in "
        "the documented cycle and for all values; a product is multiplied exactly, in two parts.",
        partial(_bench, WholeBench, KERNEL_SMALLEST.replace(lanes=1)),
        Induction(KERNEL_LATENCY + 2),
        proven=("divide",),
    )
