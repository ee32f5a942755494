"""Proofs of compiled segments, as they are or with faults in their words."""

from __future__ import annotations

import dataclasses

import numpy as np

from support.op_cases import apart
from weft.certificate import graph_of, placement_of
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, View
from weft.hdl.isa import End, Instruction, places
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config
from weft.runtime import Image
from weft.sim.certify.graph import Graph, decode, encode
from weft.sim.certify.meaning import Network
from weft.sim.certify.proof import Placement, Proven, prove
from weft.sim.certify.values import Values
from weft.sim.certify.words import Unproven
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice


def graph_before(segment: DeviceSegment) -> Graph:
    """The network of a segment, with what convolutions of tests have behind them as operators of their own."""
    ops = tuple(
        _own(item, index)
        for index, op in enumerate(segment.ops)
        for item in (apart(op) if isinstance(op, Conv) else (op,))
    )
    return decode(encode(graph_of(DeviceSegment(segment.name, ops, states=segment.states))))


def _own(op: DeviceOp, index: int) -> DeviceOp:
    """The same with the buffer between a convolution and its pooling under a name of its own."""

    def renamed(view: View) -> View:
        if view.buffer.name != "unpooled":
            return view
        return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, name=f"unpooled {index}"))

    return op.on(renamed)


def placed(program: DeviceProgram) -> Placement:
    """The placement of a program whose outputs may have bytes that no operator computes: nobody reads these."""
    return dataclasses.replace(placement_of(program), results=())


def proven(
    segment: DeviceSegment, config: Config, program: DeviceProgram | None = None, seed: int = 1
) -> Proven:
    """Prove a segment's program, the compiler's if none is given."""
    made = compile_segment(segment, config) if program is None else program
    return prove(graph_before(segment), config, placed(made), seed)


def refused(segment: DeviceSegment, config: Config, program: DeviceProgram) -> str:
    """Why a program is not proven; empty if it is."""
    try:
        proven(segment, config, program)
    except Unproven as error:
        return str(error)
    return ""


def differs(before: DeviceSegment, behind: DeviceSegment, config: Config, seed: int = 1) -> list[str]:
    """The outputs of two segments that are not proven to be the same functions of the same inputs, by name."""
    values = Values(seed)
    given: dict[str, np.ndarray] = {}
    found = []
    for segment in (before, behind):
        graph, network = graph_before(segment), Network(values, config)
        for name, size in graph.inputs.items():
            if name not in given:
                given[name] = values.inputs(size)
            network.buffers[name] = given[name]
        network.run(graph)
        found.append({name: values.residues(network.buffers[name]) for name in graph.outputs})
    return [name for name, residues in found[0].items() if not np.array_equal(residues, found[1][name])]


def outputs(program: DeviceProgram, config: Config, inputs: dict[str, np.ndarray]) -> list[bytes] | None:
    """The outputs of a program on the golden interpreter, whose memories hold anything; None if it refuses it."""
    image, rng = Image(program), np.random.default_rng(1)
    device = GoldenDevice(config, image.memory_bytes)
    memories = device.memories
    memories.scratchpad[:] = rng.integers(-128, 128, device.scratchpad.shape)
    memories.accumulator[:] = rng.integers(-9999, 9999, device.accumulator.shape)
    memories.lookup[:] = rng.integers(-128, 128, memories.lookup.shape)
    memories.table[:] = rng.integers(0, 256, memories.table.shape)
    memories.maxima[:], memories.sums[:] = 3, 99_999
    memories.alignments[:] = rng.integers(-31, 32, memories.alignments.shape)
    try:
        image.run(device, inputs)
    except DeviceError:
        return None
    return [
        image.read(device, name).tobytes()
        for name, buffer in program.buffers.items()
        if buffer.kind == "output"
    ]


def with_fault(rng: np.random.Generator, items: list[Instruction]) -> list[Instruction]:
    """The same with another value in one field of one instruction."""
    index = int(rng.integers(len(items)))
    item = items[index]
    fields = [name for name in places(item.OPCODE) if hasattr(item, name)]
    name = str(rng.choice(fields))
    bits = places(item.OPCODE)[name].width
    value = int(getattr(item, name))
    other = value + (1, -1, 1 << int(rng.integers(bits)))[rng.integers(3)]
    try:
        changed = dataclasses.replace(item, **{name: other})
        changed.encode()
    except ValueError:
        return items
    return [*items[:index], changed, *items[index + 1 :]]


def faulty(program: DeviceProgram, rng: np.random.Generator, constants: float) -> DeviceProgram:
    """A program with a fault in one field of its words, or with some probability in one byte of its constants: weights,
    tables and parameters."""
    if program.constants and rng.random() < constants:
        raw = bytearray(program.constants)
        raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
        return dataclasses.replace(program, constants=bytes(raw))
    items = [item for item in program.instructions if not isinstance(item, End)]
    assert Code.of([*items, End()]) == program.instructions
    return dataclasses.replace(program, instructions=Code.of([*with_fault(rng, items), End()]))


def inputs_of(graph: Graph, program: DeviceProgram, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Full-range inputs, or of few values, and offsets of rows that there are."""
    low, high = [(-128, 128), (-128, 128), (-2, 3)][int(rng.integers(3))]
    tables = {
        op.sources[0].buffer: op.arrays["values"].shape for op in graph.operators if op.kind == "Embedding"
    }
    found = {}
    for name in graph.inputs:
        shape = program.input_shape(name)
        found[name] = rng.integers(low, high, shape).astype(np.int8)
        if name in tables:
            rows, columns = tables[name]
            offsets = rng.integers(rows, size=found[name].size // 4) * columns
            found[name] = offsets.astype("<u4").view(np.int8).reshape(shape)
    return found


def with_faults(
    segment: DeviceSegment, config: Config, rng: np.random.Generator, count: int, constants: float = 0.0
) -> tuple[int, int]:
    """Programs with faults that change a byte are refused, all of so many; how many changed one, and how many programs
    were accepted."""
    program, graph = compile_segment(segment, config), graph_before(segment)
    points = [inputs_of(graph, program, rng) for _ in range(3)]
    right = [outputs(program, config, point) for point in points]
    changed = accepted = 0
    for _ in range(count):
        other = faulty(program, rng, constants)
        differ = any(outputs(other, config, point) != good for point, good in zip(points, right, strict=True))
        told = refused(segment, config, other)
        assert told or not differ
        changed += differ
        accepted += not told
    return changed, accepted


def rng_of(seed: int) -> np.random.Generator:
    print(f"seed {seed}")
    return np.random.default_rng(seed)
