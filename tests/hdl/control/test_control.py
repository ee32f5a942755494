"""The register file, driven by an AXI4-Lite master that was not written here."""

from __future__ import annotations

from typing import Any

import cocotb
from support.control_bench import PATIENCE, ControlBench

from weft.hdl.control.control import Control
from weft.hdl.isa import BASES
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Reg, base_register
from weft.sim.rtl.bench import run_bench

CONFIG = PRESETS["tiny"]


async def start(dut: Any) -> ControlBench:
    bench = ControlBench(dut, CONFIG.digest)
    await bench.reset()
    return bench


@cocotb.test(**PATIENCE)
async def bench_registers(dut: Any) -> None:
    expected = await (await start(dut)).check_registers()
    assert int(dut.program.value) == expected[Reg.PROGRAM]
    for index in range(BASES):
        assert int(dut.bases.value) >> 32 * index & 0xFFFFFFFF == expected[base_register(index)]


@cocotb.test(**PATIENCE)
async def bench_run(dut: Any) -> None:
    await (await start(dut)).check_runs()


@cocotb.test(**PATIENCE)
async def bench_settling(dut: Any) -> None:
    await (await start(dut)).check_settling()


def test_control() -> None:
    run_bench(Control(CONFIG))
