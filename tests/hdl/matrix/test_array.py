"""The array against numpy: every schedule that its contract allows gives exact products."""

from __future__ import annotations

import cocotb
import pytest
from support.array_bench import drive
from support.families import models, multipliers

from weft.hdl.isa.config import Config
from weft.hdl.matrix.array import Array
from weft.sim.rtl.bench import run_bench


@cocotb.test()
async def bench_array(dut):
    await drive(dut)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("n", "probability_bits", "family"),
    [
        (2, 8, "generic"),
        (4, 8, "generic"),
        (4, 0, "generic"),
        pytest.param(8, 7, "generic", marks=pytest.mark.long),
        (2, 8, "ecp5"),
        (4, 0, "ecp5"),
        pytest.param(8, 8, "ecp5", marks=pytest.mark.long),
        pytest.param(16, 8, "ecp5", marks=pytest.mark.long),
        (2, 7, "ice40"),
        (4, 0, "ice40"),
    ],
)
def test_array(n, probability_bits, family):
    config = Config(n=n, lanes=1, probability_bits=probability_bits)
    array = Array(config, multipliers(family))
    run_bench(array, parameters={"config": config.to_dict(), "latency": array.latency}, models=models(family))
