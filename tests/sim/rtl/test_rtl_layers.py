"""Random layers on the RTL under random memory stalls: every byte of memory equals the golden interpreter's."""

from __future__ import annotations

import numpy as np
import pytest
from support.memories import BANDWIDTHS
from support.op_cases import random_convolutions, random_inputs, random_op, segment_of

from weft.compiler.backend import compile_segment
from weft.hdl.isa.config import PRESETS, Config
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice

CASES = 10


@pytest.mark.drawn(9)
@pytest.mark.parametrize("block", range(20))
@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
def test_random_layers(preset: str, block: int) -> None:
    compare(PRESETS[preset], block)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("block", range(20, 24))
def test_random_layers_on_the_sequential_core(block: int) -> None:
    compare(PRESETS["tiny"], block, sequential=True)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("block", range(3))
@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
def test_results_that_stay_on_chip(preset: str, block: int) -> None:
    compare(PRESETS[preset], block, resident=True)


def test_results_that_stay_on_chip_of_the_sequential_core() -> None:
    compare(PRESETS["tiny"], 3, sequential=True, resident=True)


def compare(config: Config, block: int, *, sequential: bool = False, resident: bool = False) -> None:
    """Ten layers of one seed, or convolutions of each other's results; memory and stalls are random."""
    rng = np.random.default_rng([block, config.n])
    held = 0
    for case in range(CASES):
        if resident:
            segment, inputs = random_convolutions(rng)
        else:
            op = random_op(rng)
            segment, inputs = segment_of(op), random_inputs(rng, op)
        bandwidth = BANDWIDTHS[(block + case) % len(BANDWIDTHS)]
        program = compile_segment(
            segment, config, bandwidth=bandwidth, reuse=resident, plain_inputs=case % 2 == 1
        )
        held += len({op.dst.buffer.name for op in segment.ops} - set(program.buffers))
        image = Image(program)
        golden = GoldenDevice(config, image.memory_bytes)
        image.run(golden, inputs)
        memory = {
            "latency": int(rng.integers(1, 80)),
            "bandwidth": float(rng.choice([config.bus_bytes, config.bus_bytes / 3])),
            "stall_probability": float(rng.choice([0.0, 0.2, 0.5])),
            "stall_seed": int(rng.integers(1 << 30)),
        }
        with RtlDevice(config, image.memory_bytes, sequential=sequential, **memory) as rtl:
            image.run(rtl, inputs, timeout=50_000_000 if sequential else 5_000_000)
            got = np.frombuffer(rtl.read(0, image.memory_bytes), np.uint8)
        expected = np.frombuffer(golden.read(0, image.memory_bytes), np.uint8)
        wrong = np.flatnonzero(got != expected)
        assert not wrong.size, (
            f"case {case}: {segment}: {wrong.size} bytes differ, the first at {wrong[0]:#x}; {memory}, "
            f"planned for {bandwidth}"
        )
    assert held >= (CASES // 3 if resident else 0)
