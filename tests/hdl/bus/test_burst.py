"""The burst splitter: its bursts cover every run, exactly and in order, within the rules of AXI."""

from __future__ import annotations

import random

import cocotb
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.unit_bench import start

from weft.hdl.bus.axi import BurstSplitter
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.rtl.bench import bench_parameters, run_bench


def bursts(address: int, size: int, width: int, block: int) -> list[tuple[int, int]]:
    """(address, beats) of the bursts of a run; none crosses a multiple of `block` words."""
    first, last = address // width, (address + size - 1) // width
    result = []
    while first <= last:
        end = min(last, first | (block - 1))
        result.append((first * width, end - first + 1))
        first = end + 1
    return result


async def split(
    dut, runs: list[tuple[int, int]], *, stall: float
) -> tuple[list[tuple[int, int, int, int]], int]:
    """Send `runs`; returns (address, beats, last, tag) of every burst, and the cycles from first to last burst."""
    got, cycles, taken = [], 0, 0
    quiet = 0
    while quiet < 10:
        assert len(got) < 100_000, "the splitter does not come to an end"
        valid = taken < len(runs) and random.random() >= stall
        dut.run__valid.value = valid
        if valid:
            address, size = runs[taken]
            dut.run__payload.value = address | size << 32 | (taken & 7) << 64
        for _ in range(100_000):
            dut.request__ready.value = random.random() >= stall
            await ReadOnly()
            if dut.request__valid.value and dut.request__ready.value:
                word = int(dut.request__payload.value)
                got.append((word & 0xFFFFFFFF, word >> 32, int(dut.last.value), int(dut.tag.value)))
            assert not (dut.idle.value and dut.request__valid.value)
            done = bool(dut.run__ready.value)
            quiet = 0 if valid or not dut.idle.value else quiet + (taken == len(runs))
            await RisingEdge(dut.clk)
            cycles += bool(got)
            if done or not valid:
                break
        taken += valid
    return got, cycles - quiet


def expected(runs, width, block):
    result = []
    for index, (address, size) in enumerate(runs):
        each = bursts(address, size, width, block)
        result += [(*burst, int(k == len(each) - 1), index & 7) for k, burst in enumerate(each)]
    return result


async def begin(dut):
    await start(dut, edge=RisingEdge, run__valid=0)
    values = bench_parameters()
    return Config.from_dict(values["config"]).bus_bytes, values["block"]


@cocotb.test()
async def bench_cover(dut):
    width, block = await begin(dut)
    page = block * width
    runs = [
        (0, 1),
        (page - 1, 1),
        (page - 1, 2),
        (0, page),
        (0, page + 1),
        (1, page),
        (7, 5 * page),
        ((1 << 32) - 1, 1),
    ]
    for _ in range(200):
        size = random.choice((random.randint(1, 9), random.randint(1, page), random.randint(1, 4 * page)))
        runs.append((random.randrange(1 << 20), size))
    for stall in (0.0, 0.5):
        got, _ = await split(dut, runs, stall=stall)
        assert got == expected(runs, width, block)
        for address, beats, _, _ in got:
            assert 1 <= beats <= 256
            assert address // 4096 == (address + beats * width - 1) // 4096


@cocotb.test()
async def bench_a_burst_per_cycle(dut):
    width, _ = await begin(dut)
    got, cycles = await split(dut, [(k * width, width) for k in range(64)], stall=0.0)
    assert len(got) == 64
    assert cycles <= 66


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("bus", "beats", "block"), [(4, 256, 256), (16, 256, 256), (32, 256, 128), (16, 64, 64)]
)
def test_burst(bus, beats, block):
    config = PRESETS["tiny"].replace(bus_bytes=bus)
    run_bench(
        BurstSplitter(config, beats=beats, tag=3), parameters={"config": config.to_dict(), "block": block}
    )
