"""Proofs of compiled segments, unchanged or with faults in their words."""

from __future__ import annotations

import dataclasses

import numpy as np
from support.op_cases import split_operators

from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment
from weft.compiler.ir.views import View
from weft.extras.proof.certificate import graph_of, placement_of
from weft.extras.proof.programs.graph import Graph, decode, encode
from weft.extras.proof.programs.network import Network
from weft.extras.proof.programs.proof import Placement, Proof, prove
from weft.extras.proof.programs.value_device import Unproven
from weft.extras.proof.programs.values import Values
from weft.hdl.isa.config import Config
from weft.run.runtime import Image
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice


def graph_before(segment: DeviceSegment) -> Graph:
    """Return a segment's network with fused operations as operators of their own."""
    ops = tuple(
        _own(item, index)
        for index, op in enumerate(segment.ops)
        for item in (split_operators(op) if isinstance(op, Conv) else (op,))
    )
    return decode(encode(graph_of(DeviceSegment(segment.name, ops, states=segment.states))))


def _own(op: DeviceOp, index: int) -> DeviceOp:
    """Give the buffer between a convolution and its pooling its own name."""

    def rename(view: View) -> View:
        if view.buffer.name != "unpooled":
            return view
        return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, name=f"unpooled {index}"))

    return op.map_views(rename)


def place_program(program: DeviceProgram) -> Placement:
    """Return the placement of a program whose outputs may have uncomputed bytes, which nobody reads."""
    return dataclasses.replace(placement_of(program), results=())


def prove_program(
    segment: DeviceSegment, config: Config, program: DeviceProgram | None = None, seed: int = 1
) -> Proof:
    compiled = compile_segment(segment, config) if program is None else program
    return prove(graph_before(segment), config, place_program(compiled), seed)


def find_refusal(segment: DeviceSegment, config: Config, program: DeviceProgram) -> str:
    """Return why a program is not proven; empty if it is."""
    try:
        prove_program(segment, config, program)
    except Unproven as error:
        return str(error)
    return ""


def unproven_outputs(
    before: DeviceSegment, behind: DeviceSegment, config: Config, seed: int = 1
) -> list[str]:
    """Return names of outputs that are not proven equal functions of equal inputs in two segments."""
    values = Values(seed)
    given: dict[str, np.ndarray] = {}
    names = []
    for segment in (before, behind):
        graph, network = graph_before(segment), Network(values, config)
        for name, size in graph.inputs.items():
            if name not in given:
                given[name] = values.new_inputs(size)
            network.buffers[name] = given[name]
        network.run(graph)
        names.append({name: values.residues(network.buffers[name]) for name in graph.outputs})
    return [name for name, residues in names[0].items() if not np.array_equal(residues, names[1][name])]


def fill(device: GoldenDevice, rng: np.random.Generator) -> None:
    """Fill a device's on-chip memories with arbitrary contents."""
    memories = device.memories
    memories.scratchpad[:] = rng.integers(-128, 128, memories.scratchpad.shape)
    memories.accumulator[:] = rng.integers(-9999, 9999, memories.accumulator.shape)
    memories.lookup[:] = rng.integers(-128, 128, memories.lookup.shape)
    memories.table[:] = rng.integers(0, 256, memories.table.shape)
    memories.maxima[:], memories.sums[:] = 3, 99_999
    memories.alignments[:] = rng.integers(-31, 32, memories.alignments.shape)


def outputs(program: DeviceProgram, config: Config, inputs: dict[str, np.ndarray]) -> list[bytes] | None:
    """Return a program's outputs on the golden interpreter from arbitrary memory; None if it refuses the program."""
    image = Image(program)
    device = GoldenDevice(config, image.memory_bytes)
    fill(device, np.random.default_rng(1))
    try:
        image.run(device, inputs)
    except DeviceError:
        return None
    return [
        image.read(device, name).tobytes()
        for name, buffer in program.buffers.items()
        if buffer.kind == "output"
    ]


def inputs_of(graph: Graph, program: DeviceProgram, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw full-range or few-valued inputs, and valid row offsets."""
    low, high = [(-128, 128), (-128, 128), (-2, 3)][int(rng.integers(3))]
    tables = {
        op.sources[0].buffer: op.arrays["values"].shape for op in graph.operators if op.kind == "Embedding"
    }
    inputs = {}
    for name in graph.inputs:
        shape = program.input_shape(name)
        inputs[name] = rng.integers(low, high, shape).astype(np.int8)
        if name in tables:
            rows, columns = tables[name]
            offsets = rng.integers(rows, size=inputs[name].size // 4) * columns
            inputs[name] = offsets.astype("<u4").view(np.int8).reshape(shape)
    return inputs


def rng_of(seed: int) -> np.random.Generator:
    print(f"seed {seed}")
    return np.random.default_rng(seed)
