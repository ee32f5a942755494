"""Memories with parity: the same results, and bits that change are noticed before anybody takes results for right."""

from __future__ import annotations

from functools import cache

import pytest
from support.bit_flips import flipping
from support.random_programs import MEMORY, Generator

from weft.hdl.isa import Mm
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import ParityMemory, Reg, Status
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice, core_verilog

PLAIN = PRESETS["tiny"].replace(probability_bits=0)
CONFIG = PLAIN.replace(parity=1)
CORES = pytest.mark.parametrize("sequential", [False, True], ids=["pipelined", "sequential"])
LONG = [range(3), pytest.param(range(100, 160), marks=pytest.mark.long)]


class Filling(Generator):
    """Programs that write all rows of the accumulator before anything else."""

    def prologue(self) -> None:
        super().prologue()
        assert self.append(Mm(ox=self.config.accumulator_size, c_ox=1))


@cache
def flipping_verilog(config: Config, sequential: bool, one_in: int) -> str:
    return flipping(core_verilog(config, sequential=sequential), one_in)


@CORES
@pytest.mark.parametrize("seeds", LONG, ids=str)
def test_programs(seeds: range, sequential: bool) -> None:
    for seed in seeds:
        generator = Generator(CONFIG, seed, serial=False)
        generator.build(15)
        with RtlDevice(CONFIG, MEMORY, stall_probability=0.3, sequential=sequential) as device:
            assert generator.run(device) == generator.run(GoldenDevice(CONFIG, MEMORY))
            assert device._read_register(Reg.PARITY) == 0


def shares(config: Config, seeds: range, sequential: bool) -> dict[str, int]:
    """What becomes of programs some of whose bits change in memories on chip."""
    verilog = flipping_verilog(config, sequential, 256 if len(seeds) < 10 else 4096)
    found = {"right": 0, "told": 0, "wrong": 0}
    counted = 0
    for seed in seeds:
        generator = Filling(config, seed, serial=False)
        generator.build(15)
        expected = generator.run(GoldenDevice(config, MEMORY))
        with RtlDevice(config, MEMORY, verilog=verilog) as device:
            device.sequential = sequential
            for _ in range(3):
                counts = told(device, generator)
                counted |= counts
                same = device.read(0, MEMORY) == expected
                found["told" if counts else "right" if same else "wrong"] += 1
    if config.parity and len(seeds) > 10:
        memories = set(ParityMemory) - ({ParityMemory.FETCH} if sequential else set())
        assert {memory for memory in ParityMemory if counted >> 8 * memory & 0xFF} == memories
    return found


def told(device: RtlDevice, generator: Generator) -> int:
    """Run a program; returns the register PARITY. What changes may be an instruction, and then the run fails with it,
    but without parity never for the reason of it."""
    message = ""
    try:
        generator.run(device)
    except DeviceError as error:
        message = str(error)
    counts = device._read_register(Reg.PARITY)
    assert ("lost a bit: run the program again" in message) == (counts != 0)
    if counts:
        assert device._status() & Status.PARITY_ERROR
        assert device._status() & Status.DONE
    return counts


@CORES
@pytest.mark.parametrize("seeds", LONG, ids=str)
def test_changed_bits_are_told(seeds: range, sequential: bool) -> None:
    found = shares(CONFIG, seeds, sequential)
    print(found)
    assert found["wrong"] == 0
    assert found["told"] >= len(seeds)
    if len(seeds) > 10:  # few bits change, and some of them nobody reads
        assert found["right"] >= 5


def test_without_parity_results_are_wrong() -> None:
    """The same changes, so that the test above can fail."""
    found = shares(PLAIN, range(3), sequential=False)
    print(found)
    assert found["wrong"] >= 2


def test_nothing_to_change() -> None:
    with pytest.raises(ValueError, match="no memory was found"):
        flipping("module other;\nendmodule\n", 256)
