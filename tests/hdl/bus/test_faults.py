"""The log of addresses against queues in Python, with more bursts on their way than it keeps."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import cocotb
import pytest
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from weft.hdl.bus.axi import LOGGED_ADDRESSES, FaultLog
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import FaultUnit
from weft.sim.rtl.bench import bench_parameters, run_bench

SOURCES = ("fetch", "page", "load", "store")
CYCLES = 4000


class Source:
    """Bursts of one source: asked for in bunches, answered in order."""

    def __init__(self, dut: Any, name: str, align: int) -> None:
        self.dut, self.name, self.align = dut, name, align
        self.bursts: deque[int] = deque()
        self.eager = random.random()

    def drive(self, fails: float) -> tuple[int, int, int | None] | None:
        """Draw a cycle; returns unit, response and address of an error, which the log knows a cycle later."""
        if random.random() < 0.02:
            self.eager = random.random()
        asked = random.random() < self.eager and len(self.bursts) < 200
        address = random.randrange(1 << 32) >> self.align << self.align
        answered = bool(self.bursts) and random.random() < 0.5
        ended, failed = answered and random.random() < 0.7, answered and random.random() < fails
        response = random.randrange(1, 4)
        for member, value in (
            ("asked", asked), ("address", address), ("ended", ended), ("failed", failed), ("response", response)
        ):  # fmt: skip
            getattr(self.dut, f"{self.name}__{member}").value = int(value)
        oldest = self.bursts[0] if self.bursts else None
        if ended:
            self.bursts.popleft()
        if asked:
            self.bursts.append(address)
        if not failed:
            return None
        # The burst counts until the cycle behind its end, and one that is asked for meanwhile as well.
        known = len(self.bursts) + ended < LOGGED_ADDRESSES
        return FaultUnit[self.name.upper()], response, oldest if known else None


@cocotb.test()
async def bench_log(dut: Any) -> None:
    align = (PRESETS[bench_parameters()["config"]].bus_bytes - 1).bit_length()
    cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
    dut.rst.value, dut.clear.value = 1, 0
    sources = [Source(dut, name, align) for name in SOURCES]
    for source in sources:
        source.drive(0)
        source.bursts.clear()
    await ClockCycles(dut.clk, 2)
    await FallingEdge(dut.clk)
    dut.rst.value = 0
    first: tuple[int, int, int | None] | None = None
    told = unknown = 0
    for _ in range(CYCLES):
        drawn = [found for source in sources if (found := source.drive(0.05))]
        clears = random.random() < 0.1
        await RisingEdge(dut.clk)
        await FallingEdge(dut.clk)
        assert int(dut.error.value) == bool(drawn)
        dut.clear.value = clears
        for source in sources:
            for member in ("asked", "ended", "failed"):
                getattr(dut, f"{source.name}__{member}").value = 0
        await RisingEdge(dut.clk)
        first = None if clears else first or (drawn[0] if drawn else None)
        await FallingEdge(dut.clk)
        dut.clear.value = 0
        unit, response, address = first or (0, 0, None)
        fault = int(dut.fault.value)
        assert fault >> 32 == unit | response << 3 | (address is not None) << 5
        assert fault & 0xFFFFFFFF == (address or 0)
        told += first is not None
        unknown += first is not None and address is None
    assert told > CYCLES // 4
    assert unknown > 20


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["tiny", "xlarge"])
def test_faults(name: str) -> None:
    run_bench(FaultLog(PRESETS[name], SOURCES), parameters={"config": name})
