"""Shared by unit benches: clock and reset, streams with random pauses, and a unit that executes instructions.

Random numbers come from `random`; `weft.sim.rtl.bench.run_bench` prints its seed.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly, RisingEdge
from cocotb.utils import get_sim_time

from weft.hdl.isa import register_fields
from weft.hdl.isa.config import Config
from weft.sim.rtl.bench import bench_parameters

PERIOD = 2
"""Nanoseconds of a clock cycle."""


def never() -> bool:
    """Yield no pause, for ever."""
    return False


async def start(dut: Any, *, edge: Any = FallingEdge, cycles: int = 2, **inputs: int) -> None:
    """Start the clock, set `inputs` and reset for some cycles; returns at `edge`."""
    cocotb.start_soon(Clock(dut.clk, PERIOD, "ns").start())
    for name, value in inputs.items():
        getattr(dut, name).value = value
    dut.rst.value = 1
    for _ in range(cycles):
        await edge(dut.clk)
    dut.rst.value = 0


async def stream_put(dut: Any, name: str, payload: int, stalls: Callable[[], bool] = never) -> None:
    """Send `payload` into the stream `name`, once it does not stall; from one rising edge to another."""
    while stalls():
        await RisingEdge(dut.clk)
    ready = getattr(dut, f"{name}__ready")
    getattr(dut, f"{name}__valid").value = 1
    getattr(dut, f"{name}__payload").value = payload
    taken = False
    while not taken:
        await ReadOnly()
        taken = bool(ready.value)
        await RisingEdge(dut.clk)
    getattr(dut, f"{name}__valid").value = 0


async def stream_get(
    dut: Any, name: str, stalls: Callable[[], bool] = never, fields: Sequence[str] = ("payload",)
) -> AsyncIterator[tuple[int, ...]]:
    """Yield the `fields` of all transfers of the stream `name`, each in its cycle, when signals are read-only."""
    valid, ready = (getattr(dut, f"{name}__{end}") for end in ("valid", "ready"))
    values = [getattr(dut, f"{name}__{field}") for field in fields]
    while True:
        ready.value = not stalls()
        await ReadOnly()
        if valid.value and ready.value:
            yield tuple(int(value.value) for value in values)
        await RisingEdge(dut.clk)


class Bench:
    """A unit whose ports pause in `stall` of all cycles; `config` comes from the bench's parameters."""

    def __init__(self, dut: Any, *, stall: float = 0.0) -> None:
        self.dut, self.stall = dut, stall
        self.config = Config.from_dict(bench_parameters()["config"])
        self.bases: list[int] = []

    async def start(self, **inputs: int) -> None:
        await start(self.dut, edge=RisingEdge, cycles=3, **inputs)

    @property
    def cycle(self) -> int:
        return int(get_sim_time("ns")) // PERIOD

    def base_inputs(self) -> dict[str, int]:
        """Return the inputs that give the unit `bases`: the bases, or with loops values that `execute` sends with each
        instruction."""
        if self.config.loops:
            return {"values": 0}
        return {"bases": sum(base << 32 * index for index, base in enumerate(self.bases))}

    def stalls(self) -> bool:
        return random.random() < self.stall

    async def requests(self, name: str) -> AsyncIterator[tuple[int, int]]:
        """Yield (address, beats) of all requests on the stream `name`, and check AXI's rules."""
        width = self.config.bus_bytes
        async for (word,) in stream_get(self.dut, name, self.stalls):
            address, beats = word & 0xFFFFFFFF, word >> 32
            assert 1 <= beats <= 256
            assert address % width == 0
            assert address // 4096 == (address + beats * width - 1) // 4096
            yield address, beats

    async def execute(self, instructions: Sequence[Any], limit: int, *, pause: bool = False) -> None:
        """Send `instructions`, with pauses between them if `pause`; returns when the unit is idle, after at most
        `limit` cycles."""
        for instruction in instructions:
            if self.config.loops:
                named = [
                    self.bases[getattr(instruction, name)] for name in register_fields(instruction.OPCODE)
                ]
                width = len(self.dut.values)
                self.dut.values.value = sum(value << 32 * k for k, value in enumerate(named[: width // 32]))
            word = int.from_bytes(instruction.encode(), "little")
            await stream_put(self.dut, "instruction", word, self.stalls if pause else never)
        for _ in range(limit):
            await RisingEdge(self.dut.clk)
            await ReadOnly()
            if not self.dut.busy.value:
                break
        else:
            raise AssertionError("the unit does not become idle")
        await RisingEdge(self.dut.clk)
