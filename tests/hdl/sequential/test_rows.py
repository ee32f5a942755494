"""Rows against numpy: products, ranges, modes, and where sums go."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import cocotb
import numpy as np
import pytest
from cocotb.triggers import FallingEdge, ReadOnly
from support.families import models, multipliers
from support.unit_bench import start

from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential.multiplier import Rows
from weft.sim.rtl.bench import bench_parameters, run_bench

QUIET, OVERWRITE, ZEROS = 1, 2, 4
STROBES = (
    "set_a", "set_a_step", "set_c", "set_c_step", "set_x", "set_x_step", "set_bound", "set_mode", "set_row_valid",
    "step_a", "read_c", "start", "weight",
)  # fmt: skip


def signed(value: int, bits: int) -> int:
    return (value & (1 << bits) - 1) - ((value & 1 << bits - 1) << 1)


@dataclass(frozen=True)
class Job:
    """Rows, and what is set ahead of them."""

    count: int
    a: int
    a_step: int
    c: int
    c_step: int
    x: int
    x_step: int
    bound: int
    y: int
    height: int
    mode: int
    pad: int
    zero: int


def random_job(config: Config) -> Job:
    wide, tall = config.scratchpad_size, config.accumulator_size
    count = random.choice((1, 2, random.randint(3, 12), random.randint(1, 40)))
    return Job(
        count=count,
        a=random.randrange(wide),
        a_step=random.choice((1, 2, 0, wide - 1, random.randrange(wide))),
        c=random.randrange(tall),
        c_step=random.choice((1, tall - 1, random.randrange(1, tall))),
        x=random.choice((0, random.randrange(-count, count), -(1 << 15), (1 << 15) - 2)),
        x_step=random.choice((1, 2, -1, 0, random.randrange(-128, 128))),
        bound=random.choice((count, random.randint(1, 2 * count), (1 << 16) - 1, 0)),
        y=random.choice((0, 0, 3, 4, -1)),
        height=4,
        mode=random.choice((0, 0, OVERWRITE, OVERWRITE, QUIET, QUIET | OVERWRITE, ZEROS)),
        pad=random.choice((random.randrange(-128, 128), -128, 127)),
        zero=random.choice((random.randrange(-128, 128), -128, 127)),
    )


class Bench:
    """The vectors that the unit reads and the accumulator that it adds to, as they are in numpy. A row more than half
    of the accumulator is zeros."""

    def __init__(self, dut: Any) -> None:
        self.dut, self.config = dut, Config.from_dict(bench_parameters()["config"])
        n, depth = self.config.n, self.config.accumulator_size
        source = np.random.default_rng(random.getrandbits(32))
        self.vectors = source.integers(-128, 128, (self.config.scratchpad_size, n)).astype(np.int8)
        self.vectors[::5] = -128
        self.accumulator = source.integers(-(1 << 31), 1 << 31, (2 * depth, n)).astype(np.int32)
        self.accumulator[depth] = 0
        self.expected = self.accumulator.copy()
        self.sums = np.zeros(n, np.int64)
        self.weights = np.zeros((n, n), np.int8)
        self.vector: np.ndarray = self.vectors[0]
        self.read: int | None = None  # the vector of the next cycle
        self.row: int | None = None
        self.column = self.active = 0

    async def reset(self) -> None:
        await start(self.dut, **dict.fromkeys(STROBES, 0))

    async def cycle(self, strobe: str = "", value: int = 0) -> None:
        """A cycle with a strobe, in which both memories do what they are asked for."""
        dut = self.dut
        dut.value.value = value & 0xFFFFFFFF if strobe else random.getrandbits(32)
        if strobe:
            getattr(dut, strobe).value = 1
        dut.weight_column.value = self.column
        if self.read is not None:
            self.vector = self.vectors[self.read]
            dut.vector.value = int.from_bytes(self.vector.tobytes(), "little")
        row = np.random.bytes(4 * self.config.n) if self.row is None else self.accumulator[self.row].tobytes()
        dut.row.value = int.from_bytes(row, "little")
        await ReadOnly()
        self.read = int(dut.vector_address.value) if dut.vector_read.value else None
        if dut.row_write.value:
            data = int(dut.row_data.value).to_bytes(4 * self.config.n, "little")
            written = int(dut.row_written.value)
            self.accumulator[written] = np.frombuffer(data, np.int32)
        self.row = int(dut.row_address.value) if dut.row_read.value else None
        assert not dut.row_write.value or self.row != written, "which of both is first, memory does not say"
        self.active += int(dut.active.value)
        await FallingEdge(dut.clk)
        if strobe:
            getattr(dut, strobe).value = 0

    async def pause(self) -> None:
        for _ in range(random.choice((0, 0, 1, 3))):
            await self.cycle()

    async def load_weights(self) -> None:
        """Columns from 0 on, each from a vector that was read."""
        n, size = self.config.n, self.config.scratchpad_size
        first, step = random.randrange(size), random.randrange(size)
        await self.cycle("set_a", first)
        await self.cycle("set_a_step", step)
        for self.column in range(n):
            await self.cycle("step_a")
            await self.pause()
            await self.cycle("weight")
            self.weights[self.column] = self.vectors[(first + self.column * step) % size]
        self.column = 0

    async def set(self, job: Job) -> None:
        """All that rows need, first the range of the rows."""
        mode = job.mode | (job.pad & 255) << 8 | (job.zero & 255) << 16
        await self.cycle("set_x", job.y)
        await self.cycle("set_bound", job.height)
        assert bool(self.dut.in_range.value) == (0 <= job.y < job.height)
        await self.cycle("set_row_valid")
        settings = {
            "set_x": job.x, "set_x_step": job.x_step, "set_bound": job.bound, "set_a": job.a, "set_a_step": job.a_step,
            "set_c": job.c, "set_c_step": job.c_step, "set_mode": mode,
        }  # fmt: skip
        for strobe, value in random.sample(list(settings.items()), len(settings)):
            await self.cycle(strobe, value)

    async def run(self, job: Job) -> None:
        """Start rows, and compare the accumulator when they are done."""
        dut = self.dut
        self.calculate(job)
        self.active = 0
        await self.cycle("start", job.count)
        cycles = 0
        while not dut.done.value:
            await self.cycle()
            cycles += 1
            assert cycles <= job.count, "a row a cycle"
        for _ in range(4):  # what the microprogram takes from there to the next strobe
            await self.cycle()
        assert self.active == job.count
        assert np.array_equal(self.accumulator, self.expected), job
        assert self.found_sums() == self.sums.tolist(), job

    def found_sums(self) -> list[int]:
        width, word = self.config.widths.psum, int(self.dut.sums.value)
        return [signed(word >> width * j, width) for j in range(self.config.n)]

    def calculate(self, job: Job) -> None:
        """What `job` does."""
        config = self.config
        for i in range(job.count):
            x = signed(job.x + i * job.x_step, 16)
            valid = 0 <= job.y < job.height and 0 <= x < job.bound
            vector = self.vectors[(job.a + i * job.a_step) % config.scratchpad_size]
            operands = (vector if valid else np.full(config.n, job.pad)).astype(np.int64)
            self.sums = self.weights.astype(np.int64) @ (operands - job.zero * config.wide_activations)
            if job.mode & QUIET:
                continue
            row = (job.c + i * job.c_step) % config.accumulator_size
            target = config.accumulator_size if job.mode & ZEROS else row
            start = self.expected[row] * (not job.mode & OVERWRITE)
            self.expected[target] = (start + self.sums).astype(np.int32)


@cocotb.test()
async def bench_random(dut: Any) -> None:
    """Weights, then rows with all settings; the row of zeros is made anew where a mode has written it."""
    bench = Bench(dut)
    await bench.reset()
    zeros = bench.config.accumulator_size
    for _ in range(60):
        await bench.load_weights()
        for _ in range(random.choice((1, 2))):
            job = random_job(bench.config)
            await bench.set(job)
            await bench.pause()
            await bench.run(job)
            bench.accumulator[zeros] = bench.expected[zeros] = 0


@cocotb.test()
async def bench_range(dut: Any) -> None:
    """Coordinates around both ends, with no rows."""
    bench = Bench(dut)
    await bench.reset()
    await bench.cycle("start", 0)
    assert dut.done.value
    for bound in (0, 1, 5, (1 << 15) - 1, 1 << 15, (1 << 16) - 1):
        await bench.cycle("set_bound", bound)
        for x in (-(1 << 15), -1, 0, bound - 1, bound, bound + 1, (1 << 15) - 1):
            await bench.cycle("set_x", x)
            assert bool(dut.in_range.value) == (0 <= signed(x, 16) < bound), (x, bound)


@cocotb.test()
async def bench_by_hand(dut: Any) -> None:
    """With no rows under way, the row at `c` can be read, and written a cycle later."""
    bench = Bench(dut)
    await bench.reset()
    size = bench.config.accumulator_size
    for c in (0, 1, size - 1, random.randrange(size)):
        for mode in (0, ZEROS, 0, OVERWRITE):
            await bench.cycle("set_mode", mode)
            await bench.cycle("set_c", c)
            await bench.cycle("read_c")
            assert bench.row == (size if mode == OVERWRITE else c)
            assert int(dut.row_written.value) == (size if mode == ZEROS else c)
            await bench.cycle()
            assert bench.row is None


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("n", "probability_bits", "family"),
    # Of the last, 56 of 64 products are in blocks.
    [(2, 8, "generic"), (4, 0, "generic"), (4, 7, "ice40"), (8, 8, "gowin5a")],
)
def test_rows(n: int, probability_bits: int, family: str) -> None:
    config = PRESETS["tiny"].replace(n=n, lanes=1, probability_bits=probability_bits, bus_bytes=max(4, n))
    rows = Rows(config, multipliers(family))
    run_bench(rows, parameters={"config": config.to_dict()}, models=models(family))
