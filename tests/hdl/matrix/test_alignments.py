"""The alignment memory: both readers at once, in the cycle after the writer."""

from __future__ import annotations

import random

import cocotb
from cocotb.triggers import FallingEdge
from support.unit_bench import start

from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.matrix.mm import Alignments
from weft.sim.rtl.bench import bench_parameters, run_bench


@cocotb.test()
async def bench_alignments(dut):
    size = bench_parameters()["size"]
    await start(dut)
    model: dict[int, int] = {}
    expected: dict[tuple[int, str], int] = {}
    checks = 0
    for cycle in range(3000):
        await FallingEdge(dut.clk)
        for name in ("mm", "vec"):
            port = f"{name}__data"
            if (cycle, name) in expected:
                assert int(getattr(dut, port).value) == expected.pop((cycle, name)) & 63, f"{name} in {cycle}"
                checks += 1
            assert getattr(dut, f"{name}__ready").value
            reading = bool(model) and random.random() < 0.8
            address = random.choice(list(model)) if reading else random.randrange(size)
            if reading and random.random() < 0.5:
                address = next(reversed(model))  # written last
            getattr(dut, f"{name}__valid").value = reading
            getattr(dut, f"{name}__address").value = address
            if reading:
                expected[cycle + READ_LATENCY, name] = model[address]
        assert dut.write__ready.value
        writing = random.random() < 0.7
        address, data = random.randrange(size), random.randint(-31, 31)
        dut.write__valid.value = writing
        dut.write__address.value = address
        dut.write__data.value = data & 63
        if writing:
            model.pop(address, None)
            model[address] = data
    assert checks > 2000


def test_alignments():
    config = PRESETS["tiny"].replace(alignments=16)
    run_bench(Alignments(config), parameters={"size": config.alignments})
