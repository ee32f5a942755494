"""All properties of the room."""

from __future__ import annotations

from collections.abc import Iterator

from weft.hdl.formal import (
    along_rows,
    arithmetic,
    bus,
    descriptors,
    division,
    faults,
    instruct_load,
    instruct_load_bytes,
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
    lookups,
    loops,
    matrix,
    memories,
    packing,
    pairs,
    queues,
    registers,
    semaphores,
    sequential_processor,
    sequential_rows,
    softmax_kinds,
    softmax_pipe,
    softmax_probabilities,
    softmax_sequence,
    softmax_way,
    states,
    transfers,
    transposition,
    vector,
    widening,
)
from weft.hdl.formal.property import Property


def properties() -> Iterator[Property]:
    """All properties of units of `weft.hdl`."""
    basic = (queues, loops, bus, semaphores, registers, memories, faults, descriptors)
    units = (
        widening,
        transfers,
        packing,
        matrix,
        pairs,
        along_rows,
        vector,
        states,
        division,
        arithmetic,
        lookups,
        transposition,
    )
    sequential = (sequential_rows, sequential_processor)
    instructions = (
        instruct_mm_rows,
        instruct_mm_unit,
        instruct_load,
        instruct_load_bytes,
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
    for module in (*basic, *units, *instructions, *kernels, *sequential):
        yield from module.properties()
