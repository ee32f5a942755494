"""Shared bench of both AXI4-Lite subordinates: a third-party master, and the expected register contents."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from support.axi_models import channels, pauses
from weft.hdl.control.counters import SETTLING_CYCLES, WORDS
from weft.hdl.isa import BASES
from weft.hdl.isa.memmap import (
    MAGIC,
    SIZE,
    STOP,
    VERSION,
    Counter,
    Fault,
    FaultUnit,
    Reg,
    Status,
    base_register,
    counter_register,
)

PATIENCE = {"timeout_time": 500, "timeout_unit": "us"}
"""Timeout of transfers: many times their usual length, so that a hanging transfer fails soon."""


class ControlBench:
    """An AXI4-Lite master with random pauses, and passing counters of ``index << 32 | ~index``.

    Parameters
    ----------
    dut
    digest : int
        Digest of the configuration.
    counted : sequence of Counter
        Counters that read other values than 0.
    """

    def __init__(self, dut: Any, digest: int, counted: Sequence[Counter] = tuple(Counter)) -> None:
        self.dut, self.digest, self.counted = dut, digest, counted
        cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
        for name in ("finished", "bus_error", "opcode_error", "moves", "fault", "counter", "counter_value"):
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
        cocotb.start_soon(self.pass_counters())
        cocotb.start_soon(self._count_starts())

    async def pass_counters(self) -> None:
        while True:
            for word in range(WORDS):
                await FallingEdge(self.dut.clk)
                self.dut.counter.value = word
                self.dut.counter_value.value = self.passes(word)

    @staticmethod
    def passes(word: int) -> int:
        """Return the value of one word of all counters."""
        return word >> 1 if word & 1 else ~(word >> 1) & 0xFFFFFFFF

    async def _count_starts(self) -> None:
        while True:
            await RisingEdge(self.dut.clk)
            self.starts += int(self.dut.start.value)

    async def read(self, address: int) -> int:
        return await self.master.read_dword(address)

    async def status(self) -> Status:
        return Status(await self.read(Reg.STATUS))

    async def check_registers(self) -> dict[int, int]:
        """Check identification, writes and reads of every register, byte strobes, reserved addresses, counters. Returns
        the registers' final contents by address."""
        assert await self.read(Reg.MAGIC) == MAGIC
        assert await self.read(Reg.VERSION) == VERSION
        assert await self.read(Reg.CONFIG) == self.digest
        expected = await self._write_registers()
        # Issue many at once: an answer must not get lost when the next one comes.
        for _ in range(4):
            order = random.sample(list(expected.items()), len(expected))
            reads = [(cocotb.start_soon(self.read(register)), value) for register, value in order]
            for read, value in reads:
                assert await read == value
        for counter in random.sample(list(Counter), 8):
            for half in range(2):
                passed = self.passes(2 * counter + half) if counter in self.counted else 0
                assert await self.read(counter_register(counter) + 4 * half) == passed
        for address in (Reg.CONTROL, 0x44, Reg.WATCHDOG + 4, Reg.COUNTER + 4 * WORDS, SIZE - 4):
            assert await self.read(address) == 0
        await self._check_fault()
        assert await self.read(Reg.MAGIC) == MAGIC
        assert self.starts == 0
        return expected

    async def _check_fault(self) -> None:
        for unit in FaultUnit:
            address, response, known = random.getrandbits(32), random.randrange(4), random.randrange(2)
            self.dut.fault.value = address | unit << 32 | response << 35 | known << 37
            found = Fault.of(await self.read(Reg.FAULT), await self.read(Reg.FAULT_ADDRESS))
            assert found == Fault(unit, response, address if known else None)
        self.dut.fault.value = 0

    async def _write_registers(self) -> dict[int, int]:
        registers = [Reg.PROGRAM, *(base_register(index) for index in range(BASES))]
        expected = {int(register): random.getrandbits(32) for register in registers}
        expected[Reg.WATCHDOG] = random.getrandbits(8)
        for register, value in expected.items():
            await self.master.write_dword(register, value)
        for _ in range(80):
            address = random.randrange(random.choice((Reg.WATCHDOG, Reg.COUNTER + 4 * WORDS)) + 32)
            payload = random.randbytes(random.randrange(1, 5))
            if address // 4 * 4 <= Reg.CONTROL < address + len(payload):
                continue
            await self.master.write(address, payload)
            for at, byte in enumerate(payload, address):
                register = at & ~3
                if register in expected:
                    shift = 8 * (at & 3)
                    expected[register] = expected[register] & ~(0xFF << shift) | byte << shift
        expected[Reg.WATCHDOG] &= 0xFF
        return expected

    async def check_runs(self) -> None:
        """Check start, busy, a second start while busy, done, and error bits and their clearing."""
        assert await self.status() == Status(0)
        for bus_error, opcode_error in ((0, 0), (1, 0), (0, 1), (1, 1), (0, 0)):
            for stopped in range(2):
                await self._run(bus_error, opcode_error, stopped)
        await self._run(0, 0, 0)
        await self.master.write_dword(Reg.CONTROL, 2)
        await self.master.write(Reg.CONTROL + 1, b"\x01")
        assert await self.status() == Status.DONE

    async def _run(self, bus_error: int, opcode_error: int, stopped: int) -> None:
        dut = self.dut
        self.starts = 0
        await self.master.write_dword(Reg.CONTROL, 1)
        assert await self.status() == Status.BUSY
        assert int(dut.running.value) == 1
        assert int(dut.irq.value) == 0
        await self.master.write_dword(Reg.CONTROL, 1)
        dut.bus_error.value = bus_error
        dut.opcode_error.value = opcode_error
        await RisingEdge(dut.clk)
        dut.bus_error.value = 0
        dut.opcode_error.value = 0
        if stopped:
            await self.master.write_dword(Reg.CONTROL, STOP)
        errors = Status.BUS_ERROR * bus_error | Status.OPCODE_ERROR * opcode_error | Status.STOPPED * stopped
        assert await self.status() == Status.BUSY | errors
        assert int(dut.stop.value) == (errors != 0)
        dut.finished.value = 1
        await ClockCycles(dut.clk, random.choice((1, 3)))
        dut.finished.value = 0
        await RisingEdge(dut.clk)
        assert int(dut.running.value) == 0
        assert int(dut.stop.value) == 0
        await self.master.write_dword(Reg.CONTROL, 1)
        await ClockCycles(dut.clk, WORDS + 8)
        assert int(dut.irq.value) == 1
        assert await self.status() == Status.DONE | errors
        assert self.starts == 1

    async def check_settling(self) -> None:
        """Check that a program is done when its counters have settled, and not before."""
        dut = self.dut
        await self.master.write_dword(Reg.CONTROL, 1)
        dut.finished.value = 1
        await RisingEdge(dut.clk)
        dut.finished.value = 0
        for _ in range(SETTLING_CYCLES - 3):
            await RisingEdge(dut.clk)
            assert int(dut.irq.value) == 0, "done before the counters have settled"
        await ClockCycles(dut.clk, 6)
        assert int(dut.irq.value) == 1
