"""The scratchpad against bytes in Python."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest
from cocotb.triggers import FallingEdge
from support.unit_bench import start

from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential.core import Scratchpad
from weft.sim.rtl.bench import bench_parameters, run_bench

CYCLES = 3000


@cocotb.test()
async def bench_random(dut: Any) -> None:
    """Vectors are made, written whole or as columns, and read, in any order, on few addresses."""
    config = Config.from_dict(bench_parameters()["config"])
    n, size = config.n, config.scratchpad_size
    await start(dut)
    memory, made, vector = {}, bytes(n), None
    addresses = [0, 1, 2, size // 2 + 1, size - 1]
    for address in addresses:
        memory[address] = bytes(n)
    seen = 0
    for cycle in range(CYCLES):
        target = random.choice(addresses)
        write = random.choice(("", "", "write", "write_byte"))
        # Nobody reads what is written in the same cycle, nor adds to the vector while it turns.
        source = random.choice([address for address in addresses if address != target])
        read = random.random() < 0.5
        push = (cycle < n or random.random() < 0.6) and write != "write_byte"
        byte, column = random.getrandbits(8), random.randrange(n)
        for name, value in (
            ("push", push), ("byte", byte), ("write", write == "write"), ("write_byte", write == "write_byte"),
            ("write_address", target), ("column", column), ("read", read), ("read_address", source),
        ):  # fmt: skip
            getattr(dut, name).value = value
        await FallingEdge(dut.clk)
        if read:
            vector = memory[source]
        if write == "write":
            memory[target] = made
        elif write:
            memory[target] = memory[target][:column] + made[:1] + memory[target][column + 1 :]
            made = made[1:] + made[:1]
        if push:
            made = made[1:] + bytes([byte])
        if vector is not None and cycle > 2 * n:
            assert int(dut.vector.value).to_bytes(n, "little") == vector, f"cycle {cycle}"
            seen += any(vector)
    assert seen > CYCLES // 2


@pytest.mark.drawn(1)
@pytest.mark.parametrize("n", [2, 8])
def test_scratchpad(n: int) -> None:
    config = PRESETS["tiny"].replace(n=n, lanes=1, bus_bytes=8)
    run_bench(Scratchpad(config), parameters={"config": config.to_dict()})
