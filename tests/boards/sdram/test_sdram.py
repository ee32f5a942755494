# amaranth: UnusedElaboratable=no
"""The SDRAM controller with the model of the chip: what is read, no rule broken, bandwidth."""

from __future__ import annotations

import dataclasses
import random

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import RisingEdge
from support.memory_driver import MemoryDriver, burst, random_bursts, reset

from weft.boards.bus.port import memory_port
from weft.boards.flash.model import broken_rules
from weft.boards.sdram.chip import SdramTiming
from weft.boards.sdram.controller import SdramController
from weft.boards.sdram.eye import best_eye
from weft.boards.sdram.model import ChipBehindPads, Rule, SdramModel
from weft.sim.rtl.bench import bench_parameters, run_bench

SHORT = SdramTiming(power_up=400.0)
ROW_BITS, COLUMN_BITS = 3, 9
BYTES = 2 << (ROW_BITS + COLUMN_BITS + 2)
GOAL = 0.85


class Memory(wiring.Component):
    """A controller and its chip; without a `capture`, both as on a board, with registers in the pads between them."""

    def __init__(self, bus_bytes: int, clock: float, cas_latency: int, capture: int | None) -> None:
        # The controller hardly comes near the data sheets' tRRD: one that it does come near.
        timing = dataclasses.replace(SHORT, rrd=100.0) if bus_bytes == 8 else SHORT
        self.controller = SdramController(
            bus_bytes,
            clock,
            timing,
            row_bits=ROW_BITS,
            column_bits=COLUMN_BITS,
            cas_latency=cas_latency,
            capture=best_eye(clock).capture if capture is None else capture,
        )
        bits = {"row_bits": ROW_BITS, "column_bits": COLUMN_BITS}
        self.chip: ChipBehindPads | SdramModel
        if capture is None:
            self.chip = ChipBehindPads(clock, timing, **bits)
        else:
            self.chip = SdramModel(clock, timing, **bits, delay=capture)
        super().__init__({"bus": In(memory_port(bus_bytes)), "violation": Out(len(Rule))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.controller = self.controller
        m.submodules.chip = self.chip
        wiring.connect(m, wiring.flipped(self.bus), self.controller.bus)
        wiring.connect(m, self.controller.pads, self.chip.pads)
        m.d.comb += self.violation.eq(self.chip.violation)
        return m


async def start(dut, **options):
    driver = MemoryDriver(dut, bench_parameters()["bus"], **options)
    await reset(dut)
    contents = bytearray(BYTES)
    width = driver.width
    fill = [
        burst(contents, width, True, at, min(256, 4096 // width), full=True)
        for at in range(0, BYTES, min(256, 4096 // width) * width)
    ]
    stall, driver.stall = driver.stall, 0.0
    await driver.run(fill)
    driver.stall = stall
    return driver, contents


def check(dut):
    assert broken_rules(Rule, int(dut.violation.value)) == []


@cocotb.test()
async def bench_random(dut):
    """Commands of all kinds, with pauses on every channel."""
    for stall in (0.0, 0.3, 0.9):
        driver, contents = await start(dut, stall=stall)
        await driver.run(random_bursts(contents, driver.width, 60, longest=64))
        check(dut)


@cocotb.test()
async def bench_refreshed_while_stalled(dut):
    """The chip is refreshed although a read waits for room, and although a write waits for data."""
    for blocked in ("read", "write"):
        driver, contents = await start(dut, patience=20_000)
        cycles = 0

        def pauses(channel, blocked=blocked):
            nonlocal cycles
            cycles += channel == blocked
            return channel == blocked and 40 < cycles < 12_000

        driver.pauses = pauses
        bursts = [
            burst(contents, driver.width, blocked == "write", 2048 * k, 256 // driver.width) for k in range(4)
        ]
        bursts += [burst(contents, driver.width, False, 2048 * k, 256 // driver.width) for k in range(4)]
        await driver.run(bursts)
        check(dut)


@cocotb.test()
async def bench_bandwidth(dut):
    """Bursts of 256 bytes reach `GOAL` of two bytes a cycle, refreshes included."""
    driver, contents = await start(dut)
    beats = 256 // driver.width
    count = 60
    patterns = {
        "sequential reads": lambda k: (False, 256 * k),
        "sequential writes": lambda k: (True, 256 * k),
        "random reads": lambda k: (False, 256 * random.randrange(BYTES // 256)),
        "random writes": lambda k: (True, 256 * random.randrange(BYTES // 256)),
        "sequential, reads and writes in turn": lambda k: (bool(k & 1), (256 * k + (k & 1) * BYTES // 2)),
        "random, reads and writes at random": lambda k: (
            random.random() < 0.5,
            256 * random.randrange(BYTES // 256),
        ),
    }
    for name, pattern in patterns.items():
        bursts = [
            burst(contents, driver.width, write, address % BYTES, beats, full=True)
            for write, address in map(pattern, range(count))
        ]
        await driver.run(bursts)
        share = count * 128 / (driver.last_cycle - driver.first_cycle + 1)
        print(f"{driver.width}-byte bus, {name}: {share:.1%} of 2 bytes a cycle")
        assert share >= GOAL, name
    check(dut)


@cocotb.test()
async def bench_idle(dut):
    """Left alone the chip is refreshed, and keeps its rows."""
    driver, contents = await start(dut)
    for _ in range(12_000):
        await RisingEdge(dut.clk)
    await driver.run(random_bursts(contents, driver.width, 20))
    check(dut)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("bus", "clock", "cas_latency", "capture"),
    [(16, 100e6, 3, 0), (4, 100e6, 2, 1), (8, 80e6, 2, 0), (32, 50e6, 3, 2), (4, 133e6, 3, 0)],
)
def test_sdram(bus, clock, cas_latency, capture):
    run_bench(Memory(bus, clock, cas_latency, capture), parameters={"bus": bus})


def test_sdram_on_a_board_with_a_slow_clock():
    """There the phase of the chip's clock makes words come a cycle earlier, and they are taken a cycle earlier."""
    clock = 40e6
    assert best_eye(clock).capture == 1
    run_bench(Memory(4, clock, 3, None), parameters={"bus": 4})
