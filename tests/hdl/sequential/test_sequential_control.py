"""The sequential core's subordinate, with a model of the data memory that its registers are in."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest
from cocotb.triggers import FallingEdge, ReadOnly, RisingEdge
from support.control_bench import PATIENCE, ControlBench

from weft.hdl.control.counters import WORDS
from weft.hdl.isa import BASES
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Reg, base_register
from weft.hdl.sequential.control import REGISTERS, Control
from weft.hdl.sequential.core import COUNTED
from weft.sim.rtl.bench import bench_parameters, run_bench

CONFIG = PRESETS["tiny"]
KEPT = {Reg.PROGRAM >> 2, *(base_register(index) >> 2 for index in range(BASES))}


class Bench(ControlBench):
    """Data memory that is busy in `stall` of all cycles, and counters that are whole in some."""

    def __init__(self, dut: Any, stall: float) -> None:
        super().__init__(dut, CONFIG.digest, COUNTED)
        self.stall = stall
        self.memory = [random.getrandbits(32) for _ in range(REGISTERS)]

    async def pass_counters(self) -> None:
        dut = self.dut
        cocotb.start_soon(self._serve())
        while True:
            for counter in self.counted:
                for word in (2 * counter, 2 * counter + 1):
                    await self._pass(word, random.getrandbits(32), 0)
                    await self._pass(word, self.passes(word), 1)
                await FallingEdge(dut.clk)

    async def _pass(self, word: int, value: int, complete: int) -> None:
        await FallingEdge(self.dut.clk)
        self.dut.counter.value = word
        self.dut.counter_value.value = value
        self.dut.counter_complete.value = complete

    async def _serve(self) -> None:
        dut, memory = self.dut, self.memory
        read: int | None = None
        while True:
            # What was read is there for one cycle only.
            dut.read_data.value = random.getrandbits(32) if read is None else read
            dut.write_ready.value = random.random() >= self.stall
            dut.read_ready.value = 0
            free = random.random() >= self.stall
            await FallingEdge(dut.clk)
            dut.read_ready.value = free and int(dut.read_valid.value)
            await ReadOnly()
            read = memory[int(dut.read_address.value)] if dut.read_ready.value else None
            if dut.write_valid.value:
                address = int(dut.write_address.value)
                assert address in KEPT
                if dut.write_ready.value:
                    strobe = int(dut.write_strobe.value)
                    mask = sum(0xFF << 8 * lane for lane in range(4) if strobe >> lane & 1)
                    memory[address] = memory[address] & ~mask | int(dut.write_data.value) & mask
            await RisingEdge(dut.clk)


async def start(dut: Any) -> Bench:
    bench = Bench(dut, bench_parameters()["stall"])
    await bench.reset()
    return bench


@cocotb.test(**PATIENCE)
async def bench_registers(dut: Any) -> None:
    """Registers in data memory exist, and the rest of data memory is unchanged."""
    bench = await start(dut)
    before = list(bench.memory)
    expected = await bench.check_registers()
    for register, value in expected.items():
        if register >> 2 in KEPT:
            before[register >> 2] = value
    assert bench.memory == before
    assert {register >> 2 for register in expected} == KEPT | {Reg.WATCHDOG >> 2}


@cocotb.test(**PATIENCE)
async def bench_run(dut: Any) -> None:
    await (await start(dut)).check_runs()


@cocotb.test(**PATIENCE)
async def bench_settling(dut: Any) -> None:
    await (await start(dut)).check_settling()


@cocotb.test(**PATIENCE)
async def bench_finish_with_error(dut: Any) -> None:
    """An unknown opcode is known in the cycle in which the program ends."""
    bench = await start(dut)
    for error in (1, 0):
        await bench.master.write_dword(Reg.CONTROL, 1)
        dut.finished.value, dut.opcode_error.value = 1, error
        await RisingEdge(dut.clk)
        dut.finished.value = dut.opcode_error.value = 0
        for _ in range(WORDS + 8):
            await RisingEdge(dut.clk)
        assert await bench.read(Reg.STATUS) == 2 | error << 3


@pytest.mark.drawn(1)
@pytest.mark.parametrize("stall", [0.0, 0.7])
def test_sequential_control(stall: float) -> None:
    run_bench(Control(CONFIG, COUNTED), parameters={"stall": stall})
