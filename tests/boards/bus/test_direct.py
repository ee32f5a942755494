# amaranth: UnusedElaboratable=no
"""The way from a sequential core's port to memory: what passes it, and that it does so at once."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiBus, AxiMaster, AxiResp
from support.memory_driver import reset
from support.mostly_long import mostly_long
from support.port_memory import BYTES, PortMemory

from weft.boards.bus.port import DirectBridge, memory_port
from weft.hdl.bus.axi import axi4_signature
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.rtl.bench import bench_parameters, run_bench

INPUTS = (
    "axi__arvalid", "axi__awvalid", "axi__wvalid", "axi__araddr", "axi__awaddr", "axi__wdata", "axi__wstrb",
    "memory__command__ready", "memory__write__ready", "memory__read__valid", "memory__read__payload", "memory__written",
)  # fmt: skip


class Clocked(wiring.Component):
    """A clock for models around a component without registers."""

    def __init__(self, config: Config) -> None:
        self.direct = DirectBridge(config)
        super().__init__(
            {"axi": In(axi4_signature(config)), "memory": Out(memory_port(config.bus_bytes)), "ticks": Out(8)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.direct = self.direct
        wiring.connect(m, wiring.flipped(self.axi), self.direct.axi)
        wiring.connect(m, self.direct.memory, wiring.flipped(self.memory))
        m.d.sync += self.ticks.eq(self.ticks + 1)
        return m


def width() -> int:
    return Config.from_dict(bench_parameters()["config"]).bus_bytes


@cocotb.test(timeout_time=500, timeout_unit="us")
@cocotb.parametrize(stall=[0.0, 0.6])
async def bench_accesses(dut: Any, stall: float) -> None:
    """Words and first parts of words, one after the other, each answered when memory is done with it."""
    memory = PortMemory(dut, width(), stall, longest=1)
    dut.memory__command__ready.value = dut.memory__write__ready.value = 0
    dut.memory__read__valid.value = dut.memory__written.value = 0
    dut.rst.value = 1
    master = AxiMaster(AxiBus.from_prefix(dut, "axi_"), dut.clk, dut.rst)
    await reset(dut)
    cocotb.start_soon(memory.run())
    expected = bytearray(memory.contents)
    writes = 0
    for _ in range(150):
        at, size = random.randrange(BYTES // memory.width) * memory.width, random.randint(1, memory.width)
        if random.random() < 0.5:
            data = random.randbytes(size)
            expected[at : at + size] = data
            assert (await master.write(at, data, awid=0)).resp is AxiResp.OKAY
            writes += 1
            assert memory.written == writes
            assert memory.contents == expected
        else:
            answer = await master.read(at, size, arid=0)
            assert answer.resp is AxiResp.OKAY
            assert answer.data == expected[at : at + size]
        assert memory.commands[-1][1] == at
    assert len(memory.commands) == 150


def expected_outputs(pins: dict[str, int], bus_bytes: int) -> dict[str, int]:
    """All outputs that matter, while not more than one of read and write is asked for."""
    writes = pins["axi__awvalid"]
    out = {
        "memory__command__valid": pins["axi__arvalid"] | writes,
        "memory__write__valid": pins["axi__wvalid"],
        "memory__read__ready": 1,
        "axi__wready": pins["memory__write__ready"],
        "axi__rvalid": pins["memory__read__valid"],
        "axi__bvalid": pins["memory__written"],
    }
    if out["memory__command__valid"]:
        address = pins["axi__awaddr"] if writes else pins["axi__araddr"]
        out["memory__command__payload"] = writes | address << 1 | 1 << 33
        out["axi__awready" if writes else "axi__arready"] = pins["memory__command__ready"]
    if pins["axi__wvalid"]:
        out["memory__write__payload"] = pins["axi__wdata"] | pins["axi__wstrb"] << 8 * bus_bytes
    if pins["memory__read__valid"]:
        out |= {"axi__rdata": pins["memory__read__payload"], "axi__rlast": 1, "axi__rresp": 0}
    if pins["memory__written"]:
        out["axi__bresp"] = 0
    return out


@cocotb.test()
async def bench_at_once(dut: Any) -> None:
    """Nothing takes a cycle, in either direction."""
    await reset(dut)
    bus = width()
    bits = {"axi__wdata": 8 * bus, "memory__read__payload": 8 * bus, "axi__wstrb": bus}
    for _ in range(500):
        pins = {
            name: random.getrandbits(bits.get(name, 32 if name.endswith("addr") else 1)) for name in INPUTS
        }
        pins["axi__arvalid"] &= ~pins["axi__awvalid"]
        for name, value in pins.items():
            getattr(dut, name).value = value
        await ReadOnly()
        expected = expected_outputs(pins, bus)
        assert {name: int(getattr(dut, name).value) for name in expected} == expected
        await RisingEdge(dut.clk)


@pytest.mark.parametrize("bus", mostly_long([4, 8], 0))
def test_direct(bus: int) -> None:
    config = PRESETS["tiny"].replace(bus_bytes=bus)
    run_bench(Clocked(config), parameters={"config": config.to_dict()})
