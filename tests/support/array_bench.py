"""Random legal schedules for the systolic array, and the expected outputs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from cocotb.triggers import FallingEdge

from support.unit_bench import start
from weft.hdl.isa.config import Config
from weft.sim.rtl.bench import bench_parameters


def pack(vector: np.ndarray, width: int) -> int:
    return sum((int(element) & ((1 << width) - 1)) << width * k for k, element in enumerate(vector))


def unpack(word: int, n: int, width: int) -> list[int]:
    lanes = [(word >> (width * j)) & ((1 << width) - 1) for j in range(n)]
    return [lane - (1 << width) if lane >> (width - 1) else lane for lane in lanes]


def sum_taps(a: np.ndarray, b: np.ndarray, starts: list[bool], taps: int) -> np.ndarray:
    """Sum the last `taps` rows of a line, channel by channel, as `weft.hdl.isa.Mm` defines it."""
    found, line = [], list[np.ndarray]()
    for row, first in zip(a, starts, strict=True):
        line = [row] if first else [*line, row]
        weights = b[len(row) - 2 * taps :: 2][::-1]
        found.append(sum(past * weight for past, weight in zip(line[::-1], weights, strict=False)))
    return np.array(found)


def schedule(n: int, tiles: int, low: int, high: int, taps: int = 0) -> tuple[dict, dict, dict, dict]:
    """A random legal schedule: cycle -> row of A (elements from `low` to `high`), word of B, expected row of C, and
    start (0 word, 1 swap, 2 of a row with `depthwise`, 3 of the first one of a line)."""
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
        depthwise = taps > 0 and random.random() < 0.6
        lines = [not index or random.random() < 0.2 for index in range(m)]
        made = sum_taps(a, b, lines, taps) if depthwise else a @ b.T
        for row, result, first in zip(a, made, lines, strict=True):
            rows[cycle], results[cycle] = row, result
            starts[cycle, 2], starts[cycle, 3] = depthwise, first
            cycle += 1 if tight else random.choice([1, 1, 2, 5])
        busy_until = cycle
    return rows, words, results, starts


async def drive(dut: Any) -> None:
    """Run 60 tiles with the bench's parameters ``config`` and ``latency``."""
    config = Config.from_dict(bench_parameters()["config"])
    n, latency, width = config.n, bench_parameters()["latency"], config.widths.activation
    low, high = (-255, 255) if config.wide_activations else (-128, 127)
    await start(dut)
    rows, words, results, starts = schedule(n, 60, low, high, config.depthwise_taps)
    for cycle in range(max(rows) + latency + 1):
        dut.a.value = pack(rows[cycle], width) if cycle in rows else random.getrandbits(width * n)
        dut.b.value = pack(words[cycle], 8) if cycle in words else random.getrandbits(8 * n)
        dut.latch.value = int((cycle, 0) in starts)
        dut.swap.value = int((cycle, 1) in starts)
        if config.depthwise_taps:
            dut.valid.value = int(cycle in rows)
            dut.depthwise.value = int(starts.get((cycle, 2), random.getrandbits(1)))
            dut.start.value = int(starts.get((cycle, 3), random.getrandbits(1)))
        if cycle - latency in results:
            seen = unpack(int(dut.c.value), n, config.widths.psum)
            assert seen == results[cycle - latency].tolist(), f"the row of cycle {cycle - latency}"
        await FallingEdge(dut.clk)
