"""Scratchpad layout of convolutions: parameters beside weights for slow memories, and its effect."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
from support.chain_cases import conv
from support.golden_compare import compare
from support.op_cases import random_convolutions, random_mixture, whole

from weft.boards.registry import BOARDS
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Add, Conv, DeviceSegment
from weft.compiler.plan.conv_plan import ConvPlan, candidates, plan, plan_apart, shared_fraction, unit, zones
from weft.compiler.plan.conv_shape import ConvShape
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice

ULX3S = BOARDS["ulx3s-85f"].config


@pytest.mark.parametrize("config", [*PRESETS.values(), ULX3S], ids=lambda config: f"{config.n}")
@pytest.mark.parametrize("inputs", [True, False])
def test_zones_follow_one_another(config: Config, inputs: bool) -> None:
    size = unit(config)
    for region in (None, (size, 3 * size), (0, 2 * size)):
        first, last = region or (0, config.scratchpad_size)
        for tail in (0, 8, size // 2, size):
            actual = zones(config, region, inputs=inputs, tail=tail)
            assert actual or (inputs and not tail and last - first < 3 * size)
            for item in actual:
                assert item.a[0] == first
                assert (sum(item.a), sum(item.b), sum(item.o)) == (item.b[0], item.o[0], last)
                assert (item.a[1] > 0) == inputs
                assert item.b[1] > 0 or tail == size
                assert item.o[1] == tail if tail else item.o[1] >= size
                depth = config.scratchpad_depth
                rows, weights = (np.arange(at, at + count) // depth for at, count in (item.a, item.b))
                both = np.isin(weights, rows)
                assert shared_fraction(item, config) == (both.mean() if both.size else 0.0)


def record_plans(
    segment: DeviceSegment, config: Config, bandwidth: float | None, seed: int | None = None
) -> tuple[DeviceProgram, list[ConvPlan]]:
    """Return a program and the plans of its convolutions; random plans if there is a seed."""
    chosen = []

    def choose(shape: ConvShape) -> ConvPlan | None:
        actual = plan(shape)
        if actual is not None and seed is not None:
            every = [item for item in candidates(shape) if item.zones.o[1] % unit(config)] or candidates(
                shape
            )
            actual = every[int(np.random.default_rng([seed, len(chosen)]).integers(len(every)))]
        if actual is not None:
            chosen.append(actual)
        return actual

    return compile_segment(segment, config, bandwidth=bandwidth, choose=choose), chosen


def beside(chosen: list[ConvPlan], config: Config) -> int:
    """Plans whose parameters have no bank of their own."""
    return sum(item.zones.o[1] % unit(config) > 0 for item in chosen)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["small", "default", "ulx3s-85f"])
def test_random_convolutions_with_slow_memories(name: str) -> None:
    config, actual = BOARDS[name].config if name in BOARDS else PRESETS[name], 0
    for seed in range(10):
        rng = np.random.default_rng([seed, config.n])
        segment, _ = random_convolutions(rng)
        bandwidth = config.bus_bytes / (3, 8, 16)[seed % 3]
        program, chosen = record_plans(segment, config, bandwidth, seed if seed % 4 else None)
        actual += beside(chosen, config)
        inputs = {
            name: rng.integers(-128, 128, program.input_shape(name)).astype(np.int8)
            for name, buffer in program.buffers.items()
            if buffer.kind == "input"
        }
        compare(program, segment, inputs, config, temps=False)
    assert actual > 3, actual


def test_fast_memories_keep_banks_apart() -> None:
    actual = dict.fromkeys((None, 16, 8, 4), 0)
    for seed in range(6):
        segment, _ = random_convolutions(np.random.default_rng([seed, 16]))
        for bandwidth in actual:
            actual[bandwidth] += beside(
                record_plans(segment, PRESETS["default"], bandwidth)[1], PRESETS["default"]
            )
    assert [count > 0 for count in actual.values()] == [False, False, False, True], actual


def chain(channels: tuple[int, ...], side: int) -> DeviceSegment:
    """Convolutions of 3 x 3 one after the other."""
    ops = [conv("c0", whole("x", (1, side, side, 8), "input"), channels[0], 3)]
    for index, count in enumerate(channels[1:], 1):
        kind = "output" if index == len(channels) - 1 else "temp"
        ops.append(conv(f"c{index}", ops[-1].dst, count, 3, kind))
    return DeviceSegment("s", tuple(ops))


@pytest.mark.parametrize(("segment", "place"), [(chain((16,) * 3, 8), 0), (chain((16,) * 8, 30), 1)])
def test_the_quicker_program_is_taken(segment: DeviceSegment, place: int) -> None:
    """Estimates choose between parameters beside weights, which load weights earlier, and apart, which keeps units
    from waiting. With queues of one instruction the second pair differs by 16 cycles of 75,574."""
    config = ULX3S.replace(queue_depth=2)
    programs = [
        compile_segment(segment, config, bandwidth=2, choose=choose)
        for choose in (lambda shape: plan(shape), plan_apart)  # not `plan` itself, which stands for either
    ]
    actual = compile_segment(segment, config, bandwidth=2)
    assert [actual.code == program.code for program in programs] == [place == 0, place == 1]
    cycles = []
    for program in programs:
        image = Image(program)
        device = TimingDevice(config, image.memory_bytes, latency=30, bandwidth=2)
        image.run(device, {"x": np.zeros(program.input_shape("x"), np.int8)})
        cycles.append(device.counters()[Counter.CYCLES])
    assert cycles[place] < cycles[1 - place]


def test_on_rtl() -> None:
    config, actual = PRESETS["small"], 0
    for seed in range(8):
        segment, inputs = random_mixture(np.random.default_rng([seed, 17]), 7, 20, products=True)
        program, chosen = record_plans(segment, config, config.bus_bytes / 8, seed if seed % 2 else None)
        actual += beside(chosen, config)
        image = Image(program)
        memories = []
        for device in (
            GoldenDevice(config, image.memory_bytes),
            RtlDevice(config, image.memory_bytes, latency=9, stall_probability=0.3, stall_seed=seed),
        ):
            with contextlib.closing(device):
                image.run(device, inputs)
                memories.append(device.read(0, image.memory_bytes))
        assert memories[0] == memories[1], seed
    assert actual > 3, actual


@pytest.mark.drawn(1)
@pytest.mark.parametrize("bandwidth", [1, 8])
def test_parameters_of_epilogues_have_a_place_of_their_own(bandwidth: int) -> None:
    """Convolutions, each of which adds what it reads, in many tiles: blocks of the tiles stay in their slots while that
    of the epilogue is used, and go round the ring."""
    config, rng = PRESETS["small"], np.random.default_rng(1)
    ops: list[Conv] = [conv("c", whole("x", (1, 30, 30, 8), "input"), 40)]
    for index in range(7):
        other = ops[-1].dst
        op = conv(
            f"c{index}", conv(f"e{index}", other, 40, 3).dst, 40, kind="output" if index == 6 else "temp"
        )
        ops.append(conv(f"e{index}", other, 40, 3))
        middle = whole(f"m{index}", op.dst.shape, "temp")
        epilogue = Add("sum", middle, other, op.dst, 0.7, 0.6, 5, 5, 5)
        ops.append(dataclasses.replace(op, epilogue=epilogue))
    segment = DeviceSegment("s", tuple(ops))
    program, chosen = record_plans(segment, config, bandwidth)
    assert len(chosen) >= len(ops)
    inputs = {"x": rng.integers(-128, 128, program.input_shape("x")).astype(np.int8)}
    compare(program, segment, inputs, config, temps=False)


@pytest.mark.parametrize(
    ("rows", "out", "cin", "least"), [(28, 512, 512, 0.9), (1024, 14, 409, 0.85), (224, 32, 256, 0.8)]
)
def test_rows_and_weights_in_banks_of_their_own(rows: int, out: int, cin: int, least: float) -> None:
    """With two banks, too, the array reads both in every cycle: these were at 62, 66 and 61 % when weights lay in a
    bank of rows."""
    op = conv("c", whole("x", (1, 1, rows, cin), "input"), out, 1, "output")
    program = compile_segment(DeviceSegment("s", (op,)), ULX3S)
    image = Image(program)
    device = TimingDevice(ULX3S, image.memory_bytes, bandwidth=ULX3S.bus_bytes)
    image.run(device, {})
    counters = device.counters()
    moved = (rows * cin + cin * out + rows * out) / ULX3S.bus_bytes
    busy = max(counters[Counter.ARRAY_ACTIVE], moved, rows * out / ULX3S.lanes)
    assert busy >= least * counters[Counter.CYCLES]
