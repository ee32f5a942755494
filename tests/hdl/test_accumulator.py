"""The accumulator: adding at full rate, and a reader that gets the cycles the array leaves."""

from __future__ import annotations

import random

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from weft.hdl.accumulator import RMW_LATENCY, Accumulator
from weft.hdl.config import PRESETS, Config
from weft.hdl.ports import READ_LATENCY
from weft.sim.bench import bench_parameters, run_bench


class Model:
    """Contents by row, and when each row's last write is visible."""

    def __init__(self, config: Config) -> None:
        self.rows = np.zeros((config.accumulator_size, config.n), np.int32)
        self.visible = [0] * config.accumulator_size


def start(dut) -> Config:
    cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
    dut.write__valid.value = dut.read__valid.value = dut.rst.value = 0
    return Config.from_dict(bench_parameters()["config"])


def row(word: int, n: int) -> list[int]:
    return np.frombuffer(word.to_bytes(4 * n, "little"), np.int32).tolist()


class Writer:
    """Drives the write port, one step a cycle."""

    def __init__(self, dut, config: Config, model: Model) -> None:
        self.dut, self.config, self.model = dut, config, model
        self.written = set()

    def step(self, cycle: int, address: int, overwrite: bool) -> None:
        width = self.config.widths.psum
        low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
        psums = [random.choice([low, high, random.randint(low, high)]) for _ in range(self.config.n)]
        self.dut.write__valid.value = 1
        self.dut.write__address.value = address
        self.dut.write__overwrite.value = int(overwrite)
        packed = sum((value & ((1 << width) - 1)) << (width * j) for j, value in enumerate(psums))
        self.dut.write__psums.value = packed
        old = np.zeros(self.config.n, np.int32) if overwrite else self.model.rows[address]
        self.model.rows[address] = old + np.array(psums, np.int32)
        self.model.visible[address] = cycle + RMW_LATENCY
        self.written.add(address)


@cocotb.test()
async def bench_add_and_read(dut):
    config = start(dut)
    model = Model(config)
    writer = Writer(dut, config, model)
    size, depth = config.accumulator_size, config.accumulator_depth
    hot = random.sample(range(size), 6)  # few rows, so that the shortest revisit is common
    expected: dict[int, list[int]] = {}
    refused = granted = 0
    await FallingEdge(dut.clk)
    for cycle in range(4000):
        if cycle in expected:
            assert row(int(dut.read__data.value), config.n) == expected.pop(cycle), f"read in cycle {cycle}"
        address = random.choice(hot) if random.random() < 0.7 else random.randrange(size)
        overwrite = address not in writer.written or random.random() < 0.1
        dut.write__valid.value = 0
        writing = random.random() < 0.8 and (overwrite or cycle >= model.visible[address])
        before = model.rows.copy() if writing else model.rows
        if writing:
            writer.step(cycle, address, overwrite)
        readable = [
            a for a in random.sample(sorted(writer.written), min(4, len(writer.written)))
            if cycle >= model.visible[a]
        ]  # fmt: skip
        dut.read__valid.value = 0
        if readable and random.random() < 0.8:
            dut.read__valid.value = 1
            dut.read__address.value = readable[0]
            conflict = writing and not overwrite and address // depth == readable[0] // depth
            if conflict:
                refused += 1
            else:
                granted += 1
                expected[cycle + READ_LATENCY] = before[readable[0]].tolist()
            dut.read__valid.value = 1
            await cocotb.triggers.ReadOnly()
            assert int(dut.read__ready.value) == int(not conflict)
        await FallingEdge(dut.clk)
    assert refused > 100
    assert granted > 1000


@cocotb.test()
async def bench_full_rate(dut):
    """A tile of rows every cycle, added to again and again, while the other bank is read without a refusal."""
    config = start(dut)
    model = Model(config)
    writer = Writer(dut, config, model)
    depth = config.accumulator_depth
    await FallingEdge(dut.clk)
    for cycle in range(depth):
        writer.step(cycle, depth + cycle, True)
        await FallingEdge(dut.clk)
    dut.write__valid.value = 0
    for _ in range(RMW_LATENCY):
        await FallingEdge(dut.clk)
    for cycle in range(10 * RMW_LATENCY):
        writer.step(cycle, cycle % RMW_LATENCY, cycle < RMW_LATENCY)
        dut.read__valid.value = 1
        dut.read__address.value = depth + cycle
        await FallingEdge(dut.clk)
        assert dut.read__ready.value
        if cycle + 1 >= READ_LATENCY:
            source = depth + cycle + 1 - READ_LATENCY
            assert row(int(dut.read__data.value), config.n) == model.rows[source].tolist()
    dut.write__valid.value = 0
    for _ in range(RMW_LATENCY - 1):
        await FallingEdge(dut.clk)
    for address in range(RMW_LATENCY):
        dut.read__address.value = address
        for _ in range(READ_LATENCY):
            await FallingEdge(dut.clk)
        assert row(int(dut.read__data.value), config.n) == model.rows[address].tolist()


def test_accumulator():
    run_bench(Accumulator(PRESETS["tiny"]), parameters={"config": PRESETS["tiny"].to_dict()})
