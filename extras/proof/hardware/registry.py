"""All properties of the room."""

from __future__ import annotations

from collections.abc import Iterator

from weft.extras.proof.hardware import (
    along_rows,
    arithmetic,
    bus,
    busy,
    descriptors,
    division,
    faults,
    fetching,
    instructions,
    kernel,
    lookups,
    loops,
    matrix,
    memories,
    packing,
    pairs,
    parity,
    queues,
    registers,
    semaphores,
    sequential,
    serial,
    softmax,
    states,
    transfers,
    transposition,
    vector,
    widening,  # fmt: skip
)
from weft.extras.proof.hardware.property import Property


def properties() -> Iterator[Property]:
    """All properties of units of `weft.hdl`."""
    basic = (queues, loops, bus, semaphores, registers, memories, parity, faults, fetching, descriptors)
    units = (
        widening, transfers, packing, matrix, pairs, along_rows, vector, states, division, arithmetic, serial, lookups,
        transposition,
    )  # fmt: skip
    for module in (*basic, *units, instructions, softmax, kernel, sequential, busy):
        yield from module.properties()
