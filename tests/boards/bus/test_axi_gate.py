# amaranth: UnusedElaboratable=no
"""The gate between a master that is reset within its bursts and a memory, neither of which was written here."""

from __future__ import annotations

import random

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.clock import Clock
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiBus, AxiMaster, AxiRam
from support.axi_models import Steady, channels, pauses

from weft.boards.bus.axi import OUTSTANDING, WRITES, AxiGate
from weft.hdl.bus.axi import axi4_signature
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.rtl.bench import run_bench

BYTES = 1 << 14
ENDS = 4 * OUTSTANDING * WRITES
"""Cycles in which memory has done what it was asked for, however it pauses."""


class Bench(wiring.Component):
    """An `AxiGate` whose memory side is called ``axi``, and a reset for the master alone."""

    def __init__(self, config: Config) -> None:
        self.config = config
        ports = {"port": In(axi4_signature(config)), "axi": Out(axi4_signature(config))}
        super().__init__({**ports, "close": In(1), "idle": Out(1), "master_rst": In(1), "seen": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.gate = gate = AxiGate(self.config)
        wiring.connect(m, wiring.flipped(self.port), gate.port)
        wiring.connect(m, gate.memory, wiring.flipped(self.axi))
        m.d.comb += [gate.close.eq(self.close), self.idle.eq(gate.idle), self.seen.eq(self.master_rst)]
        return m


class Setup:
    def __init__(self, dut, stall: float) -> None:
        self.dut, self.stall = dut, stall
        cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
        dut.close.value, dut.master_rst.value, dut.rst.value = 0, 1, 1
        self.ram = AxiRam(AxiBus.from_prefix(dut, "axi_"), dut.clk, dut.rst, size=BYTES)
        self.master = AxiMaster(AxiBus.from_prefix(dut, "port_"), dut.clk, dut.master_rst)
        self.contents = bytearray(random.randbytes(BYTES))
        self.ram.write(0, bytes(self.contents))
        self.asked = self.answered = 0
        cocotb.start_soon(self.watch())

    async def watch(self) -> None:
        """Hold the gate to AXI4, and count what memory was asked for and has answered."""
        steady = Steady(self.dut)
        while True:
            await ReadOnly()
            if not self.dut.rst.value:
                steady.check()
                took = {
                    channel: bool(getattr(self.dut, f"axi__{channel}valid").value)
                    and bool(getattr(self.dut, f"axi__{channel}ready").value)
                    for channel in ("ar", "aw", "r", "b")
                }
                self.asked += took["ar"] + took["aw"]
                self.answered += (took["r"] and bool(self.dut.axi__rlast.value)) + took["b"]
            await RisingEdge(self.dut.clk)

    def pause(self, model, rate: float) -> None:
        for channel in channels(model):
            channel.set_pause_generator(pauses(rate))

    def stick(self, stuck: bool) -> None:
        for channel in channels(self.master):
            channel.pause = stuck

    async def release(self) -> None:
        await RisingEdge(self.dut.clk)
        self.dut.rst.value = self.dut.master_rst.value = 0
        self.pause(self.ram, self.stall)
        await RisingEdge(self.dut.clk)

    async def close(self) -> None:
        """Close the gate, reset the master once it is idle, and open it again."""
        self.dut.close.value = 1
        for _ in range(ENDS):
            await RisingEdge(self.dut.clk)
            if self.dut.idle.value:
                break
        else:
            raise AssertionError("the gate does not get idle")
        assert self.asked == self.answered
        self.dut.master_rst.value = 1
        for _ in range(3):
            await RisingEdge(self.dut.clk)
        self.dut.close.value = self.dut.master_rst.value = 0
        await RisingEdge(self.dut.clk)
        await RisingEdge(self.dut.clk)

    async def check(self) -> None:
        """Check a write and a read."""
        for _ in range(4):
            at, size = random.randrange(BYTES // 2), random.randrange(1, 600)
            payload = random.randbytes(size)
            await self.master.write(at, payload, awid=random.randrange(2))
            read = await self.master.read(at, size, arid=random.randrange(2))
            assert read.data == payload


@cocotb.test(timeout_time=400, timeout_unit="us")
@cocotb.parametrize(stall=[0.0, 0.4])
async def bench_passes(dut, stall):
    """Open, it changes nothing."""
    setup = Setup(dut, stall)
    await setup.release()
    setup.pause(setup.master, stall)
    for _ in range(8):
        await setup.check()


@cocotb.test(timeout_time=400, timeout_unit="us")
@cocotb.parametrize(stall=[0.0, 0.4], stuck=[False, True])
async def bench_resets(dut, stall, stuck):
    """A master is reset in the middle of anything; if it is `stuck`, it takes and gives no more words by then."""
    setup = Setup(dut, stall)
    await setup.release()
    for _ in range(6):
        tasks = [
            cocotb.start_soon(
                setup.master.read(random.randrange(BYTES // 2), random.randrange(1, 2000), arid=index % 2)
            )
            for index in range(random.randrange(4))
        ]
        tasks += [
            cocotb.start_soon(
                setup.master.write(random.randrange(BYTES // 2), random.randbytes(random.randrange(1, 2000)))
            )
            for _ in range(random.randrange(4))
        ]
        for _ in range(random.randrange(300)):
            await RisingEdge(dut.clk)
        if stuck:
            setup.stick(True)
        for _ in range(random.randrange(3)):
            await RisingEdge(dut.clk)
        await setup.close()
        setup.stick(False)
        for task in tasks:
            task.cancel()
        await setup.check()
        assert setup.ram.read(BYTES // 2 + 2000, 100) == bytes(setup.contents[BYTES // 2 + 2000 :][:100])


@pytest.mark.parametrize("name", ["tiny"])
def test_axi_gate(name: str) -> None:
    run_bench(Bench(PRESETS[name]))
