"""Compiled networks on both cores with third-party AXI models: all of memory must match the golden interpreter.
Payloads without VALID are random in Verilator, and X in Icarus Verilog."""

from __future__ import annotations

import random
import shutil
from typing import Any

import cocotb
import numpy as np
import pytest
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, First, RisingEdge
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam
from support.axi_models import Beats, IdlePayloads, channels, pauses
from support.op_cases import random_mixture

from weft.compiler.backend import compile_segment
from weft.hdl.core import Core
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import MAGIC, Counter, Reg, Status, base_register, counter_register
from weft.hdl.sequential.core import SequentialCore
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.bench import bench_parameters, run_bench

CONFIG = PRESETS["tiny"]
CYCLES = 400_000
"""No network takes more, whatever pauses there are."""


class Recorded(GoldenDevice):
    """Keeps what a program found: memory, base registers and the address of the program."""

    def start(self, program: int) -> None:
        self.before, self.program = self.read(0, self.memory_bytes), program
        super().start(program)


def golden_run(seed: int) -> Recorded:
    """Operators of each other's results, as the golden interpreter computes them from random memory."""
    rng = np.random.default_rng(seed)
    segment, inputs = random_mixture(rng, side=4, channels=6, products=True)
    image = Image(compile_segment(segment, CONFIG))
    device = Recorded(CONFIG, image.memory_bytes)
    device.write(0, rng.bytes(device.memory_bytes))
    image.run(device, inputs)
    return device


class Bench:
    """The core with a memory and a host; begin with `reset`."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        cocotb.start_soon(Clock(dut.clk, 2, "ns").start())

    async def reset(self, memory_bytes: int, *, unknown: bool) -> None:
        dut = self.dut
        dut.rst.value = 1
        await ClockCycles(dut.clk, 2)
        self.ram = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, size=memory_bytes)
        self.host = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        IdlePayloads(dut, unknown=unknown)
        self.beats = Beats(dut)
        assert await self.host.read_dword(Reg.MAGIC) == MAGIC

    def pause(self, rate: float) -> None:
        """Let all channels pause from now on, each in another share of the cycles, `rate` at most."""
        for channel in (*channels(self.ram), *channels(self.host)):
            channel.set_pause_generator(pauses(random.random() * rate))

    async def run(self, golden: Recorded) -> dict[Counter, int]:
        """Run a program on the memory that the golden interpreter found; returns the counters."""
        self.ram.write(0, golden.before)
        for base, address in enumerate(golden.memories.bases):
            await self.host.write_dword(base_register(base), address)
        await self.host.write_dword(Reg.PROGRAM, golden.program)
        self.beats.clear()
        await self.host.write_dword(Reg.CONTROL, 1)
        while int(self.dut.irq.value):
            await RisingEdge(self.dut.clk)
        await First(RisingEdge(self.dut.irq), ClockCycles(self.dut.clk, CYCLES))
        assert await self.host.read_dword(Reg.STATUS) == Status.DONE
        return {counter: await self.host.read_qword(counter_register(counter)) for counter in Counter}


@cocotb.test()
async def bench_networks(dut: Any) -> None:
    """Memory is the golden interpreter's, and counters have the beats that were on the bus."""
    parameters = bench_parameters()
    runs = [(golden_run(seed), rate) for seed, rate in parameters["runs"]]
    bench = Bench(dut)
    await bench.reset(max(golden.memory_bytes for golden, _ in runs), unknown=parameters["icarus"])
    for golden, rate in runs:
        bench.pause(rate)
        counters = await bench.run(golden)
        beats = bench.beats
        assert (counters[Counter.READ_BEATS], counters[Counter.WRITE_BEATS]) == (beats.read, beats.written)
        busy = [counters[counter] for counter in Counter if counter.name.endswith("_BUSY")]
        assert all(
            0 < cycles < counters[Counter.CYCLES] for cycles in [*busy, counters[Counter.ARRAY_ACTIVE]]
        )
        memories = bench.ram.read(0, golden.memory_bytes), golden.read(0, golden.memory_bytes)
        found, expected = (np.frombuffer(memory, np.uint8) for memory in memories)
        wrong = np.flatnonzero(found != expected)
        assert not wrong.size, f"{wrong.size} bytes differ, the first at {wrong[0]:#x}"
        assert found.tobytes() != golden.before


SIMULATORS = pytest.mark.parametrize(
    "icarus",
    [
        pytest.param(False, id="verilator"),
        pytest.param(
            True,
            marks=pytest.mark.skipif(not shutil.which("iverilog"), reason="Icarus Verilog is not installed"),
            id="icarus",
        ),
    ],
)
"""Icarus Verilog has X, but comes from no package index: its tests run where it is."""


def runs(*cases: tuple[int, float], long: range) -> pytest.MarkDecorator:
    """Networks by their seeds, and the largest share of cycles in which channels pause."""
    rest = [(seed, 0.2 * (seed % 5)) for seed in long]
    return pytest.mark.parametrize(
        "runs", [cases, pytest.param(rest, marks=pytest.mark.long)], ids=["few", "many"]
    )


@SIMULATORS
@runs((7, 0.0), (10, 0.8), long=range(100, 110))
def test_compiled_programs(runs: list[tuple[int, float]], icarus: bool) -> None:
    run_bench(Core(CONFIG), parameters={"runs": runs, "icarus": icarus}, icarus=icarus)


@SIMULATORS
@runs((9, 0.8), long=range(100, 104))
def test_compiled_programs_on_the_sequential_core(runs: list[tuple[int, float]], icarus: bool) -> None:
    core = SequentialCore(CONFIG.replace(depthwise_taps=0))
    run_bench(core, parameters={"runs": runs, "icarus": icarus}, icarus=icarus)
