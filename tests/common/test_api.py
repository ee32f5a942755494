"""Python API: inputs are checked by name, devices by configuration, and reports add up."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from support import qdq_models

import weft
from weft.api import InputError, Program
from weft.compiler.backend import DeviceProgram
from weft.compiler.errors import CompileError
from weft.compiler.ir.model import CONVERTING, HostSegment
from weft.examples import digits
from weft.hdl.errors import ConfigError, ProgramError
from weft.hdl.isa import Store
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import PRESETS, Config
from weft.run.runtime import Image
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice


@pytest.fixture(scope="module")
def program() -> Program:
    return weft.compile(digits.model(), "tiny")


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return digits.held_out()[0][:1]


def test_golden_run(program: Program, image: np.ndarray) -> None:
    result = program.run({"image": image})
    assert result.outputs["logits"].shape == (1, 10)
    assert result.outputs["logits"].dtype == np.float32
    assert result.report["cycles"] is None
    assert result.report["macs"] == sum(layer["macs"] for layer in result.report["layers"]) > 0
    assert result.report["dram_bytes"] == sum(layer["dram_bytes"] for layer in result.report["layers"])
    parts = [segment for segment in program.segments if isinstance(segment, HostSegment)]
    assert [part["name"] for part in result.report["host"]] == [segment.name for segment in parts]
    assert all(0 < part["seconds"] < 60 for part in result.report["host"])
    assert {name for part in result.report["host"] for name in part["operators"]} == {*CONVERTING}
    assert program.run({"image": image}, on="timing").report["host"] == []


def test_accuracy(program: Program) -> None:
    images, labels = digits.held_out()
    right = sum(
        int(program.run({"image": image[None]}).outputs["logits"].argmax() == label)
        for image, label in zip(images[:100], labels[:100], strict=True)
    )
    assert right >= 97


@pytest.mark.parametrize("shape", [(1, 784), (28, 28), (2, 784), (2, 1, 28, 28)])
@pytest.mark.parametrize("unsigned", [False, True])
def test_interleaved_rows_of_an_input_in_any_shape(shape: tuple[int, ...], unsigned: bool) -> None:
    builder = qdq_models.Builder(np.random.default_rng(len(shape)))
    source, to = builder.input(shape, unsigned), (math.prod(shape) // 784, 1, 28, 28)
    node = builder.node("Reshape", [builder.dequantise(source), builder.constant(np.array(to, np.int64))])
    model = builder.finish(builder.conv(builder.like(node, to, source), 32, (5, 5)))
    values = qdq_models.feeds(model, np.random.default_rng(1))
    programs = [weft.compile(model, plain_inputs=plain) for plain in (True, False)]
    rows = [
        [segment.rows for segment in item.segments if isinstance(segment, DeviceProgram)] for item in programs
    ]
    assert [any(found) for found in rows] == [False, True]
    plain, laid = (item.run(values).outputs for item in programs)
    for name, expected in plain.items():
        assert np.array_equal(laid[name], expected)
    with pytest.raises(
        InputError, match=r"bytes of memory, the device has 64; with `plain_inputs` it may need less$"
    ):
        programs[1].run(values, on=GoldenDevice(PRESETS["default"], 64))


def test_missing_input(program: Program) -> None:
    with pytest.raises(InputError, match=r"^input 'image' is missing; the model reads 'image'$"):
        program.run({})


def test_unknown_input(program: Program, image: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"^the model has no input 'picture'; it reads 'image'$"):
        program.run({"image": image, "picture": image})


def test_wrong_shape(program: Program, image: np.ndarray) -> None:
    with pytest.raises(
        InputError, match=r"^input 'image' is float32 of shape \(1, 8, 8\); the model reads float32 of shape"
    ):
        program.run({"image": image[0]})


def test_wrong_dtype(program: Program, image: np.ndarray) -> None:
    with pytest.raises(
        InputError, match=r"^input 'image' is float64 of shape \(1, 1, 8, 8\); the model reads float32"
    ):
        program.run({"image": image.astype(np.float64)})


def test_unknown_device(program: Program, image: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"^unknown device 'fpga'; choose 'golden', 'rtl' or 'timing'$"):
        program.run({"image": image}, on="fpga")


def test_device_of_another_configuration(program: Program, image: np.ndarray) -> None:
    device = GoldenDevice(PRESETS["small"], 1 << 20)
    with pytest.raises(
        InputError, match=r"^the program is for configuration 0x[0-9a-f]{8}, the device is 0x"
    ):
        program.run({"image": image}, on=device)


def test_device_with_too_little_memory(program: Program, image: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"^the program needs \d+ bytes of memory, the device has 4096$"):
        program.run({"image": image}, on=GoldenDevice(PRESETS["tiny"], 4096))


def test_program_that_leaves_memory(program: Program, image: np.ndarray) -> None:
    """A base register points near the end of memory, as a faulty host would set it."""
    segment = next(segment for segment in program.segments if isinstance(segment, DeviceProgram))
    place = Image(segment)
    device = GoldenDevice(PRESETS["tiny"], place.memory_bytes)
    place.bases[3] = place.memory_bytes - 1
    with pytest.raises(DeviceError, match=r"(?i)instruction \d+"):
        place.run(device, {})


def test_saved_program_that_leaves_memory(program: Program, tmp_path: Path) -> None:
    """Valid checksums do not make a program safe: loading checks its addresses."""
    segments = list(program.segments)
    index = next(index for index, segment in enumerate(segments) if isinstance(segment, DeviceProgram))
    segment = segments[index]
    assert isinstance(segment, DeviceProgram)
    instructions = list(segment.instructions)
    at = next(at for at, instruction in enumerate(instructions) if isinstance(instruction, Store))
    instructions[at] = dataclasses.replace(instructions[at], offset=1 << 30)
    segments[index] = dataclasses.replace(segment, instructions=Code.of(instructions))
    dataclasses.replace(program._compiled, segments=tuple(segments)).save(tmp_path)
    with pytest.raises(ProgramError, match=rf"device\d: instruction {at} \(STORE\): .*1073741824"):
        weft.load(tmp_path)


def test_unknown_configuration() -> None:
    with pytest.raises(ConfigError, match=r"^unknown configuration 'giant'; choose a preset \(tiny, small, "):
        weft.compile(digits.model(), "giant")


def test_bytes_that_are_no_model() -> None:
    with pytest.raises(CompileError, match=r"^these 9 bytes are not an ONNX model$"):
        weft.compile(b"\x00not onnx", "tiny")


def test_check_names_every_node() -> None:
    nodes = weft.check(digits.model())
    places = {name: place for name, _, place, _ in nodes}
    assert places["conv1"] == places["classify"] == places["add"] == "device"
    assert all(reason for _, _, place, reason in nodes if place == "host")


def test_disassembly_shows_every_instruction(program: Program) -> None:
    text = program.disassemble()
    count = sum(
        len(segment.instructions) for segment in program.segments if isinstance(segment, DeviceProgram)
    )
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(";")]
    assert len(lines) == count


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("config", "memory", "planned"),
    [("default", None, 16), ("default", 2, 2), ("tiny", 64.0, 4), ("ulx3s-85f", None, 1.9), ("icebreaker", None, 4),
     ("default", "ulx3s-85f", 1.9), ("ulx3s-85f", 4, 4), (PRESETS["tiny"], None, 4)],
)  # fmt: skip
def test_programs_are_planned_for_a_memory(
    config: str | Config, memory: float | str | None, planned: float, image: np.ndarray, tmp_path: Path
) -> None:
    """Programs store the memory they are planned for, and simulations use it."""
    program = weft.compile(digits.model(), config, memory=memory)
    program.save(tmp_path / "program")
    loaded = weft.load(tmp_path / "program")
    assert program.memory == loaded.memory == planned
    expected = weft.compile(digits.model(), "tiny").run({"image": image}).outputs["logits"]
    assert np.array_equal(loaded.run({"image": image}).outputs["logits"], expected)
    if config != "icebreaker":
        cycles = [
            loaded.run({"image": image}, on="timing", bandwidth=by).report["cycles"] for by in (None, planned)
        ]
        assert cycles[0] == cycles[1]


def test_unknown_memory_is_refused() -> None:
    for memory in (0, -1, math.nan, math.inf, True, [], "vast", "tiny"):
        with pytest.raises(InputError, match=r"^'memory' "):
            weft.compile(digits.model(), "tiny", memory=memory)


def test_plan_is_best_on_its_own_memory(image: np.ndarray) -> None:
    """The plan for a memory is rarely slower on it than a plan for another memory."""
    planned = {by: weft.compile(digits.model(), "default", memory=by) for by in (1.0, 2.0, 16.0)}
    for bandwidth, best in planned.items():
        cycles = {
            by: program.run({"image": image}, on="timing", bandwidth=bandwidth).report["cycles"]
            for by, program in planned.items()
        }
        assert cycles[bandwidth] <= 1.02 * min(cycles.values()), (bandwidth, cycles, best)
