# amaranth: UnusedElaboratable=no
"""The arbiter: each port sees a memory of its own, gets its share, and loses no cycles."""

from __future__ import annotations

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In
from support.memory_driver import MemoryDriver, burst, move_bursts, random_bursts, reset

from weft.boards.bus.block_memory import BlockMemory
from weft.boards.bus.port import Arbiter, memory_port
from weft.sim.rtl.bench import bench_parameters, run_bench

REGION = 1 << 13


class Shared(wiring.Component):
    """An arbiter in front of a memory with a region for each port."""

    def __init__(self, bus_bytes: int, ports: int, commands: int) -> None:
        self.arbiter = Arbiter(bus_bytes, ports, commands=commands)
        self.memory = BlockMemory(bus_bytes, REGION << (ports - 1).bit_length())
        super().__init__({"port": In(memory_port(bus_bytes)).array(ports)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.arbiter = self.arbiter
        m.submodules.memory = self.memory
        wiring.connect(m, self.arbiter.memory, self.memory.bus)
        for outer, inner in zip(self.port, self.arbiter.port, strict=True):
            wiring.connect(m, wiring.flipped(outer), inner)
        return m


async def start(dut):
    values = bench_parameters()
    drivers = [MemoryDriver(dut, values["bus"], name=f"port__{k}") for k in range(values["ports"])]
    await reset(dut)
    return drivers


async def fill(driver, index):
    contents = bytearray(REGION)
    beats = min(256, 4096 // driver.width)
    bursts = [
        burst(contents, driver.width, True, at, beats, full=True)
        for at in range(0, REGION, beats * driver.width)
    ]
    await driver.run(move_bursts(bursts, index * REGION, REGION))
    return contents


@cocotb.test()
async def bench_random(dut):
    drivers = await start(dut)

    async def use(index, driver):
        contents = await fill(driver, index)
        for stall in (0.0, 0.3, 0.7):
            driver.stall = stall
            await driver.run(
                move_bursts(random_bursts(contents, driver.width, 60, longest=64), index * REGION, REGION)
            )

    for task in [cocotb.start_soon(use(index, driver)) for index, driver in enumerate(drivers)]:
        await task


@cocotb.test()
async def bench_shares(dut):
    """Ports that ask all the time finish together, and use every cycle of memory between them."""
    drivers = await start(dut)
    contents = [await fill(driver, index) for index, driver in enumerate(drivers)]
    for kinds in ([False], [True], [False, True]):
        tasks = []
        for index, driver in enumerate(drivers):
            driver.cycle = 0
            bursts = [
                burst(
                    contents[index],
                    driver.width,
                    kinds[k % len(kinds)],
                    16 * driver.width * (k % 8),
                    16,
                    full=True,
                )
                for k in range(20)
            ]
            tasks.append(cocotb.start_soon(driver.run(move_bursts(bursts, index * REGION, REGION))))
        for task in tasks:
            await task
        ends = [driver.last_cycle for driver in drivers]
        assert max(ends) <= len(drivers) * 20 * 16 + 10
        assert max(ends) - min(ends) <= (len(drivers) + 1) * 16 * len(kinds)


@cocotb.test()
async def bench_delay(dut):
    """A single word is read through the arbiter in a fixed, small number of cycles."""
    drivers = await start(dut)
    contents = await fill(drivers[-1], len(drivers) - 1)
    for k in range(5):
        read = [burst(contents, drivers[-1].width, False, 64 * k, 1)]
        await drivers[-1].run(move_bursts(read, (len(drivers) - 1) * REGION, REGION))
        assert drivers[-1].last_cycle - drivers[-1].first_cycle <= 4


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("bus", "ports", "commands"), [(4, 2, 2), (16, 3, 16), (8, 1, 4)])
def test_arbiter(bus, ports, commands):
    run_bench(Shared(bus, ports, commands), parameters={"bus": bus, "ports": ports})


def test_no_port():
    with pytest.raises(ValueError, match="an arbiter needs at least 1 port, not 0"):
        Arbiter(4, 0)
