"""Programs with loops on the RTL, the golden interpreter and the cycle model: all of memory, and all counters."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support import page_program
from support.loop_programs import LoopProgram
from support.mostly_long import mostly_long
from support.random_programs import MEMORY

from weft.hdl.isa import INSTRUCTIONS, Opcode
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice

LOOPS = PRESETS["tiny"].replace(loops=1, int4=1)
CONFIGS = {
    "tiny": LOOPS,
    "bus of 8": LOOPS.replace(bus_bytes=8, queue_depth=2, kernel=64),
    "bus of 16": LOOPS.replace(bus_bytes=16, queue_depth=1, depthwise_taps=2),
    "bus of 64": LOOPS.replace(bus_bytes=64, lookup_tables=0),
    "bus of 128": LOOPS.replace(bus_bytes=128, queue_depth=2),
    "no softmax": LOOPS.replace(probability_bits=0, queue_depth=1),
    "small": PRESETS["small"].replace(loops=1, kernel=32),
}


def compare(config: Config, seeds: range, count: int) -> None:
    """Programs of some seeds: bytes with random stalls, and cycles without. Normalise is not among them, as the cycle
    model does not know how long it takes."""
    used: set[Opcode] = set()
    unrolled = 0
    for seed in seeds:
        made, pick = LoopProgram(config, seed, count, divides=False), random.Random(seed)
        used |= {instruction.OPCODE for instruction in made.program}
        unrolled += len(made.straight) > len(made.program)
        # A beat of the widest bus would take such a slow memory longer than all else.
        rate = pick.choice([None, None, 1.5]) if config.bus_bytes < 128 else None
        memory = {"latency": pick.choice([1, 5, 40]), "bandwidth": rate}
        expected = made.run(GoldenDevice(config, MEMORY))
        model = TimingDevice(config, MEMORY, **memory)
        stalls = {"stall_probability": pick.choice([0.0, 0.3, 0.7]), "stall_seed": seed}
        with (
            RtlDevice(config, MEMORY, **memory) as device,
            RtlDevice(config, MEMORY, **memory, **stalls) as stalled,
        ):
            for turn in ("first", "second"):
                made.run(model)
                for target in (device, stalled):
                    wrong = np.flatnonzero(
                        np.frombuffer(made.run(target), np.uint8) != np.frombuffer(expected, np.uint8)
                    )
                    assert not wrong.size, (
                        f"seed {seed}, {turn} run: {wrong.size} bytes, the first at {wrong[0]:#x}"
                    )
                assert device.counters() == model.counters(), f"seed {seed}, {turn} run"
                expected = expected if turn == "second" else _again(made, config)
    assert unrolled
    control = {opcode for opcode, kind in INSTRUCTIONS.items() if kind.QUEUE is None}
    assert control <= used


def _again(made: LoopProgram, config: Config) -> bytes:
    """Return memory after a second run, which finds the first run's on-chip state."""
    golden = GoldenDevice(config, MEMORY)
    made.run(golden)
    return made.run(golden)


@pytest.mark.parametrize("name", mostly_long(["tiny", "bus of 128"], 0))
def test_loops(name: str) -> None:
    compare(CONFIGS[name], range(6), 12)


def test_the_number_of_pages_comes_from_memory() -> None:
    """One program for any number of pages, with two buffers; time grows with the pages."""
    config, cycles = CONFIGS["tiny"], []
    with RtlDevice(config, 1 << 16, latency=20) as device:
        for pages in (*range(8), 0):
            found, wanted = page_program.run(device, pages, pages)
            assert found == wanted
            model = TimingDevice(config, 1 << 16, latency=20)
            page_program.run(model, pages, pages)
            assert device.counters() == model.counters()
            cycles.append(device.counters()[Counter.CYCLES])
    print(cycles)
    assert cycles[0] == cycles[-1] < cycles[1] < cycles[3] < cycles[5] < cycles[7]


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_loops_long(name: str) -> None:
    compare(CONFIGS[name], range(100, 140), 40)
