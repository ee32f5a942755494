"""All properties of the room."""

from __future__ import annotations

from collections.abc import Iterator

from weft.hdl.formal import (
    arithmetic,
    bus,
    descriptors,
    division,
    faults,
    instruct_load,
    instruct_mm_rows,
    instruct_mm_unit,
    instruct_registers,
    instruct_store,
    instruct_vec,
    instruct_vec_reader,
    loops,
    matrix,
    memories,
    pairs,
    queues,
    registers,
    semaphores,
    softmax_kinds,
    softmax_pipe,
    softmax_probabilities,
    softmax_sequence,
    softmax_way,
    states,
    transfers,
    vector,
    widening,
)
from weft.hdl.formal.property import Property


def properties() -> Iterator[Property]:
    """All properties of units of `weft.hdl`."""
    basic = (queues, loops, bus, semaphores, registers, memories, faults, descriptors)
    units = (widening, transfers, matrix, pairs, vector, states, division, arithmetic)
    instructions = (
        instruct_mm_rows,
        instruct_mm_unit,
        instruct_load,
        instruct_store,
        instruct_vec_reader,
        instruct_vec,
        instruct_registers,
        softmax_probabilities,
        softmax_pipe,
        softmax_way,
        softmax_sequence,
        softmax_kinds,
    )
    for module in (*basic, *units, *instructions):
        yield from module.properties()
