"""The accumulator: adding at full rate, and a reader that gets the cycles the array leaves."""

from __future__ import annotations

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import FallingEdge
from support.unit_bench import start

from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.operands import READ_LATENCY, rmw_latency
from weft.hdl.memory import Accumulator
from weft.sim.rtl.bench import bench_parameters, run_bench


class Model:
    """Contents by row, and when each row's last write is visible."""

    def __init__(self, config: Config) -> None:
        self.rows = np.zeros((config.accumulator_size, config.n), np.int32)
        self.visible = [0] * config.accumulator_size


def row(word: int, n: int) -> list[int]:
    return np.frombuffer(word.to_bytes(4 * n, "little"), np.int32).tolist()


def rsh(values: np.ndarray, shift: int) -> np.ndarray:
    return values if shift == 0 else (values + (1 << shift - 1)) >> shift


def extremes(config: Config) -> tuple[int, int]:
    width = config.widths.psum
    return -(1 << (width - 1)), (1 << (width - 1)) - 1


class Writer:
    """Drives the write port, one step a cycle."""

    def __init__(self, dut, config: Config, model: Model) -> None:
        self.dut, self.config, self.model = dut, config, model
        self.written = set()
        self.shifts = [0]
        if config.softmax:
            self.shifts += [-31, -30, -20, -2, -1, 1, 2, 15, 30, 31]

    def step(self, cycle: int, address: int, overwrite: bool) -> None:
        low, high = extremes(self.config)
        psums = [random.choice([low, high, random.randint(low, high)]) for _ in range(self.config.n)]
        self.write(cycle, address, overwrite, psums, random.choice(self.shifts))

    def write(self, cycle: int, address: int, overwrite: bool, psums: list[int], shift: int) -> None:
        width = self.config.widths.psum
        self.dut.write__valid.value = 1
        self.dut.write__address.value = address
        self.dut.write__overwrite.value = int(overwrite)
        packed = sum((value & ((1 << width) - 1)) << (width * j) for j, value in enumerate(psums))
        self.dut.write__psums.value = packed
        if self.config.softmax:
            self.dut.write__alignment.value = shift & 63
        old = np.zeros(self.config.n, np.int64) if overwrite else self.model.rows[address].astype(np.int64)
        total = rsh(old, max(shift, 0)) + rsh(np.array(psums), max(-shift, 0))
        self.model.rows[address] = total.astype(np.uint32).view(np.int32)
        self.model.visible[address] = cycle + rmw_latency(self.config)
        self.written.add(address)


@cocotb.test()
async def bench_add_and_read(dut):
    config = Config.from_dict(bench_parameters()["config"])
    await start(dut, write__valid=0, read__valid=0)
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
    config = Config.from_dict(bench_parameters()["config"])
    await start(dut, write__valid=0, read__valid=0)
    latency = rmw_latency(config)
    model = Model(config)
    writer = Writer(dut, config, model)
    depth = config.accumulator_depth
    await FallingEdge(dut.clk)
    for cycle in range(depth):
        writer.step(cycle, depth + cycle, True)
        await FallingEdge(dut.clk)
    dut.write__valid.value = 0
    for _ in range(latency):
        await FallingEdge(dut.clk)
    for cycle in range(10 * latency):
        writer.step(cycle, cycle % latency, cycle < latency)
        dut.read__valid.value = 1
        dut.read__address.value = depth + cycle % depth
        await FallingEdge(dut.clk)
        assert dut.read__ready.value
        if cycle + 1 >= READ_LATENCY:
            source = depth + (cycle + 1 - READ_LATENCY) % depth
            assert row(int(dut.read__data.value), config.n) == model.rows[source].tolist()
    dut.write__valid.value = 0
    for _ in range(latency - 1):
        await FallingEdge(dut.clk)
    for address in range(latency):
        dut.read__address.value = address
        for _ in range(READ_LATENCY):
            await FallingEdge(dut.clk)
        assert row(int(dut.read__data.value), config.n) == model.rows[address].tolist()


@cocotb.test()
async def bench_shift_extremes(dut):
    """Contents at both ends of int32, where rounding must not overflow: reached by adding, the only way there is."""
    config = Config.from_dict(bench_parameters()["config"])
    await start(dut, write__valid=0, read__valid=0)
    if not config.softmax:
        return
    model = Model(config)
    writer = Writer(dut, config, model)
    low, high = extremes(config)
    latency, times = rmw_latency(config), 1 << 32 - config.widths.psum
    psums = [(low, high)[j % 2] for j in range(config.n)]
    await FallingEdge(dut.clk)
    writer.write(0, 0, True, psums, 0)
    for repeat in range(times):
        for address in range(latency):
            dut.write__address.value = address
            dut.write__overwrite.value = int(repeat == 0)
            await FallingEdge(dut.clk)
    model.rows[:latency] = [psum * times for psum in psums]
    # On to the very last number, and around the corner.
    for address in range(latency):
        rest = times - 1 if address < 2 else random.randrange(times)
        ends = [0 if rest == times - 1 else -rest, rest]
        writer.write(0, address, False, [ends[j % 2] for j in range(config.n)], 0)
        await FallingEdge(dut.clk)
    assert model.rows.max() == (1 << 31) - 1
    assert model.rows.min() == -(1 << 31)
    for address, shift in enumerate([1, 31, 30, *random.choices(range(1, 32), k=latency - 3)]):
        writer.write(0, address, False, random.choices([low, high, 0, -1], k=config.n), shift)
        await FallingEdge(dut.clk)
    dut.write__valid.value = 0
    for _ in range(latency):
        await FallingEdge(dut.clk)
    dut.read__valid.value = 1
    for address in range(latency):
        dut.read__address.value = address
        for _ in range(READ_LATENCY):
            await FallingEdge(dut.clk)
        assert row(int(dut.read__data.value), config.n) == model.rows[address].tolist()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("probability_bits", [0, 8])
def test_accumulator(probability_bits):
    config = PRESETS["tiny"].replace(probability_bits=probability_bits)
    run_bench(Accumulator(config), parameters={"config": config.to_dict()})
