"""How unit benches start."""

from __future__ import annotations

from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge


async def start(dut: Any, **inputs: int) -> None:
    """Start the clock, give `inputs` their values and reset for two cycles; returns at a falling edge."""
    cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
    for name, value in inputs.items():
        getattr(dut, name).value = value
    dut.rst.value = 1
    await FallingEdge(dut.clk)
    await FallingEdge(dut.clk)
    dut.rst.value = 0
