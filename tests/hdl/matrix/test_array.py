"""The array against numpy: every schedule that its contract allows gives exact products."""

from __future__ import annotations

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import FallingEdge
from support.families import models, multipliers
from support.unit_bench import start

from weft.hdl.isa.config import Config
from weft.hdl.matrix.array import Array
from weft.sim.rtl.bench import bench_parameters, run_bench


def pack(vector: np.ndarray, width: int) -> int:
    return sum((int(element) & ((1 << width) - 1)) << width * k for k, element in enumerate(vector))


def unpack(word: int, n: int, width: int) -> list[int]:
    lanes = [(word >> (width * j)) & ((1 << width) - 1) for j in range(n)]
    return [lane - (1 << width) if lane >> (width - 1) else lane for lane in lanes]


def schedule(n: int, tiles: int, low: int, high: int) -> tuple[dict, dict, dict, dict]:
    """A random legal schedule: cycle -> row of A (elements from `low` to `high`), word of B, expected row of C, and
    start (0 word, 1 swap)."""
    random_rows = np.random.default_rng(random.getrandbits(32))
    rows, words, results, starts = {}, {}, {}, {}
    swap, busy_until, words_until = 0, 0, 0
    for _ in range(tiles):
        tight, m = random.random() < 0.6, random.choice([1, n - 1, n, random.randint(1, 3 * n)])
        first_word = max(swap, words_until) + (0 if tight else random.randrange(2 * n))
        extreme = random.random() < 0.2
        a = random_rows.integers(low, high + 1, (m, n))
        a = a if not extreme else np.full((m, n), random.choice([low, high]))
        b = random_rows.integers(-128, 128, (n, n)) if not extreme else np.full((n, n), -128)
        for j in range(n):
            words[first_word + j] = b[j]
        starts[first_word, 0] = True
        words_until = first_word + n
        cycle = swap = max(first_word + n, busy_until) + (0 if tight else random.randrange(n))
        starts[swap, 1] = True
        for row, result in zip(a, a @ b.T, strict=True):
            rows[cycle], results[cycle] = row, result
            cycle += 1 if tight else random.choice([1, 1, 2, 5])
        busy_until = cycle
    return rows, words, results, starts


@cocotb.test()
async def bench_array(dut):
    config = Config.from_dict(bench_parameters()["config"])
    n, latency, width = config.n, bench_parameters()["latency"], config.widths.activation
    low, high = (-255, 255) if config.wide_activations else (-128, 127)
    await start(dut)
    rows, words, results, starts = schedule(n, 60, low, high)
    for cycle in range(max(rows) + latency + 1):
        dut.a.value = pack(rows[cycle], width) if cycle in rows else random.getrandbits(width * n)
        dut.b.value = pack(words[cycle], 8) if cycle in words else random.getrandbits(8 * n)
        dut.latch.value = int((cycle, 0) in starts)
        dut.swap.value = int((cycle, 1) in starts)
        if cycle - latency in results:
            seen = unpack(int(dut.c.value), n, config.widths.psum)
            assert seen == results[cycle - latency].tolist(), f"the row of cycle {cycle - latency}"
        await FallingEdge(dut.clk)


@pytest.mark.parametrize(
    ("n", "probability_bits", "family"),
    [
        (2, 8, "generic"),
        (4, 8, "generic"),
        (4, 0, "generic"),
        (8, 7, "generic"),
        (2, 8, "ecp5"),
        (4, 0, "ecp5"),
        (8, 8, "ecp5"),
        pytest.param(16, 8, "ecp5", marks=pytest.mark.long),
        (2, 7, "ice40"),
        (4, 0, "ice40"),
    ],
)
def test_array(n, probability_bits, family):
    config = Config(n=n, lanes=1, probability_bits=probability_bits)
    array = Array(config, multipliers(family))
    run_bench(array, parameters={"config": config.to_dict(), "latency": array.latency}, models=models(family))
