# amaranth: UnusedElaboratable=no
"""Memories inside the FPGA: what is read, and a word per cycle."""

from __future__ import annotations

import re

import cocotb
import pytest
from support.memory_driver import MemoryDriver, burst, random_bursts, reset
from support.mostly_long import mostly_long

from weft.boards.bus.block_memory import SPRAM_BYTES, BlockMemory, Spram
from weft.boards.families.ice40 import sb_spram256ka
from weft.hdl.verilog import generate
from weft.sim.rtl.bench import bench_parameters, run_bench


@cocotb.test()
async def bench_random(dut):
    """Commands of all kinds, with pauses on every channel."""
    values = bench_parameters()
    width, size = values["bus"], values["size"]
    await reset(dut)
    contents = bytearray(size)
    driver = MemoryDriver(dut, width)
    beats = 4096 // width if width >= 16 else 256
    addresses = range(0, size, min(beats * width, size))
    await driver.run(
        [burst(contents, width, True, at, min(beats, size // width), full=True) for at in addresses]
    )
    for stall in (0.0, 0.3, 0.8):
        driver.stall = stall
        await driver.run(random_bursts(contents, width, 80))
    driver.stall = 0
    await driver.run([burst(contents, width, False, at, min(beats, size // width)) for at in addresses])


@cocotb.test()
async def bench_full_rate(dut):
    values = bench_parameters()
    width, size = values["bus"], values["size"]
    await reset(dut)
    contents = bytearray(size)
    for kinds in ([True], [False], [True, False]):
        driver = MemoryDriver(dut, width)
        bursts = [burst(contents, width, kinds[k % len(kinds)], 64 * width, 32, full=True) for k in range(20)]
        await driver.run(bursts)
        cycles = driver.last_cycle - driver.first_cycle + 1
        assert cycles <= 20 * 32 + 5, kinds


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("bus", "size"), [(4, 1 << 14), (16, 1 << 15), (8, 4096), (32, 64)])
def test_block_memory(bus, size):
    only = "bench_random" if size < 4096 else ""
    run_bench(BlockMemory(bus, size), parameters={"bus": bus, "size": size}, only=only)


@pytest.mark.parametrize("bus", mostly_long([4, 8], 0))
def test_spram(bus):
    run_bench(Spram(bus), parameters={"bus": bus, "size": SPRAM_BYTES})


def vendor_model() -> str:
    """``SB_SPRAM256KA`` of the cell library that comes with Yosys."""
    import pyosys

    for folder in pyosys.__path__:
        path = f"{folder}/share/ice40/cells_sim.v"
        with open(path) as file:
            model = re.search(r"module SB_SPRAM256KA.*?endmodule", file.read(), re.DOTALL)
        assert model, path
        text = re.sub(r"`ifdef ICE40_U.*?`endif", "", model.group(), flags=re.DOTALL)
        # Power is never off here, and clearing the whole array at once is beyond Verilator.
        text = re.sub(r"always @\(negedge POWEROFF\) begin.*?\n\tend\n", "", text, flags=re.DOTALL)
        return "/* verilator lint_off WIDTH */\n" + text + "\n"
    raise AssertionError("pyosys has no folder")


@pytest.mark.parametrize("bus", mostly_long([4, 8], 1))
def test_spram_of_the_family(bus, monkeypatch):
    """The RAMs of an iCE40UP5K, modelled by Yosys, behave alike."""
    model = vendor_model()

    def with_cells(component, *, name):
        return generate(component, name=name) + model

    monkeypatch.setattr("weft.sim.rtl.bench.generate", with_cells)
    run_bench(Spram(bus, sb_spram256ka), parameters={"bus": bus, "size": SPRAM_BYTES})


def test_sizes_that_cannot_be():
    with pytest.raises(ValueError, match=r"must be a power of two, at least 32 bytes, not 48"):
        BlockMemory(16, 48)
    with pytest.raises(ValueError, match=r"a bus of 4 or 8 bytes, not 16: choose 'bus_bytes' 4 or 8"):
        Spram(16)
