"""The counters against a dictionary of sums."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.triggers import FallingEdge
from support.unit_bench import start

from weft.hdl.control.counters import WORDS, Counters
from weft.hdl.isa.memmap import Counter
from weft.sim.rtl.bench import bench_parameters, run_bench


@cocotb.test()
async def bench_counters(dut: Any) -> None:
    """Several runs, each cleared at the start; exact once settled, and unchanged while not enabled."""
    await start(dut, clear=0, enable=0, event=0, row=0, write=0)
    for length in (1, 5, 40, 300, 2000):
        for _ in range(random.randrange(WORDS)):
            await FallingEdge(dut.clk)
        # Events that have not settled are cleared with the rest.
        dut.enable.value, dut.event.value = 1, (1 << len(Counter)) - 1
        for _ in range(random.randrange(1, 5)):
            await FallingEdge(dut.clk)
        dut.enable.value = 0
        dut.clear.value = 1
        dut.event.value = random.randrange(1 << len(Counter))
        await FallingEdge(dut.clk)
        dut.clear.value = 0
        expected = [0] * len(Counter)
        rates = [random.choice([0.02, 0.5, 1.0]) for _ in Counter]
        rows: list[int] = []
        writes: list[int] = []
        array_rate = random.choice([0.02, 0.5])
        for cycle in range(length):
            row, write = random.random() < array_rate, bool(rows) and random.random() < array_rate
            event = sum((random.random() < rate) << index for index, rate in enumerate(rates))
            enable = bool(rows) or random.random() < 0.9  # stays on within the window, as in a run
            dut.event.value = event
            dut.row.value = row
            dut.write.value = write
            if enable:
                rows += [cycle] * row
                writes += [cycle] * write
            dut.enable.value = enable
            for index in range(len(Counter)):
                expected[index] += enable and event >> index & 1
            await FallingEdge(dut.clk)
        expected[Counter.ARRAY_WINDOW] = writes[-1] - rows[0] + 1 if writes else 0
        dut.enable.value = 0
        for _ in range(2 * WORDS + 1):
            await FallingEdge(dut.clk)
        for _ in range(2):
            values: dict[int, int] = {}
            for _ in range(2 * WORDS):
                await FallingEdge(dut.clk)
                if dut.complete.value:
                    values[int(dut.index.value)] = int(dut.value.value)
            counted = bench_parameters()["counted"]
            assert len(values) == 2 * len(counted)
            for counter in map(Counter, counted):
                value = values[2 * counter] | values[2 * counter + 1] << 32
                assert value == expected[counter], (counter, length)


def test_counters() -> None:
    run_bench(Counters(), parameters={"counted": list(Counter)})


def test_some_counters_in_a_narrow_memory() -> None:
    counted = (Counter.CYCLES, Counter.READ_BEATS, Counter.VEC_BUSY)
    run_bench(Counters(counted, bits=16), parameters={"counted": list(counted)})
