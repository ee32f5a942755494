# amaranth: UnusedElaboratable=no
"""RAM and flash at one port: contents, speed, and the chip's rules."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import RisingEdge
from support.memory_driver import Burst, MemoryDriver, burst, move_bursts, random_bursts, reset

from weft.boards.bus.block_memory import BlockMemory, RamAndFlash
from weft.boards.bus.port import memory_port
from weft.boards.flash.chip import HEADER_CLOCKS, WINDOW, SpiFlash
from weft.boards.flash.controller import SpiFlashReader
from weft.boards.flash.model import Rule, SpiFlashModel, broken_rules
from weft.sim.rtl.bench import bench_parameters, run_bench

RAM, CHIP = 1 << 13, SpiFlash(1 << 20, 1 << 14)
CONTENTS = random.Random(5).randbytes(1 << 13)
"""Contents of the chip, repeated."""


class Bench(wiring.Component):
    """Both memories with the chip's model."""

    def __init__(self, bus_bytes: int, clock: float) -> None:
        self.bus_bytes, self.clock = bus_bytes, clock
        super().__init__({"bus": In(memory_port(bus_bytes)), "violation": Out(len(Rule))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        memory = RamAndFlash(BlockMemory(self.bus_bytes, RAM), CHIP, self.clock)
        m.submodules.memory = memory
        m.submodules.chip = chip = SpiFlashModel(CHIP, self.clock, CONTENTS)
        wiring.connect(m, wiring.flipped(self.bus), memory.bus)
        wiring.connect(m, memory.flash, chip.pads)
        m.d.comb += self.violation.eq(chip.violation)
        return m


def reads(width: int, at: int, beats: int, count: int = 1) -> list[Burst]:
    """Read the chip `count` times in sequence."""
    return [
        move_bursts(
            [burst(bytearray(CONTENTS), width, False, at + k * beats * width, beats)], WINDOW, CHIP.size
        )[0]
        for k in range(count)
    ]


def violations(dut: Any) -> list[str]:
    return broken_rules(Rule, int(dut.violation.value))


@cocotb.test()
async def bench_random(dut):
    """Both memories in turn, jumps and runs, with pauses on every channel."""
    width = bench_parameters()["bus"]
    await reset(dut)
    contents = bytearray(RAM)
    driver = MemoryDriver(dut, width)
    await driver.run([burst(contents, width, True, at, 64, full=True) for at in range(0, RAM, 64 * width)])
    for stall in (0.0, 0.4):
        driver.stall = stall
        bursts, at = [], 0
        for ram in random_bursts(contents, width, 25, longest=32):
            bursts.append(Burst(ram.write, ram.address % RAM, ram.words))
            for _ in range(random.choice((0, 1, 1, 3))):
                beats = random.choice((1, 1, 1, 2, 7))
                jumps = random.random() < 0.4
                at = random.randrange(0, CHIP.size - 64 * width, width) if jumps else at
                at = at if at // 4096 == (at + beats * width - 1) // 4096 else at // 4096 * 4096
                bursts += reads(width, at, beats)
                at += beats * width
        await driver.run(bursts)
    assert violations(dut) == []


@cocotb.test()
async def bench_rates(dut):
    """A word takes the clocks of its bits and three cycles to the pads and back; a jump the header as well."""
    width = bench_parameters()["bus"]
    await reset(dut)
    driver = MemoryDriver(dut, width)
    await driver.run(reads(width, 64, 1))
    word = 4 * width + 3
    for count, beats in ((32, 1), (2, 16)):
        await driver.run(reads(width, 2048, beats, count))
        cycles = driver.last_cycle - driver.first_cycle
        pause = CHIP.cycles(CHIP.deselect, bench_parameters()["mhz"] * 1e6)
        assert 0 <= cycles - HEADER_CLOCKS - pause - 32 * word - 31 <= 4, cycles
    # Read ahead: what comes next is there at once.
    for _ in range(100):
        await RisingEdge(dut.clk)
    await driver.run(reads(width, 2048 + 32 * width, 1))
    assert driver.last_cycle - driver.first_cycle == 1
    assert violations(dut) == []


@cocotb.test()
async def bench_pages(dut):
    """After a page's last word, read the next page's first word, and this page's."""
    width = bench_parameters()["bus"]
    await reset(dut)
    driver = MemoryDriver(dut, width)
    for following in (4096, 0, 4096 - width):
        await driver.run(reads(width, 4096 - 2 * width, 2))
        for _ in range(100):
            await RisingEdge(dut.clk)
        await driver.run(reads(width, following, 1))
    assert violations(dut) == []


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("bus", "mhz"), [(4, 24), (8, 54)])
def test_ram_and_flash(bus, mhz):
    run_bench(Bench(bus, mhz * 1e6), parameters={"bus": bus, "mhz": mhz})


def test_limits():
    with pytest.raises(ValueError, match="has 1, 2, 4, 8 or 16 bytes, not 32"):
        SpiFlashReader(32, CHIP, 24e6)
    with pytest.raises(ValueError, match="read at up to 80 MHz, not 81"):
        SpiFlashReader(4, CHIP, 81e6)
    for size, offset in ((1 << 25, 0), (4096, 4096), (4096, -1)):
        with pytest.raises(ValueError, match="up to 16777216 bytes, and its offset lies inside"):
            SpiFlash(size, offset)
