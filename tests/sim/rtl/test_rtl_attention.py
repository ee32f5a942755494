"""Random attention on the RTL under random memory stalls: every byte of memory equals the golden interpreter's."""

from __future__ import annotations

import numpy as np
import pytest
from support.attention_cases import random_attention, random_inputs, random_softmax

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.isa.config import PRESETS, Config
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice

CASES = 7


@pytest.mark.drawn(6)
@pytest.mark.parametrize("block", range(12))
@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
def test_random_attention(preset: str, block: int) -> None:
    compare(PRESETS[preset], block)


@pytest.mark.long
@pytest.mark.parametrize("block", range(3))
def test_random_attention_on_the_sequential_core(block: int) -> None:
    compare(PRESETS["tiny"], block, sequential=True)


def compare(config: Config, block: int, *, sequential: bool = False) -> None:
    """Seven operators of one seed; memory latency, bandwidth and stalls are random, too."""
    rng = np.random.default_rng([block, config.n, 3])
    for case in range(CASES):
        op = random_softmax(rng) if case == CASES - 1 else random_attention(rng, config)
        inputs = random_inputs(rng, op)
        image = Image(compile_segment(DeviceSegment("attention", (op,)), config))
        golden = GoldenDevice(config, image.memory_bytes)
        image.run(golden, inputs)
        memory = {
            "latency": int(rng.integers(1, 80)),
            "bandwidth": float(rng.choice([config.bus_bytes, config.bus_bytes / 2])),
            "stall_probability": float(rng.choice([0.0, 0.2, 0.5])),
            "stall_seed": int(rng.integers(1 << 30)),
        }
        with RtlDevice(config, image.memory_bytes, sequential=sequential, **memory) as rtl:
            image.run(rtl, inputs, timeout=1_000_000_000 if sequential else 20_000_000)
            got = np.frombuffer(rtl.read(0, image.memory_bytes), np.uint8)
        expected = np.frombuffer(golden.read(0, image.memory_bytes), np.uint8)
        wrong = np.flatnonzero(got != expected)
        assert not wrong.size, (
            f"case {case}: {op}: {wrong.size} bytes differ, the first at {wrong[0]:#x}; {memory}"
        )
