# amaranth: UnusedElaboratable=no
"""The gate: transfers through it stay whole, and closed and idle it passes nothing."""

from __future__ import annotations

import random

import cocotb
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import ReadOnly, RisingEdge
from support.memory_driver import MemoryDriver, burst, random_bursts, reset

from weft.boards.bus.block_memory import BlockMemory
from weft.boards.bus.port import Arbiter, Gate, memory_port
from weft.sim.rtl.bench import run_bench

WIDTH, SIZE = 8, 1 << 13


class Gated(wiring.Component):
    """A gate in front of a memory that takes many commands, and whether anything happens between the two."""

    def __init__(self) -> None:
        self.gate, self.memory = Gate(WIDTH), BlockMemory(WIDTH, SIZE)
        self.arbiter = Arbiter(WIDTH, 1, commands=16)
        super().__init__(
            {"bus": In(memory_port(WIDTH)), "close": In(1), "idle": Out(1), "asks": Out(1), "answers": Out(1)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.gate, m.submodules.memory, m.submodules.arbiter = self.gate, self.memory, self.arbiter
        wiring.connect(m, wiring.flipped(self.bus), self.gate.port)
        inner = self.arbiter.port[0]
        wiring.connect(m, self.gate.memory, inner)
        wiring.connect(m, self.arbiter.memory, self.memory.bus)
        m.d.comb += [
            self.gate.close.eq(self.close),
            self.idle.eq(self.gate.idle),
            self.asks.eq(inner.command.valid),
            self.answers.eq(inner.read.valid | inner.written),
        ]
        return m


@cocotb.test()
async def bench_gate(dut):
    dut.close.value = 0
    driver = MemoryDriver(dut, WIDTH)
    await reset(dut)
    contents = bytearray(SIZE)
    every = [burst(contents, WIDTH, True, at, 256, full=True) for at in range(0, SIZE, 256 * WIDTH)]
    await driver.run(every)
    driver.stall = 0.2
    work = cocotb.start_soon(driver.run(random_bursts(contents, WIDTH, 150, longest=64)))
    pauses = 0
    while not work.done():
        for _ in range(random.choice((1, 20, 300))):
            await RisingEdge(dut.clk)
        dut.close.value = 1
        for _ in range(4000):
            await ReadOnly()
            assert not dut.asks.value
            if dut.idle.value:
                break
            await RisingEdge(dut.clk)
        else:
            raise AssertionError("memory does not come to rest")
        for _ in range(random.choice((1, 30))):
            assert dut.idle.value
            assert not dut.asks.value
            assert not dut.answers.value
            await RisingEdge(dut.clk)
            await ReadOnly()
        await RisingEdge(dut.clk)
        dut.close.value = 0
        pauses += 1
    assert pauses > 5
    await work


def test_gate() -> None:
    run_bench(Gated())
