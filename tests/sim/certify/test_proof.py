"""Programs are proven to compute their networks, and programs with faults are not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.certified import graph_before, proven, refused, rng_of
from support.op_cases import (
    apart,
    convolution,
    random_chain,
    random_convolutions,
    random_mixture,
    random_op,
    segment_of,
    whole,
)

from weft.boards.registry import BOARDS
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Conv, DeviceSegment, Softmax, Window
from weft.compiler.machine.memory import CONSTANTS
from weft.compiler.operators.record import operator_of
from weft.hdl.isa import End, Instruction, Store, places
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import PRESETS, Config
from weft.runtime import Image
from weft.sim.certify.words import Unproven
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice

CONFIGS = {**PRESETS, **{f"board {name}": board.config for name, board in BOARDS.items()}}
"""Every preset, and every board's own."""
FAULTS = 6
"""Faults for each program; of those of `make regression` four times as many."""


def drawn(seed: int) -> tuple[DeviceSegment, Config]:
    rng = rng_of(seed)
    names = sorted(CONFIGS)
    config = CONFIGS[names[seed % len(names)]]
    while True:
        if seed % 4 == 0:
            segment = random_chain(rng, 8, 20)[0]
        elif seed % 4 == 1:
            segment = random_mixture(rng, products=bool(config.multiply))[0]
        else:
            segment = segment_of(random_op(rng))
        ops = [item for op in segment.ops for item in (apart(op) if isinstance(op, Conv) else (op,))]
        tables = config.lookup_tables or all(op.lookup is None for op in ops)
        if tables and not any(operator_of(op).unsupported(op, config) for op in ops):
            return segment, config


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    segment, config = drawn(seed)
    found = proven(segment, config, seed=seed)
    assert found.compared > 0
    assert found.error < -50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8, 300))
def test_many_random_programs(seed: int) -> None:
    test_random_programs(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_networks_of_convolutions(seed: int) -> None:
    rng = rng_of(seed)
    segment, _ = random_convolutions(rng)
    proven(segment, PRESETS[("tiny", "small", "default")[seed % 3]])


def outputs(
    program: DeviceProgram, code: Code, config: Config, inputs: dict[str, np.ndarray]
) -> list[bytes] | None:
    """The outputs of a program with other words on the golden interpreter; None if it refuses them."""
    changed = dataclasses.replace(program, instructions=code)
    image = Image(program)
    device = GoldenDevice(config, image.memory_bytes)
    device.memories.scratchpad[:] = np.random.default_rng(1).integers(-128, 128, device.scratchpad.shape)
    device.memories.accumulator[:] = np.random.default_rng(2).integers(-9999, 9999, device.accumulator.shape)
    try:
        Image(changed).run(device, inputs)
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
    kind = rng.integers(3)
    other = value + (1, -1, 1 << int(rng.integers(bits)))[kind]
    try:
        changed = dataclasses.replace(item, **{name: other})
        changed.encode()
    except ValueError:
        return items
    return [*items[:index], changed, *items[index + 1 :]]


def check_faults(seed: int, count: int) -> None:
    """No fault in the words of a program is accepted that changes a byte of its outputs."""
    segment, config = drawn(seed)
    program = compile_segment(segment, config)
    rng = np.random.default_rng(seed)
    graph = graph_before(segment)
    points = [
        {name: rng.integers(-128, 128, program.input_shape(name)).astype(np.int8) for name in graph.inputs}
        for _ in range(3)
    ]
    right = [outputs(program, program.instructions, config, point) for point in points]
    items = [item for item in program.instructions if not isinstance(item, End)]
    changed = accepted = 0
    for _ in range(count):
        code = Code.of([*with_fault(rng, items), End()])
        differ = any(
            outputs(program, code, config, point) != good for point, good in zip(points, right, strict=True)
        )
        changed += differ
        told = refused(segment, config, dataclasses.replace(program, instructions=code))
        accepted += not told
        assert told or not differ
    assert Code.of([*items, End()]) == program.instructions
    print(f"{changed} of {count} faults changed a byte; {accepted} were accepted")
    assert changed > count // 12


@pytest.mark.parametrize("seed", range(3))
def test_faults(seed: int) -> None:
    check_faults(seed, FAULTS)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 45))
def test_a_thousand_faults(seed: int) -> None:
    check_faults(seed, 4 * FAULTS)


def test_an_overflow_is_not_proven() -> None:
    op = convolution(whole("x", (1, 1, 1, 70_000), "input"), 3, Window())
    with pytest.raises(Unproven, match="not what the network says"):
        proven(segment_of(op.replace(weight=np.full_like(op.weight, 255))), PRESETS["default"])


def test_what_is_not_known_is_not_proven() -> None:
    x, y = whole("x", (1, 1, 4, 20), "input"), whole("y", (1, 1, 4, 20), "output")
    op = Softmax("soft", x, y, 0.05, 100.0)
    with pytest.raises(Unproven, match=r"TABLE\) is none of those"):
        proven(segment_of(op), PRESETS["default"])


def test_results_left_out_are_not_proven() -> None:
    """A program that ends early leaves memory as it was, which may be anything."""
    op = convolution(whole("x", (1, 4, 4, 8), "input"), 8, Window())
    segment, config = segment_of(op), PRESETS["tiny"]
    program = compile_segment(segment, config)
    early = dataclasses.replace(program, instructions=Code.of([End()]))
    assert "not what the network says" in refused(segment, config, early)


def test_a_store_beside_its_output_is_not_proven() -> None:
    """Neither where an output's buffer has bytes of which the network says nothing, nor where there is no buffer."""
    target = whole("y", (1, 5, 4, 8), "output")
    inside = dataclasses.replace(target, shape=(1, 4, 4, 8))
    op = dataclasses.replace(convolution(whole("x", (1, 4, 4, 8), "input"), 8, Window()), dst=inside)
    segment, config = segment_of(op), PRESETS["tiny"]
    program = compile_segment(segment, config)
    assert refused(segment, config, program) == ""
    items = list(program.instructions)
    last = max(index for index, item in enumerate(items) if isinstance(item, Store))
    store = dataclasses.replace(items[last], wait=0, signal=0)
    below = dataclasses.replace(store, offset=store.offset + 8)
    constants = dataclasses.replace(store, base=CONSTANTS, offset=0)
    for again, told in ((below, "not what the network says"), (constants, "that are in no buffer")):
        changed = Code.of([*items[: last + 1], again, *items[last + 1 :]])
        assert told in refused(segment, config, dataclasses.replace(program, instructions=changed))
