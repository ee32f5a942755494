"""The register file, driven by an AXI4-Lite master that was not written here."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from axi_models import channels, pauses
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from weft.hdl.config import PRESETS
from weft.hdl.control import Control
from weft.hdl.counters import WORDS
from weft.hdl.isa import BASES
from weft.hdl.memmap import MAGIC, SIZE, VERSION, Counter, Reg, Status, base_register, counter_register
from weft.sim.bench import run_bench

CONFIG = PRESETS["tiny"]


class Bench:
    """The master with random pauses, and counters of ``index << 32 | ~index`` that pass."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
        for name in ("finished", "bus_error", "opcode_error", "counter", "counter_value"):
            getattr(dut, name).value = 0
        self.master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
        for channel in channels(self.master):
            channel.set_pause_generator(pauses(random.choice([0.0, 0.5])))
        self.starts = 0

    async def reset(self) -> None:
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        await ClockCycles(self.dut.clk, 2)
        cocotb.start_soon(self._counters())
        cocotb.start_soon(self._starts())

    async def _counters(self) -> None:
        while True:
            for word in range(WORDS):
                await FallingEdge(self.dut.clk)
                index = word >> 1
                self.dut.counter.value = word
                self.dut.counter_value.value = index if word & 1 else ~index & 0xFFFFFFFF

    async def _starts(self) -> None:
        while True:
            await RisingEdge(self.dut.clk)
            self.starts += int(self.dut.start.value)

    async def read(self, address: int) -> int:
        return await self.master.read_dword(address)

    async def status(self) -> Status:
        return Status(await self.read(Reg.STATUS))


@cocotb.test()
async def bench_registers(dut: Any) -> None:
    """Identification, every register's write and read, byte strobes, reserved addresses, counters."""
    bench = Bench(dut)
    await bench.reset()
    assert await bench.read(Reg.MAGIC) == MAGIC
    assert await bench.read(Reg.VERSION) == VERSION
    assert await bench.read(Reg.CONFIG) == CONFIG.digest
    expected = dict.fromkeys([Reg.PROGRAM, *(base_register(index) for index in range(BASES))], 0)
    for _ in range(80):
        address = random.randrange(0, Reg.COUNTER + 4 * WORDS + 32)
        payload = random.randbytes(random.randrange(1, 5))
        if address // 4 * 4 <= Reg.CONTROL < address + len(payload):
            continue
        await bench.master.write(address, payload)
        for at, byte in enumerate(payload, address):
            register = at & ~3
            if register in expected:
                shift = 8 * (at & 3)
                expected[register] = expected[register] & ~(0xFF << shift) | byte << shift
    for register, value in expected.items():
        assert await bench.read(register) == value
    assert int(dut.program.value) == expected[Reg.PROGRAM]
    for index in range(BASES):
        assert int(dut.bases.value) >> 32 * index & 0xFFFFFFFF == expected[base_register(index)]
    for counter in random.sample(list(Counter), 6):
        assert await bench.read(counter_register(counter)) == ~counter & 0xFFFFFFFF
        assert await bench.read(counter_register(counter) + 4) == counter
    for address in (Reg.CONTROL, 0x18, 0x1C, Reg.BASE + 4 * BASES, Reg.COUNTER + 4 * WORDS, SIZE - 4):
        assert await bench.read(address) == 0
    assert await bench.read(Reg.MAGIC) == MAGIC
    assert bench.starts == 0


@cocotb.test()
async def bench_run(dut: Any) -> None:
    """Start, busy, a second start while busy, done, error bits and their clearing."""
    bench = Bench(dut)
    await bench.reset()
    assert await bench.status() == Status(0)
    for bus_error, opcode_error in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0)):
        bench.starts = 0
        await bench.master.write_dword(Reg.CONTROL, 1)
        assert await bench.status() == Status.BUSY
        assert int(dut.running.value) == 1
        assert int(dut.irq.value) == 0
        await bench.master.write_dword(Reg.CONTROL, 1)
        dut.bus_error.value = bus_error
        dut.opcode_error.value = opcode_error
        await RisingEdge(dut.clk)
        dut.bus_error.value = 0
        dut.opcode_error.value = 0
        errors = Status.BUS_ERROR * bus_error | Status.OPCODE_ERROR * opcode_error
        assert await bench.status() == Status.BUSY | errors
        dut.finished.value = 1
        await ClockCycles(dut.clk, 3)
        assert int(dut.running.value) == 0
        assert int(dut.irq.value) == 0, "done before the counters have settled"
        await ClockCycles(dut.clk, WORDS + 4)
        assert int(dut.irq.value) == 1
        dut.finished.value = 0
        assert await bench.status() == Status.DONE | errors
        assert bench.starts == 1
    await bench.master.write_dword(Reg.CONTROL, 2)
    await bench.master.write(Reg.CONTROL + 1, b"\x01")
    assert await bench.status() == Status.DONE


def test_control() -> None:
    run_bench(Control(CONFIG))
