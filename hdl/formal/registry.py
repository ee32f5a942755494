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
    kernel_addresses,
    kernel_division,
    kernel_lanes,
    kernel_memories,
    kernel_microcode,
    kernel_order,
    kernel_share,
    kernel_spacing,
    kernel_unit,
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
    )
    kernels = (
        kernel_lanes,
        kernel_division,
        kernel_order,
        kernel_spacing,
        kernel_addresses,
        kernel_microcode,
        kernel_unit,
        kernel_share,
        kernel_memories,
    )
    for module in (*basic, *units, *instructions, *kernels):
        yield from module.properties()
