"""The whole core with third-party AXI models, compared with numpy."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import numpy as np
import pytest
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, First, RisingEdge
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam
from support.axi_models import channels, pauses
from support.mostly_long import mostly_long

from weft.hdl.core import Core
from weft.hdl.isa import End, Instruction, Load, Mm, Source, Store, Vec
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import MAGIC, Counter, Reg, Status, base_register, counter_register
from weft.sim.rtl.bench import bench_parameters, run_bench

CONFIG = PRESETS["tiny"]
N = CONFIG.n
ROWS, STEPS = 7, 2
DEPTH = CONFIG.scratchpad_depth  # A, B, parameters and the result are in a bank each
A, B, PARAMETERS, RESULT, PROGRAM = 0x100, 0x1004, 0x2000, 0x3002, 0x4000


def program() -> list[Instruction]:
    """C = A B^T, requantised: every queue, in a chain of semaphores."""
    pitch = STEPS * N
    matrix = {
        "run": pitch,
        "row_pitch": pitch,
        "length": pitch,
        "pitch": pitch,
        "dst_vector": 1,
        "dst_row": STEPS,
    }
    return [
        Load(base=0, rows=ROWS, dst=0, signal=1 << 3, **matrix),
        Load(base=1, rows=N, dst=DEPTH, signal=1 << 4, **matrix),
        Load(base=2, run=8 * N, length=8 * N, pitch=8 * N, dst=2 * DEPTH, dst_vector=1, signal=1 << 15),
        Mm(
            wait=1 << 3 | 1 << 4, kc=STEPS, ox=ROWS, a=0, a_kc=1, a_ox=STEPS, b=DEPTH, b_kc=1, b_row=STEPS,
            c=5, c_ox=1, signal=1,
        ),
        Vec(
            wait=1 | 1 << 15, source=Source.ACCUMULATOR, ox=ROWS, src=5, src_ox=1, dst=3 * DEPTH, dst_ox=1,
            params=2 * DEPTH, zero=-3, low=-100, high=100, signal=1 << 1,
        ),
        Store(
            wait=1 << 1, base=3, pixels=ROWS, pitch=N + 1, length=N, src=3 * DEPTH, src_pixel=1,
        ),
        End(),
    ]  # fmt: skip


def requantise(c: np.ndarray, bias: np.ndarray, mantissa: np.ndarray, shift: np.ndarray) -> np.ndarray:
    quotient = np.rint((c.astype(np.int64) + bias) * mantissa / (1 << shift))  # exact: below 2**53
    return np.clip(quotient.astype(np.int64) - 3, -100, 100).astype(np.int8)


def parameter_block(bias: np.ndarray, mantissa: np.ndarray, shift: np.ndarray) -> bytes:
    words = (bias & 0xFFFFFFFF) | mantissa << 32 | shift << 56
    return b"".join(((words >> 8 * byte) & 0xFF).astype(np.uint8).tobytes() for byte in range(8))


class Bench:
    def __init__(self, dut: Any) -> None:
        self.dut = dut
        cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
        self.ram = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, size=1 << 16)
        self.master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
        rate = bench_parameters()["pauses"]
        if rate:
            for channel in (*channels(self.ram), *channels(self.master)):
                channel.set_pause_generator(pauses(rate))

    async def reset(self) -> None:
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        await ClockCycles(self.dut.clk, 4)

    async def run(self) -> None:
        await self.master.write_dword(Reg.CONTROL, 1)
        while int(self.dut.irq.value):
            await RisingEdge(self.dut.clk)
        await First(RisingEdge(self.dut.irq), ClockCycles(self.dut.clk, 20000))
        assert await self.master.read_dword(Reg.STATUS) == Status.DONE


@cocotb.test()
async def bench_program(dut: Any) -> None:
    """The program on several operands in turn; the bytes around the result stay as they were."""
    bench = Bench(dut)
    await bench.reset()
    assert await bench.master.read_dword(Reg.MAGIC) == MAGIC
    bench.ram.write(PROGRAM, b"".join(instruction.encode() for instruction in program()))
    await bench.master.write_dword(Reg.PROGRAM, PROGRAM)
    for index, address in enumerate((A, B, PARAMETERS, RESULT)):
        await bench.master.write_dword(base_register(index), address)
    generator = np.random.default_rng(random.randrange(1 << 32))
    for _ in range(4):
        a = generator.integers(-128, 128, (ROWS, STEPS * N), np.int8)
        b = generator.integers(-127, 128, (N, STEPS * N), np.int8)
        bias = generator.integers(-5000, 5000, N)
        mantissa = generator.integers(1 << 14, 1 << 15, N)
        shift = generator.integers(16, 24, N)
        bench.ram.write(A, a.tobytes())
        bench.ram.write(B, b.tobytes())
        bench.ram.write(PARAMETERS, parameter_block(bias, mantissa, shift))
        area = ROWS * (N + 1) + 32
        expected = np.frombuffer(random.randbytes(area), np.int8).copy()
        bench.ram.write(RESULT - 16, expected.tobytes())
        await bench.run()
        result = requantise(a.astype(np.int32) @ b.T.astype(np.int32), bias, mantissa, shift)
        for row in range(ROWS):
            expected[16 + row * (N + 1) :][:N] = result[row]
        assert bench.ram.read(RESULT - 16, area) == expected.tobytes()
        counters = {counter: await bench.master.read_qword(counter_register(counter)) for counter in Counter}
        assert counters[Counter.ARRAY_ACTIVE] == ROWS * STEPS
        assert ROWS * STEPS < counters[Counter.ARRAY_WINDOW] < counters[Counter.CYCLES]
        assert counters[Counter.VEC_SEMAPHORE] > 0


@pytest.mark.parametrize("rate", mostly_long([0.0, 0.4], 1))
def test_core(rate: float) -> None:
    run_bench(Core(CONFIG), parameters={"pauses": rate})
