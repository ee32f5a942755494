"""The cycle model of the sequential core against its RTL: every counter, and every byte that programs write, agree."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.op_cases import random_inputs, random_op, segment_of
from support.random_programs import MEMORY, Generator, memory_of

from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.hdl.isa import End, Instruction, Load, Mm, Store
from weft.hdl.isa.config import PRESETS, Config, ConfigError
from weft.hdl.isa.memmap import Counter
from weft.runtime import Image
from weft.sim.device import Device, DeviceError
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import SequentialTimingDevice

TINY = PRESETS["tiny"].replace(depthwise_taps=0)
CONFIGS = {
    **{name: board.config for name, board in BOARDS.items() if board.core is CoreKind.SEQUENTIAL},
    "tiny": TINY,
}
DATA = {
    "icebreaker": BOARDS["icebreaker"].config.replace(kernel=32),
    "tang-primer-20k": BOARDS["tang-primer-20k"].config,
    "7 bits": PRESETS["tiny"].replace(probability_bits=7, table_depth=512, depthwise_taps=0, int4=1),
}
"""Configurations whose programs have instructions that take as long as their data say."""


def open_rtl(config: Config, size: int, memory: dict[str, float | None]) -> RtlDevice:
    """Behind its reset, the core first makes a row of zeros: reading all counters takes longer."""
    device = RtlDevice(config, size, sequential=True, **memory)
    device.counters()
    return device


def assert_same(rtl: Device, model: Device, what: str) -> None:
    found, expected = model.counters(), rtl.counters()
    wrong = {item.name: (expected[item], found[item]) for item in Counter if expected[item] != found[item]}
    assert not wrong, f"{what}: (RTL, model) {wrong}"


@pytest.mark.parametrize("name", CONFIGS)
def test_layers(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng([31, len(name)])
    for case in range(15):
        op = random_op(rng)
        image = Image(compile_segment(segment_of(op), config))
        memory, inputs = memory_of(config, rng), random_inputs(rng, op)
        model = SequentialTimingDevice(config, image.memory_bytes, **memory)
        image.run(model, inputs)
        with open_rtl(config, image.memory_bytes, memory) as rtl:
            image.run(rtl, inputs)
            what = f"case {case}: {op}, {memory}"
            assert_same(rtl, model, what)
            assert np.ptp(np.subtract(rtl.marks(), model.marks())) == 0, what
            assert rtl.read(0, image.memory_bytes) == model.computed.tobytes(), what
        blank = SequentialTimingDevice(config, image.memory_bytes, **memory)
        image.run(blank, {})
        assert blank.counters() == model.counters(), f"{what}: inputs matter"


@pytest.mark.parametrize("name", DATA)
def test_programs(name: str) -> None:
    """Probabilities, quotients and kernels included."""
    config = DATA[name]
    for seed in range(6):
        pick = random.Random(seed)
        memory = {"latency": pick.choice([1, 5, 40]), "bytes_per_cycle": pick.choice([None, None, 1.5])}
        generator = Generator(config, seed, serial=True)
        generator.build(25)
        model = SequentialTimingDevice(config, MEMORY, **memory)
        generator.run(model)
        with open_rtl(config, MEMORY, memory) as rtl:
            generator.run(rtl)
            assert_same(rtl, model, f"seed {seed}, {memory}")
            assert rtl.read(0, MEMORY) == model.computed.tobytes(), f"seed {seed}, {memory}"


def device(*instructions: Instruction) -> SequentialTimingDevice:
    """A device on which a program has been started."""
    made = SequentialTimingDevice(TINY, 1 << 14)
    made.write(0x100, b"".join(instruction.encode() for instruction in (*instructions, End())))
    made.start(0x100)
    return made


def test_is_a_device_that_keeps_its_memory() -> None:
    made = device(Store(length=4, pitch=4, offset=0x2000))
    made.write(0x2000, b"weft")
    before = made.read(0, 1 << 14)
    made.wait()
    assert isinstance(made, Device)
    assert not made.computes
    assert made.read(0, 1 << 14) == before
    assert made.counters()[Counter.WRITE_BEATS] == 1
    assert made.computed[0x2000:0x2004].tobytes() == bytes(4)


def test_programs_that_fail() -> None:
    made = device(Load())
    made.write(0x100 + 64, b"\x33")
    with pytest.raises(DeviceError, match=r"^instruction 1: unknown opcode 51"):
        made.wait()
    with pytest.raises(DeviceError, match=r"^the program is not done after 20 cycles"):
        device(Mm(ox=1000)).wait(20)
    with pytest.raises(DeviceError, match=r"^the program reads or writes outside memory"):
        device(Store(length=4, pitch=4, offset=0x4000)).wait()


def test_configurations_that_the_core_cannot_have() -> None:
    with pytest.raises(ConfigError, match="'depthwise_taps' is 2, not 0"):
        SequentialTimingDevice(TINY.replace(depthwise_taps=2), 4096)
