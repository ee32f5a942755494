# amaranth: UnusedElaboratable=no
"""A core's port on SDRAM: bridge, arbiter, controller and chip together."""

from __future__ import annotations

import dataclasses
import random

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiBus, AxiMaster
from support.axi_models import channels, pauses
from support.memory_driver import MemoryDriver, burst, move_bursts, random_bursts, reset
from support.mostly_long import mostly_long

from weft.boards.bus.axi import AxiBridge
from weft.boards.bus.port import Arbiter, memory_port
from weft.boards.flash.model import broken_rules
from weft.boards.sdram.chip import SdramTiming
from weft.boards.sdram.controller import SdramController
from weft.boards.sdram.model import Rule, SdramModel
from weft.hdl.bus.axi import axi4_signature
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.rtl.bench import bench_parameters, run_bench

CLOCK = 100e6
TIMING = dataclasses.replace(SdramTiming(), power_up=400.0)
ROW_BITS = 3
BYTES = 2 << (ROW_BITS + 9 + 2)
OTHER = BYTES // 2
"""The second port's half."""


class Board(wiring.Component):
    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "axi": In(axi4_signature(config)),
                "other": In(memory_port(config.bus_bytes)),
                "violation": Out(len(Rule)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = self.config.bus_bytes
        m.submodules.bridge = bridge = AxiBridge(self.config)
        m.submodules.arbiter = arbiter = Arbiter(width, 2)
        m.submodules.sdram = sdram = SdramController(width, CLOCK, TIMING, row_bits=ROW_BITS)
        m.submodules.chip = chip = SdramModel(CLOCK, TIMING, row_bits=ROW_BITS)
        wiring.connect(m, wiring.flipped(self.axi), bridge.axi)
        wiring.connect(m, bridge.memory, arbiter.port[0])
        wiring.connect(m, wiring.flipped(self.other), arbiter.port[1])
        wiring.connect(m, arbiter.memory, sdram.bus)
        wiring.connect(m, sdram.pads, chip.pads)
        m.d.comb += self.violation.eq(chip.violation)
        return m


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def bench_random(dut, stall):
    """A master that was not written here, and another port, each with half of the memory."""
    width = Config.from_dict(bench_parameters()["config"]).bus_bytes
    dut.rst.value = 1
    master = AxiMaster(AxiBus.from_prefix(dut, "axi_"), dut.clk, dut.rst)
    driver = MemoryDriver(dut, width, name="other", stall=stall)
    await reset(dut)
    if stall:
        for channel in channels(master):
            channel.set_pause_generator(pauses(stall))

    async def use_axi():
        expected = bytearray(random.randbytes(OTHER))
        await master.write(0, bytes(expected))
        for _ in range(12):
            at = random.randrange(OTHER)
            data = random.randbytes(min(random.choice((1, random.randint(1, 100), 3000)), OTHER - at))
            await master.write(at, data)
            expected[at : at + len(data)] = data
            at = at // width * width
            length = min(random.choice((width, random.randint(1, 200), 3000)), OTHER - at)
            assert (await master.read(at, length, arid=1)).data == expected[at : at + length]

    async def use_other():
        contents = bytearray(OTHER)
        beats = 256 // width
        fill = [burst(contents, width, True, at, beats, full=True) for at in range(0, OTHER, 256)]
        await driver.run(move_bursts(fill, OTHER, OTHER))
        await driver.run(move_bursts(random_bursts(contents, width, 60, longest=32), OTHER, OTHER))

    for task in [cocotb.start_soon(use_axi()), cocotb.start_soon(use_other())]:
        await task
    assert broken_rules(Rule, int(dut.violation.value)) == []


@cocotb.test()
@cocotb.parametrize(kinds=[("ar",), ("aw",), ("ar", "aw")])
async def bench_bandwidth(dut, kinds):
    """Bursts of 1 KB through everything, and of both kinds at once."""
    width = Config.from_dict(bench_parameters()["config"]).bus_bytes
    for name in ("awvalid", "wvalid", "arvalid"):
        getattr(dut, f"axi__{name}").value = 0
    dut.other__command__valid.value = dut.other__write__valid.value = 0
    dut.axi__rready.value = dut.axi__bready.value = 1
    dut.axi__wstrb.value = (1 << width) - 1
    await reset(dut)
    beats = 1024 // width
    address = {"ar": 0, "aw": BYTES // 2}
    for channel in kinds:
        getattr(dut, f"axi__{channel}len").value = beats - 1
        getattr(dut, f"axi__{channel}addr").value = address[channel]
        getattr(dut, f"axi__{channel}valid").value = 1
    dut.axi__wvalid.value = "aw" in kinds
    counted = 0
    for cycle in range(9000):
        await ReadOnly()
        taken = [channel for channel in kinds if getattr(dut, f"axi__{channel}ready").value]
        if cycle >= 1000:
            counted += bool(dut.axi__rvalid.value)
            counted += bool("aw" in kinds and dut.axi__wready.value)
        await RisingEdge(dut.clk)
        for channel in taken:
            address[channel] = (address[channel] + 1024) % BYTES
            getattr(dut, f"axi__{channel}addr").value = address[channel]
    share = counted * width / 2 / 8000
    print(f"{width}-byte bus, {' and '.join(kinds)}: {share:.1%} of 2 bytes a cycle")
    assert share >= 0.85
    assert broken_rules(Rule, int(dut.violation.value)) == []


@pytest.mark.parametrize("bus", mostly_long([4, 16], 0))
def test_axi_sdram(bus):
    config = PRESETS["tiny"].replace(bus_bytes=bus)
    run_bench(Board(config), parameters={"config": config.to_dict()})
