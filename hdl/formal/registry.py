"""All properties of the room."""

from __future__ import annotations

from collections.abc import Iterator

from weft.hdl.formal import (
    arithmetic,
    bus,
    division,
    faults,
    loops,
    matrix,
    memories,
    pairs,
    queues,
    registers,
    semaphores,
    states,
    transfers,
    vector,
    widening,
)
from weft.hdl.formal.property import Property


def properties() -> Iterator[Property]:
    """All properties of units of `weft.hdl`."""
    basic = (queues, loops, bus, semaphores, registers, memories, faults)
    units = (widening, transfers, matrix, pairs, vector, states, division, arithmetic)
    for module in (*basic, *units):
        yield from module.properties()
