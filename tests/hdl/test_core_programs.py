"""Compiled programs on the core, behind AXI models that were not written here, against the micro-ops' numpy."""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
import pytest
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, First, RisingEdge
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam
from support.axi_models import channels, pauses
from support.op_cases import random_chain

from weft.compiler.backend import compile_segment
from weft.compiler.interpret import run_ops
from weft.hdl.core import Core
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Reg, Status, base_register
from weft.runtime import Image
from weft.sim.rtl.bench import bench_parameters, run_bench

CONFIG = PRESETS["tiny"]


@cocotb.test()
async def bench_chain(dut: Any) -> None:
    """A residual block with concatenated branches: every buffer that is stored is as numpy says."""
    cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
    segment, inputs = random_chain(np.random.default_rng(bench_parameters()["seed"]), side=6, channels=6)
    program = compile_segment(segment, CONFIG, reuse=False)
    image = Image(program)
    ram = AxiRam(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, size=image.memory_bytes)
    master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
    for channel in channels(ram):
        channel.set_pause_generator(pauses(bench_parameters()["pauses"]))
    dut.rst.value = 1
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    ram.write(image.bases[0], program.constants + program.code)
    for name, array in inputs.items():
        ram.write(image.address(name), image.laid_out(name, array))
    for base, address in image.bases.items():
        await master.write_dword(base_register(base), address)
    await master.write_dword(Reg.PROGRAM, image.bases[0] + program.entry)
    await master.write_dword(Reg.CONTROL, 1)
    await First(RisingEdge(dut.irq), ClockCycles(dut.clk, 200_000))
    assert await master.read_dword(Reg.STATUS) == Status.DONE
    laid = {name: np.frombuffer(image.laid_out(name, array), np.int8) for name, array in inputs.items()}
    wanted = {
        name: value for name, value in (run_ops(segment, inputs) | laid).items() if name in program.offsets
    }
    assert wanted.keys() == program.offsets.keys()
    for name, expected in wanted.items():
        got = np.frombuffer(ram.read(image.address(name), expected.size), np.int8)
        assert np.array_equal(got, expected), f"buffer {name} differs"


@pytest.mark.parametrize("seed", range(4))
def test_compiled_programs(seed: int) -> None:
    run_bench(Core(CONFIG), parameters={"seed": seed, "pauses": 0.3 if seed % 2 else 0.0})
