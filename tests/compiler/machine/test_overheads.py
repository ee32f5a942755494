"""What estimates take from the hardware is what the hardware says."""

from __future__ import annotations

from weft.compiler.machine import overheads
from weft.hdl.isa.config import PRESETS
from weft.hdl.memory.accumulator import rmw_latency
from weft.hdl.vector.vec import OVERHEAD


def test_overheads_of_the_hardware() -> None:
    config = PRESETS["default"]
    assert overheads.VEC_START == OVERHEAD + 1
    assert (
        tuple(rmw_latency(config.replace(probability_bits=bits)) for bits in (0, 8)) == overheads.LEAST_TILE
    )
