"""The cycle model against the RTL: random layers, attention and programs agree in every counter, unless data-dependent
sums of probabilities set the pace."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.configurations import random_configuration
from support.attention_cases import random_attention
from support.attention_cases import random_inputs as attention_inputs
from support.mostly_long import mostly_long
from support.op_cases import random_chain, random_convolutions, random_inputs, random_op_of, segment_of
from support.random_programs import MEMORY, Generator, WithoutDivision, memory_of

from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.isa import End, Instruction, Load, Mm, Normalise, Queue, Store
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.device import Device, DeviceError
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice

Counters = dict[Counter, int]
TINY = PRESETS["tiny"]
_NAMED = {
    **{name: PRESETS[name] for name in ("tiny", "small", "default")},
    **{board.name: board.config for board in BOARDS.values() if board.core is not CoreKind.SEQUENTIAL},
}
CONFIGS = {
    name: config for config, name in {config: name for name, config in reversed(_NAMED.items())}.items()
}
"""Presets, and every board's own, each under one name."""
PROGRAMS = {name: config for name, config in CONFIGS.items() if name != "default"} | {
    "kernels": TINY.replace(kernel=64, int4=2)
}
"""Random programs are too small for the memories of `default`."""
BUILT = ["tiny", "small", "icepi-zero"]
"""Configurations whose RTL is built soon."""


def run_both(
    image: Image, config: Config, inputs: dict[str, np.ndarray], memory: dict[str, float | None]
) -> tuple[Counters, Counters]:
    """Counters of the RTL and of the model. Where they agree, so must the cycles of layers."""
    model = TimingDevice(config, image.memory_bytes, **memory)
    image.run(model, inputs)
    with RtlDevice(config, image.memory_bytes, **memory) as rtl:
        image.run(rtl, inputs)
        counters = rtl.counters()
        if counters == model.counters():
            assert np.ptp(np.subtract(rtl.marks(), model.marks())) == 0
    return counters, model.counters()


def assert_close(rtl: Counters, model: Counters, error: float, what: str) -> None:
    """Cycles within `error`, and other counters within as large a part of the cycles."""
    cycles = rtl[Counter.CYCLES]
    wrong = {
        counter.name: (rtl[counter], model[counter])
        for counter in Counter
        if abs(rtl[counter] - model[counter]) > error * cycles
    }
    assert not wrong, f"{what}: (RTL, model) {wrong}"


def few_or_many(few: range, many: range) -> pytest.MarkDecorator:
    """Cases by their seeds; the many are long."""
    return pytest.mark.parametrize(
        "seeds", [few, pytest.param(many, marks=pytest.mark.long)], ids=["few", "many"]
    )


CONFIGURATIONS = pytest.mark.parametrize("name", mostly_long(CONFIGS, *map(list(CONFIGS).index, BUILT)))


@pytest.mark.drawn(1)
@few_or_many(range(8), range(100, 160))
@CONFIGURATIONS
def test_layers(name: str, seeds: range) -> None:
    config = CONFIGS[name]
    for seed in seeds:
        rng = np.random.default_rng([11, seed])
        op = random_op_of(rng, config)
        image = Image(compile_segment(segment_of(op), config))
        memory = memory_of(config, rng)
        rtl, model = run_both(image, config, random_inputs(rng, op), memory)
        assert_close(rtl, model, 0.0, f"seed {seed}: {op}, {memory}")


@pytest.mark.drawn(1)
@few_or_many(range(3), range(100, 130))
@CONFIGURATIONS
def test_networks(name: str, seeds: range) -> None:
    """Results that stay on chip, or go to memory and back."""
    config = CONFIGS[name]
    for seed in seeds:
        rng = np.random.default_rng([13, seed])
        draw = (random_convolutions, random_convolutions, random_chain)[seed % 3]
        segment, inputs = draw(rng)
        memory = memory_of(config, rng)
        rtl, model = run_both(Image(compile_segment(segment, config)), config, inputs, memory)
        assert_close(rtl, model, 0.0, f"seed {seed}: {segment}, {memory}")


@pytest.mark.drawn(1)
@few_or_many(range(4), range(100, 130))
@CONFIGURATIONS
def test_attention(name: str, seeds: range) -> None:
    config = CONFIGS[name]
    for seed in seeds:
        rng = np.random.default_rng([12, seed])
        op = random_attention(rng, config)
        image = Image(compile_segment(DeviceSegment("attention", (op,)), config))
        memory = memory_of(config, rng)
        rtl, model = run_both(image, config, attention_inputs(rng, op), memory)
        assert_close(rtl, model, 0.05, f"seed {seed}: {op}, {memory}")


@pytest.mark.drawn(2)
@few_or_many(range(4), range(100, 130))
@pytest.mark.parametrize("name", mostly_long(PROGRAMS, *map(list(PROGRAMS).index, [*BUILT, "kernels"])))
def test_programs(name: str, seeds: range) -> None:
    config = PROGRAMS[name]
    for seed in seeds:
        memory = memory_of(config, np.random.default_rng([14, seed]))
        kind, error = (Generator, 0.05) if seed % 3 == 2 else (WithoutDivision, 0.0)
        generator = kind(config, seed, serial=seed % 4 == 0)
        generator.build(25)
        model = TimingDevice(config, MEMORY, **memory)
        with RtlDevice(config, MEMORY, **memory) as rtl:
            for turn in ("first", "second"):  # what the first left behind in the memory model must not matter
                generator.run(model)
                generator.run(rtl)
                assert_close(rtl.counters(), model.counters(), error, f"seed {seed}, {turn} run, {memory}")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_any_configuration(seed: int) -> None:
    """All fields drawn."""
    config = random_configuration(np.random.default_rng([15, seed]), sequential=False)
    config = config.replace(scratchpad_depth=256)  # room for what random programs have in memory
    for case in range(8):
        generator = WithoutDivision(config, 8 * seed + case, serial=case == 0)
        generator.build(15)
        memory = memory_of(config, np.random.default_rng([16, seed, case]))
        model = TimingDevice(config, MEMORY, **memory)
        generator.run(model)
        with RtlDevice(config, MEMORY, **memory) as rtl:
            generator.run(rtl)
            assert_close(rtl.counters(), model.counters(), 0.0, f"{config}, {memory}, case {case}")


def device(config: Config = TINY, *instructions: Instruction, trace: bool = False) -> TimingDevice:
    """A device on which a program has been started."""
    made = TimingDevice(config, 1 << 14, trace=trace)
    made.write(0x100, b"".join(instruction.encode() for instruction in (*instructions, End())))
    made.start(0x100)
    return made


def test_is_a_device_with_its_own_memory() -> None:
    made = device()
    assert isinstance(made, Device)
    assert not made.computes
    made.write(0x3FF0, b"weft" * 4)
    assert made.read(0x3FFC, 4) == b"weft"
    with pytest.raises(DeviceError, match="do not lie in a memory of"):
        made.write(0x3FF1, bytes(16))
    with pytest.raises(DeviceError, match="is no multiple"):
        made.start(0x102)
    made.wait()
    cycles = made.counters()[Counter.CYCLES]
    made.wait()
    assert made.counters()[Counter.CYCLES] == cycles > 30


def test_a_store_changes_no_byte() -> None:
    made = device(TINY, Store(length=4, pitch=4, offset=0x2000))
    before = made.read(0, 1 << 14)
    made.wait()
    assert made.read(0, 1 << 14) == before
    assert made.counters()[Counter.WRITE_BEATS] == 1


def test_page_tables_lead_to_addresses() -> None:
    """A row that starts in the middle of a bus word takes a beat more; the table gives its start."""
    beats = []
    for entry in (0, 2):
        made = device(TINY, Load(run=16, length=16, pitch=16, dst_vector=1, paged=1, table=1, page=3))
        made.set_base(1, 0x1000)
        made.write(0x1000 + 4 * 3, entry.to_bytes(4, "little"))
        made.wait()
        beats.append(made.counters()[Counter.READ_BEATS])
    assert beats[1] == beats[0] + 1


def test_words_that_are_no_instructions() -> None:
    made = device(TINY, Load())
    made.write(0x100 + 64, b"\x33")
    with pytest.raises(DeviceError, match=r"^instruction 1: unknown opcode 51"):
        made.wait()
    made = device(TINY, Load())
    made.write(0x100, bytes([1]) + bytes(63))
    with pytest.raises(DeviceError, match=r"^instruction 0: LOAD field 'rows' is 0, outside 1 to"):
        made.wait()
    made.write(0x100, bytes([1]) + b"\x01" * 63)
    made.start(0x4000 - 64)
    made.write(0x4000 - 64, Load().encode())
    with pytest.raises(DeviceError, match=r"^instruction 1: 64 bytes at 0x4000 do not lie"):
        made.wait()
    with pytest.raises(DeviceError, match=r"^instruction 0: the configuration has no NORMALISE"):
        device(TINY.replace(probability_bits=0), Normalise()).wait()


def test_programs_that_do_not_end() -> None:
    with pytest.raises(DeviceError, match=r"^the program hangs"):
        device(TINY, Mm(wait=1)).wait()
    with pytest.raises(DeviceError, match=r"^the program is not done after 20 cycles"):
        device(TINY, Mm(ox=1000)).wait(20)


def test_wrong_memories() -> None:
    with pytest.raises(ValueError, match="latency is at least 1"):
        TimingDevice(TINY, 4096, latency=0)
    with pytest.raises(ValueError, match="bandwidth is above 0"):
        TimingDevice(TINY, 4096, bandwidth=0.0)


def test_intervals_cover_what_counters_count() -> None:
    rng = np.random.default_rng(4)
    op = random_op_of(rng, TINY)
    program = compile_segment(segment_of(op), TINY)
    image = Image(program)
    made = TimingDevice(TINY, image.memory_bytes, trace=True)
    image.run(made, random_inputs(rng, op))
    runs = [item for item in made.intervals if item.kind == "runs"]
    assert sorted(item.instruction for item in runs) == list(range(len(program.instructions) - 1))
    for queue in Queue:
        busy: set[int] = set()
        for item in runs:
            if item.unit == queue:
                assert queue == program.instructions[item.instruction].QUEUE
                busy |= set(range(item.start, item.end))
        assert len(busy) == made.counters()[Counter[f"{queue.name}_BUSY"]]
    waits = [item for item in made.intervals if item.kind == "waits"]
    starts = {item.instruction: item.start for item in runs}
    assert waits
    assert all(item.start < item.end == starts[item.instruction] for item in waits)
    plain = TimingDevice(TINY, image.memory_bytes)
    image.run(plain, {})
    assert not plain.intervals
    assert plain.counters() == made.counters()
