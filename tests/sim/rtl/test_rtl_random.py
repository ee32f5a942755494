"""Random programs on the RTL and on the golden interpreter; all of DRAM and of the scratchpad must agree."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.random_programs import FLAGS, MEMORY, Generator

from weft.boards.registry import BOARDS
from weft.hdl.isa import (
    INSTRUCTIONS,
    Instruction,
    Opcode,
)
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice


def compare(
    config: Config, seeds: range, instructions: int, *, sequential: bool = False, complete: bool = True
) -> None:
    """Programs of some seeds; together they must have all that there is, if they are to be `complete`."""
    used: set[Opcode] = set()
    flags: set[tuple[type[Instruction], str]] = set()
    for seed in seeds:
        generator = Generator(config, seed, serial=seed % 4 == 0)
        generator.build(instructions)
        used |= {instruction.OPCODE for instruction in generator.program}
        flags |= {
            (kind, field)
            for kind, field in FLAGS
            for instruction in generator.program
            if isinstance(instruction, kind) and getattr(instruction, field)
        }
        golden = GoldenDevice(config, MEMORY)
        pick = random.Random(seed)
        with RtlDevice(
            config,
            MEMORY,
            latency=pick.choice([1, 5, 40]),
            bandwidth=pick.choice([None, None, 1.5]),
            stall_probability=pick.choice([0.0, 0.0, 0.3, 0.7]),
            stall_seed=seed,
            sequential=sequential,
        ) as device:
            for turn in ("first", "second"):  # the second finds what the first left on the chip
                found, expected = (
                    np.frombuffer(generator.run(target), np.uint8) for target in (device, golden)
                )
                wrong = np.flatnonzero(found != expected)
                assert not wrong.size, (
                    f"seed {seed}, {turn} run: {wrong.size} bytes differ, the first at {wrong[0]:#x}"
                )
    if not complete:
        return
    known = {opcode for opcode, kind in INSTRUCTIONS.items() if not kind().unsupported(config)}
    assert used == known - {Opcode.END}
    assert flags == {(kind, name) for kind, name in FLAGS if not kind(**{name: 1}).unsupported(config)}


def test_tiny() -> None:
    compare(PRESETS["tiny"], range(30), 25)


KERNELS = PRESETS["tiny"].replace(kernel=64, int4=2)
VARIANTS = {
    "smallest": Config(n=2, lanes=1, scratchpad_banks=2, scratchpad_depth=128, accumulator_banks=2,
                       accumulator_depth=16, bus_bytes=4, queue_depth=1, row_states=4, alignments=16, table_depth=256,
                       lookup_tables=1, int4=1),
    "no softmax": PRESETS["tiny"].replace(probability_bits=0, lookup_tables=2, depthwise_taps=2),
    "7 bits": PRESETS["tiny"].replace(probability_bits=7, table_depth=512, depthwise_taps=2, int4=1),
    "wide bus": PRESETS["tiny"].replace(bus_bytes=32, lanes=4, mantissa_bits=16, lookup_tables=8, int4=1),
    "small": PRESETS["small"].replace(lanes=1, lookup_tables=0, depthwise_taps=3),
    "plain": PRESETS["tiny"].replace(probability_bits=0, lookup_tables=0),
    "default": PRESETS["default"].replace(scratchpad_depth=512),
}  # fmt: skip
SEQUENTIAL_KERNELS = {
    "icebreaker": BOARDS["icebreaker"].config.replace(kernel=32),
    "tang-nano-9k": BOARDS["tang-nano-9k"].config.replace(kernel=64),
    "tang-primer-20k": BOARDS["tang-primer-20k"].config,
    "tang-primer-20k, 32": BOARDS["tang-primer-20k"].config.replace(kernel=32),
    "tang-primer-20k, 64": BOARDS["tang-primer-20k"].config.replace(kernel=64),
    "tiny": KERNELS.replace(int4=1),
    "n2": VARIANTS["smallest"].replace(kernel=64),
    "no tables": VARIANTS["plain"].replace(kernel=128),
    "wide bus": VARIANTS["wide bus"].replace(kernel=256),
    "default": VARIANTS["default"].replace(kernel=64, depthwise_taps=0),
}


def test_kernels() -> None:
    compare(KERNELS, range(20), 25)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["7 bits", "no softmax"])
def test_sequential(name: str) -> None:
    compare(VARIANTS[name].replace(depthwise_taps=0), range(25), 25, sequential=True)


def test_sequential_kernels() -> None:
    compare(SEQUENTIAL_KERNELS["icebreaker"], range(4000, 4008), 30, sequential=True)


def test_sequential_kernels_of_a_larger_board() -> None:
    compare(SEQUENTIAL_KERNELS["tang-primer-20k"], range(4008, 4010), 30, sequential=True, complete=False)


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    compare(VARIANTS[name], range(1000, 1100), 40)


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_sequential_variants(name: str) -> None:
    config = VARIANTS[name].replace(depthwise_taps=0, kernel=0)  # kernels have tests of their own
    compare(config, range(3000, 3060), 40, sequential=True)


@pytest.mark.long
@pytest.mark.parametrize("name", SEQUENTIAL_KERNELS)
def test_sequential_kernels_long(name: str) -> None:
    compare(SEQUENTIAL_KERNELS[name], range(5000, 5030), 40, sequential=True)


@pytest.mark.long
def test_tiny_long() -> None:
    compare(PRESETS["tiny"], range(2000, 2300), 60)
