"""Sums along the array's rows against numpy, between products of the usual kind, in any schedule."""

from __future__ import annotations

import cocotb
import pytest
from support.array_bench import drive
from support.families import models, multipliers

from weft.hdl.isa.config import Config
from weft.hdl.matrix.array import Array
from weft.sim.rtl.bench import run_bench


@cocotb.test()
async def bench_taps(dut):
    await drive(dut)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("n", "probability_bits", "family", "taps"),
    [
        (4, 8, "generic", 2),
        (8, 7, "generic", 3),
        (8, 8, "generic", 4),
        (4, 0, "ecp5", 2),
        (8, 8, "ecp5", 3),
        (4, 0, "ice40", 2),
        (8, 7, "ice40", 3),
        pytest.param(16, 8, "ecp5", 5, marks=pytest.mark.long),
        pytest.param(16, 8, "generic", 8, marks=pytest.mark.long),
    ],
)
def test_taps(n, probability_bits, family, taps):
    config = Config(n=n, lanes=1, probability_bits=probability_bits, depthwise_taps=taps)
    array = Array(config, multipliers(family))
    run_bench(array, parameters={"config": config.to_dict(), "latency": array.latency}, models=models(family))
