"""The cycle model of the sequential core against its RTL: every counter, and every byte that programs write, agree."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.configurations import random_configuration
from support.attention_cases import random_attention, random_softmax
from support.attention_cases import random_inputs as attention_inputs
from support.op_cases import random_chain, random_inputs, random_mixture, random_op_of, segment_of
from support.random_programs import MEMORY, Generator, memory_of

from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.errors import ConfigError
from weft.hdl.isa import End, Instruction, Load, Mm, Store
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.device import Device, DeviceError
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import SequentialTimingDevice

TINY = PRESETS["tiny"].replace(depthwise_taps=0)
CONFIGS = {
    **{board.name: board.config for board in BOARDS.values() if board.core is CoreKind.SEQUENTIAL},
    "icebreaker, kernels": BOARDS["icebreaker"].config.replace(kernel=32),
    "7 bits": TINY.replace(probability_bits=7, table_depth=512, int4=1),
}
"""Every board's own, and configurations with features that no board with this core has."""
CYCLES = 1_000_000_000
"""No program takes more."""


def assert_same(rtl: RtlDevice, model: SequentialTimingDevice, what: str) -> None:
    found, expected = model.counters(), rtl.counters()
    wrong = {item.name: (expected[item], found[item]) for item in Counter if expected[item] != found[item]}
    assert not wrong, f"{what}: (RTL, model) {wrong}"
    assert rtl.read(0, len(model.computed)) == model.computed.tobytes(), what


def drawn_network(
    rng: np.random.Generator, config: Config, kind: str
) -> tuple[DeviceSegment, dict[str, np.ndarray]]:
    """Operators of a kind, and their inputs."""
    if kind == "several":
        return random_mixture(rng, 6, 12, products=bool(config.multiply), lookups=bool(config.lookup_tables))
    if kind == "branches":
        return random_chain(rng, 6, 8)
    if kind == "attention" and config.softmax:
        attention = random_softmax(rng) if rng.random() < 0.3 else random_attention(rng, config)
        return DeviceSegment("attention", (attention,)), attention_inputs(rng, attention)
    op = random_op_of(rng, config)
    return segment_of(op), random_inputs(rng, op)


def compare_networks(config: Config, seeds: range) -> None:
    """Each on a core that was just reset."""
    for seed in seeds:
        rng = np.random.default_rng([31, seed])
        kind = ("one", "several", "branches", "attention")[seed % 4]
        segment, inputs = drawn_network(rng, config, kind)
        image, memory = Image(compile_segment(segment, config)), memory_of(config, rng)
        model = SequentialTimingDevice(config, image.memory_bytes, **memory)
        image.run(model, inputs)
        what = f"seed {seed}, {memory}: {segment}"
        with RtlDevice(config, image.memory_bytes, sequential=True, **memory) as rtl:
            image.run(rtl, inputs, timeout=CYCLES)
            assert_same(rtl, model, what)
            assert np.ptp(np.subtract(rtl.marks(), model.marks())) == 0, what
        if kind != "attention":
            blank = SequentialTimingDevice(config, image.memory_bytes, **memory)
            image.run(blank, {})
            assert blank.counters() == model.counters(), f"{what}: inputs matter"


def compare_programs(config: Config, seeds: range) -> None:
    """Probabilities, quotients and kernels included, which take as long as data say."""
    for seed in seeds:
        memory = memory_of(config, np.random.default_rng([32, seed]))
        generator = Generator(config, seed, serial=True)
        generator.build(25)
        model = SequentialTimingDevice(config, MEMORY, **memory)
        generator.run(model)
        with RtlDevice(config, MEMORY, sequential=True, **memory) as rtl:
            generator.run(rtl)
            assert_same(rtl, model, f"seed {seed}, {memory}")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(100, 160), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_networks(name: str, seeds: range) -> None:
    compare_networks(CONFIGS[name], seeds)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(100, 140), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_programs(name: str, seeds: range) -> None:
    compare_programs(CONFIGS[name], seeds)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_any_configuration(seed: int) -> None:
    config = random_configuration(np.random.default_rng([33, seed]), sequential=True)
    config = config.replace(scratchpad_depth=256)  # room for what random programs have in memory
    compare_networks(config, range(4 * seed, 4 * seed + 3))  # attention has no place in some
    compare_programs(config, range(4 * seed, 4 * seed + 4))


def test_begins_at_once_after_every_reset() -> None:
    """After a reset the core writes a row of zeros; no program waits for that."""
    config = CONFIGS["tang-primer-20k"]
    loads = Load(rows=3, run=8, length=8, pitch=8, dst_vector=1).encode() + End().encode()

    def cycles(device: Device) -> int:
        device.start(0x100)
        device.wait()
        return device.counters()[Counter.CYCLES]

    model = SequentialTimingDevice(config, MEMORY)
    model.write(0x100, loads)
    expected = cycles(model)
    with RtlDevice(config, MEMORY, sequential=True) as rtl:
        rtl.write(0x100, loads)
        assert cycles(rtl) == expected
        rtl.break_memory(0, 0x40)
        with pytest.raises(DeviceError, match="LOAD's read at 0x0 with SLVERR"):
            cycles(rtl)
        rtl.mend_memory()
        assert cycles(rtl) == expected
        rtl.start(0x100)
        with pytest.raises(DeviceError, match="not done after 30 cycles"):
            rtl.wait(30)
        assert cycles(rtl) == expected


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
